//! Publishers, and routers attached to them.

use std::time::Duration;

use actix_kv_metrics::{
    AttachRouter, Backoff, Coalescing, GetPending, GetPublisherStats, LinkId, MetricsChanged,
    Pending, PublisherActor, PublisherConfig, PublisherStats,
    actix::{
        Actor, ActorContext, Addr, AsyncContext, Context, Handler, Message, Supervisor,
        fut::wrap_future,
    },
};

use super::{Answer, LogHandle, Recorder, load, ms, settle, sleep};

pub fn config(coalescing: Coalescing) -> PublisherConfig {
    PublisherConfig::builder()
        .coalescing(coalescing)
        .backoff(Backoff::new(ms(10), ms(80)).unwrap())
        .build()
        .unwrap()
}

pub fn publisher(coalescing: Coalescing) -> Addr<PublisherActor> {
    PublisherActor::new(config(coalescing)).start()
}

/// One that a supervisor starts again when it stops.
pub fn supervised(coalescing: Coalescing) -> Addr<PublisherActor> {
    Supervisor::start(move |_| PublisherActor::new(config(coalescing)))
}

/// A router that applies everything, after its first full snapshot has been seen and forgotten.
pub async fn attach(publisher: &Addr<PublisherActor>) -> LogHandle {
    attach_answering(publisher, [], Answer::Apply).await.log
}

/// An attached router.
#[derive(Debug)]
pub struct Attached {
    pub link: LinkId,
    pub log: LogHandle,
    pub router: Addr<Recorder>,
}

/// A router that answers its first full snapshot with `Applied`, and then as told. Nothing of it is in the log.
pub async fn attach_answering(
    publisher: &Addr<PublisherActor>,
    script: impl IntoIterator<Item = Answer>,
    otherwise: Answer,
) -> Attached {
    let log = LogHandle::new();
    let script = [Answer::Apply].into_iter().chain(script);
    let router = Recorder::answering(&log, script, otherwise).start();
    let link = attach_router(publisher, &router).await;
    settle().await;
    assert_eq!(log.take().len(), 1, "the first full snapshot");
    log.take_raw();
    Attached { link, log, router }
}

pub async fn attach_router(publisher: &Addr<PublisherActor>, router: &Addr<Recorder>) -> LinkId {
    let attach = AttachRouter::new(router.clone().recipient());
    publisher.send(attach).await.unwrap()
}

pub async fn report(publisher: &Addr<PublisherActor>, worker: u64, active: u64) {
    let changed = MetricsChanged::new(worker, load(active));
    publisher.send(changed).await.unwrap().unwrap();
}

pub async fn stats(publisher: &Addr<PublisherActor>) -> PublisherStats {
    publisher.send(GetPublisherStats).await.unwrap()
}

pub async fn pending(publisher: &Addr<PublisherActor>) -> Pending {
    publisher.send(GetPending).await.unwrap()
}

/// Timers that live, as far as the counters tell.
pub fn live_timers(stats: &PublisherStats) -> u64 {
    stats.timer.arms - stats.timer.cancels - stats.timer.fires
}

/// Makes an actor stop in this turn.
#[derive(Debug, Clone, Copy)]
pub struct StopIt;

impl Message for StopIt {
    type Result = ();
}

impl Handler<StopIt> for PublisherActor {
    type Result = ();

    fn handle(&mut self, _: StopIt, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}

impl Handler<StopIt> for Recorder {
    type Result = ();

    fn handle(&mut self, _: StopIt, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}

/// Makes an actor panic.
#[derive(Debug, Clone, Copy)]
pub struct PanicIt;

impl Message for PanicIt {
    type Result = ();
}

impl Handler<PanicIt> for PublisherActor {
    type Result = ();

    fn handle(&mut self, _: PanicIt, _: &mut Context<Self>) {
        panic!("as told");
    }
}

/// Keeps a router from its mailbox for a while.
#[derive(Debug, Clone, Copy)]
pub struct Block(pub Duration);

impl Message for Block {
    type Result = ();
}

impl Handler<Block> for Recorder {
    type Result = ();

    fn handle(&mut self, msg: Block, ctx: &mut Context<Self>) {
        ctx.wait(wrap_future::<_, Self>(sleep(msg.0)));
    }
}

/// Bounds a router's mailbox.
#[derive(Debug, Clone, Copy)]
pub struct Capacity(pub usize);

impl Message for Capacity {
    type Result = ();
}

impl Handler<Capacity> for Recorder {
    type Result = ();

    fn handle(&mut self, msg: Capacity, ctx: &mut Context<Self>) {
        ctx.set_mailbox_capacity(msg.0);
    }
}
