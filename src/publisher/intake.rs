//! What waits at reporters: how the publisher takes it in, and when it looks for more without being woken.

use std::{sync::Arc, time::Instant};

use actix::{AsyncContext, Context, Handler, Message};

use super::PublisherActor;
use crate::{
    metrics::WorkerRank,
    sans_io::{bell::Bell, reports::SharedReport},
};

/// Where reporters enter that have something.
pub(super) type ReportBell = Bell<Arc<SharedReport>>;

/// How far what waits at reporters has been taken in.
#[derive(Debug, Default)]
pub(super) struct Intake {
    /// Reporters that entered the bell, the last of them first.
    entered: Vec<Arc<SharedReport>>,
    /// Others may have entered without waking the publisher.
    calm: bool,
    /// When it was looked last whether they have.
    looked_at: Option<Instant>,
    /// Reports were taken in since the last drive.
    any: bool,
}

impl Intake {
    /// Whether everything has been taken in of those who had entered when the bell was asked last.
    pub(super) fn is_done(&self) -> bool {
        self.entered.is_empty()
    }
}

impl PublisherActor {
    /// Takes in what waits at reporters, a turn's worth; whether something did since the last call.
    pub(super) fn take_some_reports(&mut self, ctx: &mut Context<Self>, now: Instant) -> bool {
        self.take_a_turn_of_reports(ctx, now, None);
        std::mem::take(&mut self.intake.any)
    }

    /// Everything that waits at reporters.
    pub(super) fn take_all_reports(&mut self, now: Instant) {
        while self.take_reports(now, usize::MAX, None) > 0 {}
    }

    /// Before a link is told what `worker` says now: what others reported before that, lest it count as reported now; a
    /// link's clock does not go back. What `worker` itself reported keeps its place behind its message. Whether reports were
    /// taken in: then the links have to be looked after.
    #[inline]
    pub(super) fn take_others_first(
        &mut self,
        ctx: &mut Context<Self>,
        now: Instant,
        worker: WorkerRank,
    ) -> bool {
        if self.intake.calm && self.intake.looked_at != Some(now) {
            self.take_a_turn_of_reports(ctx, now, Some(worker));
        }
        self.intake.any
    }

    fn take_a_turn_of_reports(
        &mut self,
        ctx: &mut Context<Self>,
        now: Instant,
        but: Option<WorkerRank>,
    ) {
        let reported = self.take_reports(now, REPORTS_A_TURN, but);
        self.intake.looked_at = Some(now);
        self.intake.any |= reported > 0;
        if reported == REPORTS_A_TURN {
            self.ring(ctx);
            self.turns.give_way(ctx);
        }
    }

    /// Takes in what waits at `most` reporters, `but` those of this worker; how many that were.
    fn take_reports(&mut self, now: Instant, most: usize, but: Option<WorkerRank>) -> usize {
        let mut reported = 0;
        let mut left = Vec::new();
        while reported < most {
            if self.intake.entered.is_empty() {
                self.bell.take(&mut self.intake.entered);
                self.intake.entered.reverse();
                if let Some(leases) = &mut self.leases {
                    leases.handle_asked(now);
                }
            }
            let Some(reporter) = self.intake.entered.pop() else {
                break;
            };
            if but == Some(reporter.worker) {
                left.push(reporter);
                continue;
            }
            self.take_report(&reporter, now);
            reported += 1;
        }
        self.intake.entered.extend(left.into_iter().rev());
        reported
    }

    /// Takes in what waits at one reporter, as of when it was reported; whether the links have to be looked after.
    #[inline]
    pub(super) fn take_report(&mut self, reporter: &Arc<SharedReport>, now: Instant) -> bool {
        let Some((reported, at)) = self.reports.handle_waiting(reporter) else {
            return false;
        };
        tracing::trace!(worker = %reporter.worker, "report");
        self.note_heard(now, &reported);
        // Where a link has heard of a later time, that is when it was for it: the windows' clock does not go back.
        let at = at.map_or(now, |at| at.min(now));
        self.note_report(at, reported)
    }

    /// Wakes itself: there is more to take.
    fn ring(&self, ctx: &Context<Self>) {
        if self.bell.ring() {
            ctx.address().do_send(Ring);
        }
    }

    /// If reports are coming, and no link could send them before, looks for them a little later, so that none of them need
    /// wake the publisher: when the timer is to come.
    pub(super) fn look_for_reports(
        &self,
        wanted: Option<Instant>,
        reported: bool,
        now: Instant,
    ) -> Option<Instant> {
        if !reported {
            return wanted;
        }
        let look = self.links().filter_map(|link| link.look_at(now)).min();
        let earlier = wanted.into_iter().chain(look).min();
        let useful = self.links().all(|link| link.can_wait_for(earlier, now));
        if useful { earlier } else { wanted }
    }

    /// Lets reporters enter quietly if something else is going to make the publisher look in time.
    pub(super) fn rest(&mut self, ctx: &Context<Self>, now: Instant) {
        let wake = self.timer.deadline();
        let calm = self.links().all(|link| link.can_wait_for(wake, now));
        self.intake.calm = calm;
        if !self.bell.rest(calm) {
            self.ring(ctx);
        }
    }
}

/// A reporter has something, and nothing else would wake the publisher.
pub(crate) struct Ring;

impl Message for Ring {
    type Result = ();
}

impl Handler<Ring> for PublisherActor {
    type Result = ();

    fn handle(&mut self, _: Ring, ctx: &mut Context<Self>) {
        let now = self.begin_message(ctx);
        self.bell.handle_wake();
        self.drive_after_message(ctx, now);
    }
}

/// Some 0.3 ms of work: what waits at more reporters is taken in by turns.
const REPORTS_A_TURN: usize = 1_024;
