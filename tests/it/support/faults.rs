//! Routers and publishers that are hurt, and what a router holds after that.

use std::{collections::BTreeMap, future::Future, time::Duration};

use actix_kv_metrics::{
    AttachRouter, ForwardPassMetrics, GetLoads, LinkId, MetricsChanged, PublisherActor,
    RouterActor, RouterConfig, WorkerJoined, WorkerLeft, WorkerRank,
    actix::{Actor, ActorContext, Addr, AsyncContext, Context, Handler, clock, fut::wrap_future},
};

use super::{
    load, ms,
    publishers::{Block, Capacity, PanicIt, StopIt},
    sleep, w,
};

/// Blocks in use of every worker, `None` before its first report.
pub type Table = BTreeMap<WorkerRank, Option<u64>>;

/// A table of ranks 0.
pub fn table_of(loads: &[(u64, u64)]) -> Table {
    let rows = loads.iter();
    rows.map(|(worker, active)| (w(*worker), Some(*active)))
        .collect()
}

/// A router that makes the same choices in every run.
pub fn router() -> Addr<RouterActor> {
    let config = RouterConfig::builder().seed(7).build().unwrap();
    RouterActor::new(config).start()
}

pub async fn attach_real(publisher: &Addr<PublisherActor>, router: &Addr<RouterActor>) -> LinkId {
    let attach = AttachRouter::new(router.clone().recipient());
    publisher.send(attach).await.unwrap()
}

/// What the router holds.
pub async fn table(router: &Addr<RouterActor>) -> Table {
    let loads = router.send(GetLoads).await.unwrap();
    let active = |metrics: &ForwardPassMetrics| metrics.kv_stats.kv_active_blocks;
    let rows = loads.workers().iter();
    rows.map(|load| (load.worker, load.metrics.as_ref().map(active)))
        .collect()
}

/// Reports, joins and departures of six workers at random; what is true in the end.
pub async fn traffic(
    publisher: &Addr<PublisherActor>,
    rng: &mut fastrand::Rng,
    steps: u64,
    truth: &mut Table,
) {
    for _ in 0..steps {
        let worker = w(rng.u64(..6));
        match rng.u32(..10) {
            0 => {
                publisher.do_send(WorkerLeft { worker });
                truth.remove(&worker);
            }
            1 => {
                publisher.do_send(WorkerJoined { worker });
                truth.entry(worker).or_insert(None);
            }
            _ => {
                let active = rng.u64(..1_000);
                publisher.do_send(MetricsChanged::new(worker, load(active)));
                truth.insert(worker, Some(active));
            }
        }
        sleep(ms(rng.u64(..4))).await;
    }
}

/// Polls, in real time, until it is so; a bound that only a hang reaches.
pub async fn until<F: Future<Output = bool>>(what: &str, is_so: impl Fn() -> F) {
    let begun = clock::Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        sleep(ms(1)).await;
    }
}

impl Handler<Block> for RouterActor {
    type Result = ();

    fn handle(&mut self, msg: Block, ctx: &mut Context<Self>) {
        ctx.wait(wrap_future::<_, Self>(sleep(msg.0)));
    }
}

impl Handler<Capacity> for RouterActor {
    type Result = ();

    fn handle(&mut self, msg: Capacity, ctx: &mut Context<Self>) {
        ctx.set_mailbox_capacity(msg.0);
    }
}

impl Handler<StopIt> for RouterActor {
    type Result = ();

    fn handle(&mut self, _: StopIt, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}

impl Handler<PanicIt> for RouterActor {
    type Result = ();

    fn handle(&mut self, _: PanicIt, _: &mut Context<Self>) {
        panic!("as told");
    }
}
