//! Requests that wait for room.

use std::time::Instant;

use actix::{AsyncContext, Context, Handler, Message};
use tokio::sync::oneshot;

use super::{RouterActor, Selection};
use crate::sans_io::{
    selection::{SelectError, SelectWorker},
    waiting::{Answer, Waiting},
};

/// Who waits for the answer.
pub(crate) type Asked = oneshot::Sender<Result<Selection, SelectError>>;

/// Asks for a worker, and waits for one if none has room. If the router dies, the answer is dropped.
pub(crate) struct Wait {
    /// The place in the order, drawn when it was asked for.
    pub(crate) number: u64,
    /// With its overlaps in order.
    pub(crate) request: SelectWorker,
    /// `None`: as long as it takes.
    pub(crate) deadline: Option<Instant>,
    pub(crate) answer: Asked,
}

impl Message for Wait {
    type Result = ();
}

/// Whoever asked under this number does not wait any more.
pub(crate) struct StopWaiting {
    pub(crate) number: u64,
}

impl Message for StopWaiting {
    type Result = ();
}

/// Many were served, and perhaps not all: follows through the mailbox.
pub(super) struct ServeMore;

impl Message for ServeMore {
    type Result = ();
}

impl RouterActor {
    /// What was done may help somebody who waits.
    #[inline]
    pub(super) fn end_message(&mut self, ctx: &mut Context<Self>, now: Instant) {
        if !self.waiting.is_empty() {
            self.serve(ctx, now);
        }
    }

    /// Those who wait come before a new choice.
    #[inline]
    pub(super) fn serve_before_others(&mut self, ctx: &mut Context<Self>, now: Instant) {
        if !self.waiting.is_empty() {
            while self.serve_next(now) {}
            self.set_timer(ctx, now);
        }
    }

    /// Serves those who can be: each counts as a message of this turn.
    #[cold]
    fn serve(&mut self, ctx: &mut Context<Self>, now: Instant) {
        while self.serve_next(now) {
            if !self.turns.count_without_look() && self.turns.handle_message(ctx, present()) {
                ctx.address().do_send(ServeMore);
                break;
            }
        }
        self.set_timer(ctx, now);
    }

    /// `false`: whoever is left has to wait.
    fn serve_next(&mut self, now: Instant) -> bool {
        let gone = Asked::is_closed;
        let next = self.waiting.poll_answer(&mut self.table, now, gone);
        let Some(answer) = next else {
            return false;
        };
        self.answer(answer);
        true
    }

    fn answer(&self, (waiting, chosen): Answer<Asked>) {
        // Nobody listens if who asked is gone: then the reservation ends with its guard.
        let _ = waiting
            .answer
            .send(self.selection(&waiting.request, chosen));
    }

    /// Armed while somebody waits.
    fn set_timer(&mut self, ctx: &mut Context<Self>, now: Instant) {
        let wanted = self.waiting.poll_timeout(&self.table);
        self.timer.reconcile(ctx, now, wanted, Self::handle_timer);
    }

    fn handle_timer(&mut self, ctx: &mut Context<Self>, generation: u64) {
        if self.timer.handle_fired(generation) {
            self.serve(ctx, present());
        }
    }
}

impl Handler<Wait> for RouterActor {
    type Result = ();

    fn handle(&mut self, msg: Wait, ctx: &mut Context<Self>) {
        let now = self.begin_message(ctx);
        if msg.answer.is_closed() {
            return;
        }
        self.serve_before_others(ctx, now);
        let waiting = Waiting {
            request: msg.request,
            deadline: msg.deadline,
            answer: msg.answer,
        };
        let answer = self
            .waiting
            .enter(&mut self.table, msg.number, waiting, now);
        match answer {
            Some(answer) => self.answer(answer),
            None => {
                tracing::debug!(number = msg.number, "waits");
                self.set_timer(ctx, now);
            }
        }
    }
}

impl Handler<StopWaiting> for RouterActor {
    type Result = ();

    fn handle(&mut self, msg: StopWaiting, ctx: &mut Context<Self>) {
        let now = self.begin_message(ctx);
        if self.waiting.leave(&mut self.table, msg.number) {
            tracing::debug!(number = msg.number, "waits no longer");
            self.set_timer(ctx, now);
        }
    }
}

impl Handler<ServeMore> for RouterActor {
    type Result = ();

    fn handle(&mut self, _: ServeMore, ctx: &mut Context<Self>) {
        let now = self.begin_message(ctx);
        self.end_message(ctx, now);
    }
}

fn present() -> Instant {
    actix::clock::Instant::now().into_std()
}
