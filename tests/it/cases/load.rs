//! Kinds "memory", "slow consumer", "panic", "restart" and "arbiters": what piles up, who waits for whom, and who dies.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use crate::support::{faults::*, publishers::*, *};
use actix_kv_metrics::{
    AttachRouter, Backoff, Flush, KvMetrics, KvMetricsConfig, LoadSnapshot, MetricsChanged,
    MetricsReporter, PublisherActor, PublisherConfig, ReportError, SelectError, SelectWorker,
    SnapshotAck, SnapshotRejected,
    actix::{Actor, Addr, Arbiter, Context, Handler, System, clock},
};

// Memory.

/// Case 80: whatever the rate, a router that takes 50 ms has one snapshot to deal with and none behind it.
#[test]
fn case_80_snapshots_do_not_queue_before_a_slow_router() {
    virtual_time(async {
        let publisher = publisher(windows(1, 10));
        let slow = Answer::ApplyAfter(ms(50));
        let one = attach_answering(&publisher, [], slow).await;
        for step in 1..=2_000 {
            for worker in 0..5 {
                publisher.do_send(MetricsChanged::new(worker, load(step)));
            }
            sleep(ms(1)).await;
        }
        let seen = one.log.take();
        assert!((38..=41).contains(&seen.len()), "{}", seen.len());
        assert!(seen.iter().all(|seen| seen.loads.len() <= 5));
        let gaps = seen.windows(2).map(|pair| pair[1].at - pair[0].at);
        assert!(gaps.min() >= Some(50), "one at a time");
        sleep(ms(200)).await;
        assert!((0..5).all(|worker| one.log.active(worker) == Some(2_000)));
        assert!(one.log.take().len() <= 2);
    });
}

#[test]
fn case_81_a_long_window_holds_one_entry_a_worker() {
    const CHANGES: u64 = 200_000;
    virtual_time(async {
        let publisher = publisher(windows(30_000, 30_000));
        let log = attach(&publisher).await;
        for worker in 0..100 {
            publisher.do_send(MetricsChanged::new(worker, load(0)));
        }
        sleep(ms(10)).await;
        log.take();
        for change in 0..CHANGES {
            let metrics = load(1 + change / 100);
            publisher.do_send(MetricsChanged::new(change % 100, metrics));
            if change % 10_000 == 0 {
                sleep(ms(1)).await;
            }
        }
        let pending = pending(&publisher).await;
        assert_eq!(pending.links[0].windows, 100);
        sleep(ms(60_000)).await;
        let seen = log.take();
        let entries: usize = seen.iter().map(|seen| seen.loads.len()).sum();
        assert_eq!(entries, 100);
        assert!((0..100).all(|worker| log.active(worker) == Some(CHANGES / 100)));
    });
}

/// Case 82, as far as it applies: what a mailbox holds is actix's; what waits here is told, and comes back to nothing.
#[test]
fn case_82_what_waits_can_be_seen_and_comes_back_to_nothing() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let one = attach_answering(&publisher, [], Answer::ApplyAfter(ms(30))).await;
        for value in 1..=10_000 {
            publisher.do_send(MetricsChanged::new(value % 50, load(value)));
        }
        let busy = pending(&publisher).await;
        assert_eq!(busy.links[0].windows, 49 + 1);
        assert_eq!(stats(&publisher).await.received, 10_000);
        sleep(ms(500)).await;
        let calm = pending(&publisher).await;
        assert_eq!((calm.links[0].windows, calm.links[0].ages.len()), (0, 0));
        assert!(one.log.snapshots() <= 4);
    });
}

// Slow consumer.

/// Case 84, in real time: a router whose thread is held up for half a second keeps neither workers nor the publisher.
#[test]
fn case_84_a_blocked_router_slows_no_worker_down() {
    System::new().block_on(async {
        let arbiters = [Arbiter::new(), Arbiter::new()];
        let publisher = PublisherActor::start_in_arbiter(&arbiters[0].handle(), |_| {
            PublisherActor::new(PublisherConfig::default())
        });
        let told = Arc::new(AtomicU64::new(0));
        let entries = Arc::new(AtomicU64::new(0));
        let sleeper = Sleeper {
            pause: ms(0),
            told: told.clone(),
            entries: entries.clone(),
        };
        let router = Sleeper::start_in_arbiter(&arbiters[1].handle(), |_| sleeper);
        let attach = AttachRouter::new(router.clone().recipient());
        publisher.send(attach).await.unwrap();
        let reporters: Vec<_> = (0..4)
            .map(|worker| MetricsReporter::new(&publisher, worker))
            .collect();
        let flushed = publisher.send(Flush { within: ms(10_000) }).await.unwrap();
        assert!(flushed.is_complete());
        router.send(SetPause(ms(500))).await.unwrap();
        let start = clock::Instant::now();
        let mut changes = 0;
        let mut waited = Vec::new();
        while start.elapsed() < ms(600) {
            changes += 1;
            for reporter in &reporters {
                let asked = clock::Instant::now();
                reporter.report(load(changes)).unwrap();
                waited.push(asked.elapsed());
            }
            publisher.do_send(MetricsChanged::new(9, load(changes)));
            sleep(ms(1)).await;
        }
        // The publisher took everything in meanwhile.
        assert_eq!(stats(&publisher).await.workers, 5);
        router.do_send(SetPause(ms(0)));
        let flushed = publisher.send(Flush { within: ms(10_000) }).await.unwrap();
        assert!(flushed.is_complete());
        let (told, entries) = (told.load(Ordering::SeqCst), entries.load(Ordering::SeqCst));
        // Held up for 500 ms a snapshot: few, and of five workers at most.
        assert!(told <= 15, "{told} snapshots");
        assert!(entries <= 5 * told);
        // The median, because a machine that does other things may stop any thread for a while.
        waited.sort_unstable();
        let usual = waited[waited.len() / 2];
        assert!(usual < ms(5), "a report took {usual:?}");
        for arbiter in arbiters {
            arbiter.stop();
            arbiter.join().unwrap();
        }
    });
}

/// A router that blocks its thread with each snapshot.
struct Sleeper {
    pause: Duration,
    told: Arc<AtomicU64>,
    entries: Arc<AtomicU64>,
}

struct SetPause(Duration);

impl actix_kv_metrics::actix::Message for SetPause {
    type Result = ();
}

impl Actor for Sleeper {
    type Context = Context<Self>;
}

impl Handler<SetPause> for Sleeper {
    type Result = ();

    fn handle(&mut self, msg: SetPause, _: &mut Context<Self>) {
        self.pause = msg.0;
    }
}

impl Handler<LoadSnapshot> for Sleeper {
    type Result = Result<SnapshotAck, SnapshotRejected>;

    fn handle(&mut self, snapshot: LoadSnapshot, _: &mut Context<Self>) -> Self::Result {
        self.told.fetch_add(1, Ordering::SeqCst);
        let entries = snapshot.workers.len() as u64;
        self.entries.fetch_add(entries, Ordering::SeqCst);
        thread::sleep(self.pause);
        Ok(SnapshotAck::Applied)
    }
}

#[test]
fn case_85_a_router_that_takes_one_snapshot_each_20_ms_gets_no_more_and_the_newest() {
    virtual_time(async {
        let publisher = publisher(windows(1, 10));
        let slow = Answer::ApplyAfter(ms(20));
        let one = attach_answering(&publisher, [], slow).await;
        for step in 1..=1_000 {
            for worker in 0..10 {
                publisher.do_send(MetricsChanged::new(worker, load(step)));
            }
            sleep(ms(1)).await;
        }
        sleep(ms(100)).await;
        // One more for the first worker, which went alone.
        let delivered = one.log.take().len();
        assert!((40..=52).contains(&delivered), "{delivered}");
        assert!((0..10).all(|worker| one.log.active(worker) == Some(1_000)));
        let stats = stats(&publisher).await;
        assert_eq!((stats.rejected, stats.links[0].delivery.failures), (0, 0));
    });
}

// Restart.

#[test]
fn case_92_after_five_restarts_a_change_is_one_snapshot_and_one_timer() {
    virtual_time(async {
        let publisher = supervised(windows(10, 100));
        let log = attach(&publisher).await;
        report(&publisher, 1, 0).await;
        sleep(ms(50)).await;
        for _ in 0..5 {
            publisher.do_send(StopIt);
            sleep(ms(5)).await;
        }
        sleep(ms(100)).await;
        log.take();
        let before = stats(&publisher).await.timer;
        report(&publisher, 1, 5).await;
        sleep(ms(1_000)).await;
        assert_eq!(log.take(), [delta(185, &[(1, 5)])]);
        let after = stats(&publisher).await.timer;
        assert_eq!(
            (after.arms - before.arms, after.fires - before.fires),
            (1, 1)
        );
    });
}

/// Cases 50 and 93: what was pending goes out with the stop; the change behind it has a whole window, and nothing old
/// comes after.
#[test]
fn case_93_a_timer_of_the_former_life_does_not_end_a_window_of_the_new_one() {
    virtual_time(async {
        let publisher = supervised(windows(5, 50));
        let log = attach(&publisher).await;
        report(&publisher, 1, 0).await;
        report(&publisher, 2, 0).await;
        settle().await;
        sleep(ms(100)).await;
        log.take();
        report(&publisher, 1, 10).await;
        sleep(ms(1)).await;
        publisher.do_send(StopIt);
        settle().await;
        let handed_over = log.take();
        assert_eq!(handed_over.len(), 2, "{handed_over:?}");
        assert_eq!(log.active(1), Some(10));
        sleep(ms(1)).await;
        report(&publisher, 1, 20).await;
        sleep(ms(100)).await;
        assert_eq!(log.take(), [delta(107, &[(1, 20)])]);
    });
}

#[test]
fn case_94_what_was_queued_at_a_restart_is_published_by_the_new_life() {
    virtual_time(async {
        let publisher = supervised(windows(5, 50));
        let log = attach(&publisher).await;
        report(&publisher, 1, 0).await;
        settle().await;
        let reporter = MetricsReporter::new(&publisher, 2);
        log.take();
        for value in 1..=10 {
            if value == 5 {
                publisher.do_send(StopIt);
            }
            publisher.do_send(MetricsChanged::new(1, load(value)));
            reporter.report(load(value)).unwrap();
        }
        sleep(ms(100)).await;
        assert_eq!((log.active(1), log.active(2)), (Some(10), Some(10)));
        assert!(log.take().len() <= 5);
        reporter.report(load(11)).unwrap();
        sleep(ms(100)).await;
        assert_eq!(log.active(2), Some(11));
    });
}

// Panic.

/// Cases 89 and 91: a publisher that panicked is gone, and nobody is left believing otherwise.
#[test]
fn case_89_a_publisher_that_panicked_is_missed_by_everybody() {
    virtual_time(async {
        let kv = KvMetrics::start(KvMetricsConfig::default());
        let reporter = kv.reporter(1);
        reporter.report(load(5)).unwrap();
        sleep(ms(5)).await;
        drop(kv.select(SelectWorker::blocks(1)).await.unwrap());
        let publisher = kv.publisher();
        publisher.do_send(PanicIt);
        settle().await;
        assert_eq!(reporter.report(load(6)), Err(ReportError::PublisherGone));
        let changed = MetricsChanged::new(1, load(6));
        assert!(publisher.send(changed).await.is_err());
        // Nor is the old value chosen by.
        let nobody = kv.select(SelectWorker::blocks(1)).await.unwrap_err();
        assert_eq!(nobody, SelectError::NoWorkers);
        let report = kv.shutdown(ms(100)).await;
        assert!(!report.is_complete());
        assert_eq!(report.undelivered()[0].link, None);
    });
}

// Arbiters.

/// Case 138, in real time: what one worker sends from one thread arrives in its order, thinned out.
#[test]
fn case_138_order_holds_across_three_threads() {
    System::new().block_on(async {
        let arbiters = [Arbiter::new(), Arbiter::new()];
        let publisher: Addr<PublisherActor> =
            PublisherActor::start_in_arbiter(&arbiters[0].handle(), |_| {
                PublisherActor::new(PublisherConfig::default())
            });
        let log = LogHandle::new();
        attach_router(&publisher, &Recorder::new(&log).start()).await;
        let sender = publisher.clone();
        let worker = thread::spawn(move || {
            let reporter = MetricsReporter::new(&sender, 2);
            for value in 1..=10_000 {
                sender.do_send(MetricsChanged::new(1, load(value)));
                reporter.report(load(value)).unwrap();
                if value % 100 == 0 {
                    thread::yield_now();
                }
            }
            reporter
        });
        let has = |worker| {
            let log = log.clone();
            async move { log.active(worker) == Some(10_000) }
        };
        until("the last plain message", || has(1)).await;
        until("the last report", || has(2)).await;
        let reporter = worker.join().unwrap();
        for worker in [1, 2] {
            let told = log.told_of(worker);
            assert!(told.is_sorted(), "{told:?}");
            assert!(told.len() <= 5_000, "{}", told.len());
        }
        drop(reporter);
        for arbiter in arbiters {
            arbiter.stop();
            arbiter.join().unwrap();
        }
    });
}

/// Case 136, in real time: publisher, router and four workers on six threads end within their time, with the truth.
#[test]
fn case_136_everything_on_its_own_thread_ends_together() {
    System::new().block_on(async {
        let arbiters: Vec<_> = (0..6).map(|_| Arbiter::new()).collect();
        let slow = unpaced()
            .debounce(ms(200))
            .max_delay(ms(2_000))
            .build()
            .unwrap();
        let publisher = PublisherConfig::builder().coalescing(slow).build().unwrap();
        let config = KvMetricsConfig::default()
            .publisher(publisher)
            .restart(Backoff::new(ms(1), ms(10)).unwrap())
            .publisher_arbiter(arbiters[0].handle())
            .router_arbiter(arbiters[1].handle());
        let kv = KvMetrics::start(config);
        let log = LogHandle::new();
        let recorder = Recorder::new(&log).start();
        attach_router(&kv.publisher(), &recorder).await;
        let (done, reported) = std::sync::mpsc::channel();
        for worker in 0..4 {
            let (kv, done) = (kv.clone(), done.clone());
            arbiters[2 + worker as usize].spawn(async move {
                let reporter = kv.reporter(worker);
                for value in 1..=1_000 {
                    reporter.report(load(value)).unwrap();
                }
                done.send(reporter).unwrap();
            });
        }
        let reporters: Vec<_> = (0..4).map(|_| reported.recv().unwrap()).collect();
        let report = kv.shutdown(ms(10_000)).await;
        assert!(report.is_complete(), "{report:?}");
        assert!((0..4).all(|worker| log.active(worker) == Some(1_000)));
        drop(reporters);
        for arbiter in arbiters {
            arbiter.stop();
            arbiter.join().unwrap();
        }
    });
}
