use std::time::{Duration, Instant};

use super::config::ScraperConfig;

/// When an engine is asked, and when it leaves. Time is an argument.
#[derive(Debug)]
pub(super) struct Pace {
    every: Duration,
    leave_after: Duration,
    began: Option<Instant>,
    last_good: Instant,
    /// Of those since it left.
    failures: u32,
    /// Has left, or was never there.
    absent: bool,
    start: Instant,
}

impl Pace {
    pub(super) fn new(config: &ScraperConfig, now: Instant) -> Self {
        Self {
            every: config.every,
            leave_after: config.longest_silence(),
            began: None,
            last_good: now,
            failures: 0,
            absent: true,
            start: now,
        }
    }

    /// When the next reading is due, which may be over. `jitter`: from 0 to 1.
    pub(super) fn next(&self, jitter: f64) -> Instant {
        let Some(began) = self.began else {
            return self.start;
        };
        let backoff = 1 << self.failures.min(16);
        let pause = self.every.saturating_mul(backoff);
        let pause = pause.min(SELDOMEST.max(self.every));
        began + pause.mul_f64(0.9 + 0.2 * jitter)
    }

    pub(super) fn begin(&mut self, now: Instant) {
        self.began = Some(now);
    }

    pub(super) fn good(&mut self, now: Instant) {
        self.last_good = now;
        self.failures = 0;
        self.absent = false;
    }

    /// One that is still there is asked as often as before: it may be about to leave for no reason.
    pub(super) fn failed(&mut self) {
        if self.absent {
            self.failures += 1;
        }
    }

    /// When it leaves unless there is a good page before.
    pub(super) fn leaves_at(&self) -> Option<Instant> {
        (!self.absent).then(|| self.last_good + self.leave_after)
    }

    pub(super) fn leave(&mut self) {
        self.absent = true;
    }
}

/// An engine that returns is seen so soon.
const SELDOMEST: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::EngineKind;

    struct Sut {
        pace: Pace,
        start: Instant,
    }

    impl Sut {
        #[allow(clippy::disallowed_methods, reason = "an epoch to count from")]
        fn new() -> Self {
            let config = ScraperConfig::new("http://x", EngineKind::Vllm);
            let start = Instant::now();
            Self {
                pace: Pace::new(&config.every(Duration::from_millis(100)), start),
                start,
            }
        }

        fn at(&self, ms: u64) -> Instant {
            self.start + Duration::from_millis(ms)
        }

        fn reading(&mut self, began: u64, ended: u64, good: bool) {
            self.pace.begin(self.at(began));
            if good {
                self.pace.good(self.at(ended));
            } else {
                self.pace.failed();
            }
        }

        /// Milliseconds, in the middle of the jitter.
        fn next(&self) -> u128 {
            (self.pace.next(0.5) - self.start).as_millis()
        }

        fn leaves_at(&self) -> Option<u128> {
            let at = self.pace.leaves_at();
            at.map(|at| (at - self.start).as_millis())
        }
    }

    #[test]
    fn readings_begin_every_so_often_whatever_they_take() {
        let mut sut = Sut::new();
        assert_eq!(sut.next(), 0);
        sut.reading(0, 70, true);
        assert_eq!(sut.next(), 100);
        sut.reading(100, 350, true);
        // That is over: at once.
        assert_eq!(sut.next(), 200);
        let spread = sut.pace.next(1.0) - sut.pace.next(0.0);
        assert_eq!(spread, Duration::from_millis(20));
    }

    #[test]
    fn it_leaves_three_times_every_after_the_last_good_page() {
        let mut sut = Sut::new();
        assert_eq!(sut.leaves_at(), None);
        sut.reading(0, 10, true);
        assert_eq!(sut.leaves_at(), Some(310));
        sut.reading(100, 101, false);
        sut.reading(200, 201, false);
        assert_eq!(sut.leaves_at(), Some(310));
        assert_eq!(sut.next(), 300);
        sut.pace.leave();
        assert_eq!(sut.leaves_at(), None);
    }

    #[test]
    fn one_that_left_is_asked_less_often_up_to_a_bound_and_returns_at_once() {
        let mut sut = Sut::new();
        let mut pauses = Vec::new();
        for _ in 0..7 {
            sut.reading(0, 0, false);
            pauses.push(sut.next());
        }
        assert_eq!(pauses, [200, 400, 800, 1_600, 2_000, 2_000, 2_000]);
        sut.reading(5_000, 5_010, true);
        assert_eq!(sut.next(), 5_100);
        assert_eq!(sut.leaves_at(), Some(5_310));
    }
}
