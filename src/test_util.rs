//! For tests of your own actors: a paused clock, a router that records, a gate, and a way to wait for reports. Feature
//! `test-util`, for `[dev-dependencies]`.
//!
//! # Test your own actors with it
//!
//! ```
//! use std::time::Duration;
//!
//! use actix_kv_metrics::{
//!     AttachRouter, ForwardPassMetrics, KvMetrics, KvMetricsConfig, MetricsReporter,
//!     actix::{Actor, Context, Handler, Message, clock},
//!     test_util::{Answer, RecordingRouter, SnapshotLog, paused, settled},
//! };
//!
//! /// The actor under test: an engine that reports what its requests use.
//! struct Engine {
//!     reporter: MetricsReporter,
//!     blocks: u64,
//! }
//!
//! impl Actor for Engine {
//!     type Context = Context<Self>;
//! }
//!
//! #[derive(Message)]
//! #[rtype(result = "()")]
//! struct Serve(u64);
//!
//! impl Handler<Serve> for Engine {
//!     type Result = ();
//!
//!     fn handle(&mut self, Serve(blocks): Serve, _: &mut Context<Self>) {
//!         self.blocks += blocks;
//!         let _ = self.reporter.report(ForwardPassMetrics::new(self.blocks, 100, 0));
//!     }
//! }
//!
//! # fn main() {
//! // In a `#[test]`: no macro, and no runtime around it.
//! paused(async {
//!     let kv = KvMetrics::start(KvMetricsConfig::default());
//!     let log = SnapshotLog::new();
//!     // Refuses the first snapshot and takes all others.
//!     let router = RecordingRouter::answering(&log, [Answer::Refuse], Answer::Apply).start();
//!     let attach = AttachRouter::new(router.recipient());
//!     kv.publisher().send(attach).await.unwrap();
//!
//!     let reporter = kv.reporter(1);
//!     let engine = Engine { reporter, blocks: 0 }.start();
//!     engine.send(Serve(40)).await.unwrap();
//!     settled(&kv).await;
//!
//!     let load = kv.loads().await.unwrap().get(1).unwrap().clone();
//!     assert_eq!(load.metrics, Some(ForwardPassMetrics::new(40, 100, 0)));
//!     // Times are exact: the refused one was sent again after the shortest backoff.
//!     assert_eq!(log.take()[0].at, Duration::from_millis(10));
//!     // An hour takes no time; but a test that lasts an hour fails.
//!     clock::sleep(Duration::from_secs(1800)).await;
//!     assert!(engine.connected());
//! });
//! # }
//! ```
//!
//! # A paused clock and real sockets don't mix
//!
//! Time jumps to the next timer as soon as nothing else is ready, and what comes from a socket, another thread or another
//! arbiter is not ready yet: a timeout of 60 s around a real request fires at once. Test such an actor in real time, or put a
//! message in the place of the socket.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use actix::{
    Actor, Addr, AsyncContext, Context, Handler, Message, ResponseFuture, Supervised, System,
    clock::{self, Instant},
    dev::ToEnvelope,
    fut::wrap_future,
};
use tokio::sync::oneshot;

use crate::{
    publisher::PublisherActor,
    router::RouterActor,
    snapshot::{LoadSnapshot, SnapshotAck, SnapshotRejected},
    system::KvMetrics,
};

/// Runs `test` on an actix `System` of its own whose clock is paused: it jumps from timer to timer, so hours take no time and
/// times are exact to a timer tick (1 ms).
///
/// A panic in a handler does not fail a test, it ends the actor: let actors record, and assert in the body of the test.
///
/// # Panics
///
/// If `test` panics, or still waits after an hour of virtual time: whatever it waits for does not come. Within a runtime.
pub fn paused<F: Future>(test: F) -> F::Output {
    paused_within(HOUR, test)
}

/// The same, with another limit than an hour of virtual time.
///
/// # Panics
///
/// As [`paused`].
pub fn paused_within<F: Future>(limit: Duration, test: F) -> F::Output {
    let system = System::with_tokio_rt(|| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime")
    });
    let ended = system.block_on(async { clock::timeout(limit, test).await });
    ended.unwrap_or_else(|_| panic!("the test still waits after {limit:?} of virtual time"))
}

/// Waits until everything reported so far has arrived at every router that is attached; no window is waited for. What a router
/// refuses is told again until it takes it, and a router that is being replaced is waited for.
///
/// Reports that your own actors have yet to make are not waited for: [`send`](Addr::send) them a message first.
///
/// # Panics
///
/// If it has not arrived after a minute.
pub async fn settled(kv: &KvMetrics) {
    let begun = Instant::now();
    loop {
        // One that runs has been attached: the flush comes after that.
        let runs = kv.router_stats().await.is_ok();
        let report = kv.flush(MINUTE.saturating_sub(begun.elapsed())).await;
        if runs && report.is_complete() {
            return;
        }
        assert!(
            begun.elapsed() < MINUTE,
            "a router runs: {runs}; undelivered after {MINUTE:?}: {report}"
        );
        clock::sleep(Duration::from_millis(1)).await;
    }
}

/// A snapshot that a [`RecordingRouter`] took.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Recorded {
    /// When: time since its log began.
    pub at: Duration,
    /// What it says.
    pub snapshot: LoadSnapshot,
}

/// What [`RecordingRouter`]s took, in the order in which it came. Clones are the same log.
#[derive(Debug, Clone)]
pub struct SnapshotLog {
    began: Instant,
    taken: Arc<Mutex<Vec<Recorded>>>,
}

impl SnapshotLog {
    /// An empty log that begins now.
    #[expect(clippy::new_without_default, reason = "now is no default")]
    pub fn new() -> Self {
        Self {
            began: Instant::now(),
            taken: Arc::default(),
        }
    }

    /// What came since the last look.
    pub fn take(&self) -> Vec<Recorded> {
        mem::take(&mut self.taken())
    }

    /// Adds what a router of your own took.
    pub fn record(&self, snapshot: LoadSnapshot) {
        let at = self.began.elapsed();
        self.taken().push(Recorded { at, snapshot });
    }

    fn taken(&self) -> MutexGuard<'_, Vec<Recorded>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a [`RecordingRouter`] answers a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// Records it and says that it was taken over.
    Apply,
    /// The same, but says so after a while.
    ApplyAfter(Duration),
    /// Records it and wants everything.
    NeedFull,
    /// Records it and says that it knows something newer.
    Superseded,
    /// Records nothing, and refuses it.
    Refuse,
    /// Records it and never answers.
    Silent,
    /// Records nothing, and dies of it.
    Panic,
}

/// A router that records the snapshots it gets, and answers them as it is told.
#[derive(Debug)]
pub struct RecordingRouter {
    log: SnapshotLog,
    script: VecDeque<Answer>,
    otherwise: Answer,
}

impl RecordingRouter {
    /// One that takes everything.
    pub fn new(log: &SnapshotLog) -> Self {
        Self::answering(log, [], Answer::Apply)
    }

    /// One that answers as the script says, and when that is over, with `otherwise`.
    pub fn answering(
        log: &SnapshotLog,
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

impl Actor for RecordingRouter {
    type Context = Context<Self>;
}

impl Supervised for RecordingRouter {}

impl Handler<LoadSnapshot> for RecordingRouter {
    type Result = ResponseFuture<Result<SnapshotAck, SnapshotRejected>>;

    fn handle(&mut self, snapshot: LoadSnapshot, _: &mut Context<Self>) -> Self::Result {
        let answer = self.script.pop_front().unwrap_or(self.otherwise);
        match answer {
            // Here: a panic of the answer's future would not end the actor.
            Answer::Panic => panic!("as told"),
            Answer::Refuse => {}
            _ => self.log.record(snapshot),
        }
        Box::pin(async move {
            match answer {
                Answer::Apply => Ok(SnapshotAck::Applied),
                Answer::ApplyAfter(pause) => {
                    clock::sleep(pause).await;
                    Ok(SnapshotAck::Applied)
                }
                Answer::NeedFull => Ok(SnapshotAck::NeedFull),
                Answer::Superseded => Ok(SnapshotAck::Superseded),
                Answer::Refuse | Answer::Panic => Err(SnapshotRejected),
                Answer::Silent => std::future::pending().await,
            }
        })
    }
}

/// Keeps an actor from its messages, timers and futures until it is opened, or dropped: what comes meanwhile waits.
///
/// It can be closed before a [`PublisherActor`], a [`RouterActor`] and a [`RecordingRouter`], and before an actor of yours that
/// handles [`Hold`]:
///
/// ```
/// # use actix_kv_metrics::{actix::{Actor, Context, Handler}, test_util::Hold};
/// # struct Engine;
/// # impl Actor for Engine { type Context = Context<Self>; }
/// impl Handler<Hold> for Engine {
///     type Result = ();
///
///     fn handle(&mut self, hold: Hold, ctx: &mut Context<Self>) {
///         hold.at_gate(ctx);
///     }
/// }
/// ```
#[must_use = "dropping a gate opens it"]
#[derive(Debug)]
pub struct Gate {
    _closed: oneshot::Sender<()>,
}

impl Gate {
    /// Closes a gate before the actor: it still handles what was sent to it before.
    pub fn close<A>(actor: &Addr<A>) -> Self
    where
        A: Actor<Context: ToEnvelope<A, Hold>> + Handler<Hold>,
    {
        let (closed, opened) = oneshot::channel();
        actor.do_send(Hold(opened));
        Self { _closed: closed }
    }

    /// Opens it.
    pub fn open(self) {}
}

/// Tells an actor to wait at a [`Gate`].
#[derive(Debug)]
pub struct Hold(oneshot::Receiver<()>);

impl Hold {
    /// Waits until it is opened.
    pub fn at_gate<A: Actor<Context = Context<A>>>(self, ctx: &mut Context<A>) {
        ctx.wait(wrap_future::<_, A>(async {
            // Nothing is ever sent.
            let _ = self.0.await;
        }));
    }
}

impl Message for Hold {
    type Result = ();
}

impl Handler<Hold> for PublisherActor {
    type Result = ();

    fn handle(&mut self, hold: Hold, ctx: &mut Context<Self>) {
        hold.at_gate(ctx);
    }
}

impl Handler<Hold> for RouterActor {
    type Result = ();

    fn handle(&mut self, hold: Hold, ctx: &mut Context<Self>) {
        hold.at_gate(ctx);
    }
}

impl Handler<Hold> for RecordingRouter {
    type Result = ();

    fn handle(&mut self, hold: Hold, ctx: &mut Context<Self>) {
        hold.at_gate(ctx);
    }
}

/// Longer than any test should last, and than any wait in it.
const HOUR: Duration = Duration::from_secs(3600);
/// Longer than any backoff, or a pause before a router is started again, that is not set to more.
const MINUTE: Duration = Duration::from_secs(60);
