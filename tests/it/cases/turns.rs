//! Case 189: messages that cost more than a report does. A turn ends by the clock too, so that whoever shares the arbiter is
//! served in time however dear a message is.

use std::{
    cell::Cell,
    rc::Rc,
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use super::warnings::ASKED_EACH_TIME;
use crate::support::{
    faults::router,
    publishers::*,
    router::{FULL, P, after, of_life, snapshot},
    *,
};
use actix_kv_metrics::{
    ForwardPassMetrics, GetRouterStats, KvMetrics, KvMetricsConfig, MetricsChanged, RouterConfig,
    SelectWorker,
    actix::{System, clock},
};
use tracing::{
    Event, Metadata, Subscriber,
    span::{Attributes, Id, Record},
};

/// Writes a log that takes 100 µs a line.
struct SlowLog;

impl Subscriber for SlowLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("actix_kv_metrics")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        let begun = clock::Instant::now();
        while begun.elapsed() < Duration::from_micros(100) {
            std::hint::spin_loop();
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// How many sleeps of 5 ms a neighbour ends until `work` is done: the best of several, since the machine may be busy with
/// other things.
async fn sleeps_during<F: Future>(work: impl Fn() -> F) -> u32 {
    let mut best = 0;
    for _ in 0..6 {
        let slept = Rc::new(Cell::new(0));
        let counted = slept.clone();
        let neighbour = actix_rt::spawn(async move {
            loop {
                sleep(ms(5)).await;
                counted.set(counted.get() + 1);
            }
        });
        tokio::task::yield_now().await;
        work().await;
        neighbour.abort();
        best = best.max(slept.get());
    }
    best
}

fn with_a_slow_log<F: Future<Output = ()>>(body: F) {
    LazyLock::force(&ASKED_EACH_TIME);
    tracing::subscriber::with_default(SlowLog, || System::new().block_on(body));
}

#[test]
fn case_189_reports_of_100_us_each_leave_a_neighbour_its_time() {
    with_a_slow_log(async {
        let publisher = publisher(windows(0, 0));
        let log = attach(&publisher).await;
        let quiet = sleeps_during(|| sleep(ms(100))).await;
        let flooded = sleeps_during(|| {
            for active in 1..=1_000 {
                publisher.do_send(MetricsChanged::new(1, load(active)));
            }
            stats(&publisher)
        });
        let flooded = flooded.await;
        assert!(flooded >= quiet / 2, "{flooded} instead of {quiet}");
        settle().await;
        assert_eq!(log.active(1), Some(1_000));
    });
}

#[test]
fn case_189_requests_of_100_us_each_leave_a_neighbour_its_time() {
    with_a_slow_log(async {
        let router = router();
        let quiet = sleeps_during(|| sleep(ms(100))).await;
        let flooded = sleeps_during(|| {
            for _ in 0..1_000 {
                // Refused: it knows no worker.
                router.do_send(SelectWorker::blocks(1));
            }
            router.send(GetRouterStats)
        });
        let flooded = flooded.await;
        assert!(flooded >= quiet / 2, "{flooded} instead of {quiet}");
    });
}

/// A router that answers at once wakes the publisher in the middle of giving way.
#[test]
fn case_189_an_answer_does_not_cut_the_turn_of_others_short() {
    virtual_time(async {
        let publisher = publisher(windows(0, 0));
        let log = attach(&publisher).await;
        let turns = Rc::new(Cell::new(0));
        let counted = turns.clone();
        // It comes to its turn when the arbiter has looked at its timers, like whoever sleeps.
        let neighbour = actix_rt::spawn(async move {
            loop {
                actix_rt::task::yield_now().await;
                counted.set(counted.get() + 1);
            }
        });
        for active in 1..=25_600 {
            publisher.do_send(MetricsChanged::new(1, load(active)));
        }
        stats(&publisher).await;
        neighbour.abort();
        let got = turns.get();
        assert!((100..=110).contains(&got), "{got} turns in 100");
        settle().await;
        assert_eq!(log.active(1), Some(25_600));
    });
}

/// How many turns a neighbour had until each line was logged.
struct TurnsByLine(Arc<Mutex<Vec<u32>>>, Arc<AtomicU32>);

impl Subscriber for TurnsByLine {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "actix_kv_metrics::router"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.lock().unwrap().push(self.1.load(Relaxed));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// One message makes room for a thousand who wait: they are served in turns.
#[test]
fn g14_a_thousand_who_are_served_at_once_leave_a_neighbour_its_turns() {
    LazyLock::force(&ASKED_EACH_TIME);
    let (lines, turns) = (Arc::default(), Arc::default());
    let log = TurnsByLine(Arc::clone(&lines), Arc::clone(&turns));
    let served = async {
        let config = RouterConfig::builder().saturation(0.5).build().unwrap();
        let kv = KvMetrics::start(KvMetricsConfig::default().router(config));
        // Told by hand: with a neighbour that is always ready the clock stands still.
        let tell = async |sequence, kind, load| {
            let load = of_life(1, 1, Some(load));
            let told = kv.router().send(snapshot(P, sequence, kind, [load]));
            told.await.unwrap().unwrap();
        };
        tell(1, FULL, load(500)).await;
        let asked = (0..1_000).map(|_| {
            let kv = kv.clone();
            actix_rt::spawn(async move {
                let chosen = kv.select_within(SelectWorker::blocks(1), ms(60_000)).await;
                chosen.unwrap().into_ticket();
            })
        });
        let asked: Vec<_> = asked.collect();
        settle().await;
        let neighbour = actix_rt::spawn(async move {
            loop {
                actix_rt::task::yield_now().await;
                turns.fetch_add(1, Relaxed);
            }
        });
        lines.lock().unwrap().clear();
        tell(2, after(1), ForwardPassMetrics::new(0, 1_000_000, 0)).await;
        for one in asked {
            one.await.unwrap();
        }
        neighbour.abort();
        let stats = kv.router_stats().await.unwrap().waiting;
        assert_eq!((stats.served, stats.waiting), (1_000, 0));
        let lines = std::mem::take(&mut *lines.lock().unwrap());
        assert_eq!(lines.len(), 1_000);
        let most = lines
            .chunk_by(|one, other| one == other)
            .map(<[_]>::len)
            .max();
        assert!(most <= Some(256), "{most:?} in one turn");
    };
    tracing::subscriber::with_default(log, || virtual_time(served));
}
