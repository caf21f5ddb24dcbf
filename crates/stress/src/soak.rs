//! Workers come and go for a long time; then nothing may be left, and every count must add up.

use std::{
    cell::Cell,
    collections::VecDeque,
    rc::Rc,
    time::{Duration, Instant},
};

use actix::{Actor, Addr, Arbiter, System};
use actix_kv_metrics::{
    AttachRouter, DetachRouter, Flush, ForwardPassMetrics, GetPending, GetPublisherStats,
    GetRouterStats, KvMetrics, KvMetricsConfig, LinkId, MetricsChanged, MetricsReporter,
    PublisherStats, Release, RouterActor, RouterConfig, SelectWorker, Selection, Ticket,
    WorkerJoined, WorkerLeft,
};
use clap::Args;

use crate::{
    checks::Checks,
    flat::Looks,
    heap,
    mishaps::{self, PanicNow},
};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How long.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Seed of everything that is drawn.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(options: &Options) -> Checks {
    mishaps::hush();
    System::new().block_on(soak(options))
}

async fn soak(options: &Options) -> Checks {
    let mut checks = Checks::default();
    let (publisher_side, router_side) = (Arbiter::new(), Arbiter::new());
    let router = RouterConfig::builder().reservation_ttl(TTL).build();
    let config = KvMetricsConfig::default()
        .router(router.expect("it is within its bounds"))
        .publisher_arbiter(publisher_side.handle())
        .router_arbiter(router_side.handle());
    let kv = KvMetrics::start(config);
    let _ = publisher_stats(&kv).await;
    let empty = heap::live();
    let fleet = Fleet::new(kv.clone(), options.seed);
    let done = Done::default();
    let length = Duration::from_secs(options.seconds);
    let end = Instant::now() + length;

    let requests = actix_rt::spawn(place_requests(kv.clone(), done.clone(), end, options.seed));
    let replacing = actix_rt::spawn(replace_routers(kv.clone(), done.clone(), end));
    let looking = actix_rt::spawn(look(kv.clone(), done.clone(), end));
    let fleet = fleet.live(end, &done).await;
    requests.await.expect("it does not panic");
    looking.await.expect("it does not panic");
    let looks = replacing.await.expect("it does not panic");
    fleet.leave(&done);
    // Everything has been told, and every booking has ended.
    let _ = kv.publisher().send(Flush { within: TTL }).await;
    actix_rt::time::sleep(TTL + SETTLED).await;

    figures(&checks, &done);
    looks.check(&mut checks);
    drop(looks);
    check_left(&mut checks, empty);
    let stats = publisher_stats(&kv).await;
    check_publisher(&mut checks, &kv, &stats, &done).await;
    check_router(&mut checks, &kv).await;
    let report = kv.shutdown(Duration::from_secs(5)).await;
    let complete = report.is_complete();
    checks.check(complete, "shutdown", complete, "everything arrived");
    for side in [publisher_side, router_side] {
        side.stop();
        let _ = side.join();
    }
    checks
}

/// What was done, by name.
#[derive(Debug, Clone, Default)]
struct Done(Rc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    workers: Cell<u64>,
    messages: Cell<u64>,
    refused: Cell<u64>,
    offered: Cell<u64>,
    conflated: Cell<u64>,
    bursts: Cell<u64>,
    placed: Cell<u64>,
    not_placed: Cell<u64>,
    replaced: Cell<u64>,
    attached: Cell<u64>,
    flushes: Cell<u64>,
    incomplete: Cell<u64>,
    looks: Cell<u64>,
    amiss: Cell<u64>,
}

fn add(count: &Cell<u64>, more: u64) {
    count.set(count.get() + more);
}

/// The workers that live just now.
struct Fleet {
    kv: KvMetrics,
    rng: fastrand::Rng,
    next_id: u64,
    reporters: VecDeque<MetricsReporter>,
    plain: VecDeque<u64>,
}

impl Fleet {
    fn new(kv: KvMetrics, seed: u64) -> Self {
        Self {
            kv,
            rng: fastrand::Rng::with_seed(seed),
            next_id: 0,
            reporters: VecDeque::new(),
            plain: VecDeque::new(),
        }
    }

    async fn live(mut self, end: Instant, done: &Counts) -> Self {
        while Instant::now() < end {
            if self.reporters.len() + self.plain.len() < 2 * FLEET || self.rng.u8(..4) == 0 {
                self.join(done);
            }
            self.report(10, done);
            if self.rng.u8(..) == 0 {
                self.report(5_000, done);
                add(&done.bursts, 1);
            }
            if self.reporters.len() > FLEET || self.rng.u8(..10) == 0 {
                self.retire_reporter(done);
            }
            if self.plain.len() > FLEET {
                self.retire_plain();
            }
            actix_rt::time::sleep(Duration::from_millis(5)).await;
        }
        self
    }

    /// A worker of an id that was never there before.
    fn join(&mut self, done: &Counts) {
        self.next_id += 1;
        add(&done.workers, 1);
        if self.rng.bool() {
            self.reporters.push_back(self.kv.reporter(self.next_id));
        } else {
            if self.rng.bool() {
                let worker = self.next_id.into();
                self.kv.publisher().do_send(WorkerJoined { worker });
            }
            self.plain.push_back(self.next_id);
        }
    }

    fn report(&mut self, times: u64, done: &Counts) {
        for _ in 0..times {
            let poisoned = self.rng.u8(..) == 0;
            let share = if poisoned { f32::NAN } else { 0.5 };
            let active = self.rng.u64(..16_384);
            let metrics = ForwardPassMetrics::new(active, 16_384, self.rng.u64(..4))
                .with_gpu_cache_usage_perc(share);
            add(&done.refused, u64::from(poisoned));
            if self.rng.bool() && !self.plain.is_empty() {
                let worker = self.plain[self.rng.usize(..self.plain.len())];
                self.kv
                    .publisher()
                    .do_send(MetricsChanged::new(worker, metrics));
                add(&done.messages, 1);
            } else if !self.reporters.is_empty() {
                let reporter = &self.reporters[self.rng.usize(..self.reporters.len())];
                if reporter.report(metrics).is_ok() {
                    add(&done.offered, 1);
                }
                // A ticket of no router that lives.
                if active.is_multiple_of(64) && reporter.admitted(STRANGE).is_ok() {
                    add(&done.offered, 1);
                }
            }
        }
    }

    fn retire_reporter(&mut self, done: &Counts) {
        if let Some(reporter) = self.reporters.pop_front() {
            add(&done.conflated, reporter.conflated());
        }
    }

    fn retire_plain(&mut self) {
        if let Some(id) = self.plain.pop_front() {
            let worker = id.into();
            self.kv.publisher().do_send(WorkerLeft { worker });
        }
    }

    /// Everybody leaves.
    fn leave(mut self, done: &Counts) {
        while !self.reporters.is_empty() {
            self.retire_reporter(done);
        }
        while !self.plain.is_empty() {
            self.retire_plain();
        }
    }
}

impl std::ops::Deref for Done {
    type Target = Counts;

    fn deref(&self) -> &Counts {
        &self.0
    }
}

/// Places a request every millisecond. Some are held and dropped, some released by their ticket, some forgotten.
async fn place_requests(kv: KvMetrics, done: Done, end: Instant, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed + 1);
    let mut held: VecDeque<Selection> = VecDeque::new();
    while Instant::now() < end {
        match kv.select(SelectWorker::blocks(rng.u32(..100))).await {
            Ok(selection) => {
                add(&done.placed, 1);
                match rng.u8(..4) {
                    0 => held.push_back(selection),
                    1 => {
                        let ticket = selection.into_ticket();
                        kv.router().do_send(Release { ticket });
                    }
                    2 => drop(selection.into_ticket()),
                    _ => drop(selection),
                }
            }
            Err(_) => add(&done.not_placed, 1),
        }
        if held.len() > 100 {
            held.pop_front();
        }
        actix_rt::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The router panics now and then; other routers come and go. Looks at memory each time the other one has gone and the
/// publisher has told everything: every four rounds, at the same phase.
async fn replace_routers(kv: KvMetrics, done: Done, end: Instant) -> Looks {
    let rounds = end.saturating_duration_since(Instant::now()).as_millis() / ROUND.as_millis();
    let mut looks = Looks::with_capacity(rounds as usize / 4 + 1);
    let mut other: Option<(LinkId, Addr<RouterActor>)> = None;
    let mut round = 0_u64;
    while Instant::now() < end {
        actix_rt::time::sleep(ROUND).await;
        round += 1;
        if round.is_multiple_of(4) {
            kv.router().do_send(PanicNow);
            add(&done.replaced, 1);
        }
        if let Some((link, _)) = other.take() {
            let _ = kv.publisher().send(DetachRouter(link)).await;
        } else {
            let router = RouterActor::new(RouterConfig::default()).start();
            let attach = AttachRouter::new(router.clone().recipient());
            if let Ok(link) = kv.publisher().send(attach).await {
                add(&done.attached, 1);
                other = Some((link, router));
            }
        }
        let flushed = kv.publisher().send(Flush { within: TTL }).await;
        add(&done.flushes, 1);
        let complete = flushed.is_ok_and(|report| report.is_complete());
        add(&done.incomplete, u64::from(!complete));
        if round % 4 == 2 {
            looks.look();
        }
    }
    if let Some((link, _)) = other {
        let _ = kv.publisher().send(DetachRouter(link)).await;
    }
    looks
}

/// Looks at counters every second.
async fn look(kv: KvMetrics, done: Done, end: Instant) {
    while Instant::now() < end {
        actix_rt::time::sleep(Duration::from_secs(1)).await;
        let stats = publisher_stats(&kv).await;
        add(&done.looks, 1);
        add(&done.amiss, u64::from(!adds_up(&stats)));
        if let Ok(stats) = kv.router().send(GetRouterStats).await {
            let (selected, ended) = selected_and_ended(&stats);
            add(&done.amiss, u64::from(selected != ended));
        }
    }
}

async fn publisher_stats(kv: &KvMetrics) -> PublisherStats {
    let stats = kv.publisher().send(GetPublisherStats).await;
    stats.expect("the publisher lives")
}

fn adds_up(stats: &PublisherStats) -> bool {
    let armed = stats.timer.arms - stats.timer.cancels - stats.timer.fires;
    stats.received == stats.rejected + stats.late + stats.unchanged + stats.changed
        && armed <= 1
        && stats.links.iter().all(|link| {
            let windows = link.windows;
            windows.changed == windows.opened + windows.coalesced
        })
}

fn selected_and_ended(stats: &actix_kv_metrics::RouterStats) -> (u64, u64) {
    let table = stats.table;
    let ended = table.released + table.admitted + table.settled + table.dropped + table.expired;
    (table.selected, ended + stats.outstanding as u64)
}

fn figures(checks: &Checks, done: &Counts) {
    checks.section("done");
    for (name, count) in [
        (
            "workers that came and went, ids all different",
            &done.workers,
        ),
        ("reports by message", &done.messages),
        ("reports and tickets by reporter", &done.offered),
        ("reports that are not finite, of all", &done.refused),
        ("bursts of 5,000", &done.bursts),
        ("requests placed", &done.placed),
        ("requests refused (no router just then)", &done.not_placed),
        ("routers that panicked and were replaced", &done.replaced),
        ("other routers attached and detached", &done.attached),
        ("flushes", &done.flushes),
        (
            "flushes that a dead router left incomplete",
            &done.incomplete,
        ),
    ] {
        checks.figure(name, count.get());
    }
    checks.section("checks");
}

/// What is left of all that came and went.
fn check_left(checks: &mut Checks, empty: heap::Live) {
    let left = heap::live();
    let bytes = left.bytes.saturating_sub(empty.bytes);
    let blocks = left.blocks.saturating_sub(empty.blocks);
    checks.check(
        bytes < LEFT,
        "live heap left when everybody has gone",
        format!("{bytes} bytes in {blocks} blocks"),
        "less than 128 KiB",
    );
}

async fn check_publisher(
    checks: &mut Checks,
    kv: &KvMetrics,
    stats: &PublisherStats,
    done: &Counts,
) {
    checks.equal("workers that the publisher knows", stats.workers, 0);
    let sent = done.messages.get() + done.offered.get() - done.conflated.get();
    checks.equal(
        "reports received, of those sent and not conflated",
        stats.received,
        sent,
    );
    checks.equal(
        "received = rejected + late + unchanged + changed",
        stats.received,
        stats.rejected + stats.late + stats.unchanged + stats.changed,
    );
    for link in &stats.links {
        let windows = link.windows;
        checks.equal(
            "the link's changed = opened + coalesced",
            windows.changed,
            windows.opened + windows.coalesced,
        );
        let (delivery, out) = (link.delivery, u64::from(link.in_flight_for.is_some()));
        checks.equal(
            "snapshots = acknowledged + failures + in flight",
            delivery.snapshots,
            delivery.acknowledged + delivery.failures + out,
        );
    }
    checks.equal("links", stats.links.len(), 1);
    let pending = kv.publisher().send(GetPending).await.expect("it lives");
    let open = pending
        .links
        .iter()
        .map(|link| link.windows + link.departures);
    checks.equal("open windows and departures", open.sum(), 0);
    checks.equal("timer armed", pending.timer_armed, false);
    let timer = stats.timer;
    checks.equal(
        "timer arms = cancels + fires",
        timer.arms,
        timer.cancels + timer.fires,
    );
    checks.equal("looks at which a count did not add up", done.amiss.get(), 0);
    checks.figure("looks", done.looks.get());
}

async fn check_router(checks: &mut Checks, kv: &KvMetrics) {
    let stats = kv.router().send(GetRouterStats).await.expect("it lives");
    checks.equal("workers that the router knows", stats.workers, 0);
    checks.equal("bookings outstanding", stats.outstanding, 0);
    let (selected, ended) = selected_and_ended(&stats);
    checks.equal(
        "selected = released + admitted + settled + dropped + expired",
        selected,
        ended,
    );
}

/// Workers of each kind that live at a time, about.
const FLEET: usize = 150;
const TTL: Duration = Duration::from_secs(2);
const SETTLED: Duration = Duration::from_millis(500);
/// Half a second passes between what happens to routers.
const ROUND: Duration = Duration::from_millis(500);
/// Bytes: a quarter of what lives under load, so that tables and mailboxes may keep some room.
const LEFT: u64 = 128 * 1024;
const STRANGE: Ticket = Ticket {
    router: 1,
    number: 1,
};
