use std::fmt::Display;

use thiserror::Error;

/// A gateway can't start with these settings.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// It is not TOML, or a value is not what its key stands for.
    #[error("line {line}: {message}")]
    Toml {
        /// The line, from 1 on.
        line: usize,
        /// What is wrong. The line itself is not shown: there are secrets in the file.
        message: String,
    },
    /// Nothing reads these keys.
    #[error("unknown keys: {}", .0.join(", "))]
    UnknownKeys(Vec<String>),
    /// A setting of NATS that cannot be.
    #[cfg(feature = "nats")]
    #[error("nats.{0}")]
    Nats(#[from] actix_kv_metrics_nats::NatsConfigError),
    /// A value out of its bounds.
    #[error("{key} is {value}, but must be {bound}")]
    OutOfBounds {
        /// Which.
        key: String,
        /// What it was set to.
        value: String,
        /// What it may be.
        bound: String,
    },
}

impl ConfigError {
    pub(super) fn toml(error: &toml::de::Error, text: &str) -> Self {
        let begin = error.span().map_or(0, |span| span.start);
        let before = text.bytes().take(begin);
        Self::Toml {
            line: 1 + before.filter(|&byte| byte == b'\n').count(),
            message: error.message().to_owned(),
        }
    }

    pub(super) fn out_of_bounds(
        key: impl Into<String>,
        value: impl Display,
        bound: impl Into<String>,
    ) -> Self {
        Self::OutOfBounds {
            key: key.into(),
            value: value.to_string(),
            bound: bound.into(),
        }
    }
}
