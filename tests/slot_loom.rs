//! The place between a reporter and the publisher, and the bell of all reporters, model-checked: every interleaving with up to three preemptions is run.
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
#[path = "../src/sans_io/bell.rs"]
mod bell;
#[allow(dead_code)]
#[path = "../src/sans_io/conflate.rs"]
mod conflate;

use bell::{Bell, Entered};
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

/// What a publisher and its reporters share: their places, the bell, the wake-ups in the mailbox, and its timer.
#[derive(Clone)]
struct Fleet {
    places: [Arc<Conflated<Vec<u32>>>; 2],
    bell: Arc<Bell<usize>>,
    wakes: Arc<AtomicUsize>,
}

impl Fleet {
    fn new() -> Self {
        Self {
            places: [Arc::new(Conflated::new()), Arc::new(Conflated::new())],
            bell: Arc::new(Bell::new()),
            wakes: Arc::new(AtomicUsize::new(0)),
        }
    }

    fn report(&self, reporter: usize, value: u32) {
        if self.places[reporter].offer(|values| values.push(value)) == Offered::Wake
            && self.bell.enter(reporter) == Entered::Wake
        {
            self.wakes.fetch_add(1, SeqCst);
        }
    }

    /// Takes everything, and comes to rest. `calm`: a timer is armed.
    fn drive(&self, seen: &mut Vec<u32>, calm: bool) {
        loop {
            let mut entered = Vec::new();
            self.bell.take(&mut entered);
            assert!(entered.len() <= 2, "one entry a reporter");
            for reporter in entered {
                seen.extend(self.places[reporter].take().unwrap_or_default());
            }
            if self.bell.rest(calm) {
                return;
            }
        }
    }

    fn handle_wake(&self, seen: &mut Vec<u32>, calm: bool) -> bool {
        if self.wakes.load(SeqCst) == 0 {
            return false;
        }
        self.wakes.fetch_sub(1, SeqCst);
        self.bell.handle_wake();
        self.drive(seen, calm);
        true
    }
}

/// Calm while its timer is armed, not calm once that has come: no report waits for a wake-up that nobody sends.
#[test]
fn g17_no_report_is_left_behind_once_the_timer_has_come_and_all_wake_ups_are_handled() {
    explore(|| {
        let fleet = Fleet::new();
        let reporters = [0, 1].map(|reporter| {
            let fleet = fleet.clone();
            thread::spawn(move || {
                fleet.report(reporter, 10 * reporter as u32);
                fleet.report(reporter, 10 * reporter as u32 + 1);
            })
        });
        let mut seen = Vec::new();
        let mut armed = fleet.handle_wake(&mut seen, true);
        armed |= fleet.handle_wake(&mut seen, true);
        if armed {
            // The timer comes, and is armed no more.
            fleet.drive(&mut seen, false);
        }
        for reporter in reporters {
            reporter.join().unwrap();
        }
        assert!(
            fleet.wakes.load(SeqCst) <= 1,
            "all together have one on its way"
        );
        while fleet.handle_wake(&mut seen, false) {}
        let at = |value| seen.iter().position(|v| *v == value);
        assert!(at(0) < at(1) && at(10) < at(11), "out of order: {seen:?}");
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 10, 11]);
    });
}

#[test]
fn g17_who_enters_while_the_publisher_is_calm_wakes_nobody() {
    explore(|| {
        let fleet = Fleet::new();
        assert!(fleet.bell.rest(true));
        let reporters = [0, 1].map(|reporter| {
            let fleet = fleet.clone();
            thread::spawn(move || fleet.report(reporter, 1))
        });
        for reporter in reporters {
            reporter.join().unwrap();
        }
        assert_eq!(fleet.wakes.load(SeqCst), 0);
        // It must not rest without a timer before it has taken them.
        assert!(!fleet.bell.rest(false));
        let mut seen = Vec::new();
        fleet.drive(&mut seen, false);
        assert_eq!(seen, [1, 1]);
    });
}

/// Bell and reporters hold each other; whoever goes first leaves nothing behind.
#[test]
fn g7_a_publisher_that_goes_lets_go_of_who_entered() {
    explore(|| {
        let bell = Arc::new(Bell::new());
        let held = Arc::new(());
        let reporter = {
            let (bell, held) = (bell.clone(), held.clone());
            thread::spawn(move || bell.enter(held))
        };
        bell.close();
        let entered = reporter.join().unwrap();
        assert!(matches!(entered, Entered::Wake | Entered::Gone));
        assert_eq!(bell.enter(held.clone()), Entered::Gone);
        assert_eq!(Arc::strong_count(&held), 1);
    });
}
