//! What the actor tests share: virtual time, and routers that record, refuse or never answer.

pub mod faults;
pub mod fuzz;
pub mod publishers;
pub mod router;
pub mod timeline;

use std::{
    cell::RefCell, collections::BTreeMap, future::Future, ops::Deref, rc::Rc, time::Duration,
};

pub use actix_kv_metrics::test_util::{Answer, RecordingRouter as Recorder};
use actix_kv_metrics::{
    Backoff, Coalescing, CoalescingBuilder, ForwardPassMetrics, KvMetricsConfig, LoadSnapshot,
    PublisherConfig, RouterConfig, SnapshotKind, WorkerRank,
    actix::{self, Actor, Addr, Handler, clock, dev::ToEnvelope},
    test_util::{Gate, Hold, SnapshotLog, paused_within},
};

/// Runs `body` in virtual time: what hangs fails after a virtual hour, what spins after two real minutes.
pub fn virtual_time<F: Future<Output = ()>>(body: F) {
    virtual_time_within(Duration::from_secs(3600), body);
}

pub fn virtual_time_within<F: Future<Output = ()>>(within: Duration, body: F) {
    let _watch = Watch::new();
    paused_within(within, body);
}

/// Keeps an actor from everything for a while.
pub fn hold_up<A>(actor: &Addr<A>, lasts: Duration)
where
    A: Actor<Context: ToEnvelope<A, Hold>> + Handler<Hold>,
{
    let gate = Gate::close(actor);
    actix::spawn(async move {
        sleep(lasts).await;
        gate.open();
    });
}

/// Ends the process if a test spins: then virtual time stands still, and its own limit never comes.
struct Watch {
    /// Dropped with the test.
    _ended: std::sync::mpsc::Sender<()>,
}

impl Watch {
    fn new() -> Self {
        let (ended, watched) = std::sync::mpsc::channel::<()>();
        let test = std::thread::current().name().unwrap_or("?").to_owned();
        std::thread::spawn(move || {
            let limit = Duration::from_secs(120);
            if watched.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                eprintln!("{test} spins: it took more than {limit:?} of real time");
                std::process::exit(101);
            }
        });
        Self { _ended: ended }
    }
}

/// What `KV_CHAOS_SEEDS` says ("17", or "1000..9000"), or else the first `most`.
pub fn chaos_seeds(most: u64) -> std::ops::Range<u64> {
    let Ok(told) = std::env::var("KV_CHAOS_SEEDS") else {
        return 0..most;
    };
    let number = |word: &str| word.parse().expect("a number");
    match told.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => number(&told)..number(&told) + 1,
    }
}

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub async fn sleep(duration: Duration) {
    clock::sleep(duration).await;
}

/// Windows of a link that nothing paces.
pub fn unpaced() -> CoalescingBuilder {
    Coalescing::builder().min_gap(ms(0)).urgent_gap(ms(0))
}

/// A system with windows of 50 and 500 ms, a seed, and a router that comes back after 10 to 40 ms.
pub fn settings() -> KvMetricsConfig {
    let publisher = PublisherConfig::builder().coalescing(windows(50, 500));
    let router = RouterConfig::builder().seed(7).build().unwrap();
    let pauses = Backoff::new(ms(10), ms(40)).unwrap();
    KvMetricsConfig::default()
        .publisher(publisher.build().unwrap())
        .router(router)
        .restart(pauses)
}

/// Windows in milliseconds, of a link that nothing paces.
pub fn windows(debounce: u64, max_delay: u64) -> Coalescing {
    unpaced()
        .debounce(ms(debounce))
        .max_delay(ms(max_delay))
        .build()
        .unwrap()
}

/// The same; that a worker still reports is not told.
pub fn values_only(debounce: u64, max_delay: u64) -> Coalescing {
    unpaced()
        .debounce(ms(debounce))
        .max_delay(ms(max_delay))
        .minor_delay(Duration::MAX)
        .build()
        .unwrap()
}

/// Load of a worker with 1,000 blocks of which `active` are in use.
pub fn load(active: u64) -> ForwardPassMetrics {
    ForwardPassMetrics::new(active, 1_000, 0)
}

pub fn w(id: u64) -> WorkerRank {
    WorkerRank::from(id)
}

/// Lets everything that is ready run, without time passing.
pub async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// One snapshot as a router saw it: milliseconds since the log began, and what it said.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    pub at: u64,
    pub kind: Kind,
    pub left: Vec<u64>,
    pub loads: Vec<(u64, Option<u64>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Full,
    Delta,
    Closed,
}

pub fn full(at: u64, loads: &[(u64, u64)]) -> Seen {
    seen(at, Kind::Full, &[], loads)
}

pub fn delta(at: u64, loads: &[(u64, u64)]) -> Seen {
    seen(at, Kind::Delta, &[], loads)
}

pub fn left(at: u64, left: &[u64]) -> Seen {
    seen(at, Kind::Delta, left, &[])
}

pub fn seen(at: u64, kind: Kind, left: &[u64], loads: &[(u64, u64)]) -> Seen {
    Seen {
        at,
        kind,
        left: left.to_vec(),
        loads: loads.iter().map(|(w, l)| (*w, Some(*l))).collect(),
    }
}

impl Seen {
    /// The snapshot as it is compared in tests: sorted by worker.
    pub fn of(at: u64, snapshot: &LoadSnapshot) -> Self {
        let active = |m: &ForwardPassMetrics| m.kv_stats.kv_active_blocks;
        let mut loads: Vec<_> = snapshot
            .workers
            .iter()
            .map(|load| (load.worker.worker().0, load.metrics.as_ref().map(active)))
            .collect();
        loads.sort_unstable();
        Self {
            at,
            kind: match snapshot.kind {
                SnapshotKind::Full => Kind::Full,
                SnapshotKind::Delta { .. } => Kind::Delta,
                SnapshotKind::Closed => Kind::Closed,
            },
            left: snapshot.left.iter().map(|rank| rank.worker().0).collect(),
            loads,
        }
    }
}

/// What [`Recorder`]s saw, and what a router that applied all of it would hold.
#[derive(Debug, Clone)]
pub struct LogHandle {
    log: SnapshotLog,
    start: clock::Instant,
    looked: Rc<RefCell<Looked>>,
}

/// What was taken from the log.
#[derive(Debug, Default)]
struct Looked {
    seen: Vec<Seen>,
    raw: Vec<LoadSnapshot>,
    table: BTreeMap<WorkerRank, Option<ForwardPassMetrics>>,
}

impl Deref for LogHandle {
    type Target = SnapshotLog;

    fn deref(&self) -> &SnapshotLog {
        &self.log
    }
}

impl LogHandle {
    pub fn new() -> Self {
        Self {
            log: SnapshotLog::new(),
            start: clock::Instant::now(),
            looked: Rc::default(),
        }
    }

    /// What was seen since the last take, sorted by worker within a snapshot.
    pub fn take(&self) -> Vec<Seen> {
        self.look(|looked| std::mem::take(&mut looked.seen))
    }

    pub fn take_raw(&self) -> Vec<LoadSnapshot> {
        self.look(|looked| std::mem::take(&mut looked.raw))
    }

    /// Milliseconds since the log began.
    pub fn since_start(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    pub fn snapshots(&self) -> usize {
        self.look(|looked| looked.seen.len())
    }

    /// Blocks in use as a router that applied everything would have them.
    pub fn active(&self, worker: u64) -> Option<u64> {
        self.look(|looked| {
            let metrics = looked.table.get(&w(worker))?.as_ref()?;
            Some(metrics.kv_stats.kv_active_blocks)
        })
    }

    pub fn workers(&self) -> Vec<u64> {
        self.look(|looked| looked.table.keys().map(|rank| rank.worker().0).collect())
    }

    /// Blocks in use of one worker, in the order they were told.
    pub fn told_of(&self, worker: u64) -> Vec<u64> {
        let active = |metrics: &ForwardPassMetrics| metrics.kv_stats.kv_active_blocks;
        self.look(|looked| {
            let loads = looked.raw.iter().flat_map(|snapshot| &snapshot.workers);
            let loads = loads.filter(|load| load.worker == w(worker));
            loads
                .filter_map(|load| load.metrics.as_ref().map(active))
                .collect()
        })
    }

    fn look<T>(&self, at: impl FnOnce(&mut Looked) -> T) -> T {
        let mut looked = self.looked.borrow_mut();
        for recorded in self.log.take() {
            looked.apply(recorded.at.as_millis() as u64, recorded.snapshot);
        }
        at(&mut looked)
    }
}

impl Looked {
    fn apply(&mut self, at: u64, snapshot: LoadSnapshot) {
        let seen = Seen::of(at, &snapshot);
        if seen.kind != Kind::Delta {
            self.table.clear();
        }
        self.seen.push(seen);
        for worker in &snapshot.left {
            self.table.remove(worker);
        }
        for load in &snapshot.workers {
            self.table.insert(load.worker, load.metrics.clone());
        }
        self.raw.push(snapshot);
    }
}
