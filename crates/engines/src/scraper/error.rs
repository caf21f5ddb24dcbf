use std::{error::Error, time::Duration};

use actix_kv_metrics::ReportError;
use thiserror::Error;

use crate::page::PageError;

/// A reading failed.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum ScrapeError {
    /// No connection, or it broke off.
    #[error("can't be reached: {0}")]
    Unreachable(String),
    /// Not within so long.
    #[error("no page within {0:?}")]
    Slow(Duration),
    /// It answered, but not with a page.
    #[error("answered {0}")]
    Status(u16),
    /// More than so many bytes.
    #[error("the page is longer than {0} bytes")]
    TooLarge(usize),
    /// Not UTF-8.
    #[error("the page is not text")]
    NotText,
    /// It does not say what it should.
    #[error(transparent)]
    Page(#[from] PageError),
    /// It was read, but could not be reported.
    #[error(transparent)]
    Report(#[from] ReportError),
}

impl ScrapeError {
    /// With what lies under it, where the reason stands.
    pub(super) fn unreachable(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let error = error.into();
        let mut text = error.to_string();
        let mut under = error.source();
        while let Some(cause) = under {
            text = format!("{text}: {cause}");
            under = cause.source();
        }
        Self::Unreachable(text)
    }
}
