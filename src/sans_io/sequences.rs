//! Which snapshot of which publisher is the next one.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;

use crate::snapshot::{PublisherId, SnapshotKind};

/// How a snapshot follows what came before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is the next one.
    Next,
    /// It is newer, but something before it is missing.
    Gap,
    /// It is older than what is known.
    Superseded,
}

/// Newest incarnation and sequence of every publisher.
#[derive(Debug, Default)]
pub(crate) struct Publishers {
    known: HashMap<u64, Known, RandomState>,
    closed: VecDeque<u64>,
}

#[derive(Debug)]
struct Known {
    incarnation: u64,
    sequence: Option<u64>,
    closed: bool,
}

impl Publishers {
    /// Judges the snapshot and, unless it is superseded, remembers it as the newest.
    pub(crate) fn judge(
        &mut self,
        publisher: PublisherId,
        sequence: u64,
        kind: SnapshotKind,
    ) -> Verdict {
        let PublisherId { id, incarnation } = publisher;
        let known = self.known.entry(id).or_insert(Known {
            incarnation,
            sequence: None,
            closed: false,
        });
        if incarnation < known.incarnation {
            return Verdict::Superseded;
        }
        if incarnation > known.incarnation {
            known.incarnation = incarnation;
            known.sequence = None;
        }
        let last = known.sequence;
        if last.is_some_and(|last| sequence <= last) {
            return Verdict::Superseded;
        }
        known.sequence = Some(sequence);
        let was_closed = std::mem::replace(&mut known.closed, false);
        match kind {
            SnapshotKind::Delta { after } if was_closed || last != Some(after) => Verdict::Gap,
            _ => Verdict::Next,
        }
    }

    /// This incarnation says that it is gone. What it said before stays superseded. `false`: it has been heard since, so
    /// this was overtaken on the way.
    pub(crate) fn close(&mut self, publisher: PublisherId, sequence: u64) -> bool {
        let PublisherId { id, incarnation } = publisher;
        let known = self.known.entry(id).or_insert(Known {
            incarnation,
            sequence: None,
            closed: false,
        });
        if incarnation < known.incarnation {
            // A later one has been heard; what this one still owns goes with it all the same.
            return true;
        }
        if incarnation > known.incarnation {
            known.incarnation = incarnation;
            known.sequence = None;
        }
        if known.sequence.is_some_and(|last| sequence < last) {
            return false;
        }
        known.sequence = Some(sequence);
        known.closed = true;
        // Once each, however often it came and went: it displaces nobody, and is not forgotten for an earlier goodbye.
        self.closed.retain(|closed| *closed != id);
        self.closed.push_back(id);
        if self.closed.len() > REMEMBERED {
            let oldest = self.closed.pop_front();
            if let Some(id) = oldest.filter(|id| self.known.get(id).is_some_and(|k| k.closed)) {
                self.known.remove(&id);
            }
        }
        true
    }
}

/// Publishers that are gone are remembered so that a straggler of theirs does no harm; this many, so that they do not
/// pile up.
const REMEMBERED: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(
        publishers: &mut Publishers,
        incarnation: u64,
        sequence: u64,
        kind: SnapshotKind,
    ) -> Verdict {
        publishers.judge(PublisherId::new(1, incarnation), sequence, kind)
    }

    #[test]
    fn sequences_grow_within_an_incarnation_and_incarnations_grow() {
        use SnapshotKind::{Delta, Full};
        use Verdict::{Gap, Next, Superseded};
        let mut publishers = Publishers::default();
        let mut then =
            |incarnation, sequence, kind| judge(&mut publishers, incarnation, sequence, kind);
        assert_eq!(then(5, 3, Delta { after: 2 }), Gap);
        assert_eq!(then(5, 4, Delta { after: 3 }), Next);
        assert_eq!(then(5, 4, Delta { after: 3 }), Superseded);
        assert_eq!(then(5, 9, Delta { after: 7 }), Gap);
        assert_eq!(then(5, u64::MAX, Full), Next);
        assert_eq!(then(4, 10, Full), Superseded);
        assert_eq!(then(6, 0, Full), Next);
        assert_eq!(then(6, 0, Full), Superseded);
    }

    #[test]
    fn stragglers_of_a_closed_incarnation_are_superseded_and_the_closed_are_bounded() {
        let mut publishers = Publishers::default();
        publishers.close(PublisherId::new(1, 5), 7);
        let full = SnapshotKind::Full;
        assert_eq!(judge(&mut publishers, 5, 7, full), Verdict::Superseded);
        assert_eq!(judge(&mut publishers, 5, 8, full), Verdict::Next);
        for id in 2..5_000 {
            publishers.close(PublisherId::new(id, 5), 7);
        }
        assert_eq!(publishers.known.len(), REMEMBERED + 1);
    }
}
