//! How long requests wait for their worker.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Samples of one kind.
#[derive(Debug, Default, Clone)]
pub(crate) struct Latencies(Vec<Duration>);

impl Latencies {
    pub(crate) fn push(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The given share (0 to 1) of the samples is at or below what this returns.
    pub(crate) fn percentile(&self, share: f64) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let place = (sorted.len().saturating_sub(1) as f64 * share).round() as usize;
        sorted.get(place).copied().unwrap_or_default()
    }

    pub(crate) fn max(&self) -> Duration {
        self.percentile(1.0)
    }
}

impl std::fmt::Display for Latencies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "p50 {:.2?}  p90 {:.2?}  p99 {:.2?}  max {:.2?}  ({} samples)",
            self.percentile(0.5),
            self.percentile(0.9),
            self.percentile(0.99),
            self.max(),
            self.len()
        )
    }
}

/// What a [`probe`] found.
#[derive(Debug, Default, Clone)]
pub(crate) struct Probed {
    /// From the sending of a message to its answer.
    pub(crate) answers: Latencies,
    /// How late the asking thread itself was woken.
    pub(crate) machine: Latencies,
    pub(crate) refused: u64,
}

/// Asks every `pause` until `end`, whether or not those before were answered, and measures each. `ask` sends, and tells
/// later whether the answer was as wanted.
pub(crate) async fn probe<F>(pause: Duration, end: Instant, mut ask: impl FnMut() -> F) -> Probed
where
    F: Future<Output = bool> + 'static,
{
    let found = Arc::new(Mutex::new(Probed::default()));
    let mut asked = Vec::new();
    let mut next = Instant::now();
    while next < end {
        tokio::time::sleep_until(next.into()).await;
        let late = next.elapsed();
        with(&found, |found| found.machine.push(late));
        let found = found.clone();
        let started = Instant::now();
        let answer = ask();
        asked.push(actix_rt::spawn(async move {
            let wanted = answer.await;
            let took = started.elapsed();
            with(&found, |found| match wanted {
                true => found.answers.push(took),
                false => found.refused += 1,
            });
        }));
        next += pause;
    }
    for answer in asked {
        let _ = answer.await;
    }
    let found = found.lock().unwrap_or_else(PoisonError::into_inner);
    found.clone()
}

fn with(found: &Mutex<Probed>, then: impl FnOnce(&mut Probed)) {
    then(&mut found.lock().unwrap_or_else(PoisonError::into_inner));
}
