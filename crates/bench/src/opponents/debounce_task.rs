//! (d) A tokio task per worker with a `watch` and one `sleep`: a trailing debounce of 1 ms, as Dynamo's publisher does it.
//!
//! Own code, after what that publisher is seen to do: the change test is against the value last observed, there is no cap,
//! and no timer while nothing waits. Fair because the same router takes what it publishes; the original also encodes JSON
//! and sends it over NATS, which is left out in its favour.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use actix::Recipient;
use actix_kv_metrics::{ForwardPassMetrics, LoadSnapshot, WorkerRank};
use tokio::{sync::watch, time::Instant};

use crate::stream::Snapshots;

/// Publishes what is set on the returned sender, within the current `LocalSet` or arbiter.
pub fn spawn(
    worker: WorkerRank,
    router: Recipient<LoadSnapshot>,
) -> watch::Sender<ForwardPassMetrics> {
    let (sender, task) = prepare(worker, router, Arc::default());
    actix_rt::spawn(task);
    sender
}

/// The same, not spawned yet; `observed` counts the values the task has seen.
pub fn prepare(
    worker: WorkerRank,
    router: Recipient<LoadSnapshot>,
    observed: Arc<AtomicU64>,
) -> (
    watch::Sender<ForwardPassMetrics>,
    impl Future<Output = ()> + Send + 'static,
) {
    let (sender, newest) = watch::channel(ForwardPassMetrics::default());
    (sender, publish_when_quiet(worker, newest, router, observed))
}

async fn publish_when_quiet(
    worker: WorkerRank,
    mut newest: watch::Receiver<ForwardPassMetrics>,
    router: Recipient<LoadSnapshot>,
    observed: Arc<AtomicU64>,
) {
    let mut snapshots = Snapshots::of_publisher(worker.worker().0);
    let mut last = newest.borrow().clone();
    let mut waits = false;
    let mut quiet = pin!(tokio::time::sleep(DEBOUNCE));
    loop {
        tokio::select! {
            changed = newest.changed() => {
                if changed.is_err() {
                    return;
                }
                let value = newest.borrow_and_update().clone();
                observed.fetch_add(1, Ordering::Relaxed);
                if value != last {
                    last = value;
                    waits = true;
                    quiet.as_mut().reset(Instant::now() + DEBOUNCE);
                }
            }
            () = &mut quiet, if waits => {
                waits = false;
                router.do_send(snapshots.next([(worker, last.clone())]));
            }
        }
    }
}

pub const DEBOUNCE: Duration = Duration::from_millis(1);
