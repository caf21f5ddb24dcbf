//! Which snapshot of which publisher is the next one, and which publisher of an id is believed.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use crate::snapshot::{PublisherId, SnapshotKind};

/// How a snapshot follows what came before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is the next one.
    Next,
    /// It tells everything, and takes over from a higher incarnation or sequence that has fallen silent.
    TakesOver,
    /// It is newer, but something before it is missing.
    Gap,
    /// It is not to be taken over before everything is told.
    Untold,
    /// It is older than what is known.
    Superseded,
    /// There are too many publishers.
    Refused,
}

/// What is known of the snapshots of every publisher.
///
/// Incarnations and sequences grow, so what is lower than the highest is old. A highest one that was said by mistake must not
/// shut everybody else out for ever: once it has been silent for `stale_after`, whoever is lower is asked for everything, and
/// believed when it tells that.
#[derive(Debug)]
pub(crate) struct Publishers {
    stale_after: Duration,
    /// Publishers that speak, at most.
    most: usize,
    speaking: usize,
    known: HashMap<u64, Known, RandomState>,
    /// Who said goodbye, in that order.
    closed: VecDeque<u64>,
}

#[derive(Debug, Default)]
struct Known {
    /// The incarnation that is believed; it has told everything.
    current: Option<Current>,
    goodbyes: SmallVec<[Goodbye; 1]>,
    /// Lower incarnations that were asked for everything, and the highest sequence of each that was answered so. Each has a
    /// place of its own: two that speak by turns would make each other's answers come unasked.
    asked: SmallVec<[Asked; 1]>,
    /// It has been warned of that two speak under this id.
    contested: bool,
    /// Workers it speaks of.
    workers: usize,
}

/// A lower incarnation was asked for everything. What it answers must come after `sequence`, which is forgotten like any
/// other maximum if nothing raises it for `stale_after`.
#[derive(Debug)]
struct Asked {
    incarnation: u64,
    sequence: u64,
    raised_at: Instant,
}

#[derive(Debug)]
struct Current {
    incarnation: u64,
    sequence: u64,
    /// Something is missing since it told everything.
    gap: bool,
    heard_at: Instant,
}

/// The last sequence of an incarnation that is gone.
#[derive(Debug)]
struct Goodbye {
    incarnation: u64,
    sequence: u64,
    heard_at: Instant,
}

impl Known {
    /// When that was heard which makes this incarnation and sequence an old one.
    fn superseded_at(&self, incarnation: u64, sequence: u64) -> Option<Instant> {
        let mut goodbyes = self.goodbyes.iter();
        let gone = goodbyes.find(|gone| gone.incarnation == incarnation);
        let gone = gone.filter(|gone| sequence <= gone.sequence);
        let current = self.current.as_ref();
        let later = current
            .filter(|current| (incarnation, sequence) <= (current.incarnation, current.sequence));
        gone.map(|gone| gone.heard_at)
            .max(later.map(|later| later.heard_at))
    }
}

impl Publishers {
    pub(crate) fn new(stale_after: Duration, most: usize) -> Self {
        Self {
            stale_after,
            most,
            speaking: 0,
            known: HashMap::default(),
            closed: VecDeque::new(),
        }
    }

    /// Judges a snapshot that is no goodbye and, if it is to be taken over, remembers it as the newest.
    pub(crate) fn judge(
        &mut self,
        publisher: PublisherId,
        sequence: u64,
        kind: SnapshotKind,
        now: Instant,
    ) -> Verdict {
        let PublisherId { id, incarnation } = publisher;
        let full = kind == SnapshotKind::Full;
        let Some(known) = self.known.get_mut(&id) else {
            return if full {
                self.begin(publisher, sequence, now)
            } else {
                Verdict::Untold
            };
        };
        let superseded_at = known.superseded_at(incarnation, sequence);
        if let Some(heard_at) = superseded_at {
            if now.saturating_duration_since(heard_at) < self.stale_after {
                known.warn_of_contest(publisher);
                return Verdict::Superseded;
            }
            let stale_after = self.stale_after;
            let mut asked = known.asked.iter();
            let asked = asked.find(|asked| asked.incarnation == incarnation);
            let follows = asked.is_some_and(|asked| sequence > asked.sequence);
            if !(full && follows) {
                known.ask(incarnation, sequence, stale_after, now);
                return Verdict::Untold;
            }
        }
        if full {
            let verdict = self.begin(publisher, sequence, now);
            let takes_over = superseded_at.is_some() && verdict == Verdict::Next;
            return if takes_over {
                Verdict::TakesOver
            } else {
                verdict
            };
        }
        let current = known.current.as_mut();
        let Some(current) = current.filter(|current| current.incarnation == incarnation) else {
            return Verdict::Untold;
        };
        current.gap |= kind
            != SnapshotKind::Delta {
                after: current.sequence,
            };
        current.sequence = sequence;
        current.heard_at = now;
        if current.gap {
            Verdict::Gap
        } else {
            Verdict::Next
        }
    }

    /// Believes an incarnation that tells everything.
    fn begin(&mut self, publisher: PublisherId, sequence: u64, now: Instant) -> Verdict {
        let PublisherId { id, incarnation } = publisher;
        let speaks = |known: &Known| known.current.is_some();
        if !self.known.get(&id).is_some_and(speaks) {
            if self.speaking >= self.most && !self.make_room() {
                return Verdict::Refused;
            }
            self.speaking += 1;
        }
        let known = self.known.entry(id).or_default();
        known
            .goodbyes
            .retain(|gone| gone.incarnation != incarnation);
        known.asked.clear();
        known.contested = false;
        known.current = Some(Current {
            incarnation,
            sequence,
            gap: false,
            heard_at: now,
        });
        Verdict::Next
    }

    /// This incarnation says that it is gone. What it said before stays superseded. `false`: it has been heard since, so
    /// this was overtaken on the way.
    pub(crate) fn close(&mut self, publisher: PublisherId, sequence: u64, now: Instant) -> bool {
        let PublisherId { id, incarnation } = publisher;
        let known = self.known.entry(id).or_default();
        let current = known.current.as_ref();
        if let Some(current) = current.filter(|current| current.incarnation == incarnation) {
            if sequence < current.sequence {
                return false;
            }
            known.current = None;
            known.contested = false;
            self.speaking -= 1;
        }
        let mut goodbyes = known.goodbyes.iter_mut();
        match goodbyes.find(|gone| gone.incarnation == incarnation) {
            Some(gone) => {
                gone.sequence = gone.sequence.max(sequence);
                gone.heard_at = now;
            }
            None => {
                if known.goodbyes.len() == GOODBYES {
                    known.goodbyes.remove(0);
                }
                known.goodbyes.push(Goodbye {
                    incarnation,
                    sequence,
                    heard_at: now,
                });
            }
        }
        self.remember(id);
        true
    }

    /// Once each, however often it came and went: it displaces nobody, and is not forgotten for an earlier goodbye.
    fn remember(&mut self, id: u64) {
        self.closed.retain(|closed| *closed != id);
        self.closed.push_back(id);
        if self.closed.len() > REMEMBERED
            && let Some(oldest) = self.closed.pop_front()
            && let Some(known) = self.known.get_mut(&oldest)
        {
            known.goodbyes.clear();
            if known.current.is_none() {
                self.known.remove(&oldest);
            }
        }
    }

    /// The publisher speaks of one worker more.
    pub(crate) fn note_worker(&mut self, id: u64) {
        if let Some(known) = self.known.get_mut(&id) {
            known.workers += 1;
        }
    }

    /// The publisher speaks of one worker less.
    pub(crate) fn note_worker_gone(&mut self, id: u64) {
        if let Some(known) = self.known.get_mut(&id) {
            known.workers = known.workers.saturating_sub(1);
        }
    }

    /// Forgets the publisher without workers that has been silent for longest.
    fn make_room(&mut self) -> bool {
        let idle = self.known.iter().filter(|(_, known)| known.workers == 0);
        let heard = idle.filter_map(|(id, known)| Some((known.current.as_ref()?.heard_at, *id)));
        let Some((_, id)) = heard.min() else {
            return false;
        };
        if let Some(known) = self.known.get_mut(&id) {
            known.current = None;
            self.speaking -= 1;
            if known.goodbyes.is_empty() {
                self.known.remove(&id);
            }
        }
        true
    }

    /// Gives back what is not needed.
    pub(crate) fn shrink(&mut self) {
        self.known.shrink_to(2 * self.known.len());
    }
}

impl Known {
    /// A lower incarnation or sequence is asked for everything: an answer is what comes after all that it said before.
    fn ask(&mut self, incarnation: u64, sequence: u64, stale_after: Duration, now: Instant) {
        let mut known = self.asked.iter_mut();
        let known = known.find(|asked| asked.incarnation == incarnation);
        let asked = Asked {
            incarnation,
            sequence,
            raised_at: now,
        };
        if let Some(known) = known {
            let silent = now.saturating_duration_since(known.raised_at) >= stale_after;
            if sequence > known.sequence || silent {
                *known = asked;
            }
            return;
        }
        if self.asked.len() == ASKED {
            self.asked.remove(0);
        }
        self.asked.push(asked);
    }

    /// Duplicates are nobody's fault; two publishers with one id are.
    fn warn_of_contest(&mut self, late: PublisherId) {
        let current = self.current.as_ref().map(|current| current.incarnation);
        if let Some(current) = current.filter(|current| *current != late.incarnation)
            && !std::mem::replace(&mut self.contested, true)
        {
            tracing::warn!(
                publisher = late.id,
                late.incarnation,
                heard = current,
                "two publishers speak under one id: the later one is heard"
            );
        }
    }
}

/// Publishers that are gone are remembered so that a straggler of theirs does no harm; this many, so that they do not
/// pile up.
const REMEMBERED: usize = 1024;
/// Incarnations of one id that are gone: of earlier ones hardly anything is on its way any more.
const GOODBYES: usize = 4;
/// Incarnations of one id that live at once: two by mistake, and not many more.
const ASKED: usize = 4;

#[cfg(test)]
mod tests {
    use super::{Verdict::*, *};
    use SnapshotKind::Full;

    const STALE: Duration = Duration::from_secs(5);

    fn delta(after: u64) -> SnapshotKind {
        SnapshotKind::Delta { after }
    }

    /// Publishers, and the time in seconds that has passed.
    struct Heard {
        publishers: Publishers,
        start: Instant,
        seconds: u64,
    }

    impl Heard {
        fn new(most: usize) -> Self {
            Self {
                publishers: Publishers::new(STALE, most),
                start: actix::clock::Instant::now().into_std(),
                seconds: 0,
            }
        }

        fn now(&self) -> Instant {
            self.start + Duration::from_secs(self.seconds)
        }

        fn of(&mut self, id: u64, incarnation: u64, sequence: u64, kind: SnapshotKind) -> Verdict {
            let (publisher, now) = (PublisherId::new(id, incarnation), self.now());
            self.publishers.judge(publisher, sequence, kind, now)
        }

        fn then(&mut self, incarnation: u64, sequence: u64, kind: SnapshotKind) -> Verdict {
            self.of(1, incarnation, sequence, kind)
        }

        fn close(&mut self, incarnation: u64, sequence: u64) -> bool {
            let (publisher, now) = (PublisherId::new(1, incarnation), self.now());
            self.publishers.close(publisher, sequence, now)
        }
    }

    #[test]
    fn sequences_grow_within_an_incarnation_and_incarnations_grow() {
        let mut heard = Heard::new(9);
        assert_eq!(heard.then(5, 3, delta(2)), Untold);
        assert_eq!(heard.then(5, 3, Full), Next);
        assert_eq!(heard.then(5, 4, delta(3)), Next);
        assert_eq!(heard.then(5, 4, delta(3)), Superseded);
        assert_eq!(heard.then(5, 4, Full), Superseded);
        assert_eq!(heard.then(5, 9, delta(7)), Gap);
        assert_eq!(heard.then(5, 10, delta(9)), Gap);
        assert_eq!(heard.then(5, 11, Full), Next);
        assert_eq!(heard.then(5, 12, delta(11)), Next);
        assert_eq!(heard.then(6, 1, delta(0)), Untold);
        assert_eq!(heard.then(5, 13, delta(12)), Next);
        assert_eq!(heard.then(6, 1, Full), Next);
        assert_eq!(heard.then(5, 14, Full), Superseded);
        assert_eq!(heard.then(6, 1, Full), Superseded);
    }

    #[test]
    fn a_highest_one_that_falls_silent_is_taken_over_from_by_a_full_that_was_asked_for() {
        for (incarnation, sequence) in [(7, u64::MAX), (u64::MAX, 0), (u64::MAX, u64::MAX)] {
            let mut heard = Heard::new(9);
            assert_eq!(heard.then(7, 3, Full), Next);
            assert_eq!(heard.then(incarnation, sequence, Full), Next);
            heard.seconds = 4;
            assert_eq!(heard.then(7, 4, delta(3)), Superseded);
            assert_eq!(heard.then(7, 5, Full), Superseded);
            heard.seconds = 5;
            assert_eq!(heard.then(7, 6, Full), Untold);
            assert_eq!(heard.then(7, 6, Full), Untold);
            assert_eq!(heard.then(6, 7, Full), Untold);
            assert_eq!(heard.then(7, 7, delta(3)), Untold);
            assert_eq!(heard.then(7, 8, Full), TakesOver);
            assert_eq!(heard.then(7, 9, delta(8)), Next);
        }
    }

    #[test]
    fn stragglers_of_a_closed_incarnation_stay_out_and_any_other_is_heard() {
        let mut heard = Heard::new(9);
        assert!(heard.close(5, 7));
        assert_eq!(heard.then(5, 7, Full), Superseded);
        assert_eq!(heard.then(5, 8, delta(7)), Untold);
        assert_eq!(heard.then(5, 8, Full), Next);
        assert!(!heard.close(5, 7));
        assert!(heard.close(5, 8));
        assert_eq!(heard.then(4, 1, delta(0)), Untold);
        assert_eq!(heard.then(4, 1, Full), Next);
        assert_eq!(heard.then(5, 8, Full), Superseded);
        // Gone without having been believed: its stragglers stay out all the same.
        assert!(heard.close(6, 3));
        assert_eq!(heard.then(6, 2, Full), Superseded);
        assert_eq!(heard.then(4, 2, delta(1)), Next);
        // A forged goodbye shuts nobody out for ever.
        assert!(heard.close(4, u64::MAX));
        heard.seconds = 5;
        assert_eq!(heard.then(4, 3, delta(2)), Untold);
        assert_eq!(heard.then(4, 4, Full), TakesOver);
    }

    #[test]
    fn the_closed_are_bounded() {
        let mut heard = Heard::new(9);
        assert!(heard.close(5, 7));
        let now = heard.now();
        for id in 2..5_000 {
            assert!(heard.publishers.close(PublisherId::new(id, 5), 7, now));
        }
        assert_eq!(heard.publishers.known.len(), REMEMBERED);
        assert_eq!(heard.publishers.speaking, 0);
    }

    #[test]
    fn at_the_limit_the_longest_silent_publisher_without_workers_goes() {
        let mut heard = Heard::new(2);
        assert_eq!(heard.of(1, 1, 1, Full), Next);
        heard.publishers.note_worker(1);
        heard.seconds = 1;
        assert_eq!(heard.of(2, 1, 1, Full), Next);
        assert_eq!(heard.of(3, 1, 1, Full), Next);
        assert_eq!(heard.of(2, 1, 2, delta(1)), Untold);
        assert_eq!(heard.of(1, 1, 2, delta(1)), Next);
        heard.publishers.note_worker(3);
        assert_eq!(heard.of(4, 1, 1, Full), Refused);
        heard.publishers.note_worker_gone(1);
        assert_eq!(heard.of(4, 1, 1, Full), Next);
        assert_eq!(
            (heard.publishers.speaking, heard.publishers.known.len()),
            (2, 2)
        );
    }
}
