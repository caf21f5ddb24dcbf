//! Requests that wait for room: `KvMetrics::select_within`.

mod ends;
mod order;
mod wakes;

use std::{cell::RefCell, rc::Rc, time::Duration};

use actix_kv_metrics::{
    Backoff, Candidates, ForwardPassMetrics, KvMetrics, KvMetricsConfig, RouterConfigBuilder,
    SelectError, SelectWorker, Selection, WaitingCounts, WorkerLoad, WorkerRank,
    actix::{self, clock},
};
use tokio::task::JoinHandle;

use crate::support::{router::*, *};

/// A system whose router is told of workers by hand, and what became of the requests.
struct World {
    kv: KvMetrics,
    router: Router,
    begun: clock::Instant,
    answers: Rc<RefCell<Vec<Answer>>>,
    held: Rc<RefCell<Vec<Selection>>>,
}

/// By which name it asked, when it was answered in milliseconds, and what.
type Answer = (u32, u64, Result<u64, SelectError>);

impl World {
    /// Half of 1,000 blocks is full.
    fn new() -> Self {
        Self::with(|config| config)
    }

    fn with(set: impl FnOnce(RouterConfigBuilder) -> RouterConfigBuilder) -> Self {
        let router = set(plain().seed(7).saturation(0.5)).build().unwrap();
        let config = KvMetricsConfig::default()
            .router(router)
            .restart(Backoff::new(ms(10), ms(10)).unwrap());
        let kv = KvMetrics::start(config);
        Self {
            router: Router(kv.router()),
            kv,
            begun: clock::Instant::now(),
            answers: Rc::default(),
            held: Rc::default(),
        }
    }

    /// One worker, and it is full.
    async fn full() -> Self {
        let world = Self::new();
        world.router.full(1, [reports(1, 500)]).await;
        world
    }

    /// Asks, and holds what it gets.
    fn ask(&self, name: u32, request: SelectWorker, within: Duration) -> JoinHandle<()> {
        let (kv, begun) = (self.kv.clone(), self.begun);
        let (answers, held) = (self.answers.clone(), self.held.clone());
        actix::spawn(async move {
            let answer = kv.select_within(request, within).await;
            let worker = answer.as_ref().map(|chosen| chosen.worker().worker().0);
            let at = begun.elapsed().as_millis() as u64;
            answers
                .borrow_mut()
                .push((name, at, worker.map_err(|error| *error)));
            held.borrow_mut().extend(answer);
        })
    }

    /// Those that ask for any worker, one after the other.
    async fn ask_for_any(&self, names: std::ops::Range<u32>) {
        for name in names {
            self.ask(name, request(), LONG);
        }
        settle().await;
    }

    /// What was answered since the last time.
    async fn answered(&self) -> Vec<Answer> {
        settle().await;
        self.answers.take()
    }

    /// Ends the reservation that was made first.
    async fn release(&self) {
        drop(self.held.borrow_mut().remove(0));
        settle().await;
    }

    async fn waiting(&self) -> WaitingCounts {
        self.kv.router_stats().await.unwrap().waiting
    }

    async fn timer_armed(&self) -> bool {
        let timer = self.kv.router_stats().await.unwrap().timer;
        timer.arms > timer.cancels + timer.fires
    }
}

fn request() -> SelectWorker {
    SelectWorker::blocks(10)
}

fn pinned(worker: impl Into<WorkerRank>) -> SelectWorker {
    request().among(Candidates::Rank(worker.into()))
}

/// A worker of this capacity.
fn sized(worker: u64, active: u64, total: u64) -> WorkerLoad {
    of_life(worker, 1, Some(ForwardPassMetrics::new(active, total, 0)))
}

fn drains(load: WorkerLoad) -> WorkerLoad {
    WorkerLoad {
        draining: true,
        ..load
    }
}

/// What was counted, but for the tries.
fn counted(of: WaitingCounts) -> [u64; 7] {
    assert_eq!(
        of.waited,
        of.served + of.timed_out + of.gave_up + of.hopeless + of.waiting as u64,
        "{of:?}"
    );
    [
        of.waited,
        of.served,
        of.timed_out,
        of.gave_up,
        of.hopeless,
        of.refused,
        of.waiting as u64,
    ]
}

const LONG: Duration = Duration::from_secs(60);
