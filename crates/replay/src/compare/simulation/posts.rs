//! The routers of a run, each with the feed that informs it, and what travels between them and the engines.

use std::time::Instant;

use actix_kv_metrics::{LoadSnapshot, Ticket};

use super::Simulation;
use crate::compare::{
    agenda::Event,
    feed::Feed,
    router::{Heard, Router},
};

#[derive(Debug)]
pub(super) struct Post {
    pub(super) feed: Box<dyn Feed>,
    pub(super) router: Box<dyn Router>,
}

impl Simulation<'_> {
    /// What the router learns of its own request travels as long as a report.
    pub(super) fn tell_router(&mut self, number: usize, ticket: Ticket, heard: Heard) {
        if self.latency.is_zero() {
            self.hear(number, ticket, heard);
        } else {
            let event = Event::Heard {
                number,
                ticket,
                heard,
            };
            self.agenda.enter(self.now + self.latency, event);
        }
    }

    pub(super) fn hear(&mut self, number: usize, ticket: Ticket, heard: Heard) {
        let router = self.router_of(number);
        match heard {
            Heard::Stage(stage) => router.handle_stage(ticket, stage),
            Heard::Refused => {
                router.handle_refused(ticket);
                let present = self.placed[number].is_some_and(|(_, placed)| placed == ticket);
                if present && !self.journal.is_over(number) {
                    self.agenda.enter(self.now, Event::Arrived(number));
                }
            }
        }
    }

    pub(super) fn tell(&mut self, what: impl Fn(&mut dyn Feed, Instant)) {
        let now = self.instant();
        for post in &mut self.posts {
            what(post.feed.as_mut(), now);
        }
    }

    /// Requests are dealt to the routers in turns.
    fn router_of(&mut self, number: usize) -> &mut dyn Router {
        let post = number % self.posts.len();
        self.posts[post].router.as_mut()
    }

    /// Sends what the feeds have.
    pub(super) fn pump(&mut self) {
        let (now, latency) = (self.instant(), self.latency);
        for post in 0..self.posts.len() {
            while let Some(snapshot) = self.posts[post].feed.poll_message(now) {
                self.measures.handle_sent(&snapshot, latency);
                if latency.is_zero() {
                    self.deliver(post, snapshot);
                } else {
                    let event = Event::Delivered { post, snapshot };
                    self.agenda.enter(self.now + latency, event);
                }
            }
        }
    }

    pub(super) fn deliver(&mut self, post: usize, mut snapshot: LoadSnapshot) {
        if post == 0 {
            self.measures.handle_delivered(self.now, &snapshot);
        }
        let (now, latency) = (self.instant(), self.latency);
        for load in &mut snapshot.workers {
            // As a bridge does.
            load.age += latency;
            load.reported = load.reported.map(|reported| reported + latency);
        }
        let Post { feed, router } = &mut self.posts[post];
        let sequence = snapshot.sequence;
        let ack = router.handle_snapshot(snapshot, now);
        if latency.is_zero() {
            feed.handle_answer(sequence, ack, now);
        } else {
            let event = Event::Acknowledged {
                post,
                sequence,
                ack,
            };
            self.agenda.enter(self.now + latency, event);
        }
    }
}
