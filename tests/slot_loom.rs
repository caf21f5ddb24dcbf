//! The place between a reporter and the publisher, model-checked: every interleaving with up to three preemptions is run.
//!
//! ```sh
//! RUSTFLAGS="--cfg slot_loom" cargo test --release --test slot_loom --target-dir target/loom
//! ```

#![cfg(slot_loom)]
#![allow(missing_docs)]

mod sync {
    pub(crate) use std::sync::PoisonError;

    pub(crate) use loom::sync::{Mutex, MutexGuard};
}

#[allow(dead_code)]
#[path = "../src/sans_io/conflate.rs"]
mod conflate;

use conflate::{Closed, Conflated, Offered};
use loom::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

/// What the reporters and the publisher share: the place, and the wake-ups in the publisher's mailbox.
#[derive(Clone)]
struct Shared {
    place: Arc<Conflated<Vec<u32>>>,
    wakes: Arc<AtomicUsize>,
}

impl Shared {
    fn new() -> Self {
        Self {
            place: Arc::new(Conflated::new()),
            wakes: Arc::new(AtomicUsize::new(0)),
        }
    }

    /// Reports as a reporter does: wakes the publisher if the place was empty.
    fn report(&self, value: u32) -> Offered {
        let offered = self.place.offer(|values| values.push(value));
        if offered == Offered::Wake {
            self.wakes.fetch_add(1, SeqCst);
        }
        offered
    }

    /// Handles one wake-up, if there is one, as the publisher does.
    fn handle_wake(&self, seen: &mut Vec<u32>) -> bool {
        let wakes = self.wakes.load(SeqCst);
        if wakes == 0 {
            return false;
        }
        self.wakes.fetch_sub(1, SeqCst);
        seen.extend(self.place.take().unwrap_or_default());
        true
    }
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut explorer = loom::model::Builder::new();
    explorer.preemption_bound = Some(3);
    // std's: the checker's own would be part of the model.
    let schedules = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = schedules.clone();
    explorer.check(move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        model();
    });
    eprintln!(
        "{} schedules",
        schedules.load(std::sync::atomic::Ordering::Relaxed)
    );
}

#[test]
fn g9_a_report_that_returned_is_never_missing_once_all_wake_ups_are_handled() {
    explore(|| {
        let shared = Shared::new();
        let reporters: Vec<_> = [[1, 2], [11, 12]]
            .into_iter()
            .map(|values| {
                let shared = shared.clone();
                thread::spawn(move || values.map(|value| shared.report(value)))
            })
            .collect();
        let publisher = shared.clone();
        let publisher = thread::spawn(move || {
            let mut seen = Vec::new();
            publisher.handle_wake(&mut seen);
            publisher.handle_wake(&mut seen);
            seen
        });
        for reporter in reporters {
            reporter.join().unwrap();
        }
        let mut seen = publisher.join().unwrap();
        while shared.handle_wake(&mut seen) {}
        let order = |a, b| seen.iter().position(|v| *v == a) < seen.iter().position(|v| *v == b);
        assert!(order(1, 2) && order(11, 12), "out of order: {seen:?}");
        seen.sort_unstable();
        assert_eq!(seen, [1, 2, 11, 12]);
    });
}

#[test]
fn g7_at_most_one_wake_up_is_under_way_for_a_place() {
    explore(|| {
        let shared = Shared::new();
        let reporter = shared.clone();
        let reporter = thread::spawn(move || {
            for value in 0..3 {
                reporter.report(value);
                assert!(reporter.wakes.load(SeqCst) <= 1);
            }
        });
        let mut seen = Vec::new();
        shared.handle_wake(&mut seen);
        reporter.join().unwrap();
        assert!(shared.wakes.load(SeqCst) <= 1);
    });
}

#[test]
fn g13_what_is_offered_to_a_closed_place_is_refused_and_what_waited_is_not_lost() {
    explore(|| {
        let shared = Shared::new();
        let reporter = shared.clone();
        let reporter = thread::spawn(move || [1, 2].map(|value| reporter.report(value)));
        shared.place.close(Closed::Ended);
        let taken = reporter.join().unwrap();
        let accepted = taken
            .iter()
            .filter(|o| **o != Offered::Closed(Closed::Ended))
            .count();
        let waited = shared.place.take().unwrap_or_default();
        assert_eq!(waited.len(), accepted);
        assert_eq!(shared.report(3), Offered::Closed(Closed::Ended));
    });
}

#[test]
fn only_the_first_offer_after_a_take_wakes() {
    explore(|| {
        let place = Conflated::new();
        assert_eq!(place.take(), None);
        assert_eq!(place.offer(|n| *n = 1), Offered::Wake);
        assert_eq!(place.offer(|n| *n += 1), Offered::Conflated);
        assert_eq!(place.take(), Some(2));
        assert_eq!(place.take(), None);
        assert_eq!(place.offer(|n| *n += 7), Offered::Wake);
        assert_eq!((place.take(), place.conflated()), (Some(7), 1));
    });
}
