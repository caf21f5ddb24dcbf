use std::fmt;

use actix_kv_metrics::DpRank;
use thiserror::Error;

/// A page that does not say an engine's load.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PageError {
    /// A series is not there, of a rank that others speak of, or at all.
    #[error("`{series}` is missing{}", OfRank(.rank))]
    Missing {
        /// Which.
        series: &'static str,
        /// Of which rank; `None`: of any.
        rank: Option<DpRank>,
    },
    /// A value that is not one of its series: not finite, negative, or a share above 1.
    #[error("`{series}` is {value}")]
    Value {
        /// Which.
        series: &'static str,
        /// What it said.
        value: String,
    },
    /// A label's value is not a number.
    #[error("the label `{label}` of `{series}` is `{value}`")]
    Label {
        /// Of which series.
        series: &'static str,
        /// Which.
        label: &'static str,
        /// What it said, its beginning.
        value: String,
    },
    /// A line of the series is not Prometheus' text format.
    #[error("`{series}` in line {line} is not a sample")]
    Malformed {
        /// Which.
        series: &'static str,
        /// From 1 on.
        line: usize,
    },
    /// A series says two things of one rank.
    #[error("`{series}` is there twice for rank {rank}")]
    Twice {
        /// Which.
        series: &'static str,
        /// Of which rank.
        rank: DpRank,
    },
    /// Two models on the page, and none was asked for.
    #[error("the page is of several models: `{one}`, `{other}`")]
    SeveralModels {
        /// The first.
        one: String,
        /// Another.
        other: String,
    },
    /// More ranks than any engine has.
    #[error("`{series}` has too many ranks")]
    TooManyRanks {
        /// Which.
        series: &'static str,
    },
    /// It is not the JSON expected.
    #[error("not the JSON expected: {0}")]
    Json(String),
}

struct OfRank<'a>(&'a Option<DpRank>);

impl fmt::Display for OfRank<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(rank) => write!(f, " for rank {rank}"),
            None => Ok(()),
        }
    }
}

/// As much of a text as an error shows.
pub(super) fn clipped(text: &str) -> String {
    text.chars().take(64).collect()
}
