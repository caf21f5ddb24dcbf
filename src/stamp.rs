//! Numbers that only grow, within a process and across its restarts.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::UNIX_EPOCH,
};

/// Draws the next number: the microseconds from the Unix epoch to the first draw of this process, plus the draws since.
///
/// Lives of workers, incarnations of publishers and lives of routers are such numbers. The wall clock is read once; if
/// it was set back between two processes, the later process may draw lower numbers and is taken for the earlier one.
pub(crate) fn next() -> u64 {
    static START: OnceLock<u64> = OnceLock::new();
    static DRAWN: AtomicU64 = AtomicU64::new(0);
    let start = START.get_or_init(|| {
        UNIX_EPOCH
            .elapsed()
            .map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(0))
    });
    start.saturating_add(DRAWN.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_draw_is_greater_than_the_one_before() {
        let first = super::next();
        assert!(first > 1_600_000_000_000_000);
        assert!(super::next() > first);
    }
}
