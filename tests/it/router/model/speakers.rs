//! Whom the model listens to, of those that speak under one publisher id.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use actix_kv_metrics::{LoadSnapshot, SnapshotAck, SnapshotKind};

/// All that speak under one publisher id.
#[derive(Debug, Default)]
pub(super) struct Speakers {
    believed: Option<Believed>,
    /// Who said goodbye: in which sequence, and when.
    closed: BTreeMap<u64, (u64, Instant)>,
    /// Who was asked for everything because the believed one is silent: with which highest sequence, and when it came.
    asked: BTreeMap<u64, (u64, Instant)>,
}

/// The incarnation that has told everything.
#[derive(Debug)]
struct Believed {
    incarnation: u64,
    sequence: u64,
    /// Something is missing since it told everything.
    missing: bool,
    heard_at: Instant,
}

/// What becomes of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) ack: SnapshotAck,
    pub(super) applied: bool,
    /// Whatever this publisher has said before is void.
    pub(super) anew: bool,
}

impl Verdict {
    const NEXT: Self = Self {
        ack: SnapshotAck::Applied,
        applied: true,
        anew: false,
    };
    const GAP: Self = Self {
        ack: SnapshotAck::NeedFull,
        applied: true,
        anew: false,
    };
    const UNTOLD: Self = Self {
        ack: SnapshotAck::NeedFull,
        applied: false,
        anew: false,
    };
    const OLD: Self = Self {
        ack: SnapshotAck::Superseded,
        applied: false,
        anew: false,
    };
}

impl Speakers {
    pub(super) fn judge(
        &mut self,
        snapshot: &LoadSnapshot,
        stale_after: Duration,
        now: Instant,
    ) -> Verdict {
        let (incarnation, sequence) = (snapshot.publisher.incarnation, snapshot.sequence);
        if snapshot.kind == SnapshotKind::Closed {
            return self.close(incarnation, sequence, now);
        }
        let full = snapshot.kind == SnapshotKind::Full;
        if let Some(higher_at) = self.higher_than(incarnation, sequence) {
            // A straggler is old whoever is silent; somebody who lives answers when asked.
            if now - higher_at < stale_after {
                return Verdict::OLD;
            }
            let answers = self
                .asked
                .get(&incarnation)
                .is_some_and(|(a, _)| sequence > *a);
            if !(full && answers) {
                let asked = self.asked.entry(incarnation).or_insert((sequence, now));
                if sequence > asked.0 || now - asked.1 >= stale_after {
                    *asked = (sequence, now);
                }
                return Verdict::UNTOLD;
            }
        }
        let told = self.believed.as_mut();
        let told = told.filter(|believed| believed.incarnation == incarnation);
        let missing = match (told, snapshot.kind) {
            (_, SnapshotKind::Full) => false,
            (None, _) => return Verdict::UNTOLD,
            (Some(told), SnapshotKind::Delta { after }) => told.missing || told.sequence != after,
            (Some(_), SnapshotKind::Closed) => unreachable!("dealt with above"),
        };
        if full {
            self.asked.clear();
            self.closed.remove(&incarnation);
        }
        let former = self.believed.replace(Believed {
            incarnation,
            sequence,
            missing,
            heard_at: now,
        });
        let anew = former
            .is_none_or(|former| former.incarnation != incarnation || sequence <= former.sequence);
        Verdict {
            anew,
            ..if missing { Verdict::GAP } else { Verdict::NEXT }
        }
    }

    /// When that was heard last which makes this incarnation and sequence old ones.
    fn higher_than(&self, incarnation: u64, sequence: u64) -> Option<Instant> {
        let closed = self.closed.get(&incarnation);
        let closed = closed.and_then(|(last, at)| (sequence <= *last).then_some(*at));
        let believed = self.believed.as_ref();
        let higher = believed.filter(|b| (b.incarnation, b.sequence) >= (incarnation, sequence));
        closed.max(higher.map(|believed| believed.heard_at))
    }

    /// A goodbye is taken from anybody, unless it was overtaken on the way.
    fn close(&mut self, incarnation: u64, sequence: u64, now: Instant) -> Verdict {
        if let Some(believed) = &self.believed
            && believed.incarnation == incarnation
        {
            if sequence < believed.sequence {
                return Verdict::OLD;
            }
            self.believed = None;
        }
        let before = self.closed.get(&incarnation).map_or(0, |(last, _)| *last);
        self.closed.insert(incarnation, (sequence.max(before), now));
        Verdict::NEXT
    }
}
