//! What waits for a router: the snapshots of one publisher that came while it was busy, merged into one.

use std::{collections::HashMap, time::Instant};

use actix_kv_metrics::{LoadSnapshot, PublisherId, SnapshotKind, WorkerLoad, WorkerRank};

/// Snapshots of one incarnation as one, with the newest of each worker.
#[derive(Debug)]
pub(crate) struct Waiting {
    publisher: PublisherId,
    sequence: u64,
    kind: SnapshotKind,
    left: Vec<WorkerRank>,
    /// With when each came.
    workers: Vec<(Instant, WorkerLoad)>,
    /// Where each worker is in `workers`; made when the first snapshot is merged.
    places: Option<HashMap<WorkerRank, usize>>,
}

impl Waiting {
    pub(crate) fn new(snapshot: LoadSnapshot, now: Instant) -> Self {
        Self {
            publisher: snapshot.publisher,
            sequence: snapshot.sequence,
            kind: snapshot.kind,
            left: snapshot.left,
            workers: snapshot
                .workers
                .into_iter()
                .map(|load| (now, load))
                .collect(),
            places: None,
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.kind == SnapshotKind::Closed
    }

    /// The next snapshot of the same incarnation, which came at `now`. `follows`: nothing between it and this is missing; else
    /// the router is to see that something is.
    pub(crate) fn merge(&mut self, next: LoadSnapshot, follows: bool, now: Instant) {
        let SnapshotKind::Delta { after } = next.kind else {
            *self = Self::new(next, now);
            return;
        };
        self.sequence = next.sequence;
        if let SnapshotKind::Delta { after: before } = &mut self.kind
            && !follows
        {
            *before = after;
        }
        for rank in next.left {
            self.remove(rank);
            // Who joins the same snapshot again is in `workers`, which count after those who left.
            if self.kind != SnapshotKind::Full {
                self.left.push(rank);
            }
        }
        for load in next.workers {
            self.put(load, now);
        }
    }

    fn places(&mut self) -> &mut HashMap<WorkerRank, usize> {
        let workers = &self.workers;
        self.places.get_or_insert_with(|| {
            let places = workers.iter().enumerate();
            places
                .map(|(place, (_, load))| (load.worker, place))
                .collect()
        })
    }

    fn remove(&mut self, rank: WorkerRank) {
        let Some(place) = self.places().remove(&rank) else {
            return;
        };
        self.workers.swap_remove(place);
        if let Some((_, moved)) = self.workers.get(place) {
            let moved = moved.worker;
            self.places().insert(moved, place);
        }
    }

    fn put(&mut self, mut load: WorkerLoad, now: Instant) {
        let next = self.workers.len();
        let place = *self.places().entry(load.worker).or_insert(next);
        match self.workers.get_mut(place) {
            Some((came, older)) => {
                // The router has gone without a newer value since the first difference from what it has.
                let waited = older.age + now.saturating_duration_since(*came);
                load.age = load.age.max(waited);
                (*came, *older) = (now, load);
            }
            None => self.workers.push((now, load)),
        }
    }

    /// What goes to the router at `now`: how long it waited here counts in every age.
    pub(crate) fn into_snapshot(self, now: Instant) -> LoadSnapshot {
        let aged = |(came, mut load): (Instant, WorkerLoad)| {
            let held = now.saturating_duration_since(came);
            load.age = load.age.saturating_add(held);
            load.reported = load.reported.map(|ago| ago.saturating_add(held));
            load
        };
        LoadSnapshot {
            publisher: self.publisher,
            sequence: self.sequence,
            kind: self.kind,
            left: self.left,
            workers: self.workers.into_iter().map(aged).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)] // An epoch; no time passes.

    use std::time::Duration;

    use actix_kv_metrics::ForwardPassMetrics;

    use super::*;

    fn load(worker: u64, active: u64) -> WorkerLoad {
        WorkerLoad {
            worker: worker.into(),
            life: 1,
            metrics: Some(ForwardPassMetrics::new(active, 100, 0)),
            admitted: Vec::new(),
            age: Duration::from_millis(1),
            reported: Some(Duration::from_millis(2)),
            draining: false,
        }
    }

    fn snapshot(sequence: u64, kind: SnapshotKind, workers: Vec<WorkerLoad>) -> LoadSnapshot {
        LoadSnapshot {
            publisher: PublisherId::new(7, 1),
            sequence,
            kind,
            left: Vec::new(),
            workers,
        }
    }

    const AFTER_3: SnapshotKind = SnapshotKind::Delta { after: 3 };
    const AFTER_4: SnapshotKind = SnapshotKind::Delta { after: 4 };

    #[test]
    fn changes_become_one_with_the_newest_of_each_worker_and_ages_count_on() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let mut waiting = Waiting::new(
            snapshot(4, AFTER_3, vec![load(1, 10), load(2, 20), load(3, 30)]),
            start,
        );
        let mut next = snapshot(5, AFTER_4, vec![load(2, 21), load(4, 40)]);
        next.left.push(1.into());
        waiting.merge(next, true, start + ms(10));
        let merged = waiting.into_snapshot(start + ms(15));
        assert_eq!((merged.sequence, merged.kind), (5, AFTER_3));
        assert_eq!(merged.left, [1.into()]);
        let told: Vec<_> = merged
            .workers
            .iter()
            .map(|load| {
                let active = load.metrics.as_ref().unwrap().kv_stats.kv_active_blocks;
                (
                    active,
                    load.age.as_millis(),
                    load.reported.unwrap().as_millis(),
                )
            })
            .collect();
        assert_eq!(told, [(30, 16, 17), (21, 16, 7), (40, 6, 7)]);
    }

    #[test]
    fn a_change_after_a_gap_says_so_and_one_onto_everything_leaves_it_everything() {
        let start = Instant::now();
        let mut waiting = Waiting::new(snapshot(2, AFTER_3, vec![load(1, 1)]), start);
        waiting.merge(snapshot(5, AFTER_4, vec![]), false, start);
        assert_eq!(waiting.into_snapshot(start).kind, AFTER_4);

        let full = snapshot(4, SnapshotKind::Full, vec![load(1, 1), load(2, 2)]);
        let mut waiting = Waiting::new(full, start);
        let mut next = snapshot(5, AFTER_4, vec![load(3, 3)]);
        next.left.push(1.into());
        waiting.merge(next, true, start);
        let merged = waiting.into_snapshot(start);
        assert_eq!((merged.kind, merged.sequence), (SnapshotKind::Full, 5));
        assert!(merged.left.is_empty());
        let workers: Vec<_> = merged.workers.iter().map(|load| load.worker).collect();
        assert_eq!(workers, [2.into(), 3.into()]);
    }

    #[test]
    fn everything_and_a_goodbye_replace_what_waits() {
        let start = Instant::now();
        let mut waiting = Waiting::new(snapshot(2, AFTER_3, vec![load(1, 1)]), start);
        waiting.merge(
            snapshot(5, SnapshotKind::Full, vec![load(9, 9)]),
            true,
            start,
        );
        waiting.merge(snapshot(6, SnapshotKind::Closed, vec![]), true, start);
        assert!(waiting.is_closed());
        assert_eq!(waiting.into_snapshot(start).workers, []);
    }
}
