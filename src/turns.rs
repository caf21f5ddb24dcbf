//! Fairness: actix drains a mailbox to its end before it polls anything else.

use actix::{Actor, AsyncContext, Context, fut::wrap_future};

/// Counts the messages an actor handled, and makes it give way now and then.
#[derive(Debug, Default)]
pub(crate) struct Turns(u32);

impl Turns {
    /// One message is handled. After [`MESSAGES_A_TURN`] of them the actor lets its own timer and acks, and its
    /// neighbours on the arbiter, have their turn: `true`.
    pub(crate) fn handle_message<A>(&mut self, ctx: &mut Context<A>) -> bool
    where
        A: Actor<Context = Context<A>>,
    {
        self.0 += 1;
        let over = self.0 >= MESSAGES_A_TURN;
        if over {
            self.give_way(ctx);
        }
        over
    }

    /// Ends this turn.
    pub(crate) fn give_way<A>(&mut self, ctx: &mut Context<A>)
    where
        A: Actor<Context = Context<A>>,
    {
        self.0 = 0;
        ctx.wait(wrap_future::<_, A>(actix_rt::task::yield_now()));
    }
}

/// Some 40 µs of messages: small against a timer tick, large against the cost of a yield.
const MESSAGES_A_TURN: u32 = 256;
