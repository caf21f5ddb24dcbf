//! Faults of routers: refusing, late, silent, tiny, panicking, replaced, dying in between. Afterwards the table is the
//! truth, or the loss was announced.

use std::{collections::BTreeMap, future::Future, pin::Pin};

use crate::support::{faults::*, publishers::*, *};
use actix_kv_metrics::{
    AttachRouter, Flush, FlushReport, LoadSnapshot, PublisherActor, RouterActor, Shutdown,
    SnapshotAck, SnapshotRejected, WorkerLeft,
    actix::{
        Actor, ActorContext, Addr, Context, Handler, ResponseActFuture, Supervised, Supervisor,
        fut::wrap_future,
    },
};

/// What happens to a snapshot on its way to a router.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// The router never sees it.
    Refused,
    /// The router has it, and the answer says it was refused.
    AnswerLost,
    /// Seen and answered after so many milliseconds.
    Late(u64),
    /// Answered after so many milliseconds.
    LateAnswer(u64),
    /// Seen twice.
    Doubled,
    /// Seen, and answered with a lie.
    Lies(SnapshotAck),
    /// Accepted; then the way dies, and the router never sees it.
    DiesBetween,
    Panics,
}

/// Stands between a publisher and a router, and does harm at random.
struct Way {
    router: Addr<RouterActor>,
    rng: fastrand::Rng,
    faults: Vec<Fault>,
    seen: std::rc::Rc<std::cell::Cell<u64>>,
}

impl Actor for Way {
    type Context = Context<Self>;
}

impl Supervised for Way {}

impl Handler<LoadSnapshot> for Way {
    type Result = ResponseActFuture<Self, Result<SnapshotAck, SnapshotRejected>>;

    fn handle(&mut self, snapshot: LoadSnapshot, ctx: &mut Context<Self>) -> Self::Result {
        let router = self.router.clone();
        self.seen.set(self.seen.get() + 1);
        let fault = self.rng.choice(&self.faults).copied();
        // The answer dies with the actor, as that of a `RouterActor` does.
        Box::pin(wrap_future(self.answer(
            fault.unwrap_or(Fault::None),
            router,
            snapshot,
            ctx,
        )))
    }
}

impl Way {
    fn answer(
        &self,
        fault: Fault,
        router: Addr<RouterActor>,
        snapshot: LoadSnapshot,
        ctx: &mut Context<Self>,
    ) -> Pin<Box<dyn Future<Output = Result<SnapshotAck, SnapshotRejected>>>> {
        match fault {
            Fault::None => Box::pin(async move { router.send(snapshot).await.unwrap() }),
            Fault::Refused => Box::pin(async { Err(SnapshotRejected) }),
            Fault::AnswerLost => Box::pin(async move {
                let _ = router.send(snapshot).await;
                Err(SnapshotRejected)
            }),
            Fault::Late(pause) => Box::pin(async move {
                sleep(ms(pause)).await;
                router.send(snapshot).await.unwrap()
            }),
            Fault::LateAnswer(pause) => Box::pin(async move {
                let answer = router.send(snapshot).await.unwrap();
                sleep(ms(pause)).await;
                answer
            }),
            Fault::Doubled => Box::pin(async move {
                let answer = router.send(snapshot.clone()).await.unwrap();
                let _ = router.send(snapshot).await;
                answer
            }),
            Fault::Lies(ack) => Box::pin(async move {
                let _ = router.send(snapshot).await;
                Ok(ack)
            }),
            Fault::DiesBetween => {
                ctx.stop();
                Box::pin(std::future::pending())
            }
            Fault::Panics => panic!("as told"),
        }
    }
}

/// A way to a new router, and how many snapshots came by.
fn way(faults: &[Fault], seed: u64) -> (Way, Addr<RouterActor>, std::rc::Rc<std::cell::Cell<u64>>) {
    let (router, seen) = (router(), std::rc::Rc::default());
    let way = Way {
        router: router.clone(),
        rng: fastrand::Rng::with_seed(seed),
        faults: faults.to_vec(),
        seen: std::rc::Rc::clone(&seen),
    };
    (way, router, seen)
}

async fn attach_way(publisher: &Addr<PublisherActor>, way: &Addr<Way>) {
    let attach = AttachRouter::new(way.clone().recipient());
    publisher.send(attach).await.unwrap();
}

async fn flush(publisher: &Addr<PublisherActor>, within: u64) -> FlushReport {
    publisher.send(Flush { within: ms(within) }).await.unwrap()
}

async fn shutdown(publisher: &Addr<PublisherActor>, within: u64) -> FlushReport {
    let within = ms(within);
    publisher.send(Shutdown { within }).await.unwrap()
}

/// Every kind of harm a way can do without dying, alone and mixed, under traffic; flushes in the middle.
#[test]
fn g9_whatever_a_way_does_to_snapshots_the_router_ends_with_the_truth() {
    use Fault::*;
    let harms: [&[Fault]; 9] = [
        &[Refused, None],
        &[AnswerLost, None],
        &[Late(15), None],
        &[LateAnswer(25), None],
        &[Doubled],
        &[Lies(SnapshotAck::NeedFull), None],
        &[Lies(SnapshotAck::Superseded), None],
        &[Late(5), Refused, AnswerLost, Doubled, None],
        &[
            Refused,
            AnswerLost,
            Late(30),
            LateAnswer(3),
            Doubled,
            Lies(SnapshotAck::NeedFull),
            Lies(SnapshotAck::Superseded),
        ],
    ];
    virtual_time(async {
        for (index, harm) in harms.into_iter().enumerate() {
            for seed in 0..6 {
                let publisher = publisher(windows(2, 8));
                let (way, router, seen) = way(harm, seed);
                attach_way(&publisher, &way.start()).await;
                let mut rng = fastrand::Rng::with_seed(seed + 100);
                let mut truth = Table::new();
                for _ in 0..5 {
                    traffic(&publisher, &mut rng, 60, &mut truth).await;
                    let _ = flush(&publisher, 20).await;
                }
                // Some harm ends only by chance; the pauses between are 80 ms at most.
                sleep(ms(5_000)).await;
                assert_eq!(table(&router).await, truth, "{index} {seed}");
                let stats = stats(&publisher).await;
                let delivery = stats.links[0].delivery;
                assert_eq!(delivery.snapshots, seen.get());
                assert_eq!(live_timers(&stats), 0, "{index} {seed}");
                // Never more often than there were changes, failures and calls for more.
                let most = 300 + 2 * delivery.failures + delivery.full + 5;
                assert!(delivery.snapshots <= most, "{index} {seed}: {delivery:?}");
                let report = shutdown(&publisher, 1_000).await;
                assert!(report.is_complete());
                settle().await;
                assert_eq!(
                    table(&router).await,
                    truth,
                    "after a shutdown the values stay"
                );
            }
        }
    });
}

/// The same in the end by a shutdown in the middle: complete means that it is there.
#[test]
fn g9_a_complete_shutdown_is_the_truth_and_an_incomplete_one_names_what_is_missing() {
    use Fault::*;
    let harms: [&[Fault]; 5] = [
        &[Refused, None],
        &[AnswerLost, Late(40), None],
        &[Refused],
        &[AnswerLost],
        &[Late(10_000)],
    ];
    let mut outcomes = BTreeMap::new();
    virtual_time(async {
        for harm in harms {
            for seed in 0..10 {
                let publisher = publisher(windows(2, 8));
                let (way, router, _) = way(harm, seed);
                attach_way(&publisher, &way.start()).await;
                let mut rng = fastrand::Rng::with_seed(seed);
                let mut truth = Table::new();
                traffic(&publisher, &mut rng, 30, &mut truth).await;
                let begun = actix_kv_metrics::actix::clock::Instant::now();
                let report = shutdown(&publisher, 300).await;
                assert!(begun.elapsed() <= ms(301));
                let has = table(&router).await;
                *outcomes.entry(report.is_complete()).or_insert(0) += 1;
                if report.is_complete() {
                    assert_eq!(has, truth, "{harm:?} {seed}");
                }
                let named = report.undelivered().iter().flat_map(|it| &it.workers);
                let named: Vec<_> = named.copied().collect();
                for worker in truth.keys().chain(has.keys()) {
                    let wrong = truth.get(worker) != has.get(worker);
                    assert!(!wrong || named.contains(worker), "{harm:?} {seed} {worker}");
                }
                assert!(named.len() <= 6);
            }
        }
    });
    assert!(
        outcomes[&true] >= 10 && outcomes[&false] >= 10,
        "{outcomes:?}"
    );
}

/// A way that dies, by a panic or between accepting and applying: the loss is announced, and the next router is told all.
#[test]
fn g9_a_router_that_dies_over_a_snapshot_is_announced_and_replaced() {
    virtual_time(async {
        for fault in [Fault::DiesBetween, Fault::Panics] {
            let publisher = publisher(windows(10, 100));
            let (first, router, _) = way(&[], 1);
            let first = first.start();
            attach_way(&publisher, &first).await;
            report(&publisher, 1, 5).await;
            report(&publisher, 2, 5).await;
            sleep(ms(50)).await;
            first.do_send(From(fault));
            report(&publisher, 1, 6).await;
            publisher.send(WorkerLeft { worker: w(2) }).await.unwrap();
            let flushed = flush(&publisher, 100).await;
            assert!(!flushed.is_complete(), "{fault:?}");
            let named = &flushed.undelivered()[0].workers;
            assert!(named.contains(&w(1)), "{fault:?}: {named:?}");
            assert_eq!(table(&router).await, table_of(&[(1, 5), (2, 5)]));
            let state = pending(&publisher).await;
            assert!(state.links[0].lost && !state.timer_armed);
            assert_eq!(stats(&publisher).await.links[0].delivery.failures, 1);
            // Another router takes its place; the lost one stays lost, and a shutdown says so.
            let other = crate::support::faults::router();
            attach_real(&publisher, &other).await;
            report(&publisher, 3, 7).await;
            settle().await;
            assert_eq!(table(&other).await, table_of(&[(1, 6), (3, 7)]));
            report(&publisher, 1, 8).await;
            let report = shutdown(&publisher, 100).await;
            assert_eq!(report.undelivered().len(), 1);
            assert_eq!(report.undelivered()[0].link, Some(state.links[0].link));
            settle().await;
            assert_eq!(table(&other).await, table_of(&[(1, 8), (3, 7)]));
        }
    });
}

/// From now on it does this.
struct From(Fault);

impl actix_kv_metrics::actix::Message for From {
    type Result = ();
}

impl Handler<From> for Way {
    type Result = ();

    fn handle(&mut self, msg: From, _: &mut Context<Self>) {
        self.faults = vec![msg.0];
    }
}

/// A way that a supervisor starts again each time it dies between: nothing is lost, though nobody replaces it.
#[test]
fn g9_a_router_that_restarts_over_every_third_snapshot_ends_with_the_truth() {
    virtual_time(async {
        let publisher = publisher(windows(2, 8));
        let faults = [Fault::DiesBetween, Fault::None, Fault::None];
        let (way, router, seen) = way(&faults, 3);
        let way = Supervisor::start(move |_| way);
        attach_way(&publisher, &way).await;
        let mut truth = Table::new();
        let mut rng = fastrand::Rng::with_seed(5);
        traffic(&publisher, &mut rng, 400, &mut truth).await;
        sleep(ms(2_000)).await;
        assert_eq!(table(&router).await, truth);
        let delivery = stats(&publisher).await.links[0].delivery;
        assert!(delivery.failures > 5, "{delivery:?}");
        assert!(seen.get() <= 400 + 2 * delivery.failures + 1);
        assert!(!pending(&publisher).await.links[0].lost);
    });
}
