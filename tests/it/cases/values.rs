//! Kinds "lost final update", "stale pending value", "duplicates" and "ordering": the last value, once, and nothing older
//! after it.

use std::{
    sync::{Arc, Mutex},
    thread,
};

use crate::support::{publishers::*, *};
use actix_kv_metrics::{
    Coalescing, Flush, ForwardPassMetrics, InvalidMetrics, MetricsChanged, MetricsReporter,
    PublisherActor, PublisherConfig, Shutdown, SpecDecodeStats, WorkerLeft,
    actix::{Actor, Addr, Arbiter, System},
};

async fn known(coalescing: Coalescing) -> (Addr<PublisherActor>, Attached) {
    let publisher = publisher(coalescing);
    let one = attach_answering(&publisher, [], Answer::Apply).await;
    report(&publisher, 1, 0).await;
    settle().await;
    one.log.take();
    one.log.take_raw();
    (publisher, one)
}

// Lost final update.

/// Case 32: what is queued behind a stop is lost to no one in silence; what was answered is told.
#[test]
fn case_32_a_stop_in_the_middle_of_a_queue_tells_every_sender() {
    virtual_time(async {
        let (publisher, one) = known(windows(50, 500)).await;
        let mut answers = Vec::new();
        for value in 1..=200 {
            if value == 101 {
                publisher.do_send(StopIt);
            }
            let changed = MetricsChanged::new(1, load(value));
            answers.push((value, actix_rt::spawn(publisher.send(changed))));
            settle_once().await;
        }
        let mut taken = 0;
        for (value, answer) in answers {
            match answer.await.unwrap() {
                Ok(answer) => {
                    answer.unwrap();
                    taken = value;
                }
                Err(_) => assert!(value > taken),
            }
        }
        sleep(ms(100)).await;
        let seen = one.log.take();
        assert!(taken >= 100, "{taken}");
        assert_eq!(seen.last().map(|seen| seen.kind), Some(Kind::Closed));
        let told = seen.iter().rev().find_map(|seen| seen.loads.last());
        assert_eq!(told, Some(&(1, Some(taken))));
    });
}

async fn settle_once() {
    tokio::task::yield_now().await;
}

/// Case 32 at a shutdown: before it, everything counts; after it, everybody is told.
#[test]
fn case_32_a_shutdown_takes_in_what_is_before_it_and_tells_who_is_behind() {
    virtual_time(async {
        let publisher = supervised(windows(50, 500));
        let log = attach(&publisher).await;
        for value in 1..=100 {
            publisher.do_send(MetricsChanged::new(1, load(value)));
        }
        let shut = publisher.send(Shutdown { within: ms(100) });
        let shut = actix_rt::spawn(shut);
        settle_once().await;
        for value in 101..=200 {
            let behind = publisher.send(MetricsChanged::new(1, load(value))).await;
            assert_eq!(behind.unwrap(), Err(InvalidMetrics::ShuttingDown));
        }
        assert!(shut.await.unwrap().unwrap().is_complete());
        sleep(ms(100)).await;
        assert_eq!(log.active(1), Some(100));
        let stats = stats(&publisher).await;
        assert_eq!((stats.received, stats.refused), (100, 100));
    });
}

#[test]
fn case_37_a_change_outlives_the_source_it_came_from() {
    virtual_time(async {
        let (publisher, one) = known(windows(20, 200)).await;
        let source = MetricsReporter::new(&publisher, 2);
        source.report(load(5)).unwrap();
        settle().await;
        one.log.take();
        let plain = publisher.clone();
        plain.do_send(MetricsChanged::new(1, load(6)));
        drop(plain);
        drop(publisher);
        sleep(ms(500)).await;
        assert_eq!(one.log.take(), [delta(20, &[(1, 6)])]);
        // A reporter that goes is a departure; then nobody holds the publisher any more.
        source.report(load(7)).unwrap();
        drop(source);
        sleep(ms(500)).await;
        let seen = one.log.take();
        assert_eq!(seen.first(), Some(&left(500, &[2])));
        assert_eq!(seen.len(), 2);
    });
}

#[test]
fn case_38_a_worker_that_deregisters_after_its_last_change_stays_gone() {
    virtual_time(async {
        let (publisher, one) = known(windows(10, 100)).await;
        report(&publisher, 1, 5).await;
        sleep(ms(1)).await;
        publisher.send(WorkerLeft { worker: w(1) }).await.unwrap();
        sleep(ms(500)).await;
        assert_eq!(one.log.take(), [left(1, &[1])]);
        // The same while its change is in flight, and while its change was refused.
        let slow = [Answer::Apply, Answer::ApplyAfter(ms(20)), Answer::Refuse];
        let slow = attach_answering(&publisher, slow, Answer::Apply).await;
        for _ in 0..2 {
            report(&publisher, 2, 5).await;
            sleep(ms(50)).await;
            report(&publisher, 2, 6).await;
            sleep(ms(12)).await;
            publisher.send(WorkerLeft { worker: w(2) }).await.unwrap();
            sleep(ms(500)).await;
            assert_eq!(slow.log.workers(), [0; 0]);
            assert_eq!(one.log.workers(), [0; 0]);
        }
        assert!(slow.log.snapshots() <= 7);
    });
}

#[test]
fn case_39_a_refused_value_arrives_without_another_change() {
    virtual_time(async {
        let publisher = publisher(windows(1, 10));
        let script = [Answer::Apply, Answer::Refuse, Answer::Refuse];
        let one = attach_answering(&publisher, script, Answer::Apply).await;
        report(&publisher, 1, 0).await;
        settle().await;
        one.log.take();
        report(&publisher, 1, 5).await;
        sleep(ms(100)).await;
        assert_eq!(one.log.take(), [delta(1 + 10 + 20, &[(1, 5)])]);
    });
}

#[test]
fn case_40_a_cap_that_passed_while_the_publisher_was_blocked_is_made_good_at_once() {
    virtual_time(async {
        let (publisher, one) = known(windows(5, 10)).await;
        report(&publisher, 1, 5).await;
        sleep(ms(3)).await;
        hold_up(&publisher, ms(30));
        sleep(ms(500)).await;
        assert_eq!(one.log.take(), [delta(33, &[(1, 5)])]);
    });
}

/// Case 41 is `g2_without_a_debounce_a_change_goes_out_at_once_and_arms_no_timer`. Not listed: a flush, a shutdown and a
/// detachment that find the last value in each place it can be.
#[test]
fn the_last_value_arrives_from_wherever_it_is_when_the_end_comes() {
    virtual_time(async {
        let held = [
            Answer::Apply,
            Answer::ApplyAfter(ms(30)),
            Answer::NeedFull,
            Answer::Refuse,
        ];
        for answer in held {
            // In the window, in flight or backing off, behind what is in flight.
            for after in [0, 12, 25] {
                let publisher = publisher(windows(10, 100));
                let script = [Answer::Apply, answer];
                let one = attach_answering(&publisher, script, Answer::Apply).await;
                report(&publisher, 1, 0).await;
                settle().await;
                report(&publisher, 1, 5).await;
                sleep(ms(after)).await;
                publisher.do_send(MetricsChanged::new(1, load(6)));
                publisher.do_send(MetricsChanged::new(2, load(7)));
                let shut = publisher.send(Shutdown { within: ms(1_000) });
                let shut = shut.await.unwrap();
                assert!(shut.is_complete(), "{answer:?} {after}: {shut:?}");
                let told = (one.log.active(1), one.log.active(2));
                assert_eq!(told, (Some(6), Some(7)), "{answer:?} {after}");
                assert!(one.log.snapshots() <= 6, "{answer:?} {after}");
            }
        }
    });
}

// Stale pending value.

/// Case 44, in real time: whoever holds the lock sends; then what was sent last is known, and must be what stays.
#[test]
fn case_44_of_four_threads_the_last_to_send_is_the_one_that_stays() {
    System::new().block_on(async {
        let arbiter = Arbiter::new();
        let publisher = PublisherActor::start_in_arbiter(&arbiter.handle(), |_| {
            PublisherActor::new(PublisherConfig::default())
        });
        let log = LogHandle::new();
        attach_router(&publisher, &Recorder::new(&log).start()).await;
        let reporter = MetricsReporter::new(&publisher, 1);
        let shared = Arc::new((Mutex::new(0), reporter, publisher.clone()));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (next, reporter, publisher) = &*shared;
                    for _ in 0..2_500 {
                        let mut next = next.lock().unwrap();
                        *next += 1;
                        reporter.report(load(*next)).unwrap();
                        publisher.do_send(MetricsChanged::new(2, load(*next)));
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|it| it.join().unwrap());
        let flushed = publisher.send(Flush { within: ms(10_000) }).await.unwrap();
        assert!(flushed.is_complete());
        assert_eq!((log.active(1), log.active(2)), (Some(10_000), Some(10_000)));
        // Nothing older came after something newer.
        for worker in [1, 2] {
            let told = log.told_of(worker);
            assert!(told.is_sorted(), "{told:?}");
        }
        arbiter.stop();
    });
}

#[test]
fn case_46_nothing_older_follows_what_went_out_at_once() {
    virtual_time(async {
        let settings = unpaced()
            .debounce(ms(20))
            .max_delay(ms(200))
            .saturation(0.9)
            .build();
        let (publisher, one) = known(settings.unwrap()).await;
        sleep(ms(300)).await;
        // Overtaken by an urgent change of its own.
        report(&publisher, 1, 100).await;
        sleep(ms(5)).await;
        report(&publisher, 1, 950).await;
        sleep(ms(300)).await;
        assert_eq!(one.log.take(), [delta(305, &[(1, 950)])]);
        // By a flush.
        report(&publisher, 1, 100).await;
        sleep(ms(5)).await;
        publisher.do_send(MetricsChanged::new(1, load(101)));
        publisher.do_send(Flush { within: ms(10) });
        sleep(ms(300)).await;
        assert_eq!(one.log.take(), [delta(610, &[(1, 101)])]);
        // By its departure and its return.
        report(&publisher, 1, 102).await;
        sleep(ms(5)).await;
        publisher.do_send(WorkerLeft { worker: w(1) });
        publisher.do_send(MetricsChanged::new(1, load(103)));
        sleep(ms(300)).await;
        let mut seen = one.log.take();
        seen.retain(|seen| !seen.loads.is_empty());
        let loads: Vec<_> = seen.iter().map(|seen| (seen.at, &seen.loads[..])).collect();
        assert_eq!(loads, [(915, &[(1, Some(103))][..])]);
    });
}

#[test]
fn case_48_a_change_of_any_field_alone_is_published() {
    virtual_time(async {
        let settings = unpaced().minor_delay(ms(20)).build().unwrap();
        let (publisher, one) = known(settings).await;
        let spec = SpecDecodeStats {
            num_accepted_tokens_per_pos: Some(vec![3, 2, 1]),
            ..SpecDecodeStats::default()
        };
        let base = load(0);
        let fields: [ForwardPassMetrics; 9] = [
            ForwardPassMetrics::new(1, 1_000, 0),
            ForwardPassMetrics::new(0, 1_001, 0),
            ForwardPassMetrics::new(0, 1_000, 1),
            base.clone().with_data_parallel_rank(0),
            base.clone().with_request_active_slots(1),
            base.clone().with_request_total_slots(1),
            base.clone()
                .with_gpu_cache_usage_perc(f32::MIN_POSITIVE / 4.0),
            base.clone().with_gpu_prefix_cache_hit_rate(0.5),
            base.clone().with_spec_decode_stats(spec),
        ];
        for changed in fields {
            for metrics in [changed.clone(), base.clone()] {
                publisher.do_send(MetricsChanged::new(1, metrics.clone()));
                sleep(ms(50)).await;
                let told = one.log.take_raw();
                assert_eq!(told.len(), 1, "{metrics:?}");
                assert_eq!(told[0].workers[0].metrics, Some(metrics));
            }
        }
    });
}

/// Case 134: one window, whichever way the worker reports, and the reporter's slot adds nothing to it.
#[test]
fn case_134_both_ways_to_report_have_the_same_windows() {
    virtual_time(async {
        let (publisher, one) = known(windows(10, 25)).await;
        let reporter = MetricsReporter::new(&publisher, 2);
        reporter.report(load(0)).unwrap();
        settle().await;
        one.log.take();
        for step in 1..=60 {
            publisher.do_send(MetricsChanged::new(1, load(step)));
            reporter.report(load(step)).unwrap();
            sleep(ms(1)).await;
        }
        sleep(ms(100)).await;
        let seen = one.log.take();
        assert!(seen.iter().all(|seen| seen.loads.len() == 2), "{seen:?}");
        let times: Vec<_> = seen.iter().map(|seen| seen.at).collect();
        assert_eq!(times, [25, 51, 69], "{seen:?}");
    });
}
