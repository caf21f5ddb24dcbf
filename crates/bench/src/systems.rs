//! Our actors as the rows need them, and routers that watch what arrives.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use actix::{Actor, Addr, ArbiterHandle, Context, Handler, Recipient};
use actix_kv_metrics::{
    AttachRouter, Coalescing, GetPublisherStats, LoadSnapshot, PublisherActor, PublisherConfig,
    RouterActor, RouterConfig, SnapshotAck, SnapshotRejected, sans_io::LoadTable,
};

/// Runs `body` in an actix `System` of its own.
pub fn in_system<T>(body: impl Future<Output = T>) -> T {
    actix::System::new().block_on(body)
}

/// A publisher and a router attached to it, on the current arbiter, settled.
pub async fn publisher_and_router(
    coalescing: Coalescing,
) -> (Addr<PublisherActor>, Addr<RouterActor>) {
    let router = RouterActor::new(RouterConfig::default()).start();
    let publisher = publisher_to(coalescing, router.clone().recipient()).await;
    (publisher, router)
}

/// A publisher on the current arbiter that tells `router`.
pub async fn publisher_to(
    coalescing: Coalescing,
    router: Recipient<LoadSnapshot>,
) -> Addr<PublisherActor> {
    let publisher = PublisherActor::new(config(coalescing)).start();
    let _ = publisher.send(AttachRouter::new(router)).await;
    publisher
}

/// A publisher on `arbiter` that tells `router`.
pub fn publisher_on(
    arbiter: &ArbiterHandle,
    coalescing: Coalescing,
    router: Recipient<LoadSnapshot>,
) -> Addr<PublisherActor> {
    let publisher =
        PublisherActor::start_in_arbiter(arbiter, move |_| PublisherActor::new(config(coalescing)));
    publisher.do_send(AttachRouter::new(router));
    publisher
}

/// A router on `arbiter`.
pub fn router_on(arbiter: &ArbiterHandle) -> Addr<RouterActor> {
    RouterActor::start_in_arbiter(arbiter, |_| RouterActor::new(RouterConfig::default()))
}

/// Waits until the publisher has handled all that was sent to it before.
pub async fn handled(publisher: &Addr<PublisherActor>) {
    let _ = publisher.send(GetPublisherStats).await;
}

/// The present moment, as the actors read it.
pub fn now() -> Instant {
    actix::clock::Instant::now().into_std()
}

fn config(coalescing: Coalescing) -> PublisherConfig {
    let built = PublisherConfig::builder().coalescing(coalescing).build();
    built.unwrap_or_default()
}

/// A router that counts snapshots and does nothing else.
#[derive(Debug, Clone, Default)]
pub struct Counter {
    snapshots: Arc<AtomicU64>,
}

impl Counter {
    pub fn snapshots(&self) -> u64 {
        self.snapshots.load(Ordering::Relaxed)
    }
}

impl Actor for Counter {
    type Context = Context<Self>;
}

impl Handler<LoadSnapshot> for Counter {
    type Result = Result<SnapshotAck, SnapshotRejected>;

    fn handle(&mut self, _: LoadSnapshot, _: &mut Context<Self>) -> Self::Result {
        self.snapshots.fetch_add(1, Ordering::Relaxed);
        Ok(SnapshotAck::Applied)
    }
}

/// A router that tells a witness of every snapshot once it is in the table.
pub struct Witnessed<W> {
    table: LoadTable,
    witness: Arc<Mutex<W>>,
}

/// Hears of snapshots.
pub trait Witness: Send + 'static {
    /// Before the table takes it over.
    fn arriving(&mut self, _: &LoadSnapshot) {}
    /// The table has it.
    fn applied(&mut self, at: Instant);
}

impl<W: Witness> Witnessed<W> {
    pub fn new(witness: Arc<Mutex<W>>) -> Self {
        Self {
            table: LoadTable::new(RouterConfig::default()),
            witness,
        }
    }
}

impl<W> std::fmt::Debug for Witnessed<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Witnessed").finish_non_exhaustive()
    }
}

impl<W: Witness> Actor for Witnessed<W> {
    type Context = Context<Self>;
}

impl<W: Witness> Handler<LoadSnapshot> for Witnessed<W> {
    type Result = Result<SnapshotAck, SnapshotRejected>;

    fn handle(&mut self, snapshot: LoadSnapshot, _: &mut Context<Self>) -> Self::Result {
        let mut witness = self.witness.lock().map_err(|_| SnapshotRejected)?;
        witness.arriving(&snapshot);
        let ack = self.table.handle_snapshot(snapshot, now());
        witness.applied(now());
        Ok(ack)
    }
}
