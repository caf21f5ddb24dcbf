//! A steady pace in real time.

use std::time::{Duration, Instant};

/// Beats at fixed times; a late beat does not move the later ones.
#[derive(Debug)]
pub struct Pace {
    next: Instant,
    every: Duration,
    sleeping: bool,
}

impl Pace {
    pub fn new(every: Duration) -> Self {
        Self {
            next: Instant::now(),
            every,
            sleeping: false,
        }
    }

    /// Never stays awake for a beat: costs no CPU time, but beats come late by some 60 µs.
    #[must_use]
    pub fn sleeping(mut self) -> Self {
        self.sleeping = true;
        self
    }

    /// Sleeps until the next beat, the last stretch awake: the kernel wakes a sleeper some 60 µs late.
    pub fn wait(&mut self) {
        self.next += self.every;
        let ahead = self.next.saturating_duration_since(Instant::now());
        if self.sleeping {
            std::thread::sleep(ahead);
            return;
        }
        if ahead > SLEEP_SLACK {
            std::thread::sleep(ahead - SLEEP_SLACK);
        }
        while Instant::now() < self.next {
            std::hint::spin_loop();
        }
    }
}

const SLEEP_SLACK: Duration = Duration::from_micros(80);
