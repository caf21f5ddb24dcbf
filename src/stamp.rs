//! Numbers that name what began, and order it.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::UNIX_EPOCH,
};

/// Draws the next number: the microseconds of Unix time now, or one more than the last one drawn.
///
/// Lives of workers and incarnations of publishers are such numbers: they order what they name by when it began, also
/// across processes, as well as the wall clocks agree. A clock that was set back orders within its process all the same.
pub(crate) fn next() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    later_than(&LAST, micros())
}

/// Draws the life of a router, which its tickets name: ordered by when it began, and another one in every process.
pub(crate) fn router() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let low = random() >> (u64::BITS - RANDOM_BITS);
    later_than(&LAST, micros() << RANDOM_BITS | low)
}

/// Draws a number that nobody else has.
pub(crate) fn random() -> u64 {
    // Seeded by the system's entropy, and another one each time.
    RandomState::new().build_hasher().finish()
}

fn micros() -> u64 {
    let since = UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(0)
}

/// `number`, or one more than the last one if that is not greater.
fn later_than(last: &AtomicU64, number: u64) -> u64 {
    let later = |last: u64| number.max(last.saturating_add(1));
    let drawn = last.fetch_update(Relaxed, Relaxed, |last| Some(later(last)));
    later(drawn.unwrap_or_else(|last| last))
}

/// Routers that begin in the same microsecond in different processes have the same life once in 4,096 times. Microseconds
/// have room beside them until the year 2112.
const RANDOM_BITS: u32 = 12;

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, thread, time::Duration};

    use super::*;

    #[test]
    fn every_draw_is_greater_than_the_one_before_also_among_threads() {
        assert!(next() > 1_600_000_000_000_000);
        let draws = || -> Vec<_> { (0..1_000).map(|_| (next(), router())).collect() };
        let threads: Vec<_> = (0..4).map(|_| thread::spawn(draws)).collect();
        let drawn = threads.into_iter().map(|thread| thread.join().unwrap());
        let mut all = HashSet::new();
        for draws in drawn {
            assert!(draws.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1));
            all.extend(draws.iter().map(|(life, _)| *life));
        }
        assert_eq!(all.len(), 4_000);
    }

    /// Case 180: a worker moves to a process that was started earlier.
    #[test]
    fn a_number_is_of_the_time_it_is_drawn_at_and_not_of_the_start_of_the_process() {
        let (life, router_life) = (next(), router());
        thread::sleep(Duration::from_millis(20));
        // The test above may have drawn 4,000 numbers meanwhile, so that the first of these was ahead of the clock.
        assert!(next() >= life + 10_000);
        assert!(router() >= router_life + (10_000 << RANDOM_BITS));
        assert!(next().abs_diff(micros()) < 60_000_000);
        assert!((router() >> RANDOM_BITS).abs_diff(micros()) < 60_000_000);
    }

    #[test]
    fn a_clock_that_was_set_back_orders_all_the_same() {
        let last = AtomicU64::new(0);
        let drawn: Vec<_> = [10, 5, 5, 12, 11, 100, u64::MAX]
            .map(|micros| later_than(&last, micros))
            .into();
        assert_eq!(drawn, [10, 11, 12, 13, 14, 100, u64::MAX]);
    }

    #[test]
    fn random_numbers_are_all_different() {
        let drawn: HashSet<_> = (0..10_000).map(|_| random()).collect();
        assert_eq!(drawn.len(), 10_000);
        let ones: u32 = drawn.iter().map(|number| number.count_ones()).sum();
        assert!((310_000..330_000).contains(&ones), "{ones}");
    }
}
