//! What a load table has done.

use serde::Serialize;

use super::selection::SelectError;
#[cfg(doc)]
use crate::snapshot::SnapshotAck;

/// Counters of a load table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TableCounts {
    /// Snapshots taken over.
    pub applied: u64,
    /// Snapshots that were answered with [`SnapshotAck::NeedFull`], taken over or not.
    pub need_full: u64,
    /// Those among them that were not taken over, because their publisher has to tell everything first.
    pub untold: u64,
    /// Snapshots of an old incarnation or sequence.
    pub superseded: u64,
    /// Snapshots of a publisher beyond `max_publishers`.
    pub refused_publishers: u64,
    /// Publishers that said they are gone.
    pub closed: u64,
    /// Worker loads taken over.
    pub loads: u64,
    /// Worker loads of a lower life than another that the worker has: kept beside it, and not gone by.
    pub late_loads: u64,
    /// Times a worker went from one publisher to another that speaks of it too.
    pub changed_hands: u64,
    /// Worker loads that were not taken over because there are `max_workers` already.
    pub refused_workers: u64,
    /// Worker loads whose metrics were not finite; the worker counts as known.
    pub rejected_loads: u64,
    /// Workers removed.
    pub removed: u64,
    /// Echoed tickets that this router never issued.
    pub unknown_tickets: u64,
    /// Choices made.
    pub selected: u64,
    /// Choices that could not be made, those that were waited for too.
    pub not_selected: u64,
    /// Why they could not.
    pub refusals: Refusals,
    /// Reservations that their holder ended, those of failed requests too.
    pub released: u64,
    /// Requests among them that their worker did not take.
    pub failed: u64,
    /// Times a worker began to cool by that, for the first time or for longer.
    pub cooled: u64,
    /// Releases of reservations that had ended already, or never were.
    pub unknown_releases: u64,
    /// Reservations that an echoed ticket ended.
    pub admitted: u64,
    /// Reservations that a report ended, because it came long enough after they were booked.
    pub settled: u64,
    /// Reservations that ended with their worker's life.
    pub dropped: u64,
    /// Reservations that lived too long.
    pub expired: u64,
    /// Times a worker with reservations went silent for too long.
    pub went_stale: u64,
}

/// Choices that could not be made, by reason: `not_selected` is their sum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Refusals {
    /// [`SelectError::NoWorkers`].
    pub no_workers: u64,
    /// [`SelectError::AllSaturated`].
    pub all_saturated: u64,
    /// [`SelectError::UnknownWorker`].
    pub unknown_worker: u64,
    /// [`SelectError::NoneAllowed`].
    pub none_allowed: u64,
    /// [`SelectError::ShuttingDown`].
    pub shutting_down: u64,
    /// [`SelectError::TooLarge`].
    pub too_large: u64,
}

impl TableCounts {
    /// A choice could not be made.
    #[cold]
    pub(super) fn refuse(&mut self, error: SelectError) {
        let reasons = &mut self.refusals;
        let reason = match error {
            SelectError::NoWorkers => &mut reasons.no_workers,
            SelectError::AllSaturated => &mut reasons.all_saturated,
            SelectError::UnknownWorker => &mut reasons.unknown_worker,
            SelectError::NoneAllowed => &mut reasons.none_allowed,
            SelectError::ShuttingDown => &mut reasons.shutting_down,
            SelectError::TooLarge => &mut reasons.too_large,
            // Who asks a table has one.
            SelectError::Unavailable => return,
        };
        *reason += 1;
        self.not_selected += 1;
    }

    /// Nobody was told of the last refusal, an [`SelectError::AllSaturated`]: who asked waits.
    pub(super) fn take_back_saturated(&mut self) {
        self.refusals.all_saturated -= 1;
        self.not_selected -= 1;
    }
}

/// Counters of requests that wait for room. `waited = served + timed_out + gave_up + hopeless + waiting`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WaitingCounts {
    /// Requests that wait now.
    pub waiting: usize,
    /// Requests that had to wait.
    pub waited: u64,
    /// Those that were placed.
    pub served: u64,
    /// Those that waited as long as they would, for nothing.
    pub timed_out: u64,
    /// Those that nobody wanted an answer to any more.
    pub gave_up: u64,
    /// Those that nobody could have taken later either: the worker that was waited for left, or a shutdown began.
    pub hopeless: u64,
    /// Requests that did not wait because `max_waiting` did already.
    pub refused: u64,
    /// Choices tried for those that waited.
    pub tries: u64,
}
