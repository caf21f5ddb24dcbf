//! What a router tells the recorder.

use super::{ObservedRouter, Series, count};
use crate::sans_io::{counts::WaitingCounts, table::LoadTable};

impl ObservedRouter {
    /// Adds to the counters what was counted since the last time, and sets the gauges.
    pub(super) fn tell(&mut self, table: &LoadTable, waiting: WaitingCounts) {
        let Some(measuring) = &self.measuring else {
            return;
        };
        let counts = table.counts();
        let refusals = counts.refusals;
        let received = |result| RECEIVED.of("result", result);
        let loads = |result| LOADS.of("result", result);
        let refused = |reason| REFUSALS.of("reason", reason);
        let ended = |by| ENDED.of("by", by);
        let waits_ended = |by| WAITS_ENDED.of("by", by);
        let released = counts.released.saturating_sub(counts.failed);
        let series = [
            (received("applied"), counts.applied),
            (received("untold"), counts.untold),
            (received("superseded"), counts.superseded),
            (received("refused"), counts.refused_publishers),
            (received("closed"), counts.closed),
            (FULL_WANTED, counts.need_full),
            (loads("taken"), counts.loads),
            (loads("late"), counts.late_loads),
            (loads("refused"), counts.refused_workers),
            (loads("rejected"), counts.rejected_loads),
            (CHANGED_HANDS, counts.changed_hands),
            (REMOVED, counts.removed),
            (UNKNOWN_TICKETS, counts.unknown_tickets),
            (SELECTIONS, counts.selected),
            (refused("no_workers"), refusals.no_workers),
            (refused("all_saturated"), refusals.all_saturated),
            (refused("unknown_worker"), refusals.unknown_worker),
            (refused("none_allowed"), refusals.none_allowed),
            (refused("shutting_down"), refusals.shutting_down),
            (refused("too_large"), refusals.too_large),
            (ended("released"), released),
            (ended("failed"), counts.failed),
            (ended("admitted"), counts.admitted),
            (ended("settled"), counts.settled),
            (ended("dropped"), counts.dropped),
            (ended("expired"), counts.expired),
            (UNKNOWN_RELEASES, counts.unknown_releases),
            (COOLINGS, counts.cooled),
            (WENT_STALE, counts.went_stale),
            (WAITS, waiting.waited),
            (waits_ended("served"), waiting.served),
            (waits_ended("timed_out"), waiting.timed_out),
            (waits_ended("gave_up"), waiting.gave_up),
            (waits_ended("hopeless"), waiting.hopeless),
            (WAITS_REFUSED, waiting.refused),
        ];
        let instruments = &measuring.instruments;
        self.told.tell(&instruments.labels, &series);
        instruments.set(BOOKINGS, count(table.outstanding()));
        instruments.set(WAITING, count(waiting.waiting));
    }
}

pub(super) const REFUSALS: Series = Series::named("actix_kv_metrics_refusals_total");
const RECEIVED: Series = Series::named("actix_kv_metrics_snapshots_received_total");
const FULL_WANTED: Series = Series::named("actix_kv_metrics_full_snapshots_wanted_total");
const LOADS: Series = Series::named("actix_kv_metrics_loads_received_total");
const CHANGED_HANDS: Series = Series::named("actix_kv_metrics_changed_hands_total");
const REMOVED: Series = Series::named("actix_kv_metrics_workers_removed_total");
const UNKNOWN_TICKETS: Series = Series::named("actix_kv_metrics_unknown_tickets_total");
const SELECTIONS: Series = Series::named("actix_kv_metrics_selections_total");
const ENDED: Series = Series::named("actix_kv_metrics_bookings_ended_total");
const UNKNOWN_RELEASES: Series = Series::named("actix_kv_metrics_unknown_releases_total");
const COOLINGS: Series = Series::named("actix_kv_metrics_coolings_total");
const WENT_STALE: Series = Series::named("actix_kv_metrics_went_stale_total");
const WAITS: Series = Series::named("actix_kv_metrics_waits_total");
const WAITS_ENDED: Series = Series::named("actix_kv_metrics_waits_ended_total");
const WAITS_REFUSED: Series = Series::named("actix_kv_metrics_waits_refused_total");
const WAITING: Series = Series::named("actix_kv_metrics_waiting_for_room");
const BOOKINGS: Series = Series::named("actix_kv_metrics_bookings");
