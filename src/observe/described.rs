//! What each metric is, for the recorder: the words of `docs/metrics.md`.

use metrics::{Recorder, Unit};

use self::Kind::{Counter, Gauge, Histogram};

/// Tells the recorder what each metric is.
pub(super) fn describe() {
    metrics::with_recorder(|recorder: &dyn Recorder| {
        for (name, kind, unit, text) in METRICS {
            let (name, text) = (name.into(), text.into());
            match kind {
                Counter => recorder.describe_counter(name, unit, text),
                Gauge => recorder.describe_gauge(name, unit, text),
                Histogram => recorder.describe_histogram(name, unit, text),
            }
        }
    });
}

enum Kind {
    Counter,
    Gauge,
    Histogram,
}

const COUNT: Option<Unit> = Some(Unit::Count);
const SECONDS: Option<Unit> = Some(Unit::Seconds);

#[rustfmt::skip]
const METRICS: [(&str, Kind, Option<Unit>, &str); 47] = [
    ("actix_kv_metrics_reports_total", Counter, COUNT, "Reports that the publisher took in, by what became of them."),
    ("actix_kv_metrics_refused_messages_total", Counter, COUNT, "Messages that the publisher refused because it was shutting down."),
    ("actix_kv_metrics_leases_ended_total", Counter, COUNT, "Workers that left because they had been silent for the lease."),
    ("actix_kv_metrics_forgotten_tickets_total", Counter, COUNT, "Echoed tickets that were forgotten because the worker echoes those of over 64 routers."),
    ("actix_kv_metrics_timer_events_total", Counter, COUNT, "What became of the publisher's one timer."),
    ("actix_kv_metrics_window_changes_total", Counter, COUNT, "Changed reports, once for each attached router, by whether they opened a window or joined one."),
    ("actix_kv_metrics_suppressed_windows_total", Counter, COUNT, "Windows that ended with what the router had already."),
    ("actix_kv_metrics_departures_told_total", Counter, COUNT, "Departures of workers that routers were told of."),
    ("actix_kv_metrics_entries_sent_total", Counter, COUNT, "Worker loads in snapshots; a renewal only says that the worker still reports."),
    ("actix_kv_metrics_snapshots_sent_total", Counter, COUNT, "Snapshots sent to routers."),
    ("actix_kv_metrics_retries_total", Counter, COUNT, "Snapshots sent after a backoff."),
    ("actix_kv_metrics_deliveries_total", Counter, COUNT, "Answers to snapshots."),
    ("actix_kv_metrics_reporting_workers", Gauge, COUNT, "Workers that the publisher knows."),
    ("actix_kv_metrics_open_windows", Gauge, COUNT, "Changes that wait for their windows to end, over all attached routers."),
    ("actix_kv_metrics_links", Gauge, COUNT, "Attached routers, by the state of delivery to them."),
    ("actix_kv_metrics_oldest_in_flight_seconds", Gauge, SECONDS, "How long the oldest unacknowledged snapshot has been in flight."),
    ("actix_kv_metrics_age_of_information_seconds", Histogram, SECONDS, "Oldest age of information in each snapshot when it was built: how long its router had gone without a value; 0 if it had all."),
    ("actix_kv_metrics_delivery_seconds", Histogram, SECONDS, "Time from a snapshot to its answer."),
    ("actix_kv_metrics_snapshots_received_total", Counter, COUNT, "Snapshots that the router received, by what became of them."),
    ("actix_kv_metrics_full_snapshots_wanted_total", Counter, COUNT, "Snapshots after which the router asked to be told everything."),
    ("actix_kv_metrics_loads_received_total", Counter, COUNT, "Worker loads in snapshots, by what became of them; of a rejected one the worker is taken, without its metrics."),
    ("actix_kv_metrics_changed_hands_total", Counter, COUNT, "Times a worker went from one publisher to another."),
    ("actix_kv_metrics_workers_removed_total", Counter, COUNT, "Workers that the router forgot."),
    ("actix_kv_metrics_unknown_tickets_total", Counter, COUNT, "Echoed tickets that the router never issued."),
    ("actix_kv_metrics_selections_total", Counter, COUNT, "Workers chosen for requests."),
    ("actix_kv_metrics_refusals_total", Counter, COUNT, "Requests for which no worker was chosen, each time they were asked for."),
    ("actix_kv_metrics_bookings_ended_total", Counter, COUNT, "Requests booked on workers that are so no longer, by what ended that."),
    ("actix_kv_metrics_unknown_releases_total", Counter, COUNT, "Releases of bookings that had ended already, or never were."),
    ("actix_kv_metrics_coolings_total", Counter, COUNT, "Times a worker began to cool, for the first time or for longer."),
    ("actix_kv_metrics_went_stale_total", Counter, COUNT, "Times a worker with bookings went silent for too long."),
    ("actix_kv_metrics_waits_total", Counter, COUNT, "Requests that had to wait for room."),
    ("actix_kv_metrics_waits_ended_total", Counter, COUNT, "Requests that wait for room no longer, by what ended that."),
    ("actix_kv_metrics_waits_refused_total", Counter, COUNT, "Requests that did not wait because `max_waiting` did already."),
    ("actix_kv_metrics_waiting_for_room", Gauge, COUNT, "Requests that wait for room."),
    ("actix_kv_metrics_bookings", Gauge, COUNT, "Requests booked on workers."),
    ("actix_kv_metrics_workers", Gauge, COUNT, "Workers that the router knows, each in one state: the last of these that holds."),
    ("actix_kv_metrics_choice_cost", Histogram, None, "Cost of each chosen worker, in the unit of `Cost`."),
    ("actix_kv_metrics_booking_lifetime_seconds", Histogram, SECONDS, "How long requests were booked."),
    ("actix_kv_metrics_up", Gauge, None, "Whether the actor answered: 1 or 0."),
    ("actix_kv_metrics_worker_available", Gauge, None, "Whether the worker may be chosen by requests that do not name it: 1 or 0."),
    ("actix_kv_metrics_worker_booked_blocks", Gauge, COUNT, "Blocks booked on the worker."),
    ("actix_kv_metrics_worker_booked_requests", Gauge, COUNT, "Requests booked on the worker."),
    ("actix_kv_metrics_worker_report_age_seconds", Gauge, SECONDS, "Time since the worker reported, changed or not."),
    ("actix_kv_metrics_worker_active_blocks", Gauge, COUNT, "KV-cache blocks in use, as the worker says."),
    ("actix_kv_metrics_worker_capacity_blocks", Gauge, COUNT, "KV-cache blocks that the worker has; 0 if it does not say."),
    ("actix_kv_metrics_worker_waiting_requests", Gauge, COUNT, "Requests that wait at the worker, as it says."),
    ("actix_kv_metrics_worker_prefill_blocks", Gauge, COUNT, "Blocks of prompts that the worker has to compute, if it says so."),
];
