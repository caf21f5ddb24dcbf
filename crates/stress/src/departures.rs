//! A large fleet joins, reports and leaves, but for one worker: what it took is given back.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use actix::{Actor, Addr, Context, Handler, System};
use actix_kv_metrics::{
    AttachRouter, Flush, ForwardPassMetrics, GetPublisherStats, LoadSnapshot, MetricsChanged,
    MetricsReporter, PublisherActor, PublisherConfig, PublisherId, RouterActor, RouterConfig,
    SnapshotAck, SnapshotKind, SnapshotRejected, WorkerLeft, WorkerLoad,
};
use clap::Args;

use crate::{checks::Checks, heap, memory::mebibytes};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Workers that join and report; all but one leave.
    #[arg(long, default_value_t = 500_000)]
    workers: u64,
}

pub(crate) fn run(options: &Options) -> Checks {
    let mut checks = Checks::default();
    System::new().block_on(async {
        // What a first use sets up for good is not counted.
        publisher_side(FEW).await;
        router_side(FEW).await;

        let few = publisher_side(FEW).await;
        let many = publisher_side(options.workers).await;
        compare(&mut checks, "publisher", options, &few, &many);
        let few = router_side(FEW).await;
        let many = router_side(options.workers).await;
        compare(&mut checks, "router", options, &few, &many);
    });
    checks
}

/// What a fleet took, and what its departure left.
#[derive(Debug)]
struct Taken {
    /// Live bytes with all workers.
    full_house: u64,
    /// Live bytes with one.
    one_left: u64,
    /// Bytes asked for by a full snapshot of that one.
    full_snapshot: u64,
    /// Least time of such a snapshot.
    full_snapshot_takes: Duration,
}

fn compare(checks: &mut Checks, side: &str, options: &Options, few: &Taken, many: &Taken) {
    checks.section(side);
    let workers = options.workers;
    let with_all = mebibytes(many.full_house);
    checks.figure(&format!("live heap with {workers} workers"), with_all);
    checks.figure("live heap with 1,000", mebibytes(few.full_house));
    checks.check(
        many.one_left < 4 * few.full_house,
        "live heap with one left",
        format!("{} bytes", many.one_left),
        "less than 4 times that with 1,000",
    );
    checks.figure("one left of 1,000", format!("{} bytes", few.one_left));
    checks.check(
        many.full_snapshot <= few.full_snapshot,
        "bytes asked for by a full snapshot of one",
        many.full_snapshot,
        &format!("at most {}, as after 1,000", few.full_snapshot),
    );
    checks.check(
        many.full_snapshot_takes < 10 * few.full_snapshot_takes,
        "least time of a full snapshot of one",
        format!("{:?}", many.full_snapshot_takes),
        &format!("less than 10 times {:?}", few.full_snapshot_takes),
    );
}

/// Half of the workers report by message, half by reporter.
async fn publisher_side(workers: u64) -> Taken {
    let mut reporters = VecDeque::with_capacity(workers as usize / 2 + 1);
    actix_rt::time::sleep(ENDED).await;
    let empty = heap::live().bytes;
    let publisher = PublisherActor::new(PublisherConfig::default()).start();
    let sink = Sink.start();
    attach(&publisher, &sink).await;
    for id in 0..workers {
        let load = load(id);
        if id % 2 == 0 {
            let reporter = MetricsReporter::new(&publisher, id);
            let _ = reporter.report(load);
            reporters.push_back(reporter);
        } else {
            publisher.do_send(MetricsChanged::new(id, load));
        }
        pause(&publisher, id).await;
    }
    flush(&publisher).await;
    let full_house = heap::live().bytes - empty;
    let stays = reporters.pop_front().expect("the first has one");
    for id in 1..workers {
        if id % 2 == 0 {
            reporters.pop_front();
        } else {
            publisher.do_send(WorkerLeft { worker: id.into() });
        }
        pause(&publisher, id).await;
    }
    for change in 0..FEW_CHANGES {
        let _ = stays.report(load(change));
        flush(&publisher).await;
    }
    let one_left = heap::live().bytes.saturating_sub(empty);
    let (full_snapshot, full_snapshot_takes) = least(async || {
        attach(&publisher, &sink).await;
        flush(&publisher).await;
    })
    .await;
    Taken {
        full_house,
        one_left,
        full_snapshot,
        full_snapshot_takes,
    }
}

async fn router_side(workers: u64) -> Taken {
    actix_rt::time::sleep(ENDED).await;
    let empty = heap::live().bytes;
    let router = RouterActor::new(RouterConfig::default()).start();
    let mut sequence = 0;
    let mut tell = async |full: bool, left: std::ops::Range<u64>, loads: std::ops::Range<u64>| {
        sequence += 1;
        let after = sequence - 1;
        let snapshot = LoadSnapshot {
            publisher: PublisherId::new(1, 1),
            sequence,
            kind: if full {
                SnapshotKind::Full
            } else {
                SnapshotKind::Delta { after }
            },
            left: left.map(Into::into).collect(),
            workers: loads.map(worker_load).collect(),
        };
        let answer = router.send(snapshot).await;
        assert_eq!(answer.expect("it lives"), Ok(SnapshotAck::Applied));
    };
    tell(true, 0..0, 0..workers).await;
    let full_house = heap::live().bytes - empty;
    for first in (1..workers).step_by(PIECE as usize) {
        tell(false, first..workers.min(first + PIECE), 0..0).await;
    }
    for _ in 0..FEW_CHANGES {
        tell(false, 0..0, 0..1).await;
    }
    let one_left = heap::live().bytes.saturating_sub(empty);
    let (full_snapshot, full_snapshot_takes) = least(async || tell(true, 0..0, 0..1).await).await;
    Taken {
        full_house,
        one_left,
        full_snapshot,
        full_snapshot_takes,
    }
}

/// The least bytes asked for and the least time of many.
async fn least(mut one: impl AsyncFnMut()) -> (u64, Duration) {
    let mut least = (u64::MAX, Duration::MAX);
    for _ in 0..TIMES {
        let (asked, began) = (heap::asked(), Instant::now());
        one().await;
        let took = began.elapsed();
        least = (least.0.min(heap::asked() - asked), least.1.min(took));
    }
    least
}

async fn attach(publisher: &Addr<PublisherActor>, sink: &Addr<Sink>) {
    let attach = AttachRouter::new(sink.clone().recipient());
    let _ = publisher.send(attach).await;
}

async fn flush(publisher: &Addr<PublisherActor>) {
    let within = Duration::from_secs(60);
    let flushed = publisher.send(Flush { within }).await;
    assert!(flushed.is_ok_and(|report| report.is_complete()));
}

/// A mailbox has no bound.
async fn pause(publisher: &Addr<PublisherActor>, id: u64) {
    if id.is_multiple_of(PIECE) {
        let _ = publisher.send(GetPublisherStats).await;
    }
}

fn load(id: u64) -> ForwardPassMetrics {
    ForwardPassMetrics::new(id % 1_000, 1_000, id % 3)
}

fn worker_load(id: u64) -> WorkerLoad {
    WorkerLoad {
        worker: id.into(),
        life: 1,
        metrics: Some(load(id)),
        admitted: Vec::new(),
        age: Duration::ZERO,
        reported: None,
        draining: false,
    }
}

/// Takes everything.
#[derive(Debug)]
struct Sink;

impl Actor for Sink {
    type Context = Context<Self>;
}

impl Handler<LoadSnapshot> for Sink {
    type Result = Result<SnapshotAck, SnapshotRejected>;

    fn handle(&mut self, _: LoadSnapshot, _: &mut Context<Self>) -> Self::Result {
        Ok(SnapshotAck::Applied)
    }
}

/// Actors of an earlier measurement have ended by then.
const ENDED: Duration = Duration::from_millis(100);
/// A fleet whose memory is no matter.
const FEW: u64 = 1_000;
/// Changes after which what was taken must have been given back.
const FEW_CHANGES: u64 = 10;
const PIECE: u64 = 1_000;
const TIMES: usize = 1_000;
