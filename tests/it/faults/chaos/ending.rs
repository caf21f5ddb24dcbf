//! How it ends, and what is so then.

use super::{
    drawn::BOUND,
    transport::LATEST,
    world::{End, World},
};
use crate::support::{publishers::*, *};
use actix_kv_metrics::{GetLoads, actix::Addr};

impl World {
    /// Nothing is broken any more, and what is on its way arrives.
    pub async fn calm_down(&mut self) {
        self.note(format_args!("calm"));
        for lane in self.lanes.iter().flatten() {
            for _ in 0..self.rng.u32(..5) {
                lane.way.redeliver();
            }
        }
        self.mend(true).await;
        self.calm.send_replace(true);
        for (publisher, router) in PAIRS {
            let lane = &self.lanes[publisher][router];
            let stands = lane.transport.as_ref().is_some_and(Addr::connected);
            if lane.link.is_none() || !stands {
                self.attach(publisher, router).await;
            } else if lane.unaware {
                // It learns of it by the answer to whatever it says next.
                let worker = w(2 * publisher as u64);
                self.report(publisher, worker).await;
            }
        }
        sleep(ms(LATEST)).await;
    }

    /// Each of the workers that both publishers speak of goes on with one of them.
    pub async fn settle_contests(&mut self) {
        for worker in self.truth.contested() {
            let publisher = self.rng.usize(..2);
            self.truth.settle(worker, publisher);
            self.report(publisher, worker).await;
        }
    }

    pub async fn all_leave(&mut self) {
        for publisher in 0..2 {
            for worker in self.truth.workers(publisher) {
                self.leave(publisher, worker).await;
            }
        }
    }

    /// The publishers end, and what they said last comes again. Workers of one that was shut down stay as they were.
    pub async fn end(&mut self) {
        for worker in self.truth.contested() {
            // The silent one's: it would be heard again with a report only.
            let silent = 1 - self.truth.settled(worker);
            self.leave(silent, worker).await;
        }
        for publisher in 0..2 {
            // After `stale_after` of silence stragglers would be heard.
            self.report(publisher, w(10 + publisher as u64)).await;
        }
        sleep(ms(BOUND)).await;
        for publisher in 0..2 {
            let workers = self.truth.claims_of(publisher);
            if self.end_publisher(publisher) == End::ShutDown {
                self.truth.restore(publisher, workers);
            }
        }
        self.repairs.clear();
        sleep(ms(BOUND)).await;
        for lane in self.lanes.iter().flatten() {
            for _ in 0..4 {
                lane.way.redeliver_of_the_newest_incarnation();
            }
        }
        sleep(ms(LATEST)).await;
    }

    /// What the routers have that is not so.
    pub async fn errors(&self) -> Vec<String> {
        let mut errors = Vec::new();
        for (number, router) in self.routers.iter().enumerate() {
            let present = router.present.borrow().clone();
            let loads = present.send(GetLoads).await.unwrap();
            let found = self.truth.errors_in(&loads).into_iter();
            errors.extend(found.map(|error| format!("router {number}: {error}")));
        }
        errors
    }

    /// What the publishers still wait for.
    pub async fn waiting(&self) -> Vec<String> {
        let mut waiting = Vec::new();
        let addresses = self.publishers.iter().filter_map(|it| it.address.as_ref());
        for (number, address) in addresses.enumerate() {
            let pending = pending(address).await;
            let links = pending.links.into_iter().filter(|link| !link.lost);
            let open = links
                .filter(|link| link.windows + link.departures > 0 || link.in_flight_for.is_some());
            waiting.extend(open.map(|link| format!("publisher {number}: {link:?}")));
            if pending.timer_armed {
                waiting.push(format!("publisher {number} has a timer armed"));
            }
        }
        waiting
    }
}

const PAIRS: [(usize, usize); 4] = [(0, 0), (0, 1), (1, 0), (1, 1)];
