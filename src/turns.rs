//! Fairness: actix drains a mailbox to its end before it polls anything else.

use std::time::{Duration, Instant};

use actix::{Actor, AsyncContext, Context, fut::wrap_future};

/// Counts the messages an actor handled and the time they took, and makes it give way now and then.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    messages: u32,
    began: Option<Instant>,
}

impl Turns {
    /// Counts a message, unless it is one at which the clock is to be looked at: then
    /// [`handle_message`](Self::handle_message) counts it. Whether it did.
    #[inline]
    pub(crate) fn count_without_look(&mut self) -> bool {
        let counts = !self.is_time_to_look();
        self.messages += u32::from(counts);
        counts
    }

    #[inline]
    fn is_time_to_look(&self) -> bool {
        self.messages.is_multiple_of(MESSAGES_A_LOOK) || self.messages + 1 == MESSAGES_A_TURN
    }

    /// One message is handled. After [`MESSAGES_A_TURN`] of them, or about [`LONGEST_TURN`], the actor lets its own timer and
    /// acks, and its neighbours on the arbiter, have their turn: `true`. Time in which nothing came counts, too: to give way
    /// then costs nothing that matters.
    pub(crate) fn handle_message<A>(&mut self, ctx: &mut Context<A>, now: Instant) -> bool
    where
        A: Actor<Context = Context<A>>,
    {
        let over = self.count(now);
        if over {
            self.give_way(ctx);
        }
        over
    }

    #[inline]
    fn count(&mut self, now: Instant) -> bool {
        let looks = self.is_time_to_look();
        self.messages += 1;
        looks && self.is_over(now)
    }

    fn is_over(&mut self, now: Instant) -> bool {
        let began = *self.began.get_or_insert(now);
        let long = now.saturating_duration_since(began) >= LONGEST_TURN;
        long || self.messages >= MESSAGES_A_TURN
    }

    /// Ends this turn.
    pub(crate) fn give_way<A>(&mut self, ctx: &mut Context<A>)
    where
        A: Actor<Context = Context<A>>,
    {
        *self = Self::default();
        // Awaited by the actor itself, it would end with whatever wakes the actor: two actors that answer each other gave way
        // to nobody for 61 polls of tokio's.
        let others_had_theirs = actix_rt::spawn(actix_rt::task::yield_now());
        ctx.wait(wrap_future::<_, A>(async {
            // Nobody aborts it.
            let _ = others_had_theirs.await;
        }));
    }
}

/// Some 40 µs of messages: small against a timer tick, large against the cost of a yield.
const MESSAGES_A_TURN: u32 = 256;
/// For messages that cost more, by logging or by the number of links: still small against a timer tick.
const LONGEST_TURN: Duration = Duration::from_micros(500);
/// The clock costs a third of a cheap message.
const MESSAGES_A_LOOK: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// How many messages that take `cost` each are handled until the turn is over, the clock being read when it is to be.
    fn messages_a_turn(cost: Duration) -> u32 {
        let start = actix::clock::Instant::now().into_std();
        let (mut turns, mut now) = (Turns::default(), start);
        for messages in 0.. {
            if turns.is_time_to_look() {
                now = start + cost * messages;
            }
            if turns.count(now) {
                return messages;
            }
        }
        unreachable!("every turn ends");
    }

    #[test]
    fn case_189_a_turn_ends_by_the_clock_or_by_the_count() {
        let handled = |micros| messages_a_turn(Duration::from_micros(micros));
        assert_eq!(handled(0), 255);
        assert_eq!(handled(1), 255);
        assert_eq!(handled(4), 128);
        assert_eq!(handled(20), 32);
        assert_eq!(handled(1_000), 16);
    }
}
