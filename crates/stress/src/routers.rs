//! Routers that watch what arrives, and routers that misbehave.

use std::{
    panic,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use actix::{Actor, ActorContext, Addr, Context, Handler, ResponseFuture};
use actix_kv_metrics::{LoadSnapshot, RouterActor, SnapshotAck, SnapshotRejected};

use crate::mishaps::AS_TOLD;

/// When snapshots arrived.
#[derive(Debug, Clone, Default)]
pub(crate) struct Arrivals(Arc<Mutex<Vec<Instant>>>);

impl Arrivals {
    /// Those so far.
    pub(crate) fn get(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stands before a router: notes when a snapshot arrives, passes it on, and answers what the router answers.
#[derive(Debug)]
pub(crate) struct Tap {
    pub(crate) router: Addr<RouterActor>,
    pub(crate) arrivals: Arrivals,
}

impl Actor for Tap {
    type Context = Context<Self>;
}

impl Handler<LoadSnapshot> for Tap {
    type Result = ResponseFuture<Result<SnapshotAck, SnapshotRejected>>;

    fn handle(&mut self, snapshot: LoadSnapshot, _: &mut Context<Self>) -> Self::Result {
        self.arrivals.get().push(Instant::now());
        let answer = self.router.send(snapshot);
        Box::pin(async { answer.await.unwrap_or(Err(SnapshotRejected)) })
    }
}

/// What an [`Odd`] router does with a snapshot.
#[derive(Debug, Clone, Copy)]
enum Mood {
    Fine,
    Refuses,
    /// Applies it, and answers up to 100 ms later.
    Late,
    /// Applies it, and asks for everything.
    WantsAll,
    CallsItOld,
    PanicsBefore,
    /// Applies it, and dies before it answers.
    DiesAfter,
}

const MOODS: [Mood; 7] = [
    Mood::Fine,
    Mood::Refuses,
    Mood::Late,
    Mood::WantsAll,
    Mood::CallsItOld,
    Mood::PanicsBefore,
    Mood::DiesAfter,
];

/// Stands before a router and misbehaves until it is told to stop that.
#[derive(Debug)]
pub(crate) struct Odd {
    pub(crate) router: Addr<RouterActor>,
    pub(crate) rng: fastrand::Rng,
    pub(crate) calm: Arc<AtomicBool>,
    pub(crate) faults: Arc<AtomicU64>,
}

impl Actor for Odd {
    type Context = Context<Self>;
}

impl Handler<LoadSnapshot> for Odd {
    type Result = ResponseFuture<Result<SnapshotAck, SnapshotRejected>>;

    fn handle(&mut self, snapshot: LoadSnapshot, ctx: &mut Context<Self>) -> Self::Result {
        let calm = self.calm.load(Ordering::Relaxed) || self.rng.u8(..4) > 0;
        let mood = if calm {
            Mood::Fine
        } else {
            self.faults.fetch_add(1, Ordering::Relaxed);
            MOODS[self.rng.usize(1..MOODS.len())]
        };
        match mood {
            Mood::Refuses => return Box::pin(async { Err(SnapshotRejected) }),
            Mood::CallsItOld => return Box::pin(async { Ok(SnapshotAck::Superseded) }),
            Mood::PanicsBefore => panic::panic_any(AS_TOLD),
            Mood::DiesAfter => ctx.stop(),
            Mood::Fine | Mood::Late | Mood::WantsAll => {}
        }
        let pause = Duration::from_millis(self.rng.u64(..100));
        let answer = self.router.send(snapshot);
        Box::pin(async move {
            let answer = answer.await.unwrap_or(Err(SnapshotRejected));
            match mood {
                Mood::Late => tokio::time::sleep(pause).await,
                Mood::WantsAll => return Ok(SnapshotAck::NeedFull),
                _ => {}
            }
            answer
        })
    }
}

/// Takes what it is sent and never answers.
#[derive(Debug)]
pub(crate) struct Silent;

impl Actor for Silent {
    type Context = Context<Self>;
}

impl Handler<LoadSnapshot> for Silent {
    type Result = ResponseFuture<Result<SnapshotAck, SnapshotRejected>>;

    fn handle(&mut self, _: LoadSnapshot, _: &mut Context<Self>) -> Self::Result {
        Box::pin(std::future::pending())
    }
}
