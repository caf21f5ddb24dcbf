//! What is booked on a worker, and when it ends: seen, released, expired, never lost and never doubled.

use std::time::Duration;

use crate::support::router::*;
use crate::support::unpaced;
use crate::support::{ms, settle, sleep, virtual_time, w};
use actix_kv_metrics::{
    AttachRouter, Candidates, ForwardPassMetrics, Freshness, LoadSnapshot, MetricsChanged,
    MetricsReporter, PublisherActor, PublisherConfig, RouterConfig, SelectWorker, SnapshotAck,
    Ticket, WorkerLoad, WorkerRank,
    actix::{Actor, Addr, clock},
    sans_io::LoadTable,
};

fn admits(load: WorkerLoad, tickets: &[Ticket]) -> WorkerLoad {
    WorkerLoad {
        admitted: tickets.to_vec(),
        ..load
    }
}

async fn expect_conserved(router: &Router) {
    let stats = router.stats().await;
    let table = stats.table;
    let ended = table.released + table.admitted + table.settled + table.dropped + table.expired;
    assert_eq!(
        table.selected,
        ended + stats.outstanding as u64,
        "{stats:?}"
    );
}

/// A publisher attached to a router, with the default windows.
async fn attached(router: &Router) -> Addr<PublisherActor> {
    let config = PublisherConfig::builder()
        .coalescing(unpaced().build().unwrap())
        .build();
    let publisher = PublisherActor::new(config.unwrap()).start();
    let attach = AttachRouter::new(router.0.clone().recipient());
    publisher.send(attach).await.unwrap();
    publisher
}

#[test]
fn a_selection_books_what_is_missing_and_one_request() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [reports(1, 0)]).await;
        let (_, first) = router.place(SelectWorker::blocks(64).overlap(1, 48)).await;
        let (_, second) = router.place(SelectWorker::blocks(5).overlap(1, 9)).await;
        assert_eq!(router.booked(1).await, (16, 2));
        assert_eq!((first.number, second.number), (1, 2));
        assert_eq!(first.router, second.router);
        expect_conserved(&router).await;
        assert!(router.0.connected());
    });
}

#[test]
fn an_echoed_ticket_ends_its_reservation_and_those_before_it_on_that_worker() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [reports(1, 0), reports(2, 0)]).await;
        let mut tickets = Vec::new();
        for n in 0..3 {
            tickets.push(router.book(1, 10 + n).await);
            router.book(2, 1).await;
        }
        let echo = admits(reports(1, 21), &[tickets[1]]);
        router.delta(2, [echo.clone()]).await;
        assert_eq!(router.booked(1).await, (12, 1));
        assert_eq!(router.booked(2).await, (3, 3));
        // The watermark again, with later snapshots, clears nothing more.
        router.delta(3, [echo]).await;
        assert_eq!(router.booked(1).await, (12, 1));
        assert!(!router.release(tickets[0]).await);
        assert!(router.release(tickets[2]).await);
        let counts = router.counts().await;
        assert_eq!((counts.admitted, counts.settled), (2, 0));
        expect_conserved(&router).await;
        assert!(router.0.connected());
    });
}

#[test]
fn a_ticket_ends_its_reservation_even_without_new_metrics() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [reports(1, 0), announced(2)]).await;
        let ticket = router.book(2, 10).await;
        router.delta(2, [admits(announced(2), &[ticket])]).await;
        assert_eq!(router.booked(2).await, (0, 0));
        assert_eq!(router.counts().await.admitted, 1);
        assert!(router.0.connected());
    });
}

/// Once a worker echoes, its reports alone say nothing about what it has not echoed.
#[test]
fn g15_a_snapshot_that_cannot_have_seen_a_reservation_does_not_end_it() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [reports(1, 0), reports(2, 0)]).await;
        let seen = router.book(1, 10).await;
        router.delta(2, [admits(reports(1, 10), &[seen])]).await;
        let on_its_way = router.book(1, 7).await;
        let just_made = router.book(2, 5).await;
        for step in 0..49 {
            // Worker 1 has not admitted the second; worker 2 echoes nothing and hears of its reservation too late.
            sleep(ms(1)).await;
            let loads = [admits(reports(1, step), &[seen]), reports(2, step)];
            router.delta(3 + step, loads).await;
            assert_eq!(router.booked(1).await, (7, 1), "after {step} ms");
            assert_eq!(router.booked(2).await, (5, 1), "after {step} ms");
        }
        sleep(ms(1)).await;
        // Told again, without when they reported, it is no report.
        let loads = [admits(reports(1, 99), &[seen]), reports(2, 99)];
        router.full(52, loads).await;
        assert_eq!(router.booked(1).await, (7, 1));
        assert_eq!(router.booked(2).await, (5, 1));
        let loads = [admits(reports(1, 99), &[seen]), reports(2, 99)];
        router.delta(53, loads).await;
        assert_eq!(router.booked(1).await, (7, 1));
        assert_eq!(router.booked(2).await, (0, 0));
        sleep(ms(4_949)).await;
        router.delta(54, [reports(1, 98)]).await;
        assert_eq!(router.booked(1).await, (7, 1));
        sleep(ms(1)).await;
        // An echo that does not come for `stale_after` is waited for no longer.
        router.delta(55, [reports(1, 97)]).await;
        assert_eq!(router.booked(1).await, (0, 0));
        assert!(!router.release(on_its_way).await);
        assert!(!router.release(just_made).await);
        let counts = router.counts().await;
        assert_eq!((counts.admitted, counts.settled), (1, 2));
        expect_conserved(&router).await;
        assert!(router.0.connected());
    });
}

#[test]
fn a_reservation_settles_with_the_first_report_that_is_settle_younger() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [reports(1, 0), announced(2)]).await;
        router.book(1, 10).await;
        router.book(2, 10).await;
        sleep(ms(30)).await;
        router.book(1, 20).await;
        sleep(ms(20)).await;
        // Known is not reported: worker 2 has not shown what it runs.
        router.delta(2, [reports(1, 10), announced(2)]).await;
        assert_eq!(router.booked(1).await, (20, 1));
        assert_eq!(router.booked(2).await, (10, 1));
        sleep(ms(30)).await;
        // Age alone ends nothing.
        assert_eq!(router.booked(1).await, (20, 1));
        router.delta(3, [reports(1, 10)]).await;
        assert_eq!(router.booked(1).await, (0, 0));
        assert_eq!(router.counts().await.settled, 2);
        expect_conserved(&router).await;
        assert!(router.0.connected());
    });
}

/// Through the publisher: a request of 10 s, reports each 20 ms, the first of them at once or later.
#[test]
fn g15_a_worker_that_never_echoes_has_nothing_booked_from_70_ms_on() {
    virtual_time(async {
        for offset in [0, 1, 10, 19] {
            let router = Router::new();
            let publisher = attached(&router).await;
            let reporter = MetricsReporter::new(&publisher, 1);
            reporter
                .report(ForwardPassMetrics::new(0, 1_000, 0))
                .unwrap();
            sleep(ms(50)).await;
            let booked_at = tokio::time::Instant::now();
            let ticket = router.book(1, 64).await;
            sleep(ms(offset)).await;
            let mut held_for = None;
            for pass in 1..500 {
                let metrics = ForwardPassMetrics::new(64 + pass, 1_000, 0);
                reporter.report(metrics).unwrap();
                for _ in 0..20 {
                    sleep(ms(1)).await;
                    let (blocks, requests) = router.booked(1).await;
                    if requests > 0 {
                        assert_eq!((blocks, requests), (64, 1));
                        held_for = Some(booked_at.elapsed());
                    }
                }
            }
            let held_for = held_for.unwrap();
            // Not before a report can have seen it, and not after the first that has.
            assert!(
                held_for >= ms(49) && held_for < ms(70),
                "{offset}: {held_for:?}"
            );
            assert!(!router.release(ticket).await);
            assert_eq!(router.counts().await.settled, 1);
            expect_conserved(&router).await;
            assert!(publisher.connected() && router.0.connected());
        }
    });
}

/// Through the publisher: a ticket that comes with a report, and one that comes alone.
#[test]
fn tickets_travel_with_reports_and_without() {
    virtual_time(async {
        let router = Router::new();
        let publisher = attached(&router).await;
        let reporter = MetricsReporter::new(&publisher, 1);
        let metrics = ForwardPassMetrics::new(0, 1_000, 0);
        reporter.report(metrics.clone()).unwrap();
        publisher
            .send(MetricsChanged::new(2, metrics.clone()))
            .await
            .unwrap()
            .unwrap();
        sleep(ms(50)).await;

        let first = router.book(1, 10).await;
        reporter.admitted(first).unwrap();
        reporter
            .report(ForwardPassMetrics::new(10, 1_000, 0))
            .unwrap();
        let plain = router.book(2, 10).await;
        let echo = MetricsChanged::new(2, ForwardPassMetrics::new(9, 1_000, 0)).admitted(plain);
        publisher.send(echo).await.unwrap().unwrap();
        sleep(ms(5)).await;
        assert_eq!(router.booked(1).await, (0, 0));
        assert_eq!(router.booked(2).await, (0, 0));

        // Alone it is a significant change.
        let second = router.book(1, 10).await;
        reporter.admitted(second).unwrap();
        sleep(ms(5)).await;
        assert_eq!(router.booked(1).await, (0, 0));
        let counts = router.counts().await;
        assert_eq!((counts.admitted, counts.settled), (3, 0));
        assert!(publisher.connected() && router.0.connected());
    });
}

#[test]
fn a_reservation_expires_after_its_longest_life() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [reports(1, 0)]).await;
        let ticket = router.book(1, 10).await;
        sleep(ms(10_000)).await;
        router.book(1, 20).await;
        sleep(ms(19_999)).await;
        assert_eq!(router.booked(1).await, (30, 2));
        assert_eq!(router.stats().await.outstanding, 2);
        sleep(ms(1)).await;
        // The counters expire what is over, as everything else does: nobody has chosen or looked meanwhile.
        let stats = router.stats().await;
        assert_eq!((stats.outstanding, stats.table.expired), (1, 1));
        assert_eq!(router.booked(1).await, (20, 1));
        assert!(!router.release(ticket).await);
        sleep(ms(10_000)).await;
        let selection = router.select(SelectWorker::blocks(1)).await.unwrap();
        assert_eq!(selection.cost().booked(), 0.0);
        assert_eq!(router.counts().await.expired, 2);
        expect_conserved(&router).await;
        assert!(router.0.connected());
    });
}

#[test]
fn settings_of_zero_and_without_end_are_what_they_say() {
    virtual_time(async {
        let max = Duration::MAX;
        let router = Router::with(|config| {
            config
                .reservation_ttl(max)
                .stale_after(max)
                .settle(Duration::ZERO)
        });
        router.full(1, [reports(1, 0), reports(2, 0)]).await;
        router.book(1, 10).await;
        router.book(2, 10).await;
        sleep(ms(3_000_000)).await;
        assert_eq!(router.booked(1).await, (10, 1));
        router.delta(2, [reports(1, 1)]).await;
        assert_eq!(router.booked(1).await, (0, 0));
        assert_eq!(router.booked(2).await, (10, 1));
        let router = Router::with(|config| config.reservation_ttl(Duration::ZERO));
        router.full(1, [reports(1, 0)]).await;
        router.book(1, 10).await;
        assert_eq!(router.booked(1).await, (0, 0));
        assert!(router.0.connected());
    });
}

/// Case 74: each setting is read where it belongs.
#[test]
fn settle_ttl_and_stale_after_are_told_apart() {
    virtual_time(async {
        let router = Router::with(|config| {
            config
                .settle(ms(20))
                .stale_after(ms(60))
                .reservation_ttl(ms(200))
        });
        router.full(1, [reports(1, 0), reports(2, 0)]).await;
        router.book(1, 10).await;
        router.book(2, 10).await;
        let freshness = async |worker: u64| router.loads().await.get(worker).unwrap().freshness;
        sleep(ms(19)).await;
        router.delta(2, [reports(1, 1)]).await;
        assert_eq!(router.booked(1).await, (10, 1));
        sleep(ms(1)).await;
        router.delta(3, [reports(1, 1)]).await;
        assert_eq!(router.booked(1).await, (0, 0));
        sleep(ms(39)).await;
        assert_eq!(freshness(2).await, Freshness::Fresh);
        sleep(ms(1)).await;
        assert_eq!(freshness(2).await, Freshness::Stale);
        assert_eq!(freshness(1).await, Freshness::Fresh);
        sleep(ms(139)).await;
        assert_eq!(router.booked(2).await, (10, 1));
        sleep(ms(1)).await;
        assert_eq!(router.booked(2).await, (0, 0));
        let counts = router.counts().await;
        assert_eq!(
            (counts.settled, counts.went_stale, counts.expired),
            (1, 1, 1)
        );
        assert!(router.0.connected());
    });
}

/// Reports keep a worker fresh however long its reservations last; its silence begins anew with each.
#[test]
fn a_worker_that_reports_while_it_has_reservations_is_not_stale() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [reports(1, 0)]).await;
        let held = router.select(SelectWorker::blocks(10)).await.unwrap();
        let freshness = async || router.loads().await.get(1).unwrap().freshness;
        for step in 0..5 {
            sleep(ms(4_999)).await;
            assert_eq!(freshness().await, Freshness::Fresh, "after {step} reports");
            router.delta(2 + step, [reports(1, 0)]).await;
        }
        assert_eq!(router.booked(1).await, (10, 1));
        sleep(ms(4_999)).await;
        assert_eq!(freshness().await, Freshness::Fresh);
        sleep(ms(1)).await;
        assert_eq!(freshness().await, Freshness::Stale);
        // It ends with a report, or when nothing is outstanding.
        router.delta(7, [reports(1, 0)]).await;
        assert_eq!(freshness().await, Freshness::Fresh);
        sleep(ms(5_000)).await;
        assert_eq!(freshness().await, Freshness::Stale);
        drop(held);
        settle().await;
        assert_eq!(freshness().await, Freshness::Fresh);
        sleep(ms(50_000)).await;
        assert_eq!(freshness().await, Freshness::Fresh);
        let counts = router.counts().await;
        assert_eq!((counts.expired, counts.went_stale), (0, 2));
        assert!(router.0.connected());
    });
}

/// Cases 52, 101 and 114.
#[test]
fn g15_a_release_without_a_reservation_is_counted_and_changes_nothing() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [reports(1, 5), reports(2, 5)]).await;
        let ticket = router.book(1, 10).await;
        assert!(router.release(ticket).await);
        let never = [
            ticket,
            Ticket {
                number: ticket.number + 1,
                ..ticket
            },
            Ticket {
                number: u64::MAX,
                ..ticket
            },
            Ticket {
                number: 0,
                ..ticket
            },
            Ticket {
                router: ticket.router + 1,
                ..ticket
            },
        ];
        for ticket in never {
            assert!(!router.release(ticket).await);
        }
        assert_eq!(router.booked(1).await, (0, 0));
        let counts = router.counts().await;
        assert_eq!((counts.released, counts.unknown_releases), (1, 5));
        // The next reservation has a number of its own, and the two share the ties.
        let next = router.book(1, 10).await;
        assert_eq!(next.number, ticket.number + 1);
        assert!(router.release(next).await);
        let mut first = 0;
        for _ in 0..200 {
            let selection = router.select(SelectWorker::blocks(1)).await.unwrap();
            first += u32::from(selection.worker() == w(1));
        }
        assert!((65..=135).contains(&first), "{first}");
        assert!(router.0.connected());
    });
}

#[test]
fn g16_tickets_that_were_never_issued_are_counted_and_end_nothing() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [reports(1, 0)]).await;
        let ticket = router.book(1, 10).await;
        let of = |router, number| Ticket { router, number };
        let forged = [
            of(ticket.router, ticket.number + 1),
            of(ticket.router, u64::MAX),
            of(ticket.router, 0),
        ];
        router.delta(2, [admits(reports(1, 1), &forged)]).await;
        assert_eq!(router.booked(1).await, (10, 1));
        assert_eq!(router.counts().await.unknown_tickets, 3);
        // Another router's tickets are no error; they say nothing here.
        let foreign = [of(ticket.router + 1, u64::MAX), of(0, 1)];
        router.delta(3, [admits(reports(1, 2), &foreign)]).await;
        assert_eq!(router.booked(1).await, (10, 1));
        assert_eq!(router.counts().await.unknown_tickets, 3);
        // None of them made the worker one that echoes.
        sleep(ms(50)).await;
        router.delta(4, [admits(reports(1, 3), &foreign)]).await;
        assert_eq!(router.booked(1).await, (0, 0));
        assert_eq!(router.counts().await.settled, 1);
        assert!(router.0.connected());
    });
}

#[test]
fn g13_a_new_life_and_a_departure_end_what_was_booked() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [reports(1, 0), reports(2, 0)]).await;
        let echoed = router.book(1, 1).await;
        router.delta(2, [admits(reports(1, 1), &[echoed])]).await;
        let on_former = [router.book(1, 10).await, router.book(1, 10).await];
        let on_gone = router.book(2, 10).await;
        let change = LoadSnapshot {
            left: vec![w(2)],
            ..snapshot(P, 3, after(2), [of_life(1, 2, None)])
        };
        assert_eq!(router.take(change).await, SnapshotAck::Applied);
        assert_eq!(router.booked(1).await, (0, 0));
        for ticket in [on_former[0], on_former[1], on_gone] {
            assert!(!router.release(ticket).await);
        }
        // The new life has echoed nothing yet: what it reports settles by age.
        router.book(1, 5).await;
        sleep(ms(50)).await;
        let metrics = ForwardPassMetrics::new(5, 1_000, 0);
        router.delta(4, [of_life(1, 2, Some(metrics))]).await;
        assert_eq!(router.booked(1).await, (0, 0));
        let counts = router.counts().await;
        assert_eq!((counts.dropped, counts.settled), (3, 1));
        expect_conserved(&router).await;
        assert!(router.0.connected());
    });
}

/// Case 78: neither a refreshed membership nor a full snapshot of the same values touches what is booked.
#[test]
fn a_refresh_does_not_touch_what_is_booked() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [reports(1, 0), reports(2, 0)]).await;
        for _ in 0..5 {
            router.book(1, 3).await;
        }
        router.full(2, [reports(1, 0), reports(2, 0)]).await;
        router.delta(3, [announced(1), announced(2)]).await;
        assert_eq!(router.booked(1).await, (15, 5));
        let again = snapshot(P, 3, FULL, []);
        assert_eq!(router.take(again).await, SnapshotAck::Superseded);
        assert_eq!(router.booked(1).await, (15, 5));
        assert!(router.0.connected());
    });
}

#[test]
fn dropping_a_selection_releases_it_and_into_ticket_does_not() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [reports(1, 0)]).await;
        let guard = router.select(SelectWorker::blocks(10)).await.unwrap();
        let kept = router.select(SelectWorker::blocks(20)).await.unwrap();
        let kept = kept.into_ticket();
        sleep(ms(1_000)).await;
        assert_eq!(router.booked(1).await, (30, 2));
        let ticket = guard.ticket();
        drop(guard);
        settle().await;
        assert_eq!(router.booked(1).await, (20, 1));
        assert!(!router.release(ticket).await);
        assert!(router.release(kept).await);
        // A guard whose reservation has ended meanwhile releases nothing else.
        let guard = router.select(SelectWorker::blocks(10)).await.unwrap();
        assert!(router.release(guard.ticket()).await);
        let other = router.book(1, 7).await;
        drop(guard);
        settle().await;
        assert_eq!(router.booked(1).await, (7, 1));
        assert!(router.release(other).await);
        let counts = router.counts().await;
        assert_eq!((counts.released, counts.unknown_releases), (4, 2));
        assert!(router.0.connected());
    });
}

#[test]
fn a_guard_does_not_keep_its_router_alive() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [reports(1, 0)]).await;
        let guard = router.select(SelectWorker::blocks(10)).await.unwrap();
        let weak = router.0.downgrade();
        drop(router);
        settle().await;
        assert!(weak.upgrade().is_none());
        drop(guard);
    });
}

/// Futures of selections that are dropped before they were polled, while they wait, and after they were answered.
#[test]
fn g15_a_thousand_dropped_selections_leave_nothing_booked() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, (1..=4).map(|id| reports(id, 0))).await;
        let mut rng = fastrand::Rng::with_seed(3);
        let (mut dropped_early, mut waiting) = (0, Vec::new());
        for _ in 0..1_000 {
            let choice = router.0.send(SelectWorker::blocks(rng.u32(..20)));
            match rng.u32(..4) {
                0 => {
                    dropped_early += 1;
                    drop(choice);
                }
                1 => {
                    // Dropped while it waits, or with the answer that nobody took.
                    let patience = rng.u64(..3);
                    let task = actix_kv_metrics::actix::spawn(async move {
                        let _ = tokio::time::timeout(ms(patience), choice).await;
                    });
                    if rng.bool() {
                        task.abort();
                    }
                }
                2 => waiting.push(choice),
                _ => drop(choice.await.unwrap().unwrap()),
            }
            if rng.u32(..10) == 0 {
                tokio::task::yield_now().await;
            }
            if rng.u32(..50) == 0 {
                waiting.clear();
                sleep(ms(1)).await;
            }
        }
        drop(waiting);
        sleep(ms(5)).await;
        settle().await;
        let loads = router.loads().await;
        let booked: Vec<_> = loads.workers().iter().map(|l| l.booked_requests).collect();
        assert_eq!(booked, [0; 4]);
        let stats = router.stats().await;
        assert_eq!(stats.outstanding, 0);
        // actix skips a request whose future is gone; whatever was booked was released, nothing expired.
        assert_eq!(stats.table.selected, stats.table.released);
        assert!(
            dropped_early > 200 && stats.table.selected > 250,
            "{stats:?}"
        );
        assert!(router.0.connected());
    });
}

#[test]
fn reservations_end_in_any_order_and_add_up() {
    virtual_time(async {
        let router = Router::new();
        let workers: Vec<WorkerRank> = (1..=5).map(w).collect();
        router.full(1, workers.iter().map(|w| reports(*w, 0))).await;
        let mut rng = fastrand::Rng::with_seed(8);
        let mut standing = Vec::new();
        for _ in 0..500 {
            standing.push(router.place(SelectWorker::blocks(rng.u32(..50))).await.1);
            while standing.len() > 20 {
                let ticket = standing.swap_remove(rng.usize(..standing.len()));
                assert!(router.release(ticket).await);
            }
        }
        assert_eq!(router.stats().await.outstanding, 20);
        rng.shuffle(&mut standing);
        for ticket in standing {
            assert!(router.release(ticket).await);
        }
        for worker in workers {
            assert_eq!(router.booked(worker).await, (0, 0));
        }
        expect_conserved(&router).await;
        assert!(router.0.connected());
    });
}

/// What many have left over at once is dealt with in pieces, a piece with each choice; whoever asks for figures gets the true
/// ones, and no worker is called full because of what is over.
#[test]
fn g14_many_reservations_that_are_over_end_in_pieces() {
    virtual_time(async {
        let saturated = RouterConfig::builder().saturation(0.5).seed(3);
        let mut table = LoadTable::new(saturated.build().unwrap());
        let now = clock::Instant::now().into_std();
        table.handle_snapshot(snapshot(P, 1, FULL, [reports(1, 0), reports(2, 499)]), now);
        let any = SelectWorker::blocks(0);
        let first = SelectWorker::blocks(500).among(Candidates::Rank(w(1)));
        for _ in 0..10_000 {
            let ticket = table.select(&any, now).unwrap().ticket;
            table.detach(ticket, now);
        }
        let last = table.select(&first, now).unwrap().ticket;
        table.detach(last, now);
        let later = now + ms(30_000);
        let next = table.select(&any, later).unwrap().ticket;
        assert_eq!(table.counts().expired, 1_024);
        assert!(table.release(next));
        // There is room once the last of them is over.
        let second = SelectWorker::blocks(2).among(Candidates::Rank(w(1)));
        assert!(table.select(&second, later).is_ok());
        assert_eq!(table.counts().expired, 10_001);
        assert_eq!((table.outstanding(), table.counts().went_stale), (1, 0));
    });
}
