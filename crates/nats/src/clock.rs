//! The two clocks, each read in one place.

use std::time::{Instant, SystemTime};

/// tokio's clock, which tests may hold.
pub(crate) fn now() -> Instant {
    actix::clock::Instant::now().into_std()
}

/// This machine's wall clock: only stamps that others made are held against it.
#[allow(clippy::disallowed_methods)]
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}
