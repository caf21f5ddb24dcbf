//! vLLM's response header `endpoint-load-metrics`, in the forms of Envoy's ORCA.

use serde::Deserialize;
use thiserror::Error;

/// What an engine says of its load with an answer: `TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.7`,
/// or `JSON {"named_metrics": {"num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.7}}`.
///
/// It is sent if the request has the header `endpoint-load-metrics-format` (`TEXT` or `JSON`) and the answer does not stream.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct ResponseLoad {
    /// Share of the KV cache in use, 0 to 1.
    pub kv_cache_usage: f64,
    /// Requests that wait.
    pub num_requests_waiting: u64,
}

/// A header that does not say an engine's load.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// It begins neither with `TEXT` nor with `JSON`, or does not go on as that should.
    #[error("not a load in the form TEXT or JSON")]
    Form,
    /// A figure is not there.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// A figure is not finite, negative, or a share above 1.
    #[error("`{name}` is {value}")]
    Value {
        /// Which.
        name: &'static str,
        /// What it said.
        value: String,
    },
}

const USAGE: &str = "kv_cache_usage_perc";
const WAITING: &str = "num_requests_waiting";

#[derive(Deserialize)]
struct Json {
    named_metrics: Named,
}

#[derive(Deserialize, Default)]
struct Named {
    #[serde(default)]
    kv_cache_usage_perc: Option<f64>,
    #[serde(default)]
    num_requests_waiting: Option<f64>,
}

impl ResponseLoad {
    /// Reads the header's value.
    ///
    /// # Errors
    ///
    /// [`HeaderError`]. Figures that are not known are passed over, of these two both must be there.
    pub fn from_header(value: &str) -> Result<Self, HeaderError> {
        let (form, load) = value.trim().split_once(' ').ok_or(HeaderError::Form)?;
        let named = match form {
            "TEXT" => of_text(load)?,
            "JSON" => {
                let json: Json = serde_json::from_str(load).map_err(|_| HeaderError::Form)?;
                json.named_metrics
            }
            _ => return Err(HeaderError::Form),
        };
        let usage = named
            .kv_cache_usage_perc
            .ok_or(HeaderError::Missing(USAGE))?;
        let waiting = named
            .num_requests_waiting
            .ok_or(HeaderError::Missing(WAITING))?;
        let within = |name, value: f64, most: f64| {
            (0.0..=most)
                .contains(&value)
                .then_some(value)
                .ok_or_else(|| HeaderError::Value {
                    name,
                    value: value.to_string(),
                })
        };
        Ok(Self {
            kv_cache_usage: within(USAGE, usage, 1.001)?.min(1.0),
            num_requests_waiting: within(WAITING, waiting, (1_u64 << 53) as f64)?.round() as u64,
        })
    }
}

fn of_text(load: &str) -> Result<Named, HeaderError> {
    let mut named = Named::default();
    for figure in load.split(',') {
        let (name, value) = figure.split_once('=').ok_or(HeaderError::Form)?;
        let place = match name.trim().strip_prefix("named_metrics.") {
            Some(USAGE) => &mut named.kv_cache_usage_perc,
            Some(WAITING) => &mut named.num_requests_waiting,
            _ => continue,
        };
        *place = Some(value.trim().parse().map_err(|_| HeaderError::Form)?);
    }
    Ok(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_say_the_same() {
        let load = ResponseLoad {
            kv_cache_usage: 0.875,
            num_requests_waiting: 13,
        };
        for header in [
            "TEXT named_metrics.num_requests_waiting=13.0, named_metrics.kv_cache_usage_perc=0.875",
            "TEXT cpu_utilization=0.3,named_metrics.kv_cache_usage_perc=8.75e-1,named_metrics.num_requests_waiting=13",
            r#"JSON {"named_metrics": {"num_requests_waiting": 13, "kv_cache_usage_perc": 0.875, "x": 1}, "rps": 2}"#,
        ] {
            assert_eq!(ResponseLoad::from_header(header), Ok(load), "{header}");
        }
    }

    #[test]
    fn what_is_missing_or_wrong_is_an_error_and_never_zero() {
        let value = |name, value: &str| HeaderError::Value {
            name,
            value: value.to_owned(),
        };
        for (header, error) in [
            ("", HeaderError::Form),
            ("TEXT", HeaderError::Form),
            ("BIN x", HeaderError::Form),
            ("TEXT named_metrics.kv_cache_usage_perc", HeaderError::Form),
            (
                "TEXT named_metrics.kv_cache_usage_perc=x",
                HeaderError::Form,
            ),
            ("JSON {", HeaderError::Form),
            ("JSON {}", HeaderError::Form),
            (r#"JSON {"named_metrics": {}}"#, HeaderError::Missing(USAGE)),
            (
                "TEXT named_metrics.kv_cache_usage_perc=0.5",
                HeaderError::Missing(WAITING),
            ),
            (
                "TEXT named_metrics.kv_cache_usage_perc=NaN, named_metrics.num_requests_waiting=0",
                value(USAGE, "NaN"),
            ),
            (
                "TEXT named_metrics.kv_cache_usage_perc=1.5, named_metrics.num_requests_waiting=0",
                value(USAGE, "1.5"),
            ),
            (
                "TEXT named_metrics.kv_cache_usage_perc=0, named_metrics.num_requests_waiting=-1",
                value(WAITING, "-1"),
            ),
        ] {
            assert_eq!(ResponseLoad::from_header(header), Err(error), "{header}");
        }
    }
}
