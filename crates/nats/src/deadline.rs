//! The one timer of an actor here: a one-shot handle, armed for the earliest deadline.

use std::time::Instant;

use actix::{Actor, AsyncContext, Context, SpawnHandle};

/// Keeps at most one `run_later` handle armed. One that fires early is harmless: it looks, and is armed again. So a deadline that
/// moves back, as most do with every message, costs nothing.
#[derive(Debug, Default)]
pub(crate) struct Deadline {
    armed: Option<(SpawnHandle, Instant)>,
}

impl Deadline {
    /// Makes sure that `fire` is called at `wanted`, or before.
    pub(crate) fn reconcile<A>(
        &mut self,
        ctx: &mut Context<A>,
        now: Instant,
        wanted: Option<Instant>,
        fire: fn(&mut A, &mut Context<A>),
    ) where
        A: Actor<Context = Context<A>>,
    {
        if let (Some((_, armed)), Some(wanted)) = (self.armed, wanted)
            && armed <= wanted
        {
            return;
        }
        if let Some((handle, _)) = self.armed.take() {
            ctx.cancel_future(handle);
        }
        self.armed = wanted.map(|at| {
            let handle = ctx.run_later(at.saturating_duration_since(now), fire);
            (handle, at)
        });
    }

    /// The handle has fired.
    pub(crate) fn handle_fired(&mut self) {
        self.armed = None;
    }
}
