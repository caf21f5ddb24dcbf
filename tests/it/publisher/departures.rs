//! All ranks of a worker leave at once.

use crate::support::{publishers::*, *};
use actix_kv_metrics::{
    AllRanksLeft, MetricsChanged, MetricsReporter, PublisherActor, ReportError, Shutdown, WorkerId,
    WorkerJoined, WorkerRank,
    actix::{Addr, clock},
    sans_io::Reports,
};

async fn all_left(publisher: &Addr<PublisherActor>, worker: u64) -> usize {
    let worker = WorkerId(worker);
    publisher.send(AllRanksLeft { worker }).await.unwrap()
}

async fn report_rank(publisher: &Addr<PublisherActor>, worker: u64, rank: u32) {
    let changed = MetricsChanged::new(WorkerRank::new(worker, rank), load(1));
    publisher.send(changed).await.unwrap().unwrap();
}

#[test]
fn g13_every_rank_of_the_worker_leaves_in_one_snapshot_and_nobody_else() {
    virtual_time(async {
        let publisher = publisher(values_only(10, 100));
        let log = attach(&publisher).await;
        for (worker, rank) in [(1, 0), (1, 7), (2, 7), (1, 3), (3, 0), (1, u32::MAX)] {
            report_rank(&publisher, worker, rank).await;
        }
        let reporter = MetricsReporter::new(&publisher, WorkerRank::new(1, 9));
        let worker = WorkerRank::new(1, 4);
        publisher.send(WorkerJoined { worker }).await.unwrap();
        sleep(ms(200)).await;
        log.take_raw();
        assert_eq!(all_left(&publisher, 9).await, 0);
        assert_eq!(all_left(&publisher, 1).await, 6);
        assert_eq!(all_left(&publisher, 1).await, 0);
        settle().await;
        let told = log.take_raw();
        let left = [0, 3, 4, 7, 9, u32::MAX].map(|rank| WorkerRank::new(1, rank));
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].left, left);
        assert_eq!(reporter.report(load(2)), Err(ReportError::LifeEnded));
        assert_eq!(log.workers(), [2, 3]);

        report_rank(&publisher, 1, 3).await;
        assert_eq!(all_left(&publisher, 1).await, 1);
        sleep(ms(200)).await;
        assert_eq!(stats(&publisher).await.workers, 2);
        assert!(publisher.connected());
    });
}

#[test]
fn g13_ranks_are_found_after_slots_were_given_up() {
    virtual_time(async {
        let publisher = publisher(values_only(10, 100));
        let log = attach(&publisher).await;
        for worker in 0..300 {
            report_rank(&publisher, worker, 0).await;
            report_rank(&publisher, worker, 1).await;
        }
        for worker in 0..295 {
            assert_eq!(all_left(&publisher, worker).await, 2);
        }
        report_rank(&publisher, 299, 2).await;
        assert_eq!(all_left(&publisher, 299).await, 3);
        assert_eq!(all_left(&publisher, 298).await, 2);
        sleep(ms(200)).await;
        assert_eq!(log.workers(), [295, 295, 296, 296, 297, 297]);
    });
}

/// Relative to a measurement of the same run: the machine may be busy.
#[test]
fn g7_finding_the_ranks_of_a_worker_costs_the_same_among_however_many_others() {
    let time = |workers: u64| {
        let now = clock::Instant::now();
        let mut reports = Reports::new();
        for worker in 0..workers {
            reports.handle_report(WorkerRank::new(worker, 1), load(1), None, now.into_std());
        }
        let times = (0..40).map(|_| {
            let begun = clock::Instant::now();
            let found: usize = (0..1_000).map(|id| reports.ranks(WorkerId(id)).len()).sum();
            assert_eq!(found, 1_000);
            begun.elapsed()
        });
        times.min().unwrap()
    };
    let (few, many) = (time(1_000), time(64_000));
    assert!(many < 8 * few, "{few:?} of 1,000, {many:?} of 64,000");
}

#[test]
fn after_a_shutdown_has_begun_nobody_leaves() {
    virtual_time(async {
        let publisher = publisher(values_only(10, 100));
        let slow = Answer::ApplyAfter(ms(20));
        let router = attach_answering(&publisher, [], slow).await;
        report_rank(&publisher, 1, 1).await;
        publisher.do_send(Shutdown { within: ms(50) });
        settle().await;
        assert_eq!(all_left(&publisher, 1).await, 0);
        let began = clock::Instant::now();
        sleep(ms(100)).await;
        assert!(began.elapsed() >= ms(100) && !publisher.connected());
        assert_eq!(router.log.workers(), [1]);
    });
}
