//! Kind "timer leak", its hardest members: routers that meddle with their publisher while they are told something.

use crate::support::{publishers::*, *};
use actix_kv_metrics::{
    AttachRouter, Coalescing, Flush, LoadSnapshot, MetricsChanged, PublisherActor, SnapshotAck,
    SnapshotRejected, WorkerLeft,
    actix::{Actor, Addr, Context, Handler},
};

/// A publisher with worker 1 at 0, and a router that has that.
async fn known(coalescing: Coalescing) -> (Addr<PublisherActor>, Attached) {
    let publisher = publisher(coalescing);
    let one = attach_answering(&publisher, [], Answer::Apply).await;
    report(&publisher, 1, 0).await;
    settle().await;
    one.log.take();
    (publisher, one)
}

/// A router that does something to its publisher with each snapshot it gets.
struct Meddler {
    log: LogHandle,
    publisher: Addr<PublisherActor>,
    meddle: fn(&Addr<PublisherActor>, &LoadSnapshot),
}

impl Actor for Meddler {
    type Context = Context<Self>;
}

impl Handler<LoadSnapshot> for Meddler {
    type Result = Result<SnapshotAck, SnapshotRejected>;

    fn handle(&mut self, snapshot: LoadSnapshot, _: &mut Context<Self>) -> Self::Result {
        (self.meddle)(&self.publisher, &snapshot);
        self.log.record(snapshot);
        Ok(SnapshotAck::Applied)
    }
}

async fn meddler(
    publisher: &Addr<PublisherActor>,
    meddle: fn(&Addr<PublisherActor>, &LoadSnapshot),
) -> LogHandle {
    let log = LogHandle::new();
    let meddler = Meddler {
        log: log.clone(),
        publisher: publisher.clone(),
        meddle,
    };
    let attach = AttachRouter::new(meddler.start().recipient());
    publisher.send(attach).await.unwrap();
    settle().await;
    log.take();
    log
}

#[test]
fn case_22_a_router_that_has_the_worker_leave_while_it_is_published_leaves_no_timer() {
    virtual_time(async {
        let (publisher, one) = known(windows(10, 100)).await;
        let log = meddler(&publisher, |publisher, snapshot| {
            if !snapshot.workers.is_empty() {
                publisher.do_send(WorkerLeft { worker: w(1) });
            }
        })
        .await;
        sleep(ms(500)).await;
        // Its first full snapshot had told of the worker.
        assert_eq!(one.log.take(), [left(0, &[1])]);
        assert_eq!(log.workers(), [0; 0]);
        report(&publisher, 1, 6).await;
        report(&publisher, 1, 7).await;
        sleep(ms(500)).await;
        assert_eq!(log.workers(), [0; 0]);
        assert!(one.log.snapshots() <= 4);
        assert_eq!(live_timers(&stats(&publisher).await), 0);
    });
}

/// Not listed: others that a router may do from within; none may become a loop.
#[test]
fn a_router_that_meddles_with_each_snapshot_is_no_loop() {
    virtual_time(async {
        let (publisher, one) = known(values_only(10, 100)).await;
        let flushes = meddler(&publisher, |publisher, _| {
            publisher.do_send(Flush { within: ms(100) });
        })
        .await;
        let repeats = meddler(&publisher, |publisher, snapshot| {
            for load in &snapshot.workers {
                let metrics = load.metrics.clone().unwrap_or_default();
                publisher.do_send(MetricsChanged::new(load.worker, metrics));
            }
        })
        .await;
        report(&publisher, 1, 5).await;
        sleep(ms(2_000)).await;
        // Its flush, at its first snapshot, was of nothing; then one window, one snapshot.
        for log in [&one.log, &flushes, &repeats] {
            assert_eq!(log.take(), [delta(10, &[(1, 5)])]);
        }
        // The window, and the deadlines of two flushes that waited for answers.
        let timer = stats(&publisher).await;
        assert!(timer.timer.arms <= 3, "{timer:?}");
        assert_eq!(live_timers(&timer), 0);
    });
}

/// Not listed: an echo that changes the value each time is paced by the windows.
#[test]
fn a_router_that_answers_each_snapshot_with_a_change_is_paced_by_the_windows() {
    virtual_time(async {
        let (publisher, one) = known(windows(10, 100)).await;
        let log = meddler(&publisher, |publisher, snapshot| {
            for entry in &snapshot.workers {
                let active = entry.metrics.as_ref().unwrap().kv_stats.kv_active_blocks;
                publisher.do_send(MetricsChanged::new(entry.worker, load(active + 1)));
            }
        })
        .await;
        sleep(ms(1_005)).await;
        assert_eq!(log.take().len(), 100);
        assert_eq!(one.log.take().len(), 100);
    });
}
