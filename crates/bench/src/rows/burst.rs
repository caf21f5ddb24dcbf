//! `MetricsChanged` by mailbox, one worker, in bursts: the time from the first `do_send` until the last is handled, per
//! message. A router is attached on the same thread.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use actix::{Actor, Addr, Context, Handler, dev::ToEnvelope};
use actix_kv_metrics::{
    Coalescing, ForwardPassMetrics, GetRouterStats, MetricsChanged, MetricsReporter,
    PublisherActor, RouterActor, RouterConfig, WorkerRank,
};
use tokio::sync::watch;

use super::{Effort, Findings};
use crate::{
    measure::Pair,
    opponents::{
        cancel_and_rearm::CancelAndRearm, debounce_task, forward_all::ForwardAll,
        plain_handler::PlainHandler,
    },
    outcome::{Row, Target},
    plots::{Plot, Series},
    stream::{Change, Settled, load},
    systems,
    threads::Stopwatch,
};

const WORKER: u64 = 7;

pub(super) fn run(effort: Effort) -> Findings {
    systems::in_system(async {
        let (publisher, _router) = systems::publisher_and_router(Coalescing::default()).await;
        let mut findings = against_plain(effort, &publisher).await;
        beside_others(effort, &publisher, &mut findings).await;
        findings
    })
}

async fn against_plain(effort: Effort, publisher: &Addr<PublisherActor>) -> Findings {
    let plain = PlainHandler::default().start();
    let sizes: &[u64] = effort.pick(&[1_000, 16_000], &[1_000, 4_000, 16_000, 64_000, 256_000]);
    let (least, most) = (sizes[0], sizes[sizes.len() - 1]);
    let mut findings = Findings::default();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for size in sizes {
        let pair = Pair::alternate_async(
            effort.rounds(),
            async || ours_in_bursts(publisher, *size).await,
            async || in_bursts(&plain, *size).await,
        )
        .await;
        ours.push((*size as f64, pair.ours().median));
        theirs.push((*size as f64, pair.opponent().median));
        findings.rows.push(Row::cost(
            format!("MetricsChanged, bursts of {}", thousands(*size)),
            "(a) plain handler",
            &pair,
            Target::AtMost(1.5),
        ));
    }
    let growth = Pair::alternate_async(
        effort.rounds(),
        async || ours_in_bursts(publisher, most).await,
        async || ours_in_bursts(publisher, least).await,
    )
    .await;
    let plain_growth = Pair::alternate_async(
        effort.rounds(),
        async || in_bursts(&plain, most).await,
        async || in_bursts(&plain, least).await,
    )
    .await;
    let (most, least) = (thousands(most), thousands(least));
    findings.rows.push(Row::cost(
        format!("the same, {most} against {least}"),
        &format!("ours, {least}"),
        &growth,
        Target::AtMost(1.25),
    ));
    findings.rows.push(Row::cost(
        format!("(a), {most} against {least}"),
        &format!("(a), {least}"),
        &plain_growth,
        Target::Told,
    ));
    findings
        .series
        .push(Series::new(Plot::Burst, "MetricsChanged", ours));
    findings
        .series
        .push(Series::new(Plot::Burst, "(a) plain handler", theirs));
    findings
}

async fn beside_others(effort: Effort, publisher: &Addr<PublisherActor>, findings: &mut Findings) {
    let router = RouterActor::new(RouterConfig::default()).start();
    let debounce = Coalescing::default().debounce();
    let rearming = CancelAndRearm::new(router.clone().recipient(), debounce).start();
    let forwarding = ForwardAll::new(router.clone().recipient()).start();
    let observed = Arc::<AtomicU64>::default();
    let worker = WorkerRank::from(WORKER);
    let (sender, task) =
        debounce_task::prepare(worker, router.clone().recipient(), observed.clone());
    actix_rt::spawn(task);
    let reporter = MetricsReporter::new(publisher, WORKER);
    systems::handled(publisher).await;

    let mut reports = Vec::new();
    let sizes: &[u64] = effort.pick(&[1_000, 16_000], &[1_000, 4_000, 16_000, 64_000, 256_000]);
    let mut watched = Vec::new();
    for size in sizes {
        let pair = Pair::alternate_async(
            effort.rounds(),
            async || reported_in_bursts(publisher, &reporter, *size).await,
            async || watched_in_bursts(&sender, &observed, *size).await,
        )
        .await;
        reports.push((*size as f64, pair.ours().median));
        watched.push((*size as f64, pair.opponent().median));
        if size == &sizes[sizes.len() - 1] {
            let name = format!("report(), bursts of {}", thousands(*size));
            findings
                .rows
                .push(Row::speed(name, "(d) debounce task", &pair, Target::Told));
        }
    }
    // Its cost grows with the square of the burst.
    let sizes: &[u64] = effort.pick(&[1_000, 4_000], &[1_000, 4_000, 16_000, 64_000]);
    let mut rearmed = Vec::new();
    for size in sizes {
        let rounds = effort.pick(2, if *size < 10_000 { 11 } else { 3 });
        let pair = Pair::alternate_async(
            rounds,
            async || ours_in_bursts(publisher, *size).await,
            async || in_bursts(&rearming, *size).await,
        )
        .await;
        rearmed.push((*size as f64, pair.opponent().median));
        let name = format!("MetricsChanged, bursts of {}", thousands(*size));
        findings.rows.push(Row::speed(
            name,
            "(b) cancel + run_later",
            &pair,
            Target::Told,
        ));
    }
    let size = effort.pick(4_000, 16_000);
    let pair = Pair::alternate_async(
        effort.rounds(),
        async || ours_in_bursts(publisher, size).await,
        async || forwarded_in_bursts(&forwarding, &router, size).await,
    )
    .await;
    let name = format!("MetricsChanged, bursts of {}", thousands(size));
    findings
        .rows
        .push(Row::speed(name, "(e) forwarding all", &pair, Target::Told));
    findings.series.extend([
        Series::new(Plot::Burst, "report()", reports),
        Series::new(Plot::Burst, "(b) cancel + run_later", rearmed),
        Series::new(Plot::Burst, "(d) debounce task", watched),
    ]);
}

async fn ours_in_bursts(publisher: &Addr<PublisherActor>, size: u64) -> f64 {
    nanos_per_message(size, async || {
        for n in 0..size {
            publisher.do_send(MetricsChanged::new(WORKER, load(n)));
        }
        systems::handled(publisher).await;
    })
    .await
}

async fn in_bursts<A>(actor: &Addr<A>, size: u64) -> f64
where
    A: Actor<Context = Context<A>> + Handler<Change> + Handler<Settled>,
    A::Context: ToEnvelope<A, Change> + ToEnvelope<A, Settled>,
{
    let worker = WorkerRank::from(WORKER);
    nanos_per_message(size, async || {
        for n in 0..size {
            let metrics = load(n);
            actor.do_send(Change { worker, metrics });
        }
        let _ = actor.send(Settled).await;
    })
    .await
}

/// Until the router has handled what was forwarded to it.
async fn forwarded_in_bursts(
    forwarding: &Addr<ForwardAll>,
    router: &Addr<RouterActor>,
    size: u64,
) -> f64 {
    let worker = WorkerRank::from(WORKER);
    nanos_per_message(size, async || {
        for n in 0..size {
            let metrics = load(n);
            forwarding.do_send(Change { worker, metrics });
        }
        let _ = forwarding.send(Settled).await;
        let _ = router.send(GetRouterStats).await;
    })
    .await
}

async fn reported_in_bursts(
    publisher: &Addr<PublisherActor>,
    reporter: &MetricsReporter,
    size: u64,
) -> f64 {
    nanos_per_message(size, async || {
        for n in 0..size {
            let _ = reporter.report(load(n));
        }
        systems::handled(publisher).await;
    })
    .await
}

async fn watched_in_bursts(
    sender: &watch::Sender<ForwardPassMetrics>,
    observed: &AtomicU64,
    size: u64,
) -> f64 {
    nanos_per_message(size, async || {
        let before = observed.load(Ordering::Relaxed);
        for n in 0..size {
            let _ = sender.send(load(n));
        }
        while observed.load(Ordering::Relaxed) == before {
            tokio::task::yield_now().await;
        }
    })
    .await
}

/// Small bursts are repeated, so that each sample has enough messages. One burst goes before them: it leaves the heap as
/// bursts of this size and kind do.
async fn nanos_per_message(size: u64, mut burst: impl AsyncFnMut()) -> f64 {
    burst().await;
    let bursts = (MESSAGES_A_SAMPLE / size).max(1);
    let watch = Stopwatch::start();
    for _ in 0..bursts {
        burst().await;
    }
    watch.nanos_each(bursts * size)
}

fn thousands(count: u64) -> String {
    format!("{} k", count / 1_000)
}

const MESSAGES_A_SAMPLE: u64 = 16_000;
