//! Requests that wait for a worker to become a candidate.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound::{Excluded, Unbounded},
    time::Instant,
};

use super::{
    choice::Placement,
    counts::WaitingCounts,
    freed::Freed,
    selection::{Candidates, SelectError, SelectWorker},
    slots::RowSlot,
    table::LoadTable,
};
use crate::metrics::WorkerRank;

/// The requests that wait, first come first served, and `T`, by which each is answered.
///
/// Call protocol: before any new choice, and after whatever may have made a worker a candidate,
/// [`poll_answer`](Self::poll_answer) until there is none; [`enter`](Self::enter) is a new choice.
/// [`poll_timeout`](Self::poll_timeout) is when to poll if nothing happens before.
///
/// While somebody waits the table notes which workers come to be candidates, and only who can have one of those is looked at:
/// a choice is tried once for each of their places, not for each who waits. Who waits for one worker blocks nobody who waits
/// for another.
#[derive(Debug)]
pub(crate) struct WaitingRoom<T> {
    /// By the number under which each asked.
    queue: BTreeMap<u64, Waiting<T>>,
    deadlines: BTreeSet<(Instant, u64)>,
    most: usize,
    counts: WaitingCounts,
}

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Waiting<T> {
    /// With its overlaps in order.
    pub(crate) request: SelectWorker,
    /// `None`: as long as it takes.
    pub(crate) deadline: Option<Instant>,
    pub(crate) answer: T,
}

/// What becomes of a request, and whose it is.
pub(crate) type Answer<T> = (Waiting<T>, Result<Placement, SelectError>);

impl<T> WaitingRoom<T> {
    /// An empty one for up to `most` requests.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            queue: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            most,
            counts: WaitingCounts::default(),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn counts(&self) -> WaitingCounts {
        WaitingCounts {
            waiting: self.queue.len(),
            ..self.counts
        }
    }

    /// A new choice for who has nothing against waiting. `None`: it waits; `number`, drawn when it was asked for, is its place
    /// in the order.
    pub(crate) fn enter(
        &mut self,
        table: &mut LoadTable,
        number: u64,
        waiting: Waiting<T>,
        now: Instant,
    ) -> Option<Answer<T>> {
        let chosen = table.select_in_order(&waiting.request, now);
        let in_time = waiting.deadline.is_none_or(|deadline| deadline > now);
        if chosen != Err(SelectError::AllSaturated) || !in_time {
            return Some((waiting, chosen));
        }
        if self.queue.len() >= self.most {
            self.counts.refused += 1;
            return Some((waiting, chosen));
        }
        table.counts.take_back_saturated();
        self.counts.waited += 1;
        if let Some(deadline) = waiting.deadline {
            self.deadlines.insert((deadline, number));
        }
        self.queue.insert(number, waiting);
        table.freed_mut().begin();
        None
    }

    /// Whoever asked does not wait any more. `false`: it was answered before.
    pub(crate) fn leave(&mut self, table: &mut LoadTable, number: u64) -> bool {
        let left = self.remove(table, number).is_some();
        self.counts.gave_up += u64::from(left);
        left
    }

    /// The next who is answered by now; nobody who `is_gone` is placed. `None`: whoever is left has to wait.
    pub(crate) fn poll_answer(
        &mut self,
        table: &mut LoadTable,
        now: Instant,
        is_gone: impl Fn(&T) -> bool,
    ) -> Option<Answer<T>> {
        if let Some((deadline, number)) = self.deadlines.first().copied()
            && deadline <= now
        {
            self.counts.timed_out += 1;
            let waiting = self.remove(table, number)?;
            table.counts.refuse(SelectError::AllSaturated);
            return Some((waiting, Err(SelectError::AllSaturated)));
        }
        table.expire(now);
        while let Some(number) = self.next_to_try(table) {
            let waiting = self.queue.get(&number)?;
            if is_gone(&waiting.answer) {
                self.leave(table, number);
                continue;
            }
            self.counts.tries += 1;
            let chosen = table.select_in_order(&waiting.request, now);
            if chosen == Err(SelectError::AllSaturated) {
                // Whoever asked has not been told so.
                table.counts.take_back_saturated();
                continue;
            }
            match chosen {
                Ok(_) => self.counts.served += 1,
                Err(_) => self.counts.hopeless += 1,
            }
            table.pricing.retain_free();
            return Some((self.remove(table, number)?, chosen));
        }
        None
    }

    /// When somebody has waited for as long as it may, or time alone makes a worker a candidate.
    pub(crate) fn poll_timeout(&self, table: &LoadTable) -> Option<Instant> {
        if self.is_empty() {
            return None;
        }
        let first = self.deadlines.first().map(|(deadline, _)| *deadline);
        first.into_iter().chain(table.next_deadline()).min()
    }

    /// The first, in the order of their numbers, who may have what was freed and has not been looked at.
    fn next_to_try(&self, table: &mut LoadTable) -> Option<u64> {
        let freed = table.freed();
        let behind = freed.looked_up_to().map_or(Unbounded, Excluded);
        let mut others = self.queue.range((behind, Unbounded));
        let next = if freed.is_empty() {
            None
        } else {
            others.find(|(_, waiting)| table.may_serve(&waiting.request))
        };
        let next = next.map(|(number, _)| *number);
        let freed = table.freed_mut();
        match next {
            Some(number) => freed.look_at(number),
            None => freed.clear(),
        }
        next
    }

    fn remove(&mut self, table: &mut LoadTable, number: u64) -> Option<Waiting<T>> {
        let waiting = self.queue.remove(&number)?;
        if let Some(deadline) = waiting.deadline {
            self.deadlines.remove(&(deadline, number));
        }
        if self.queue.is_empty() {
            table.freed_mut().end();
        }
        Some(waiting)
    }
}

impl LoadTable {
    fn freed(&self) -> &Freed {
        self.pricing.index().freed()
    }

    fn freed_mut(&mut self) -> &mut Freed {
        self.pricing.freed_mut()
    }

    /// Whether the request may be placed on what was freed.
    fn may_serve(&self, request: &SelectWorker) -> bool {
        let takes = |row: &RowSlot| {
            self.pricing.holds(*row, request.blocks) && request.allows(self.roster.worker(*row))
        };
        self.freed().is_all() || self.freed().rows().iter().any(takes)
    }

    /// When time alone changes what is known: a reservation expires, or a worker has cooled or has been silent for long. It
    /// may turn out to be later.
    fn next_deadline(&self) -> Option<Instant> {
        let ttl = self.config.reservation_ttl();
        let expires = self.reservations.next_expiry(ttl);
        let first = expires.into_iter().chain(self.deadlines.first()).min();
        first?.instant()
    }
}

impl SelectWorker {
    /// Whether this worker may be chosen.
    fn allows(&self, worker: WorkerRank) -> bool {
        let named = match &self.candidates {
            Candidates::Any => true,
            Candidates::Worker(id) => worker.worker() == *id,
            Candidates::Rank(rank) => worker == *rank,
            Candidates::Among(allowed) => allowed.contains(&worker),
        };
        named && !self.exceptions.contains(&worker)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        config::RouterConfig,
        metrics::ForwardPassMetrics,
        snapshot::{LoadSnapshot, PublisherId, SnapshotKind, WorkerLoad},
    };

    /// A worker of 1,000 blocks, of which 500 are room, reports.
    fn reports(table: &mut LoadTable, sequence: u64, worker: u64, active: u64, now: Instant) {
        let load = WorkerLoad {
            worker: worker.into(),
            life: 1,
            metrics: Some(ForwardPassMetrics::new(active, 1_000, 0)),
            admitted: Vec::new(),
            age: Duration::ZERO,
            reported: None,
            draining: false,
        };
        let kind = match sequence {
            1 => SnapshotKind::Full,
            _ => SnapshotKind::Delta {
                after: sequence - 1,
            },
        };
        let publisher = PublisherId::new(1, 1);
        table.handle_snapshot(
            LoadSnapshot {
                publisher,
                sequence,
                kind,
                left: Vec::new(),
                workers: vec![load],
            },
            now,
        );
    }

    #[test]
    fn who_waits_is_served_by_number_and_tried_for_what_was_freed_alone() {
        let now = actix::clock::Instant::now().into_std();
        let later = now + Duration::from_millis(5);
        let config = RouterConfig::builder().saturation(0.5).build().unwrap();
        let mut table = LoadTable::new(config);
        let mut room = WaitingRoom::new(4);
        reports(&mut table, 1, 1, 500, now);
        reports(&mut table, 2, 2, 500, now);
        let pin = Candidates::Rank(2.into());
        let enter =
            |room: &mut WaitingRoom<&'static str>, table: &mut LoadTable, number, answer| {
                let request = SelectWorker::blocks(10);
                let request = match answer {
                    "pinned" => request.among(pin.clone()),
                    _ => request,
                };
                let deadline = (answer == "hasty").then_some(later);
                let waiting = Waiting {
                    request,
                    deadline,
                    answer,
                };
                let answered = room.enter(table, number, waiting, now);
                answered.map(|(_, chosen)| chosen.unwrap_err())
            };
        for (number, answer) in [(7, "second"), (2, "first"), (1, "pinned"), (9, "hasty")] {
            assert_eq!(enter(&mut room, &mut table, number, answer), None);
        }
        let full = enter(&mut room, &mut table, 10, "too many");
        assert_eq!(full, Some(SelectError::AllSaturated));
        assert_eq!(room.poll_timeout(&table), Some(later));

        let poll = |room: &mut WaitingRoom<_>, table: &mut LoadTable, now| {
            let (waiting, chosen) = room.poll_answer(table, now, |_| false)?;
            Some((waiting.answer, chosen.ok().map(|chosen| chosen.worker)))
        };
        assert_eq!(poll(&mut room, &mut table, now), None);
        reports(&mut table, 3, 1, 485, now);
        assert_eq!(
            poll(&mut room, &mut table, now),
            Some(("first", Some(1.into())))
        );
        assert_eq!(
            poll(&mut room, &mut table, now),
            Some(("second", Some(1.into())))
        );
        assert_eq!(poll(&mut room, &mut table, now), None);
        assert_eq!(poll(&mut room, &mut table, later), Some(("hasty", None)));
        assert!(!room.leave(&mut table, 9));
        reports(&mut table, 4, 2, 0, now);
        assert_eq!(
            poll(&mut room, &mut table, now),
            Some(("pinned", Some(2.into())))
        );
        assert_eq!(poll(&mut room, &mut table, now), None);
        assert!(room.is_empty());
        assert_eq!(room.poll_timeout(&table), None);
        assert_eq!((room.counts().tries, room.counts().served), (3, 3));
    }
}
