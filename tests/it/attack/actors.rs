//! Attacks on the running actors.
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use actix_kv_metrics::{
    actix::{Actor, ActorContext, Addr, Context, Handler, ResponseFuture, Supervised, Supervisor},
    *,
};

use super::{ms, sleep, virtual_time};

fn metrics(v: u64) -> ForwardPassMetrics {
    ForwardPassMetrics::new(v, 1000, v % 3)
}

async fn values(router: &Addr<RouterActor>) -> BTreeMap<WorkerRank, Option<u64>> {
    let loads = router.send(GetLoads).await.unwrap();
    loads
        .workers()
        .iter()
        .map(|l| {
            (
                l.worker,
                l.metrics.as_ref().map(|m| m.kv_stats.kv_active_blocks),
            )
        })
        .collect()
}

fn identities(stats: &PublisherStats) {
    assert_eq!(
        stats.received,
        stats.rejected + stats.late + stats.unchanged + stats.changed,
        "{stats:?}"
    );
    for link in &stats.links {
        assert_eq!(
            link.windows.changed,
            link.windows.opened + link.windows.coalesced,
            "{link:?}"
        );
    }
    let t = stats.timer;
    assert!(
        t.arms == t.cancels + t.fires || t.arms == t.cancels + t.fires + 1,
        "{t:?}"
    );
}

/// A recipient that misbehaves as told.
struct Odd {
    log: Arc<Mutex<Vec<LoadSnapshot>>>,
    rng: fastrand::Rng,
    mood: Mood,
    seen: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mood {
    /// Random answers, some late, some never while they are awaited (up to 3 s).
    Random,
    PanicsAt(u32),
    Never,
    StopsAt(u32),
    AlwaysNeedFull,
}

impl Actor for Odd {
    type Context = Context<Self>;
}
impl Supervised for Odd {}

impl Handler<LoadSnapshot> for Odd {
    type Result = ResponseFuture<Result<SnapshotAck, SnapshotRejected>>;

    fn handle(&mut self, msg: LoadSnapshot, ctx: &mut Context<Self>) -> Self::Result {
        self.seen += 1;
        match self.mood {
            Mood::PanicsAt(n) if n == self.seen => panic!("as told"),
            Mood::StopsAt(n) if n == self.seen => ctx.stop(),
            Mood::Never => return Box::pin(std::future::pending()),
            Mood::AlwaysNeedFull => {
                self.log.lock().unwrap().push(msg);
                return Box::pin(async { Ok(SnapshotAck::NeedFull) });
            }
            _ => {}
        }
        self.log.lock().unwrap().push(msg);
        let wait = if self.rng.bool() {
            0
        } else {
            self.rng.u64(0..200)
        };
        let answer = match (self.mood, self.rng.u8(0..8)) {
            (Mood::Random, 0) => Ok(SnapshotAck::NeedFull),
            (Mood::Random, 1) => Ok(SnapshotAck::Superseded),
            (Mood::Random, 2) => Err(SnapshotRejected),
            _ => Ok(SnapshotAck::Applied),
        };
        Box::pin(async move {
            if wait > 0 {
                sleep(wait).await;
            }
            answer
        })
    }
}

fn odd(seed: u64, mood: Mood) -> (Odd, Arc<Mutex<Vec<LoadSnapshot>>>) {
    let log = Arc::default();
    let odd = Odd {
        log: Arc::clone(&log),
        rng: fastrand::Rng::with_seed(seed),
        mood,
        seen: 0,
    };
    (odd, log)
}

fn odd_duration(rng: &mut fastrand::Rng) -> Duration {
    *rng.choice(&[
        Duration::ZERO,
        Duration::from_nanos(1),
        ms(1),
        ms(7),
        ms(50),
        ms(900),
        Duration::from_secs(u64::MAX / 10),
        Duration::MAX,
    ])
    .unwrap()
}

/// Everything at once, then quiet: the router ends with the last values; nothing is pending; the counters agree.
#[test]
fn after_random_histories_the_router_has_the_last_values() {
    for seed in 0..150u64 {
        virtual_time(async move {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut coalescing = Coalescing::builder();
            if rng.bool() {
                let mut d = [ms(rng.u64(0..4)), ms(rng.u64(0..20)), ms(rng.u64(0..1200))];
                d.sort();
                coalescing = coalescing.debounce(d[0]).max_delay(d[1]).minor_delay(d[2]);
                coalescing = coalescing
                    .min_gap(ms(rng.u64(0..30)))
                    .urgent_gap(ms(rng.u64(0..10)));
            }
            coalescing = coalescing.leading(rng.bool());
            if rng.bool() {
                coalescing = coalescing.saturation(0.5);
            }
            let coalescing = coalescing.build().unwrap();
            let publisher = PublisherActor::new(
                PublisherConfig::builder()
                    .coalescing(coalescing)
                    .build()
                    .unwrap(),
            )
            .start();
            let router = RouterActor::new(
                RouterConfig::builder()
                    .seed(1)
                    .reservation_ttl(ms(3000))
                    .stale_after(ms(3000))
                    .build()
                    .unwrap(),
            )
            .start();
            let link = publisher
                .send(AttachRouter::new(router.clone().recipient()))
                .await
                .unwrap();
            let (random, random_log) = odd(seed, Mood::Random);
            let random = random.start();
            publisher.do_send(AttachRouter::new(random.clone().recipient()));
            publisher.do_send(AttachRouter::new(
                odd(seed, Mood::Never).0.start().recipient(),
            ));
            if rng.bool() {
                publisher.do_send(AttachRouter::new(
                    odd(seed, Mood::PanicsAt(3)).0.start().recipient(),
                ));
                publisher.do_send(AttachRouter::new(
                    odd(seed, Mood::StopsAt(2)).0.start().recipient(),
                ));
                publisher.do_send(AttachRouter::new(
                    Supervisor::start(move |_| odd(seed, Mood::StopsAt(2)).0).recipient(),
                ));
                publisher.do_send(AttachRouter::new(
                    odd(seed, Mood::AlwaysNeedFull).0.start().recipient(),
                ));
            }
            let mut reporters: BTreeMap<WorkerRank, MetricsReporter> = BTreeMap::new();
            let mut truth: BTreeMap<WorkerRank, Option<u64>> = BTreeMap::new();
            let mut old: Vec<MetricsReporter> = Vec::new();
            let mut tickets = Vec::new();
            let mut held = Vec::new();
            for _ in 0..rng.u64(1..300) {
                let w = WorkerRank::new(rng.u64(0..6), rng.u32(0..2));
                match rng.u8(0..20) {
                    0 => {
                        if let Some(former) =
                            reporters.insert(w, MetricsReporter::new(&publisher, w))
                            && rng.bool()
                        {
                            old.push(former);
                        }
                        truth.insert(w, None);
                    }
                    1 => {
                        if reporters.remove(&w).is_some() {
                            truth.remove(&w);
                        }
                    }
                    2 => {
                        // A worker of plain messages.
                        let w = WorkerRank::new(100, rng.u32(0..3));
                        let v = rng.u64(0..1000);
                        publisher.do_send(MetricsChanged::new(w, metrics(v)));
                        truth.insert(w, Some(v));
                    }
                    3 => {
                        let w = WorkerRank::new(100, rng.u32(0..3));
                        publisher.do_send(WorkerLeft { worker: w });
                        truth.remove(&w);
                    }
                    4 => {
                        let w = WorkerRank::new(100, rng.u32(0..3));
                        publisher.do_send(WorkerJoined { worker: w });
                        truth.entry(w).or_insert(None);
                    }
                    5 => {
                        if let Some(former) = old.pop() {
                            // Late or refused: of a life that has ended.
                            let _ = former.report(metrics(1));
                            if rng.bool() {
                                old.push(former);
                            }
                        }
                    }
                    6 => {
                        if let Ok(Ok(s)) = router.send(SelectWorker::blocks(rng.u32(0..9))).await {
                            match rng.u8(0..3) {
                                0 => held.push(s),
                                1 => drop(s),
                                _ => tickets.push(s.into_ticket()),
                            }
                        }
                    }
                    7 => {
                        if let Some(t) = rng.choice(&tickets) {
                            if let Some(r) = reporters.get(&w) {
                                let _ = r.admitted(*t);
                            }
                            if rng.bool() {
                                router.do_send(Release { ticket: *t });
                            }
                        }
                    }
                    8 => {
                        let within = odd_duration(&mut rng);
                        let flush = publisher.send(Flush { within });
                        if rng.bool() {
                            actix::spawn(async move { drop(flush.await) });
                        }
                    }
                    9 => {
                        let again = publisher
                            .send(AttachRouter::new(router.clone().recipient()))
                            .await
                            .unwrap();
                        assert_eq!(again, link);
                    }
                    10 => {
                        let nan =
                            ForwardPassMetrics::new(1, 2, 3).with_gpu_cache_usage_perc(f32::NAN);
                        if let Some(r) = reporters.get(&w) {
                            assert!(r.report(nan).is_err());
                        } else {
                            publisher.do_send(MetricsChanged::new(WorkerRank::new(200, 0), nan));
                        }
                    }
                    _ => {
                        if let Some(r) = reporters.get(&w) {
                            let v = rng.u64(0..1000);
                            match r.report(metrics(v)) {
                                Ok(()) => _ = truth.insert(w, Some(v)),
                                Err(e) => panic!("seed {seed}: {e}"),
                            }
                        }
                    }
                }
                if rng.u8(0..3) > 0 {
                    sleep(rng.u64(0..15)).await;
                }
            }
            sleep(6000).await;
            assert_eq!(values(&router).await, truth, "seed {seed}");
            let stats = publisher.send(GetPublisherStats).await.unwrap();
            identities(&stats);
            let pending = publisher.send(GetPending).await.unwrap();
            let mine = pending.links.iter().find(|l| l.link == link).unwrap();
            assert_eq!(
                (mine.windows, mine.departures, mine.ages.len()),
                (0, 0, 0),
                "seed {seed}"
            );
            // What the odd one was told adds up to the truth as well, whatever it answered.
            sleep(60_000).await;
            let mut told: BTreeMap<WorkerRank, Option<u64>> = BTreeMap::new();
            for s in random_log.lock().unwrap().iter() {
                if s.kind == SnapshotKind::Full {
                    told.clear();
                }
                for w in &s.left {
                    told.remove(w);
                }
                for l in &s.workers {
                    told.insert(
                        l.worker,
                        l.metrics.as_ref().map(|m| m.kv_stats.kv_active_blocks),
                    );
                }
            }
            assert_eq!(told, truth, "seed {seed}");
            drop(held);
            for t in tickets {
                router.do_send(Release { ticket: t });
            }
            let stats = router.send(GetRouterStats).await.unwrap();
            let t = stats.table;
            assert_eq!(
                t.selected,
                t.released
                    + t.admitted
                    + t.settled
                    + t.dropped
                    + t.expired
                    + stats.outstanding as u64
            );
            assert_eq!(stats.outstanding, 0, "seed {seed}");
            assert!(publisher.connected() && router.connected());
            let report = publisher.send(Shutdown { within: ms(500) }).await.unwrap();
            assert!(
                report.undelivered().iter().all(|u| u.link != Some(link)),
                "seed {seed} {report:?}"
            );
            assert_eq!(values(&router).await, truth, "seed {seed}");
        });
    }
}

/// All settings, however odd: no panic, no spin, and whoever promises to tell does.
#[test]
fn all_corners_of_the_settings_live() {
    for seed in 0..200u64 {
        virtual_time(async move {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut d = [
                odd_duration(&mut rng),
                odd_duration(&mut rng),
                odd_duration(&mut rng),
            ];
            d.sort();
            let (min_gap, urgent_gap) = (odd_duration(&mut rng), odd_duration(&mut rng));
            let coalescing = Coalescing::builder()
                .debounce(d[0])
                .max_delay(d[1])
                .minor_delay(d[2])
                .min_gap(min_gap)
                .urgent_gap(urgent_gap)
                .leading(rng.bool())
                .build()
                .unwrap();
            let publisher = PublisherActor::new(
                PublisherConfig::builder()
                    .coalescing(coalescing)
                    .build()
                    .unwrap(),
            )
            .start();
            let router = RouterActor::new(
                RouterConfig::builder()
                    .settle(odd_duration(&mut rng))
                    .stale_after(odd_duration(&mut rng))
                    .reservation_ttl(odd_duration(&mut rng))
                    .build()
                    .unwrap(),
            )
            .start();
            publisher
                .send(AttachRouter::new(router.clone().recipient()))
                .await
                .unwrap();
            sleep(1).await;
            let r = MetricsReporter::new(&publisher, 1);
            let mut v = 0;
            for _ in 0..rng.u64(1..40) {
                v = rng.u64(0..1000);
                r.report(metrics(v)).unwrap();
                if let Ok(Ok(s)) = router.send(SelectWorker::blocks(1)).await
                    && rng.bool()
                {
                    s.into_ticket();
                }
                sleep(rng.u64(0..20)).await;
            }
            sleep(5000).await;
            let gap = if min_gap.is_zero() {
                urgent_gap
            } else {
                min_gap
            };
            if d[1] <= ms(900) && gap <= ms(900) {
                assert_eq!(
                    values(&router).await.get(&1.into()),
                    Some(&Some(v)),
                    "seed {seed}"
                );
            }
            let fires = publisher.send(GetPublisherStats).await.unwrap().timer.fires;
            sleep(1_000_000).await;
            let later = publisher.send(GetPublisherStats).await.unwrap();
            identities(&later);
            assert!(
                later.timer.fires <= fires + 3,
                "seed {seed}: idle is free {later:?}"
            );
            let flush = publisher
                .send(Flush {
                    within: odd_duration(&mut rng).max(ms(50)),
                })
                .await
                .unwrap();
            assert!(flush.is_complete(), "seed {seed} {flush}");
            assert_eq!(
                values(&router).await.get(&1.into()),
                Some(&Some(v)),
                "seed {seed} after a flush"
            );
            r.report(metrics(v + 1)).unwrap();
            let within = odd_duration(&mut rng).max(ms(50));
            let report = publisher.send(Shutdown { within }).await.unwrap();
            assert!(report.is_complete(), "seed {seed} {report}");
            assert_eq!(
                values(&router).await.get(&1.into()),
                Some(&Some(v + 1)),
                "seed {seed} after shutdown"
            );
            assert!(r.report(metrics(3)).is_err());
        });
    }
}
