//! Workers that have been silent for a lease: they are told as left.
//!
//! Once somebody's lease may have ended, all that was reported before is taken in first: what waits at reporters, and, by a
//! message that the publisher sends itself, what waits in its mailbox. So a publisher that could not run for a while ends
//! nobody's lease who reported meanwhile.

use std::time::Instant;

use actix::{AsyncContext, Context, Handler, Message};

use super::PublisherActor;
use crate::sans_io::reports::Reported;

impl PublisherActor {
    /// The worker has reported, if that was a report: its lease begins anew.
    #[inline(always)]
    pub(super) fn note_heard(&mut self, now: Instant, reported: &Reported) {
        if let Some(leases) = &mut self.leases {
            let slot = match reported {
                Reported::Changed(change) if change.is_report() => change.slot(),
                Reported::Unchanged(slot) => *slot,
                Reported::Changed(_) | Reported::Known | Reported::Late => return,
            };
            leases.handle_heard(slot, now);
        }
    }

    /// Looks behind everything that was sent before, if somebody's lease may have ended.
    pub(super) fn look_for_silent(&mut self, ctx: &Context<Self>, now: Instant) {
        if let Some(leases) = &mut self.leases
            && leases.handle_timeout(now)
        {
            ctx.address().do_send(EndLeases { sent_at: now });
        }
    }

    /// `wanted`, or when somebody's lease may end, if that is earlier. That is not waited for once nobody can report any more:
    /// it would keep the actor alive.
    #[cold]
    pub(super) fn or_end_of_lease(
        &mut self,
        ctx: &Context<Self>,
        wanted: Option<Instant>,
    ) -> Option<Instant> {
        let end = self.leases.as_ref().and_then(|it| it.poll_timeout());
        let end = end.filter(|_| ctx.connected());
        self.waits_for_lease = end.is_some();
        wanted.into_iter().chain(end).min()
    }

    /// Whether the end of a lease is waited for though nobody can report any more.
    pub(super) fn is_kept_by_lease(&self, ctx: &Context<Self>) -> bool {
        self.waits_for_lease && !ctx.connected()
    }

    /// Ends the leases that had ended at `known`, a turn's worth; whether there may be more.
    fn end_leases(&mut self, known: Instant, now: Instant) -> bool {
        for _ in 0..LEASES_A_TURN {
            let ended = self.leases.as_mut().and_then(|it| it.poll_ended(known));
            let Some(slot) = ended else {
                return false;
            };
            if let Some(worker) = self.reports.handle_lease_ended(slot) {
                self.counts.leases_ended += 1;
                self.note_left(now, worker, slot);
            }
        }
        true
    }
}

/// All that was sent before it has been handled.
struct EndLeases {
    sent_at: Instant,
}

impl Message for EndLeases {
    type Result = ();
}

impl Handler<EndLeases> for PublisherActor {
    type Result = ();

    fn handle(&mut self, msg: EndLeases, ctx: &mut Context<Self>) {
        let now = self.begin_message(ctx);
        if self.leases.is_none() {
            return;
        }
        self.take_some_reports(ctx, now);
        let all_taken = self.intake.is_done();
        let taken = self
            .leases
            .as_ref()
            .and_then(|it| it.asked_until(all_taken));
        let known = taken.map(|taken| taken.min(msg.sent_at));
        if known.is_none_or(|known| self.end_leases(known, now)) {
            ctx.address().do_send(msg);
            self.turns.give_way(ctx);
        }
        self.drive_after_message(ctx, now);
    }
}

/// Some 0.3 ms of work: more are ended by turns.
const LEASES_A_TURN: u32 = 512;
