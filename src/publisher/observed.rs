//! What a publisher tells the recorder of metrics.

use actix::{Context, Handler};

use super::{PublisherActor, now, stats::in_flight_for};
use crate::{
    observe::{self, Observe, Series},
    sans_io::link::{Link, LinkState},
};

impl Handler<Observe> for PublisherActor {
    type Result = ();

    fn handle(&mut self, msg: Observe, ctx: &mut Context<Self>) {
        let now = self.begin_message(ctx);
        self.drive_after_message(ctx, now);
        self.observed.observe(msg);
        self.tell_counts();
        self.tell_gauges();
    }
}

impl PublisherActor {
    /// Adds to the counters what was counted since the last time, if anybody ever asked.
    pub(super) fn tell_counts(&mut self) {
        let Some(instruments) = &self.observed.instruments else {
            return;
        };
        let labels = &instruments.labels;
        let (counts, timer) = (&self.counts, self.timer.counts());
        let series = [
            (REPORTS.of("result", "rejected"), counts.rejected),
            (REPORTS.of("result", "late"), counts.late),
            (REPORTS.of("result", "unchanged"), counts.unchanged),
            (REPORTS.of("result", "changed"), counts.changed),
            (REFUSED_MESSAGES, counts.refused),
            (LEASES_ENDED, counts.leases_ended),
            (FORGOTTEN_TICKETS, self.reports.forgotten_tickets()),
            (TIMER_EVENTS.of("event", "arm"), timer.arms),
            (TIMER_EVENTS.of("event", "cancel"), timer.cancels),
            (TIMER_EVENTS.of("event", "fire"), timer.fires),
            (TIMER_EVENTS.of("event", "stale_fire"), timer.stale_fires),
        ];
        self.observed.told.tell(labels, &series);
        for attached in &mut self.attached {
            attached.told.tell(labels, &counts_of(&attached.link));
        }
    }

    fn tell_gauges(&self) {
        let Some(instruments) = &self.observed.instruments else {
            return;
        };
        let set = |series: Series, value: f64| instruments.set(series, value);
        set(REPORTING_WORKERS, observe::count(self.reports.len()));
        let windows = self.links().map(|link| link.coalescer().open_windows());
        set(OPEN_WINDOWS, observe::count(windows.sum()));
        let now = now();
        let waits = self.links().filter_map(|link| in_flight_for(link, now));
        set(
            OLDEST_IN_FLIGHT,
            waits.max().unwrap_or_default().as_secs_f64(),
        );
        for state in ["idle", "in_flight", "backing_off", "lost"] {
            let links = self.links().filter(|link| name_of(link) == state).count();
            set(LINKS.of("state", state), observe::count(links));
        }
    }
}

fn name_of(link: &Link) -> &'static str {
    match link.state() {
        LinkState::Idle => "idle",
        LinkState::InFlight { .. } => "in_flight",
        LinkState::BackingOff { .. } => "backing_off",
        LinkState::Lost => "lost",
    }
}

fn counts_of(link: &Link) -> [(Series, u64); 11] {
    let (windows, delivery) = (link.coalescer_counts(), link.counts());
    [
        (WINDOW_CHANGES.of("result", "opened"), windows.opened),
        (WINDOW_CHANGES.of("result", "coalesced"), windows.coalesced),
        (SUPPRESSED_WINDOWS, windows.suppressed),
        (DEPARTURES, windows.departures),
        (
            ENTRIES.of("kind", "news"),
            windows.entries.saturating_sub(windows.renewals),
        ),
        (ENTRIES.of("kind", "renewal"), windows.renewals),
        (SNAPSHOTS_SENT.of("kind", "full"), delivery.full),
        (
            SNAPSHOTS_SENT.of("kind", "delta"),
            delivery.snapshots.saturating_sub(delivery.full),
        ),
        (RETRIES, delivery.retries),
        (
            DELIVERIES.of("result", "acknowledged"),
            delivery.acknowledged,
        ),
        (DELIVERIES.of("result", "failed"), delivery.failures),
    ]
}

const REPORTS: Series = Series::named("actix_kv_metrics_reports_total");
const REFUSED_MESSAGES: Series = Series::named("actix_kv_metrics_refused_messages_total");
const LEASES_ENDED: Series = Series::named("actix_kv_metrics_leases_ended_total");
const FORGOTTEN_TICKETS: Series = Series::named("actix_kv_metrics_forgotten_tickets_total");
const TIMER_EVENTS: Series = Series::named("actix_kv_metrics_timer_events_total");
const WINDOW_CHANGES: Series = Series::named("actix_kv_metrics_window_changes_total");
const SUPPRESSED_WINDOWS: Series = Series::named("actix_kv_metrics_suppressed_windows_total");
const DEPARTURES: Series = Series::named("actix_kv_metrics_departures_told_total");
const ENTRIES: Series = Series::named("actix_kv_metrics_entries_sent_total");
const SNAPSHOTS_SENT: Series = Series::named("actix_kv_metrics_snapshots_sent_total");
const RETRIES: Series = Series::named("actix_kv_metrics_retries_total");
const DELIVERIES: Series = Series::named("actix_kv_metrics_deliveries_total");
const REPORTING_WORKERS: Series = Series::named("actix_kv_metrics_reporting_workers");
const OPEN_WINDOWS: Series = Series::named("actix_kv_metrics_open_windows");
const OLDEST_IN_FLIGHT: Series = Series::named("actix_kv_metrics_oldest_in_flight_seconds");
const LINKS: Series = Series::named("actix_kv_metrics_links");
