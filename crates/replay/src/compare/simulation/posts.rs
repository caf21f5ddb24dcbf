//! The routers of a run, each with the feed that informs it, and what travels between them and the engines.

use std::time::Instant;

use actix_kv_metrics::{LoadSnapshot, SnapshotAck, Ticket};

use super::Simulation;
use crate::{
    compare::{
        agenda::Event,
        feed::Feed,
        router::{Heard, Router},
    },
    options::AcknowledgedBy,
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
                if !self.journal.is_over(number) {
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
                    if self.is_bridged() {
                        let feed = &mut self.posts[post].feed;
                        feed.handle_answer(snapshot.sequence, SnapshotAck::Applied, now);
                    }
                    let event = Event::Delivered { post, snapshot };
                    self.agenda.enter(self.now + latency, event);
                }
            }
        }
    }

    fn is_bridged(&self) -> bool {
        self.scenario.acknowledged_by == AcknowledgedBy::Bridge
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
        } else if self.is_bridged() {
            // Nothing is lost on the way and nothing overtakes, so there is nothing to ask for.
            debug_assert_eq!(ack, SnapshotAck::Applied);
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

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, rc::Rc, time::Duration};

    use actix_kv_metrics::Coalescing;
    use clap::Parser;

    use super::*;
    use crate::{
        compare::{
            router::{Ask, Stage},
            rows::base,
        },
        options::Options,
        trace::Trace,
    };

    /// Sends everything to the first worker and writes down what it hears.
    #[derive(Debug)]
    struct Listener(Rc<RefCell<Vec<Stage>>>);

    impl Router for Listener {
        fn handle_snapshot(&mut self, _: LoadSnapshot, _: Instant) -> SnapshotAck {
            SnapshotAck::Applied
        }

        fn choose(&mut self, _: &Ask<'_>, _: Instant) -> Option<(usize, Ticket)> {
            let (router, number) = (1, 1);
            Some((0, Ticket { router, number }))
        }

        fn handle_stage(&mut self, _: Ticket, stage: Stage) {
            self.0.borrow_mut().push(stage);
        }
    }

    /// What the router of a lone request hears, and when after the request's arrival.
    fn heard(report_latency: Duration) -> Vec<(Duration, Stage)> {
        let mut trace = Trace::synthetic(1);
        trace.requests.truncate(1);
        let request = std::sync::Arc::make_mut(&mut trace.requests[0]);
        (request.input_tokens, request.output_tokens) = (1_000, 2);
        request.hash_ids.clear();
        let arrival = request.arrival;
        let options = Options::try_parse_from(["replay"]).unwrap().comparison;
        let mut scenario = base(1, Coalescing::default(), &options, 1).unwrap();
        scenario.report_latency = report_latency;
        let mut simulation = Simulation::new(&trace, &scenario).unwrap();
        let log = Rc::default();
        simulation.posts[0].router = Box::new(Listener(Rc::clone(&log)));
        simulation.start();
        let mut heard = Vec::new();
        while heard.len() < 2 {
            simulation.step().unwrap();
            let news = log.borrow_mut().drain(..).collect::<Vec<_>>();
            heard.extend(
                news.into_iter()
                    .map(|stage| (simulation.now - arrival, stage)),
            );
        }
        heard
    }

    #[test]
    fn the_next_snapshot_waits_for_the_round_trip_unless_a_bridge_acknowledges() {
        let mut trace = Trace::synthetic(1);
        trace.requests.truncate(300);
        let options = Options::try_parse_from(["replay"]).unwrap().comparison;
        let mut scenario = base(1, Coalescing::default(), &options, 1).unwrap();
        scenario.report_latency = Duration::from_millis(50);
        let [by_router, by_bridge] = [AcknowledgedBy::Router, AcknowledgedBy::Bridge].map(|by| {
            scenario.acknowledged_by = by;
            Simulation::new(&trace, &scenario).unwrap().run().unwrap()
        });
        // One in 100 ms, and one at the start, which takes no time.
        let round_trips = by_router.virtual_seconds / 0.1;
        assert!((by_router.messages as f64) < round_trips + 3.0);
        assert!(by_bridge.messages > 2 * by_router.messages);
    }

    #[test]
    fn what_a_router_hears_of_its_requests_travels_as_long_as_reports() {
        let at_once = heard(Duration::ZERO);
        // 2 ms of dispatch and the prefill of 1,000 tokens.
        let first = Duration::from_nanos(2_000_000 + 32_105_859);
        assert_eq!(at_once[0], (first, Stage::FirstToken));
        assert_eq!(at_once[1].1, Stage::Over);
        let latency = Duration::from_millis(10);
        let later = at_once.iter().map(|(at, stage)| (*at + latency, *stage));
        assert_eq!(heard(latency), later.collect::<Vec<_>>());
    }
}
