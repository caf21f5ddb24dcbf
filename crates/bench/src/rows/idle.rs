//! What an idle publisher costs in real time: its timer's callbacks, and how often its thread wakes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use actix::{Actor, Addr};
use actix_kv_metrics::{Coalescing, GetPublisherStats, MetricsReporter, PublisherActor};

use super::{Effort, Findings};
use crate::{
    measure::Spread,
    opponents::interval::Interval,
    outcome::{Row, Target, Unit},
    stream::load,
    systems,
    threads::Stage,
};

pub(super) fn run(effort: Effort) -> Findings {
    let seconds = effort.pick(5, 60);
    systems::in_system(async {
        let (quiet, ticking) = (Stage::new(), Stage::new());
        let router = systems::router_on(&quiet.arbiter());
        let coalescing = Coalescing::default();
        let publisher =
            systems::publisher_on(&quiet.arbiter(), coalescing, router.clone().recipient());
        let reporters: Vec<_> = (0..100)
            .map(|worker| MetricsReporter::new(&publisher, worker))
            .collect();
        for reporter in &reporters {
            let _ = reporter.report(load(1));
        }
        let ticks = Arc::<AtomicU64>::default();
        let counted = ticks.clone();
        let _interval = Interval::start_in_arbiter(&ticking.arbiter(), move |_| {
            Interval::new(router.recipient(), counted)
        });
        std::thread::sleep(Duration::from_secs(1));

        let fires = fires(&publisher).await;
        std::thread::sleep(Duration::from_millis(100));
        let wakes = [&quiet, &ticking].map(|stage| stage.thread().voluntary_switches());
        let ticked = ticks.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_secs(seconds));
        let ticked = ticks.load(Ordering::Relaxed) - ticked;
        let woken = [(&quiet, wakes[0]), (&ticking, wakes[1])]
            .map(|(stage, before)| stage.thread().voluntary_switches() - before);
        let fires = self::fires(&publisher).await - fires;
        drop(reporters);
        quiet.close();
        ticking.close();
        Findings {
            rows: vec![
                row(format!("idle {seconds} s: timer callbacks"), fires, ticked),
                row(
                    format!("idle {seconds} s: voluntary context switches"),
                    woken[0],
                    woken[1],
                ),
            ],
            ..Findings::default()
        }
    })
}

fn row(name: String, ours: u64, ticking: u64) -> Row {
    let ours = Spread::once(ours as f64);
    Row::own(name, ours, Unit::Count, Target::AtMost(0.0))
        .beside("(c) run_interval", Spread::once(ticking as f64))
}

async fn fires(publisher: &Addr<PublisherActor>) -> u64 {
    let stats = publisher.send(GetPublisherStats).await;
    stats.map_or(0, |stats| stats.timer.fires + stats.timer.stale_fires)
}
