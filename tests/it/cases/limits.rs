//! Kinds "clock and overflow", "configuration", "JSON" and "observability".

use std::time::Duration;

use crate::support::{faults::*, publishers::*, *};
use actix_kv_metrics::{
    ForwardPassMetrics, GetRouterStats, LoadSnapshot, MetricsChanged, MetricsReporter, PublisherId,
    RouterConfig, SelectWorker, SnapshotKind, Ticket, WorkerLoad, WorkerRank, actix::Addr,
};

const AGES: Duration = Duration::from_secs(u64::MAX / 10);

// Clock and overflow.

/// Case 97: windows, pauses and answers that take longer than any clock can count, by the actor.
#[test]
fn case_97_durations_near_the_top_neither_panic_nor_end_early() {
    virtual_time_within(Duration::from_secs(100 * 3_600), async {
        for (debounce, cap) in [
            (AGES, AGES),
            (Duration::MAX, Duration::MAX),
            (Duration::from_secs(u64::MAX), Duration::MAX),
            (AGES, Duration::MAX),
        ] {
            let settings = unpaced()
                .debounce(debounce)
                .max_delay(cap)
                .minor_delay(Duration::MAX)
                .min_gap(AGES)
                .build()
                .unwrap();
            let publisher = publisher(settings);
            let one = attach_answering(&publisher, [], Answer::Apply).await;
            report(&publisher, 1, 0).await;
            settle().await;
            one.log.take();
            report(&publisher, 1, 5).await;
            let minor = load(5).with_request_active_slots(3);
            publisher.do_send(MetricsChanged::new(1, minor));
            sleep(Duration::from_secs(24 * 3_600)).await;
            assert_eq!(one.log.take(), []);
            // The last value is got by asking for it, however long one would wait.
            let within = Duration::MAX;
            let flush = actix_kv_metrics::Flush { within };
            assert!(publisher.send(flush).await.unwrap().is_complete());
            assert_eq!(one.log.active(1), Some(5));
            report(&publisher, 1, 6).await;
            let shutdown = actix_kv_metrics::Shutdown { within: AGES };
            assert!(publisher.send(shutdown).await.unwrap().is_complete());
            assert_eq!(one.log.active(1), Some(6));
            assert!(one.log.snapshots() <= 2);
        }
    });
}

/// Case 97 at the router: reservations that neither settle, expire nor grow stale.
#[test]
fn case_97_a_routers_durations_may_be_for_ever() {
    virtual_time(async {
        for forever in [AGES, Duration::MAX] {
            let config = RouterConfig::builder()
                .settle(forever)
                .reservation_ttl(forever)
                .stale_after(forever);
            let router = actix_kv_metrics::RouterActor::new(config.build().unwrap());
            let router = actix_kv_metrics::actix::Actor::start(router);
            let publisher = publisher(windows(0, 0));
            attach_real(&publisher, &router).await;
            report(&publisher, 1, 0).await;
            settle().await;
            let chosen = router.send(SelectWorker::blocks(100)).await.unwrap();
            chosen.unwrap().into_ticket();
            sleep(Duration::from_secs(600)).await;
            report(&publisher, 1, 1).await;
            settle().await;
            let stats = router.send(GetRouterStats).await.unwrap();
            assert_eq!((stats.outstanding, stats.table.went_stale), (1, 0));
        }
    });
}

/// Cases 98 and 103, from a report to a choice: numbers at the end of their range cost what they say and poison no sum.
#[test]
fn case_98_numbers_at_the_end_of_their_range_poison_nothing() {
    virtual_time(async {
        let settings = unpaced()
            .debounce(ms(1))
            .significance(1.0)
            .saturation(1.0)
            .minor_delay(ms(10))
            .build()
            .unwrap();
        let publisher = publisher(settings);
        let router = router();
        attach_real(&publisher, &router).await;
        let hostile = [
            ForwardPassMetrics::new(u64::MAX, u64::MAX, u64::MAX),
            ForwardPassMetrics::new(u64::MAX, 0, 0),
            ForwardPassMetrics::new(0, 0, u64::MAX),
            ForwardPassMetrics::new(u64::MAX, 1, 0).with_gpu_cache_usage_perc(f32::MAX),
            ForwardPassMetrics::new(1, u64::MAX, 0).with_gpu_prefix_cache_hit_rate(-f32::MAX),
            ForwardPassMetrics::new(0, 1, 0)
                .with_request_active_slots(u64::MAX)
                .with_request_total_slots(u64::MAX),
        ];
        for round in 0..hostile.len() {
            for (id, metrics) in hostile.iter().cycle().skip(round).take(6).enumerate() {
                publisher.do_send(MetricsChanged::new(id as u64, metrics.clone()));
            }
            report(&publisher, 77, 3).await;
            sleep(ms(20)).await;
            for blocks in [0, u32::MAX] {
                let request = SelectWorker::blocks(blocks).overlap(77, u32::MAX);
                let chosen = router.send(request).await.unwrap().unwrap();
                assert!(chosen.cost().total().is_finite());
                assert!(chosen.cost().total() >= 0.0);
            }
        }
        // Afterwards sums are what they were: the average of what is known.
        for id in 0..6 {
            publisher.do_send(MetricsChanged::new(id, load(3)));
        }
        let joined = actix_kv_metrics::WorkerJoined { worker: w(88) };
        publisher.send(joined).await.unwrap();
        sleep(ms(20)).await;
        let pin = actix_kv_metrics::Candidates::Rank(w(88));
        let request = SelectWorker::blocks(0).among(pin);
        let unknown = router.send(request).await.unwrap().unwrap();
        assert!(unknown.cost().is_estimated());
        let share = unknown.cost().active() / 16_384.0;
        assert!((share - 0.003).abs() < 1e-9, "{share}");
        assert_eq!(
            (unknown.cost().backlog(), unknown.cost().waiting()),
            (0.0, 0.0)
        );
        assert!(publisher.connected() && router.connected());
    });
}

/// Case 61 and its neighbours: sequences and incarnations at their ends, by the router actor.
#[test]
fn case_61_sequences_and_incarnations_at_their_ends_are_compared_incarnation_first() {
    virtual_time(async {
        let router = router();
        let send = async |incarnation, sequence, kind, active| {
            let snapshot = LoadSnapshot {
                publisher: PublisherId::new(u64::MAX, incarnation),
                sequence,
                kind,
                left: Vec::new(),
                workers: vec![WorkerLoad {
                    worker: WorkerRank::new(u64::MAX, u32::MAX),
                    life: u64::MAX,
                    metrics: Some(load(active)),
                    admitted: vec![Ticket {
                        router: u64::MAX,
                        number: u64::MAX,
                    }],
                    age: Duration::MAX,
                    reported: None,
                    draining: false,
                }],
            };
            router.send(snapshot).await.unwrap().unwrap()
        };
        use actix_kv_metrics::SnapshotAck::{Applied, NeedFull, Superseded};
        let full = SnapshotKind::Full;
        assert_eq!(send(u64::MAX - 1, u64::MAX, full, 1).await, Applied);
        assert_eq!(send(u64::MAX - 1, 0, full, 2).await, Superseded);
        assert_eq!(send(u64::MAX, 0, full, 3).await, Applied);
        assert_eq!(send(u64::MAX - 1, u64::MAX, full, 4).await, Superseded);
        let after = |after| SnapshotKind::Delta { after };
        assert_eq!(send(u64::MAX, u64::MAX, after(u64::MAX), 5).await, NeedFull);
        assert_eq!(send(u64::MAX, u64::MAX, after(0), 6).await, Superseded);
        assert_eq!(send(0, 7, full, 7).await, Superseded);
        let expected = Table::from([(WorkerRank::new(u64::MAX, u32::MAX), Some(5))]);
        assert_eq!(table(&router).await, expected);
    });
}

// Observability.

/// Case 157: the counters of one batch, and the next one begins at nothing.
#[test]
fn case_157_a_batch_is_counted_when_it_is_sent() {
    virtual_time(async {
        let publisher = publisher(windows(10, 50));
        let one = attach_answering(&publisher, [], Answer::Apply).await;
        report(&publisher, 1, 0).await;
        settle().await;
        let before = stats(&publisher).await.links[0];
        for change in 1..=10 {
            report(&publisher, 1, change).await;
            sleep(ms(1)).await;
        }
        let open = stats(&publisher).await.links[0];
        assert_eq!(open.delivery.snapshots, before.delivery.snapshots);
        sleep(ms(50)).await;
        let sent = stats(&publisher).await.links[0];
        let (was, is) = (before.windows, sent.windows);
        assert_eq!((is.changed - was.changed, is.opened - was.opened), (10, 1));
        assert_eq!(
            (is.coalesced - was.coalesced, is.entries - was.entries),
            (9, 1)
        );
        assert_eq!(sent.delivery.last_age, ms(19));
        report(&publisher, 1, 99).await;
        sleep(ms(50)).await;
        let next = stats(&publisher).await.links[0];
        assert_eq!(next.delivery.last_age, ms(10));
        assert_eq!(next.delivery.max_age, ms(19));
        assert_eq!(one.log.snapshots(), 3);
    });
}

/// Case 158: DESIGN decides otherwise than the case: age is of the information, so time that a router takes is in it, of
/// what changed meanwhile; not of what was sent before.
#[test]
fn case_158_age_counts_from_the_first_difference_and_ends_when_it_is_sent() {
    virtual_time(async {
        let publisher = publisher(windows(5, 10));
        let slow = [Answer::Apply, Answer::ApplyAfter(ms(200))];
        let one = attach_answering(&publisher, slow, Answer::Apply).await;
        report(&publisher, 1, 0).await;
        settle().await;
        one.log.take_raw();
        report(&publisher, 1, 1).await;
        sleep(ms(55)).await;
        report(&publisher, 1, 2).await;
        sleep(ms(500)).await;
        let ages: Vec<_> = one
            .log
            .take_raw()
            .iter()
            .map(|it| it.workers[0].age)
            .collect();
        assert_eq!(ages, [ms(5), ms(150)]);
    });
}

/// Case 159: nothing that ended is counted as load, neither in reservations nor in reports.
#[test]
fn case_159_requests_that_ended_are_no_load() {
    virtual_time(async {
        let publisher = publisher(windows(1, 10));
        let router = router();
        attach_real(&publisher, &router).await;
        report(&publisher, 1, 0).await;
        settle().await;
        let mut active = Vec::new();
        for request in 0..145 {
            let chosen = router.send(SelectWorker::blocks(1)).await.unwrap().unwrap();
            if request % 20 == 0 && active.len() < 7 {
                active.push(chosen);
            }
        }
        settle().await;
        assert_eq!(booked(&router, 1).await, 7);
        drop(active);
        settle().await;
        assert_eq!(booked(&router, 1).await, 0);
    });
}

async fn booked(router: &Addr<actix_kv_metrics::RouterActor>, worker: u64) -> u64 {
    let loads = router.send(actix_kv_metrics::GetLoads).await.unwrap();
    loads.get(worker).unwrap().booked_requests
}

/// Case 161: an hour of silence is no illness: everything answers, and says that nothing waits.
#[test]
fn case_161_after_an_idle_hour_everything_is_well() {
    virtual_time_within(ms(2 * 3_600_000), async {
        let publisher = publisher(windows(1, 10));
        let router = router();
        attach_real(&publisher, &router).await;
        let reporter = MetricsReporter::new(&publisher, 1);
        reporter.report(load(5)).unwrap();
        sleep(ms(3_600_000)).await;
        let pending = pending(&publisher).await;
        let link = &pending.links[0];
        assert!(!link.lost && link.in_flight_for.is_none() && link.backing_off_for.is_none());
        let loads = router.send(actix_kv_metrics::GetLoads).await.unwrap();
        let load_of = loads.get(1).unwrap();
        assert_eq!(load_of.freshness, actix_kv_metrics::Freshness::Fresh);
        assert_eq!(reporter.report(load(5)), Ok(()));
        let chosen = router.send(SelectWorker::blocks(1)).await.unwrap().unwrap();
        assert_eq!(chosen.worker(), w(1));
    });
}

/// As many routers as share a fleet and more: each has its bookings settled by its own tickets.
#[test]
fn case_191_the_tickets_of_twenty_routers_are_echoed_in_one_window() {
    for by_message in [false, true] {
        virtual_time(async {
            let publisher = publisher(windows(20, 20));
            let routers: Vec<_> = (0..20).map(|_| router()).collect();
            for router in &routers {
                attach_real(&publisher, router).await;
            }
            let reporter = MetricsReporter::new(&publisher, 1);
            reporter.report(load(1)).unwrap();
            sleep(ms(100)).await;
            for router in &routers {
                for _ in 0..3 {
                    let chosen = router.send(SelectWorker::blocks(1)).await.unwrap();
                    let ticket = chosen.unwrap().into_ticket();
                    if by_message {
                        let echo = MetricsChanged::new(1, load(1)).admitted(ticket);
                        publisher.send(echo).await.unwrap().unwrap();
                    } else {
                        reporter.admitted(ticket).unwrap();
                    }
                }
            }
            reporter.report(load(61)).unwrap();
            sleep(ms(41)).await;
            for router in &routers {
                let stats = router.send(GetRouterStats).await.unwrap();
                assert_eq!((stats.outstanding, stats.table.admitted), (0, 3));
            }
            assert_eq!(stats(&publisher).await.forgotten_tickets, 0);
        });
    }
}

/// Hostile tickets pile up to 64 a worker; whoever was echoed longest ago goes first, and that is counted.
#[test]
fn case_191_beyond_64_routers_the_oldest_echo_goes_and_is_counted() {
    let ticket = |router, number| Ticket { router, number };
    for by_message in [false, true] {
        virtual_time(async {
            let publisher = publisher(windows(1, 10));
            let log = attach(&publisher).await;
            let reporter = MetricsReporter::new(&publisher, 1);
            reporter.report(load(1)).unwrap();
            let echo = async |ticket| {
                if by_message {
                    let echo = MetricsChanged::new(1, load(1)).admitted(ticket);
                    publisher.send(echo).await.unwrap().unwrap();
                } else {
                    reporter.admitted(ticket).unwrap();
                }
            };
            // The life of a router says nothing of when it was echoed last: the greatest comes first here.
            for router in (1..=64).rev() {
                echo(ticket(router, 5)).await;
            }
            echo(ticket(64, 6)).await;
            for router in 101..=140 {
                echo(ticket(router, 1)).await;
            }
            reporter.report(load(2)).unwrap();
            sleep(ms(50)).await;
            let mut told: Vec<_> = log.take_raw().pop().unwrap().workers[0]
                .admitted
                .iter()
                .map(|ticket| (ticket.router, ticket.number))
                .collect();
            told.sort_unstable();
            let kept = (1..=23).map(|router| (router, 5)).chain([(64, 6)]);
            let kept = kept.chain((101..=140).map(|router| (router, 1)));
            assert_eq!(told, Vec::from_iter(kept));
            assert_eq!(stats(&publisher).await.forgotten_tickets, 40);
        });
    }
}
