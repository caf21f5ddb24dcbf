use std::{num::NonZeroU32, time::Duration};

use http::Uri;
use thiserror::Error;

use crate::kind::EngineKind;

/// How an engine is asked.
#[derive(Debug, Clone)]
pub struct ScraperConfig {
    pub(super) url: String,
    pub(super) kind: EngineKind,
    pub(super) model: Option<String>,
    pub(super) block_tokens: NonZeroU32,
    pub(super) every: Duration,
    leave_after: Option<Duration>,
    pub(super) page_timeout: Duration,
    pub(super) page_bytes: usize,
}

/// A setting out of its bounds.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field} is {value}, but must be {bound}")]
#[non_exhaustive]
pub struct ScraperConfigError {
    /// Which.
    pub field: &'static str,
    /// What it was set to.
    pub value: String,
    /// What it may be.
    pub bound: &'static str,
}

impl ScraperConfig {
    /// The page at that URL, such as `http://10.0.0.7:8000/metrics`, is read every half second, in blocks of 16 tokens.
    pub fn new(url: impl Into<String>, kind: EngineKind) -> Self {
        const SIXTEEN: NonZeroU32 = NonZeroU32::new(16).unwrap();
        Self {
            url: url.into(),
            kind,
            model: None,
            block_tokens: SIXTEEN,
            every: Duration::from_millis(500),
            leave_after: None,
            page_timeout: Duration::from_secs(30),
            page_bytes: 8 << 20,
        }
    }

    /// The `model_name` whose series are read, where a page has several.
    #[must_use]
    pub fn model(mut self, name: Option<String>) -> Self {
        self.model = name;
        self
    }

    /// Tokens in a block, the same for all engines of a model.
    #[must_use]
    pub fn block_tokens(mut self, tokens: NonZeroU32) -> Self {
        self.block_tokens = tokens;
        self
    }

    /// From the beginning of one reading to that of the next.
    #[must_use]
    pub fn every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    /// The engine leaves after so long without a good page. `None`: three times `every`. Less than twice would have one leave that only
    /// took its time between two readings.
    #[must_use]
    pub fn leave_after(mut self, after: Option<Duration>) -> Self {
        self.leave_after = after;
        self
    }

    /// A page is waited for so long, default 30 s. A busy engine may take that, and one that froze answers then.
    #[must_use]
    pub fn page_timeout(mut self, longest: Duration) -> Self {
        self.page_timeout = longest;
        self
    }

    /// Bytes of a page, at most; default 8 MiB.
    #[must_use]
    pub fn page_bytes(mut self, most: usize) -> Self {
        self.page_bytes = most;
        self
    }

    pub(super) fn longest_silence(&self) -> Duration {
        let thrice = self.every.saturating_mul(3);
        self.leave_after.unwrap_or(thrice)
    }

    /// The URL.
    pub(super) fn check(&self) -> Result<Uri, ScraperConfigError> {
        let error = |field, value: String, bound| {
            Err(ScraperConfigError {
                field,
                value,
                bound,
            })
        };
        let url: Option<Uri> = self.url.parse().ok();
        let Some(url) = url.filter(|url| url.scheme_str() == Some("http") && url.host().is_some())
        else {
            return error("url", self.url.clone(), "http://host[:port]/path");
        };
        for (field, value, least) in [
            ("every", self.every, SHORTEST),
            (
                "leave_after",
                self.longest_silence(),
                self.every.saturating_mul(2),
            ),
            ("page_timeout", self.page_timeout, SHORTEST),
        ] {
            if value < least || value > LONGEST {
                let bound = match field {
                    "leave_after" => "2 × `every` to 1 day",
                    _ => "10ms to 1 day",
                };
                return error(field, format!("{value:?}"), bound);
            }
        }
        if self.page_bytes == 0 {
            return error("page_bytes", "0".to_owned(), "at least 1");
        }
        Ok(url)
    }
}

/// An engine has better to do than to show its page.
const SHORTEST: Duration = Duration::from_millis(10);

/// No clock overflows.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    fn error(config: &ScraperConfig) -> Option<String> {
        config.check().err().map(|error| error.to_string())
    }

    #[test]
    fn an_engine_is_not_given_up_between_two_readings() {
        let ms = Duration::from_millis;
        let config = ScraperConfig::new("http://x", EngineKind::Vllm).every(ms(100));
        assert_eq!(error(&config), None);
        let less = config.clone().leave_after(Some(ms(199)));
        assert_eq!(
            error(&less).as_deref(),
            Some("leave_after is 199ms, but must be 2 × `every` to 1 day")
        );
        assert_eq!(error(&config.leave_after(Some(ms(200)))), None);
    }

    #[test]
    fn each_setting_out_of_its_bounds_is_named() {
        let config = || ScraperConfig::new("http://x/metrics", EngineKind::Vllm);
        for (config, expected) in [
            (
                ScraperConfig::new("https://x", EngineKind::Vllm),
                "url is https://x, but must be http://host[:port]/path",
            ),
            (
                config().every(Duration::ZERO),
                "every is 0ns, but must be 10ms to 1 day",
            ),
            (
                config().every(Duration::MAX),
                "every is 18446744073709551615.999999999s, but must be 10ms to 1 day",
            ),
            (
                config().leave_after(Some(Duration::MAX)),
                "leave_after is 18446744073709551615.999999999s, but must be 2 × `every` to 1 day",
            ),
            (
                config().page_timeout(Duration::from_millis(9)),
                "page_timeout is 9ms, but must be 10ms to 1 day",
            ),
            (
                config().page_bytes(0),
                "page_bytes is 0, but must be at least 1",
            ),
        ] {
            assert_eq!(error(&config).as_deref(), Some(expected));
        }
    }
}
