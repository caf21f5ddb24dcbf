//! What a publisher tells of itself.

use std::time::{Duration, Instant};

use actix::{Context, Handler, Message, MessageResult};
use serde::Serialize;

use super::PublisherActor;
use crate::{
    config::duration,
    metrics::WorkerRank,
    sans_io::{
        coalescer::CoalescerCounts,
        link::{Link, LinkCounts, LinkId, LinkState},
    },
    timer::TimerCounts,
};

/// Asks a publisher for its counters.
#[derive(Debug, Clone, Copy, Default)]
pub struct GetPublisherStats;

impl Message for GetPublisherStats {
    type Result = PublisherStats;
}

/// Counters of a publisher. `received = rejected + late + unchanged + changed`.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct PublisherStats {
    /// Living workers.
    pub workers: usize,
    /// Reports, and words of draining, that came by a message or were fetched from a reporter.
    pub received: u64,
    /// Reports with a float that is not finite.
    pub rejected: u64,
    /// Reports of a life that had ended, and words of a worker that was not known.
    pub late: u64,
    /// Reports equal to the one before.
    pub unchanged: u64,
    /// Reports that differ from the one before.
    pub changed: u64,
    /// Lives that a lease ended: their workers had been silent for so long.
    pub leases_ended: u64,
    /// Messages refused because the publisher was shutting down; not among `received`.
    pub refused: u64,
    /// Tickets that workers echoed and that were forgotten for others before or after routers were told: a worker echoes the
    /// tickets of at most 64 routers, and the one echoed longest ago goes first. Their reservations end by age.
    pub forgotten_tickets: u64,
    /// The one timer.
    pub timer: TimerCounts,
    /// Each attached router.
    pub links: Vec<LinkStats>,
}

/// Counters of one link.
#[derive(Debug, Clone, Copy, Serialize)]
#[non_exhaustive]
pub struct LinkStats {
    /// Which link.
    pub link: LinkId,
    /// Counters of its windows: `changed = opened + coalesced`.
    pub windows: CoalescerCounts,
    /// Counters of its deliveries.
    pub delivery: LinkCounts,
    /// How long a snapshot has been in flight.
    #[serde(with = "duration::optional")]
    pub in_flight_for: Option<Duration>,
}

/// Asks a publisher what its routers have not been told or have not acknowledged.
#[derive(Debug, Clone, Copy, Default)]
pub struct GetPending;

impl Message for GetPending {
    type Result = Pending;
}

/// What is on its way, by link.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Pending {
    /// Each attached router.
    pub links: Vec<LinkPending>,
    /// Whether a timer is armed.
    pub timer_armed: bool,
}

/// What is on its way on one link.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LinkPending {
    /// Which link.
    pub link: LinkId,
    /// Open windows.
    pub windows: usize,
    /// Departures not told yet.
    pub departures: usize,
    /// How long a snapshot has been in flight.
    pub in_flight_for: Option<Duration>,
    /// How long a backoff lasts still.
    pub backing_off_for: Option<Duration>,
    /// Whether the router is gone.
    pub lost: bool,
    /// Workers of which the router lacks the newest value, and for how long it has.
    pub ages: Vec<(WorkerRank, Duration)>,
}

pub(crate) fn in_flight_for(link: &Link, now: Instant) -> Option<Duration> {
    match link.state() {
        LinkState::InFlight { since, .. } => Some(now.saturating_duration_since(since)),
        _ => None,
    }
}

impl Handler<GetPublisherStats> for PublisherActor {
    type Result = MessageResult<GetPublisherStats>;

    fn handle(&mut self, _: GetPublisherStats, ctx: &mut Context<Self>) -> Self::Result {
        let now = self.begin_message(ctx);
        self.drive_after_message(ctx, now);
        MessageResult(PublisherStats {
            workers: self.reports.len(),
            forgotten_tickets: self.reports.forgotten_tickets(),
            timer: self.timer.counts(),
            links: self.links().map(|link| stats_of(link, now)).collect(),
            ..self.counts.clone()
        })
    }
}

fn stats_of(link: &Link, now: Instant) -> LinkStats {
    LinkStats {
        link: link.id(),
        windows: link.coalescer_counts(),
        delivery: link.counts(),
        in_flight_for: in_flight_for(link, now),
    }
}

impl Handler<GetPending> for PublisherActor {
    type Result = MessageResult<GetPending>;

    fn handle(&mut self, _: GetPending, ctx: &mut Context<Self>) -> Self::Result {
        let now = self.begin_message(ctx);
        self.drive_after_message(ctx, now);
        MessageResult(Pending {
            links: self
                .links()
                .map(|link| self.pending_of(link, now))
                .collect(),
            timer_armed: self.timer.is_armed(),
        })
    }
}

impl PublisherActor {
    fn pending_of(&self, link: &Link, now: Instant) -> LinkPending {
        let coalescer = link.coalescer();
        let reports = self.reports.iter();
        LinkPending {
            link: link.id(),
            windows: coalescer.open_windows(),
            departures: coalescer.open_departures(),
            in_flight_for: in_flight_for(link, now),
            backing_off_for: match link.state() {
                LinkState::BackingOff { until } => {
                    let left = until.map(|until| until.saturating_duration_since(now));
                    Some(left.unwrap_or(Duration::MAX))
                }
                _ => None,
            },
            lost: link.is_lost(),
            ages: reports
                .filter_map(|(slot, report)| Some((report.worker(), coalescer.age(slot, now)?)))
                .collect(),
        }
    }
}
