//! What workers echo, and when they say they reported.
use std::time::{Duration, Instant};

use actix_kv_metrics::{sans_io::LoadTable, *};

use super::{load, ms, sleep, snapshot, virtual_time};

/// One ticket that names this router and a number it has not drawn yet (a mistaken or forged echo) must not hide all that
/// the worker echoes afterwards: the greatest number per router is kept, and only an unknown one is told from then on.
#[test]
fn an_echo_of_a_ticket_of_the_future_does_not_hide_the_true_ones() {
    virtual_time(async {
        let kv = KvMetrics::start(KvMetricsConfig::default());
        let r = kv.reporter(1);
        r.report(ForwardPassMetrics::new(1, 1000, 0)).unwrap();
        sleep(50).await;
        let first = kv
            .select(SelectWorker::blocks(5))
            .await
            .unwrap()
            .into_ticket();
        r.admitted(first).unwrap();
        sleep(1100).await;
        let outstanding = async || kv.router().send(GetRouterStats).await.unwrap().outstanding;
        assert_eq!(outstanding().await, 0, "an echo settles");
        r.admitted(Ticket {
            router: first.router,
            number: u64::MAX,
        })
        .unwrap();
        sleep(1100).await;
        let mut seen = Vec::new();
        for n in 0..100u64 {
            let t = kv
                .select(SelectWorker::blocks(5))
                .await
                .unwrap()
                .into_ticket();
            r.admitted(t).unwrap();
            r.report(ForwardPassMetrics::new(n, 1000, 0)).unwrap();
            sleep(100).await;
            seen.push(outstanding().await);
        }
        // Each is echoed, and reported after, within 100 ms.
        assert!(seen.iter().all(|n| *n <= 1), "{seen:?}");
    });
}

/// Two lots of the same time: `reported` more than `age`, `age` more than `reported`, both endless.
#[test]
fn odd_ages_are_no_reports_of_the_future() {
    let mut table = LoadTable::new(RouterConfig::builder().build().unwrap());
    let now = super::epoch();
    for (n, (age, reported)) in [
        (Duration::ZERO, Some(Duration::MAX)),
        (Duration::MAX, Some(Duration::ZERO)),
        (Duration::MAX, Some(Duration::MAX)),
        (Duration::MAX, None),
        (ms(5), Some(ms(1))),
    ]
    .into_iter()
    .enumerate()
    {
        let mut l = load(1, 1, n as u64);
        (l.age, l.reported) = (age, reported);
        let kind = if n == 0 {
            SnapshotKind::Full
        } else {
            SnapshotKind::Delta { after: n as u64 }
        };
        let ack = table.handle_snapshot(snapshot((1, 1), n as u64 + 1, kind, vec![], vec![l]), now);
        assert_eq!(ack, SnapshotAck::Applied);
        let loads = table.loads(now);
        let row = loads.get(1).unwrap();
        assert_eq!(
            row.metrics.as_ref().unwrap().kv_stats.kv_active_blocks,
            n as u64
        );
        assert!(
            row.reported.is_none_or(|before| before == Duration::ZERO),
            "{row:?}"
        );
    }
}

/// `reported` of a bridge that holds a value for long: a value that was reported before the booking ends nothing.
#[test]
fn an_old_report_ends_no_reservation_and_a_new_one_does() {
    let mut table = LoadTable::new(RouterConfig::builder().settle(ms(50)).build().unwrap());
    let mut now = super::epoch();
    table.handle_snapshot(
        snapshot((1, 1), 1, SnapshotKind::Full, vec![], vec![load(1, 1, 1)]),
        now,
    );
    now += ms(1000);
    let t = table.select(&SelectWorker::blocks(3), now).unwrap().ticket;
    table.detach(t, now);
    let mut sequence = 1;
    let mut tell = |table: &mut LoadTable, kind, value, reported: Duration, now| {
        sequence += 1;
        let kind = if kind {
            SnapshotKind::Full
        } else {
            SnapshotKind::Delta {
                after: sequence - 1,
            }
        };
        let mut l = load(1, 1, value);
        l.reported = Some(reported);
        table.handle_snapshot(snapshot((1, 1), sequence, kind, vec![], vec![l]), now);
    };
    now += ms(500);
    for (full, value, reported) in [
        (true, 1, 500),
        (false, 2, 451),
        (true, 3, 1000),
        (false, 4, 460),
    ] {
        tell(&mut table, full, value, ms(reported), now);
        assert_eq!(table.outstanding(), 1, "{full} {value} {reported}");
    }
    tell(&mut table, false, 4, ms(450), now);
    assert_eq!(table.outstanding(), 0);
}

/// Left and told in one snapshot: removals apply before loads, so it lives, and anew.
#[test]
fn a_worker_in_both_lists_lives() {
    let mut table = LoadTable::new(RouterConfig::builder().build().unwrap());
    let now = super::epoch();
    table.handle_snapshot(
        snapshot((1, 1), 1, SnapshotKind::Full, vec![], vec![load(1, 1, 1)]),
        now,
    );
    let t = table.select(&SelectWorker::blocks(3), now).unwrap().ticket;
    let kind = SnapshotKind::Delta { after: 1 };
    table.handle_snapshot(
        snapshot(
            (1, 1),
            2,
            kind,
            vec![1.into(), 1.into()],
            vec![load(1, 2, 2), load(1, 2, 3), load(1, 1, 4)],
        ),
        now,
    );
    let loads = table.loads(now);
    assert_eq!(
        loads
            .get(1)
            .unwrap()
            .metrics
            .as_ref()
            .unwrap()
            .kv_stats
            .kv_active_blocks,
        3
    );
    assert_eq!(table.outstanding(), 0, "its former life has ended");
    assert!(!table.release(t));
}

/// 50,000 join and leave, again and again: a `Full` of one worker and a choice cost what one worker costs, after some 50 changes.
#[test]
#[expect(clippy::disallowed_methods, reason = "real time is what is measured")]
fn after_a_mass_departure_little_is_left() {
    let mut table = LoadTable::new(RouterConfig::builder().build().unwrap());
    let now = super::epoch();
    let mut sequence = 0;
    let mut tell_all = |table: &mut LoadTable, loads| {
        sequence += 1;
        let full = snapshot((1, 1), sequence, SnapshotKind::Full, vec![], loads);
        table.handle_snapshot(full, now);
    };
    for round in 0..3u64 {
        let all = (0..50_000).map(|w| load(w + 50_000 * round, round + 1, w));
        tell_all(&mut table, all.collect());
        assert_eq!(table.len(), 50_000);
    }
    tell_all(&mut table, vec![load(7, 9, 1)]);
    assert_eq!(table.len(), 1);
    let mut took = Vec::new();
    for _ in 0..100 {
        let begun = Instant::now();
        tell_all(&mut table, vec![load(7, 9, 1)]);
        let ticket = table_select(&mut table, now);
        table.release(ticket);
        took.push(begun.elapsed());
    }
    let took: Duration = took[60..].iter().sum();
    assert!(took < ms(20), "{took:?}");
}

fn table_select(table: &mut LoadTable, now: Instant) -> Ticket {
    table.select(&SelectWorker::blocks(1), now).unwrap().ticket
}

/// 100,000 publishers come, tell one worker, and say goodbye, or do not.
#[test]
fn publishers_that_come_and_go_do_not_pile_up() {
    let mut table = LoadTable::new(RouterConfig::builder().max_publishers(100).build().unwrap());
    let mut now = super::epoch();
    let mut refused = 0;
    for id in 0..100_000u64 {
        now += ms(1);
        let ack = table.handle_snapshot(
            snapshot(
                (id, 1),
                1,
                SnapshotKind::Full,
                vec![],
                vec![load(id % 50, id + 1, 1)],
            ),
            now,
        );
        if id % 2 == 0 {
            table.handle_snapshot(
                snapshot((id, 1), 2, SnapshotKind::Closed, vec![], vec![]),
                now,
            );
        }
        let heard = ack == SnapshotAck::Applied;
        assert_eq!(heard, table.counts().refused_publishers == refused, "{id}");
        refused = table.counts().refused_publishers;
    }
    assert!(table.len() <= 50);
}
