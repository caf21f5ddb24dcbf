//! What can be wrong with a trace file, and where.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use super::{HASH_TOKENS, LONGEST};

/// Prints as `file:line: reason`, the line where there is one.
#[derive(Debug, thiserror::Error)]
#[error("{location}: {reason}")]
pub(crate) struct TraceError {
    location: Location,
    reason: Reason,
}

impl TraceError {
    pub(super) fn new(location: Location, reason: Reason) -> Self {
        Self { location, reason }
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Reason {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("the trace has no requests")]
    Empty,
    #[error("not UTF-8")]
    NotText,
    #[error("the file starts with a UTF-8 byte order mark: take its first three bytes away")]
    ByteOrderMark,
    #[error("the file is compressed with gzip: unpack it first")]
    Gzip,
    #[error("not a Mooncake request: {0}")]
    Json(String),
    #[error("not CSV: {0}")]
    Csv(String),
    #[error("{found} fields where the header has {expected}")]
    Fields { found: u64, expected: u64 },
    #[error("the header has no column {0}")]
    NoColumn(&'static str),
    #[error("{field}: {value:?} is not {expected}")]
    Value {
        field: &'static str,
        value: String,
        expected: &'static str,
    },
    #[error("{0} is 0: a request has at least one token of each kind")]
    NoTokens(&'static str),
    #[error(
        "{found} hash ids for {tokens} prompt tokens: {expected} expected, one for each {HASH_TOKENS}"
    )]
    HashIds {
        found: usize,
        tokens: u32,
        expected: u32,
    },
    #[error("arrivals are more than {} days apart", LONGEST.as_secs() / 86_400)]
    TooLong,
}

/// A place in a file; line 0 is the file as a whole.
#[derive(Debug)]
pub(super) struct Location {
    file: PathBuf,
    pub(super) line: u64,
}

impl Location {
    pub(super) fn new(file: &Path) -> Self {
        Self {
            file: file.to_owned(),
            line: 0,
        }
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}", self.file.display()),
            line => write!(f, "{}:{line}", self.file.display()),
        }
    }
}
