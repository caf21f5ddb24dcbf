//! Everything at once, at random and repeatable: a supervised publisher that restarts in the middle of bursts, three routers
//! that refuse, lie, dawdle and die on the way, workers of both kinds that come and go, flushes, and routers attached again
//! and again. Afterwards every router has the truth, all fields, and nothing waits.

use std::collections::BTreeMap;

use crate::support::{faults::*, publishers::*, *};
use actix_kv_metrics::{
    AttachRouter, Coalescing, DetachRouter, Flush, ForwardPassMetrics, GetLoads, LinkId,
    LoadSnapshot, MetricsChanged, MetricsReporter, PublisherActor, RouterActor, Shutdown,
    SnapshotAck, SnapshotRejected, Ticket, WorkerJoined, WorkerLeft, WorkerRank,
    actix::{
        Actor, ActorContext, Addr, Context, Handler, ResponseActFuture, Supervised, Supervisor,
        fut::wrap_future,
    },
};
use fastrand::Rng;

/// Stands between the publisher and a router.
struct Way {
    router: Addr<RouterActor>,
    rng: Rng,
    /// How many of ten or more kinds of treatment it knows; the first ten harm nothing but punctuality.
    kinds: u32,
}

impl Actor for Way {
    type Context = Context<Self>;
}

impl Supervised for Way {}

impl Handler<LoadSnapshot> for Way {
    type Result = ResponseActFuture<Self, Result<SnapshotAck, SnapshotRejected>>;

    fn handle(&mut self, snapshot: LoadSnapshot, ctx: &mut Context<Self>) -> Self::Result {
        let (kind, pause) = (self.rng.u32(..self.kinds), ms(self.rng.u64(..12)));
        let told = self.router.clone();
        if kind == 10 {
            ctx.stop();
        }
        Box::pin(wrap_future(async move {
            if matches!(kind, 8 | 10 | 11) {
                sleep(pause).await;
            }
            if kind == 11 {
                return Err(SnapshotRejected);
            }
            let answer = told.send(snapshot).await.unwrap();
            match kind {
                9 => sleep(pause).await,
                12 => return Err(SnapshotRejected),
                13 => return Ok(SnapshotAck::NeedFull),
                14 => return Ok(SnapshotAck::Superseded),
                _ => {}
            }
            answer
        }))
    }
}

/// Whom it happens to, and what is so.
struct World {
    rng: Rng,
    publisher: Addr<PublisherActor>,
    routers: Vec<(Addr<RouterActor>, Addr<Way>, Option<LinkId>)>,
    /// Of workers 0 to 3; 10 to 13 report by plain messages.
    reporters: [Option<MetricsReporter>; 4],
    truth: BTreeMap<WorkerRank, Option<ForwardPassMetrics>>,
}

fn coalescing(rng: &mut Rng) -> Coalescing {
    unpaced()
        .debounce(ms(rng.u64(..5)))
        .max_delay(ms(5 + rng.u64(..10)))
        .minor_delay(ms(30))
        .min_gap(ms(rng.u64(..6)))
        .leading(rng.bool())
        .saturation(0.9)
        .significance(if rng.bool() { 0.0 } else { 0.05 })
        .build()
        .unwrap()
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let publisher = supervised(coalescing(&mut rng));
        let routers = [10, 15, 15].map(|kinds| {
            let router = router();
            let (told, rng) = (router.clone(), rng.fork());
            let way = Supervisor::start(move |_| Way {
                router: told,
                rng,
                kinds,
            });
            (router, way, None)
        });
        Self {
            rng,
            publisher,
            routers: routers.into(),
            reporters: [const { None }; 4],
            truth: BTreeMap::new(),
        }
    }

    async fn attach(&mut self, place: usize) {
        let (_, way, link) = &mut self.routers[place];
        let attach = AttachRouter::new(way.clone().recipient());
        *link = Some(self.publisher.send(attach).await.unwrap());
    }

    async fn happen(&mut self) {
        let id = self.rng.u64(..4);
        let (worker, plain) = (w(id), w(10 + id));
        let rare = self.rng.u32(..7) == 0;
        let (rng, publisher) = (&mut self.rng, &self.publisher);
        let metrics = ForwardPassMetrics::new(rng.u64(..1_000), 1_000, rng.u64(..2))
            .with_request_active_slots(rng.u64(..3));
        let reporter = &mut self.reporters[id as usize];
        match rng.u32(..40) {
            0 if rare => publisher.do_send(StopIt),
            1 => {
                *reporter = None;
                self.truth.remove(&worker);
            }
            2 => {
                *reporter = Some(MetricsReporter::new(publisher, worker));
                self.truth.insert(worker, None);
            }
            3 => {
                publisher.do_send(WorkerLeft { worker: plain });
                self.truth.remove(&plain);
            }
            4 => {
                publisher.do_send(WorkerJoined { worker: plain });
                self.truth.entry(plain).or_insert(None);
            }
            5 if rare => {
                let (place, detach) = (rng.usize(..3), rng.bool());
                match self.routers[place].2.take() {
                    Some(link) if detach => publisher.do_send(DetachRouter(link)),
                    _ => self.attach(place).await,
                }
            }
            6 if rare => {
                let within = ms(rng.u64(..20));
                publisher.do_send(Flush { within });
            }
            7 => {
                let (router, number) = (1, rng.u64(..50));
                if let Some(reporter) = reporter {
                    reporter.admitted(Ticket { router, number }).unwrap();
                }
            }
            8..=22 => {
                publisher.do_send(MetricsChanged::new(plain, metrics.clone()));
                self.truth.insert(plain, Some(metrics));
            }
            _ => {
                if let Some(reporter) = reporter {
                    reporter.report(metrics.clone()).unwrap();
                    self.truth.insert(worker, Some(metrics));
                }
            }
        }
    }
}

#[test]
fn g9_everything_at_once_at_random_ends_with_the_truth() {
    for seed in 0..100 {
        virtual_time(async move {
            let mut world = World::new(seed);
            for _ in 0..25 {
                let burst = match world.rng.u32(..6) {
                    0 => world.rng.u32(200..900),
                    _ => world.rng.u32(1..30),
                };
                for _ in 0..burst {
                    world.happen().await;
                }
                sleep(ms(world.rng.u64(..15))).await;
            }
            for place in 0..3 {
                world.attach(place).await;
            }
            sleep(ms(3_000)).await;
            for (router, ..) in &world.routers {
                let loads = router.send(GetLoads).await.unwrap();
                let loads = loads.workers().iter();
                let has: BTreeMap<_, _> = loads.map(|it| (it.worker, it.metrics.clone())).collect();
                assert_eq!(has, world.truth, "seed {seed}");
            }
            let stats = stats(&world.publisher).await;
            let reports = stats.rejected + stats.late + stats.unchanged + stats.changed;
            assert_eq!(stats.received, reports, "seed {seed}");
            let timer = stats.timer;
            assert_eq!(timer.arms, timer.cancels + timer.fires, "seed {seed}");
            assert_eq!(stats.links.len(), 3);
            for link in pending(&world.publisher).await.links {
                let waits = (link.windows, link.departures, link.ages.len());
                assert_eq!(waits, (0, 0, 0), "seed {seed}");
                assert!(!link.lost && link.in_flight_for.is_none(), "seed {seed}");
            }
            let within = ms(500);
            let report = world.publisher.send(Shutdown { within }).await.unwrap();
            assert!(report.is_complete(), "seed {seed}: {report:?}");
        });
    }
}
