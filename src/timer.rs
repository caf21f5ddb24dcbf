//! The one timer of an actor: a one-shot handle that is cancelled and rescheduled.

use std::time::{Duration, Instant};

use actix::{Actor, AsyncContext, Context, SpawnHandle};
use serde::Serialize;

use crate::sans_io::link::TICK;

/// Keeps at most one `run_later` handle armed, for the earliest deadline wanted.
///
/// actix runs a callback that was already due when it was cancelled, and handle numbers start again after a supervised
/// restart. So every callback carries the generation it was armed in, and [`handle_fired`](Self::handle_fired) tells
/// whether it is the present one; the result of `cancel_future` decides nothing.
#[derive(Debug, Default)]
pub(crate) struct DeadlineTimer {
    armed: Option<Armed>,
    generation: u64,
    counts: TimerCounts,
}

#[derive(Debug, Clone, Copy)]
struct Armed {
    handle: SpawnHandle,
    deadline: Instant,
}

/// Counters of a timer. `arms = cancels + fires`, plus one while one is armed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TimerCounts {
    /// Handles armed.
    pub arms: u64,
    /// Handles cancelled, or dropped by a supervised restart.
    pub cancels: u64,
    /// Callbacks that came in their time.
    pub fires: u64,
    /// Callbacks of handles that had been cancelled; they did nothing.
    pub stale_fires: u64,
}

impl DeadlineTimer {
    /// Makes the armed handle fit `wanted`. `fire` is called with the generation. A deadline that a tick later would not be
    /// a time any more is none.
    pub(crate) fn reconcile<A>(
        &mut self,
        ctx: &mut Context<A>,
        now: Instant,
        wanted: Option<Instant>,
        fire: fn(&mut A, &mut Context<A>, u64),
    ) where
        A: Actor<Context = Context<A>>,
    {
        match (
            self.armed,
            wanted.filter(|at| one_tick_after(*at).is_some()),
        ) {
            (None, None) => {}
            (Some(_), None) => self.cancel(ctx),
            (None, Some(deadline)) => self.arm(ctx, now, deadline, fire),
            (Some(armed), Some(deadline)) => {
                let later = one_tick_after(armed.deadline).is_some_and(|at| deadline >= at)
                    && armed.deadline > now;
                if deadline < armed.deadline || later {
                    self.cancel(ctx);
                    self.arm(ctx, now, deadline, fire);
                }
            }
        }
    }

    /// A callback came. `true`: it is the armed one, which is armed no more.
    pub(crate) fn handle_fired(&mut self, generation: u64) -> bool {
        let present = generation == self.generation && self.armed.take().is_some();
        if present {
            self.counts.fires += 1;
        } else {
            self.counts.stale_fires += 1;
        }
        present
    }

    /// A supervised restart dropped the handle. It must not be cancelled: its number is given out again.
    pub(crate) fn handle_restart(&mut self) {
        if self.armed.take().is_some() {
            self.counts.cancels += 1;
        }
    }

    /// When it comes.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        Some(self.armed?.deadline)
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.armed.is_some()
    }

    pub(crate) fn counts(&self) -> TimerCounts {
        self.counts
    }

    fn arm<A>(
        &mut self,
        ctx: &mut Context<A>,
        now: Instant,
        deadline: Instant,
        fire: fn(&mut A, &mut Context<A>, u64),
    ) where
        A: Actor<Context = Context<A>>,
    {
        self.generation += 1;
        self.counts.arms += 1;
        let generation = self.generation;
        let delay = deadline.saturating_duration_since(now).min(LONGEST_WAIT);
        let handle = ctx.run_later(delay, move |actor, ctx| fire(actor, ctx, generation));
        self.armed = Some(Armed { handle, deadline });
    }

    fn cancel<A>(&mut self, ctx: &mut Context<A>)
    where
        A: Actor<Context = Context<A>>,
    {
        if let Some(armed) = self.armed.take() {
            ctx.cancel_future(armed.handle);
            self.counts.cancels += 1;
        }
    }
}

/// When a deadline is overdue; `None`: never, since time ends before.
pub(crate) fn one_tick_after(deadline: Instant) -> Option<Instant> {
    deadline.checked_add(TICK)
}

/// tokio rounds a deadline up to its next tick, which panics at the end of time. It waits so long where it notices.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
