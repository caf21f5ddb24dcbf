//! Makes actors misbehave.

use std::panic;

use actix::{ActorContext, Context, Handler, Message};
use actix_kv_metrics::{PublisherActor, RouterActor};

/// Makes an actor panic.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PanicNow;

impl Message for PanicNow {
    type Result = ();
}

impl Handler<PanicNow> for RouterActor {
    type Result = ();

    fn handle(&mut self, _: PanicNow, _: &mut Context<Self>) {
        panic::panic_any(AS_TOLD);
    }
}

/// Makes an actor stop in this turn; a supervisor starts it again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StopNow;

impl Message for StopNow {
    type Result = ();
}

impl Handler<StopNow> for PublisherActor {
    type Result = ();

    fn handle(&mut self, _: StopNow, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}

impl Handler<StopNow> for RouterActor {
    type Result = ();

    fn handle(&mut self, _: StopNow, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}

/// Panics that were asked for are not worth a message.
pub(crate) fn hush() {
    let otherwise = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if panic.payload().downcast_ref() != Some(&AS_TOLD) {
            otherwise(panic);
        }
    }));
}

/// Payload of the panics that were asked for.
pub(crate) const AS_TOLD: &str = "as told";
