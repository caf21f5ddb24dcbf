//! The publisher as an actor, in virtual time, one guarantee a test.

use crate::support::{publishers::*, *};
use actix_kv_metrics::{
    InvalidMetrics, MetricsChanged, Ticket, WorkerJoined, WorkerLeft, WorkerRank,
};

#[test]
fn g1_a_snapshot_carries_the_newest_metrics_with_all_fields_and_tickets() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let log = attach(&publisher).await;
        report(&publisher, 1, 5).await;
        let newest = load(7)
            .with_data_parallel_rank(3)
            .with_request_active_slots(4)
            .with_request_total_slots(5)
            .with_gpu_cache_usage_perc(0.25)
            .with_gpu_prefix_cache_hit_rate(0.75);
        report(&publisher, 1, 6).await;
        sleep(ms(3)).await;
        let ticket = |router, number| Ticket { router, number };
        for ticket in [ticket(1, 8), ticket(2, 3), ticket(1, 2)] {
            let changed = MetricsChanged::new(1, newest.clone()).admitted(ticket);
            publisher.send(changed).await.unwrap().unwrap();
        }
        sleep(ms(50)).await;
        assert_eq!(log.take(), [delta(0, &[(1, 5)]), delta(13, &[(1, 7)])]);
        let carried = log.take_raw().remove(1).workers.remove(0);
        assert_eq!(carried.metrics, Some(newest));
        assert_eq!(carried.admitted, [ticket(1, 8), ticket(2, 3)]);
        assert_eq!(carried.age, ms(13));
        assert!(publisher.connected());
    });
}

#[test]
fn g2_a_changed_worker_is_published_once_it_was_quiet_for_debounce() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let log = attach(&publisher).await;
        report(&publisher, 1, 5).await;
        settle().await;
        assert_eq!(log.take(), [delta(0, &[(1, 5)])]);
        report(&publisher, 1, 6).await;
        sleep(ms(6)).await;
        report(&publisher, 1, 7).await;
        sleep(ms(50)).await;
        assert_eq!(log.take(), [delta(16, &[(1, 7)])]);
        let stats = stats(&publisher).await;
        assert_eq!((stats.received, stats.changed), (3, 3));
    });
}

#[test]
fn g2_without_a_debounce_a_change_goes_out_at_once_and_arms_no_timer() {
    virtual_time(async {
        let publisher = publisher(windows(0, 10));
        let log = attach(&publisher).await;
        for value in 1..=3 {
            report(&publisher, 1, value).await;
            settle().await;
        }
        let expected = [1, 2, 3].map(|value| delta(0, &[(1, value)]));
        assert_eq!(log.take(), expected);
        assert_eq!(stats(&publisher).await.timer.arms, 0);
    });
}

#[test]
fn g3_a_worker_that_is_never_quiet_is_published_each_max_delay() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let log = attach(&publisher).await;
        report(&publisher, 1, 0).await;
        for step in 1..=1_000 {
            sleep(ms(1)).await;
            report(&publisher, 1, step % 999).await;
        }
        sleep(ms(100)).await;
        // Opened at 1, due at 101; the next change comes a millisecond later.
        let mut expected = vec![delta(0, &[(1, 0)])];
        expected.extend((1..=9).map(|n| delta(101 * n, &[(1, 101 * n)])));
        expected.push(delta(1_010, &[(1, 1)]));
        assert_eq!(log.take(), expected);
        assert!(publisher.connected());
    });
}

#[test]
fn g3_a_minor_change_is_published_after_minor_delay() {
    virtual_time(async {
        let settings = unpaced().minor_delay(ms(300)).build().unwrap();
        let publisher = publisher(settings);
        let log = attach(&publisher).await;
        report(&publisher, 1, 5).await;
        for slots in 1..=200 {
            let minor = load(5).with_request_active_slots(slots);
            publisher
                .send(MetricsChanged::new(1, minor))
                .await
                .unwrap()
                .unwrap();
            sleep(ms(1)).await;
        }
        sleep(ms(1_000)).await;
        assert_eq!(log.take(), [delta(0, &[(1, 5)]), delta(300, &[(1, 5)])]);
        assert_eq!(stats(&publisher).await.timer.arms, 1);
    });
}

#[test]
fn g4_nothing_is_sent_for_a_value_the_router_has() {
    virtual_time(async {
        let publisher = publisher(values_only(10, 100));
        let log = attach(&publisher).await;
        report(&publisher, 1, 5).await;
        for _ in 0..20 {
            report(&publisher, 1, 5).await;
            sleep(ms(1)).await;
        }
        report(&publisher, 1, 6).await;
        sleep(ms(5)).await;
        report(&publisher, 1, 5).await;
        sleep(ms(100)).await;
        assert_eq!(log.take(), [delta(0, &[(1, 5)])]);
        let stats = stats(&publisher).await;
        assert_eq!(stats.links[0].windows.suppressed, 1);
        assert_eq!((stats.changed, stats.unchanged), (3, 20));
        assert!(!pending(&publisher).await.timer_armed);
    });
}

#[test]
fn g5_forty_eight_idle_hours_cost_no_timer_callback() {
    let hours = ms(49 * 3_600_000);
    virtual_time_within(hours, async {
        let publisher = publisher(windows(1, 10));
        let log = attach(&publisher).await;
        let silent = attach_answering(&publisher, [], Answer::Silent).await;
        for worker in 0..100 {
            report(&publisher, worker, 1).await;
            report(&publisher, worker, 2).await;
        }
        sleep(ms(100)).await;
        assert_eq!(log.active(99), Some(2));
        let before = stats(&publisher).await.timer;
        assert!(!pending(&publisher).await.timer_armed);
        sleep(ms(48 * 3_600_000)).await;
        assert_eq!(stats(&publisher).await.timer, before);
        report(&publisher, 1, 3).await;
        sleep(ms(100)).await;
        assert_eq!(log.active(1), Some(3));
        assert_eq!(
            silent.log.active(1),
            None,
            "it holds its link, nothing else"
        );
        assert!(publisher.connected());
    });
}

#[test]
fn g6_ten_thousand_workers_with_open_windows_have_one_timer() {
    virtual_time(async {
        let publisher = publisher(windows(20, 100));
        let log = attach(&publisher).await;
        let other = attach(&publisher).await;
        const WORKERS: u64 = 10_000;
        for worker in 0..WORKERS {
            publisher.do_send(MetricsChanged::new(worker, load(1)));
        }
        report(&publisher, 0, 2).await;
        settle().await;
        assert_eq!(log.workers().len() as u64, WORKERS);
        sleep(ms(100)).await;
        let before = stats(&publisher).await;
        for step in 0..10 {
            for worker in (step * 1_000)..(step * 1_000 + 1_000) {
                publisher.do_send(MetricsChanged::new(worker, load(3)));
            }
            sleep(ms(1)).await;
        }
        let now = stats(&publisher).await;
        for link in pending(&publisher).await.links {
            assert_eq!(link.windows as u64, WORKERS);
        }
        assert_eq!(live_timers(&now), 1);
        // One deadline, the first worker's, holds all the time.
        assert_eq!(now.timer.arms - before.timer.arms, 1);
        log.take();
        other.take();
        sleep(ms(100)).await;
        let sent: usize = log.take().iter().map(|seen| seen.loads.len()).sum();
        assert_eq!(sent as u64, WORKERS);
        let after = stats(&publisher).await;
        let fires = after.timer.fires - before.timer.fires;
        assert!((10..=11).contains(&fires), "one a deadline: {fires}");
        assert_eq!(live_timers(&after), 0);
    });
}

#[test]
fn g6_re_arming_follows_the_windows_and_neither_the_messages_nor_the_ticks() {
    virtual_time(async {
        let publisher = publisher(windows(10, 1_000));
        let log = attach(&publisher).await;
        report(&publisher, 1, 1).await;
        for step in 0..100 {
            for value in 0..50 {
                publisher.do_send(MetricsChanged::new(1, load(1 + value + step)));
            }
            sleep(ms(1)).await;
        }
        sleep(ms(10)).await;
        let timer = stats(&publisher).await.timer;
        // A deadline that moves back lets the timer fire at the old one, once a quiet time, and arm for the rest.
        assert!((10..=12).contains(&timer.arms), "{timer:?}");
        assert_eq!(timer.arms, timer.cancels + timer.fires);
        assert_eq!(log.take().len(), 2);
    });
}

#[test]
fn g9_the_last_of_forty_thousand_changes_in_one_burst_arrives() {
    virtual_time(async {
        let publisher = publisher(windows(1, 10));
        let log = attach(&publisher).await;
        for value in 1..=40_000 {
            publisher.do_send(MetricsChanged::new(1, load(value)));
        }
        sleep(ms(50)).await;
        assert_eq!(log.take(), [delta(0, &[(1, 1)]), delta(1, &[(1, 40_000)])]);
        let stats = stats(&publisher).await;
        assert_eq!(stats.changed, 40_000);
        assert_eq!(stats.timer.arms, 1);
    });
}

#[test]
fn g11_one_chatty_worker_postpones_nobody_and_ranks_are_separate() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let log = attach(&publisher).await;
        let second_rank = WorkerRank::new(1, 1);
        report(&publisher, 1, 0).await;
        report(&publisher, 2, 0).await;
        publisher
            .send(MetricsChanged::new(second_rank, load(0)))
            .await
            .unwrap()
            .unwrap();
        settle().await;
        log.take();
        for step in 1..=200 {
            report(&publisher, 1, step).await;
            if step == 5 {
                report(&publisher, 2, 5).await;
            }
            if step == 8 {
                let changed = MetricsChanged::new(second_rank, load(8));
                publisher.send(changed).await.unwrap().unwrap();
            }
            sleep(ms(1)).await;
        }
        // The first change came at 0, before the first millisecond had passed.
        let expected = [
            delta(14, &[(2, 5)]),
            delta(17, &[(1, 8)]),
            delta(100, &[(1, 101)]),
        ];
        assert_eq!(log.take(), expected);
    });
}

#[test]
fn g12_first_reports_departures_and_saturation_go_out_at_once() {
    virtual_time(async {
        let settings = unpaced()
            .debounce(ms(50))
            .max_delay(ms(500))
            .min_gap(ms(200))
            .saturation(0.9)
            .build()
            .unwrap();
        let publisher = publisher(settings);
        let log = attach(&publisher).await;
        sleep(ms(5)).await;
        publisher.send(WorkerJoined { worker: w(1) }).await.unwrap();
        settle().await;
        report(&publisher, 1, 5).await;
        report(&publisher, 2, 5).await;
        settle().await;
        sleep(ms(600)).await;
        report(&publisher, 1, 950).await;
        settle().await;
        publisher.send(WorkerLeft { worker: w(2) }).await.unwrap();
        settle().await;
        let joined = Seen {
            loads: vec![(1, None)],
            ..delta(5, &[])
        };
        let expected = [
            joined,
            delta(5, &[(1, 5)]),
            delta(5, &[(2, 5)]),
            delta(605, &[(1, 950)]),
            left(605, &[2]),
        ];
        assert_eq!(log.take(), expected);
        assert_eq!(stats(&publisher).await.timer.arms, 0);
    });
}

#[test]
fn g13_a_worker_that_left_is_gone_and_begins_a_new_life_when_it_comes_back() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let slow = Answer::ApplyAfter(ms(30));
        let log = attach_answering(&publisher, [Answer::Apply], slow)
            .await
            .log;
        report(&publisher, 1, 5).await;
        settle().await;
        report(&publisher, 1, 6).await;
        sleep(ms(15)).await;
        // The window's load is in flight until 40.
        publisher.send(WorkerLeft { worker: w(1) }).await.unwrap();
        publisher.send(WorkerLeft { worker: w(9) }).await.unwrap();
        report(&publisher, 1, 6).await;
        sleep(ms(100)).await;
        let back = Seen {
            left: vec![1],
            ..delta(40, &[(1, 6)])
        };
        assert_eq!(
            log.take(),
            [delta(0, &[(1, 5)]), delta(10, &[(1, 6)]), back]
        );
        let lives: Vec<_> = log.take_raw().iter().map(|s| s.workers[0].life).collect();
        assert!(lives[0] == lives[1] && lives[1] < lives[2], "{lives:?}");
        publisher.send(WorkerLeft { worker: w(1) }).await.unwrap();
        sleep(ms(100)).await;
        assert_eq!(log.workers(), [0; 0]);
        assert_eq!(stats(&publisher).await.workers, 0);
    });
}

#[test]
fn g16_bad_input_gets_a_typed_error_and_a_counter_and_changes_nothing() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let log = attach(&publisher).await;
        report(&publisher, 1, 5).await;
        settle().await;
        for (bad, text) in [
            (
                load(6).with_gpu_cache_usage_perc(f32::NAN),
                "gpu_cache_usage_perc is NaN, but must be finite",
            ),
            (
                load(6).with_gpu_prefix_cache_hit_rate(f32::NEG_INFINITY),
                "gpu_prefix_cache_hit_rate is -inf, but must be finite",
            ),
        ] {
            let refused = publisher.send(MetricsChanged::new(1, bad)).await.unwrap();
            assert!(matches!(refused, Err(InvalidMetrics::NonFinite { .. })));
            assert_eq!(refused.unwrap_err().to_string(), text);
        }
        sleep(ms(100)).await;
        assert_eq!(log.take(), [delta(0, &[(1, 5)])]);
        let stats = stats(&publisher).await;
        assert_eq!((stats.received, stats.rejected, stats.changed), (3, 2, 1));
        // Hostile but finite numbers are taken as they are.
        for worker in [0, u64::MAX] {
            let hostile = actix_kv_metrics::ForwardPassMetrics::new(u64::MAX, 0, u64::MAX);
            let rank = WorkerRank::new(worker, u32::MAX);
            publisher
                .send(MetricsChanged::new(rank, hostile))
                .await
                .unwrap()
                .unwrap();
        }
        settle().await;
        assert_eq!(log.workers(), [0, 1, u64::MAX]);
        assert!(publisher.connected());
    });
}
