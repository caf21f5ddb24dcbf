//! What the actor tests share: virtual time, and routers that record, refuse or never answer.

pub mod faults;
pub mod fuzz;
pub mod publishers;
pub mod router;
pub mod timeline;

use std::{cell::RefCell, collections::BTreeMap, future::Future, rc::Rc, time::Duration};

use actix_kv_metrics::{
    Coalescing, CoalescingBuilder, ForwardPassMetrics, LoadSnapshot, SnapshotAck, SnapshotKind,
    SnapshotRejected, WorkerRank,
    actix::{Actor, Context, Handler, ResponseFuture, System, clock},
};

/// Runs `body` on a System of its own with a paused clock that jumps from deadline to deadline: times are exact to the
/// millisecond, and what hangs fails after a virtual hour (or `within`).
pub fn virtual_time<F: Future<Output = ()>>(body: F) {
    virtual_time_within(Duration::from_secs(3600), body);
}

pub fn virtual_time_within<F: Future<Output = ()>>(within: Duration, body: F) {
    let _watch = Watch::new();
    let system = System::with_tokio_rt(|| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime")
    });
    system.block_on(async {
        tokio::time::timeout(within, body)
            .await
            .expect("ends within its virtual time");
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

/// What a [`Recorder`] saw and holds.
#[derive(Debug)]
pub struct Log {
    start: clock::Instant,
    seen: Vec<Seen>,
    pub raw: Vec<LoadSnapshot>,
    table: BTreeMap<WorkerRank, Option<ForwardPassMetrics>>,
}

/// Shared with a [`Recorder`].
#[derive(Debug, Clone)]
pub struct LogHandle(Rc<RefCell<Log>>);

impl LogHandle {
    pub fn new() -> Self {
        Self(Rc::new(RefCell::new(Log {
            start: clock::Instant::now(),
            seen: Vec::new(),
            raw: Vec::new(),
            table: BTreeMap::new(),
        })))
    }

    /// What was seen since the last take, sorted by worker within a snapshot.
    pub fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut self.0.borrow_mut().seen)
    }

    pub fn take_raw(&self) -> Vec<LoadSnapshot> {
        std::mem::take(&mut self.0.borrow_mut().raw)
    }

    /// Milliseconds since the log began.
    pub fn since_start(&self) -> u64 {
        self.0.borrow().start.elapsed().as_millis() as u64
    }

    pub fn snapshots(&self) -> usize {
        self.0.borrow().seen.len()
    }

    /// Blocks in use as a router that applied everything would have them.
    pub fn active(&self, worker: u64) -> Option<u64> {
        let log = self.0.borrow();
        let metrics = log.table.get(&w(worker))?.as_ref()?;
        Some(metrics.kv_stats.kv_active_blocks)
    }

    pub fn workers(&self) -> Vec<u64> {
        let log = self.0.borrow();
        log.table.keys().map(|rank| rank.worker().0).collect()
    }

    pub fn record(&self, snapshot: &LoadSnapshot) {
        let mut log = self.0.borrow_mut();
        let seen = Seen::of(log.start.elapsed().as_millis() as u64, snapshot);
        log.raw.push(snapshot.clone());
        let kind = seen.kind;
        log.seen.push(seen);
        if kind != Kind::Delta {
            log.table.clear();
        }
        for worker in &snapshot.left {
            log.table.remove(worker);
        }
        for load in &snapshot.workers {
            log.table.insert(load.worker, load.metrics.clone());
        }
    }
}

/// How a [`Recorder`] answers its next snapshots.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Answer {
    Apply,
    /// Applies, and answers after a while.
    ApplyAfter(Duration),
    NeedFull,
    Superseded,
    Refuse,
    /// Applies and never answers.
    Silent,
    /// Panics before it records.
    Panic,
}

/// A router that records what it gets and answers as it is told: `script` first, then `otherwise`.
#[derive(Debug)]
pub struct Recorder {
    log: LogHandle,
    script: std::collections::VecDeque<Answer>,
    otherwise: Answer,
}

impl Recorder {
    pub fn new(log: &LogHandle) -> Self {
        Self::answering(log, [], Answer::Apply)
    }

    pub fn answering(
        log: &LogHandle,
        script: impl IntoIterator<Item = Answer>,
        otherwise: Answer,
    ) -> Self {
        Self {
            log: log.clone(),
            script: script.into_iter().collect(),
            otherwise,
        }
    }
}

impl Actor for Recorder {
    type Context = Context<Self>;
}

impl actix_kv_metrics::actix::Supervised for Recorder {}

impl Handler<LoadSnapshot> for Recorder {
    type Result = ResponseFuture<Result<SnapshotAck, SnapshotRejected>>;

    fn handle(&mut self, snapshot: LoadSnapshot, _: &mut Context<Self>) -> Self::Result {
        let answer = self.script.pop_front().unwrap_or(self.otherwise);
        if !matches!(answer, Answer::Refuse | Answer::Panic) {
            self.log.record(&snapshot);
        }
        match answer {
            Answer::Apply => Box::pin(async { Ok(SnapshotAck::Applied) }),
            Answer::NeedFull => Box::pin(async { Ok(SnapshotAck::NeedFull) }),
            Answer::Superseded => Box::pin(async { Ok(SnapshotAck::Superseded) }),
            Answer::Refuse => Box::pin(async { Err(SnapshotRejected) }),
            Answer::Silent => Box::pin(std::future::pending()),
            Answer::Panic => panic!("as told"),
            Answer::ApplyAfter(pause) => Box::pin(async move {
                sleep(pause).await;
                Ok(SnapshotAck::Applied)
            }),
        }
    }
}
