//! The table, by random abuse: its counters' identities, its costs, its end.
use std::time::{Duration, Instant};

use actix_kv_metrics::{
    Candidates, ForwardPassMetrics, Freshness, LoadSnapshot, PublisherId, RouterConfig,
    SelectWorker, SnapshotKind, Ticket, WorkerId, WorkerLoad, WorkerRank, sans_io::LoadTable,
};

use super::ms;

fn odd(rng: &mut fastrand::Rng) -> u64 {
    match rng.u8(0..10) {
        0 => 0,
        1 => u64::MAX,
        2 => u64::MAX - 1,
        3 => 1,
        4 => 1 << 63,
        _ => rng.u64(0..6),
    }
}

fn odd_duration(rng: &mut fastrand::Rng) -> Duration {
    match rng.u8(0..10) {
        0 => Duration::MAX,
        1 => Duration::from_secs(u64::MAX / 10),
        2 => Duration::from_secs(3600 * 24 * 365 * 100),
        3 => Duration::ZERO,
        4 => Duration::from_nanos(1),
        _ => ms(rng.u64(0..10_000)),
    }
}

fn odd_metrics(rng: &mut fastrand::Rng) -> Option<ForwardPassMetrics> {
    if rng.u8(0..8) == 0 {
        return None;
    }
    let mut metrics = ForwardPassMetrics::new(
        match rng.u8(0..10) {
            0 => u64::MAX,
            1 => 1 << 53,
            _ => rng.u64(0..1200),
        },
        match rng.u8(0..8) {
            0 => 0,
            1 => u64::MAX,
            2 => 1,
            _ => 1000,
        },
        match rng.u8(0..10) {
            0 => u64::MAX,
            _ => rng.u64(0..5),
        },
    );
    match rng.u8(0..30) {
        0 => metrics.kv_stats.gpu_cache_usage_perc = f32::NAN,
        1 => metrics.kv_stats.gpu_prefix_cache_hit_rate = f32::INFINITY,
        _ => {}
    }
    Some(metrics)
}

fn worker(rng: &mut fastrand::Rng) -> WorkerRank {
    match rng.u8(0..20) {
        0 => WorkerRank::new(u64::MAX, u32::MAX),
        _ => WorkerRank::new(rng.u64(0..8), rng.u32(0..2)),
    }
}

fn odd_snapshot(rng: &mut fastrand::Rng, tickets: &[Ticket]) -> LoadSnapshot {
    let kind = match rng.u8(0..10) {
        0..3 => SnapshotKind::Full,
        3 => SnapshotKind::Closed,
        _ => SnapshotKind::Delta { after: odd(rng) },
    };
    let load = |rng: &mut fastrand::Rng| WorkerLoad {
        worker: worker(rng),
        life: odd(rng),
        metrics: odd_metrics(rng),
        admitted: (0..rng.usize(0..3))
            .map(|_| match rng.u8(0..4) {
                0 => Ticket {
                    router: odd(rng),
                    number: odd(rng),
                },
                1 => Ticket {
                    router: tickets.first().map_or(1, |t| t.router),
                    number: u64::MAX,
                },
                _ if tickets.is_empty() => Ticket {
                    router: 0,
                    number: 0,
                },
                _ => tickets[rng.usize(..tickets.len())],
            })
            .collect(),
        age: odd_duration(rng),
        reported: rng.bool().then(|| odd_duration(rng)),
        draining: rng.u8(0..10) == 0,
    };
    LoadSnapshot {
        publisher: PublisherId::new(rng.u64(0..3), odd(rng)),
        sequence: odd(rng),
        kind,
        left: (0..rng.usize(0..3)).map(|_| worker(rng)).collect(),
        workers: (0..rng.usize(0..6)).map(|_| load(rng)).collect(),
    }
}

fn check(table: &mut LoadTable, now: Instant, what: &str) {
    // Twice: what is over is popped in pieces.
    let loads = table.loads(now);
    let counts = table.counts();
    let ended =
        counts.released + counts.admitted + counts.settled + counts.dropped + counts.expired;
    assert_eq!(
        counts.selected,
        ended + table.outstanding() as u64,
        "{what}: {counts:?}"
    );
    let booked: u64 = loads
        .workers()
        .iter()
        .map(|load| load.booked_requests)
        .sum();
    assert_eq!(booked, table.outstanding() as u64, "{what}: {counts:?}");
    assert_eq!(loads.len(), table.len(), "{what}");
    assert!(
        loads
            .workers()
            .windows(2)
            .all(|w| w[0].worker < w[1].worker),
        "{what}: sorted"
    );
    for load in loads.workers() {
        if let Some(metrics) = &load.metrics {
            assert!(metrics.check().is_ok(), "{what}: {load:?}");
        }
        if load.booked_requests == 0 {
            assert_eq!(load.booked_blocks, 0, "{what}: {load:?}");
            assert_ne!(load.freshness, Freshness::Stale, "{what}: {load:?}");
        }
        assert_eq!(
            load.freshness == Freshness::Unknown,
            load.metrics.is_none(),
            "{what}: {load:?}"
        );
    }
}

#[test]
fn random_abuse_of_the_table_keeps_its_identities() {
    for seed in 0..1200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut config = RouterConfig::builder().seed(seed).settle(ms(50));
        if rng.bool() {
            config = config.saturation(0.9);
        }
        if rng.u8(0..4) == 0 {
            config = config.max_publishers(rng.usize(1..4));
        }
        if rng.u8(0..4) == 0 {
            config = config.max_workers(rng.usize(1..6));
        }
        if rng.u8(0..8) == 0 {
            config = config
                .reservation_ttl(Duration::MAX)
                .stale_after(Duration::MAX);
        }
        if rng.u8(0..8) == 0 {
            config = config
                .reservation_ttl(Duration::ZERO)
                .stale_after(Duration::ZERO)
                .settle(Duration::ZERO);
        }
        let most = config.clone().build().unwrap().max_workers();
        let mut table = LoadTable::new(config.build().unwrap());
        let mut now = super::epoch() + ms(10);
        let mut tickets: Vec<Ticket> = Vec::new();
        for step in 0..rng.usize(1..200) {
            now = match rng.u8(0..12) {
                0 => now + ms(rng.u64(0..8000)),
                1 => now.checked_sub(ms(1)).unwrap(),
                2 => now,
                _ => now + ms(rng.u64(0..40)),
            };
            let what = format!("seed {seed} step {step}");
            match rng.u8(0..8) {
                0..3 => {
                    let snapshot = odd_snapshot(&mut rng, &tickets);
                    if rng.bool() {
                        table.handle_snapshot(snapshot, now);
                    } else {
                        let mut partial = table.begin_snapshot(snapshot);
                        while table.continue_snapshot(&mut partial, 1, now).is_none() {
                            if rng.bool()
                                && let Ok(p) = table.select(&SelectWorker::blocks(3), now)
                            {
                                tickets.push(p.ticket);
                            }
                            if rng.u8(0..4) == 0
                                && let Some(t) = tickets.last()
                            {
                                table.detach(*t, now);
                            }
                            now += ms(rng.u64(0..3));
                        }
                    }
                }
                3..6 => {
                    let blocks = match rng.u8(0..8) {
                        0 => 0,
                        1 => u32::MAX,
                        _ => rng.u32(0..100),
                    };
                    let mut request = SelectWorker::blocks(blocks);
                    for _ in 0..rng.usize(0..50) {
                        request = request.overlap(
                            worker(&mut rng),
                            if rng.bool() { u32::MAX } else { rng.u32(0..60) },
                        );
                    }
                    request = match rng.u8(0..6) {
                        0 => request.among(Candidates::Rank(worker(&mut rng))),
                        1 => request.among(Candidates::Worker(WorkerId(rng.u64(0..9)))),
                        2 => request.among(Candidates::Among(
                            (0..rng.usize(0..5)).map(|_| worker(&mut rng)).collect(),
                        )),
                        _ => request,
                    };
                    let before = table.loads(now);
                    if let Ok(placed) = table.select(&request, now) {
                        assert!(placed.cost.total().is_finite(), "{what}");
                        assert!(
                            before.get(placed.worker).is_some(),
                            "{what}: chose an unknown worker"
                        );
                        tickets.push(placed.ticket);
                    }
                }
                6 => {
                    if let Some(t) = rng.choice(&tickets) {
                        table.release(*t);
                    }
                    table.release(Ticket {
                        router: odd(&mut rng),
                        number: odd(&mut rng),
                    });
                }
                _ => {
                    if let Some(t) = rng.choice(&tickets) {
                        table.detach(*t, now);
                    }
                    table.detach(
                        Ticket {
                            router: odd(&mut rng),
                            number: odd(&mut rng),
                        },
                        now,
                    );
                }
            }
            check(&mut table, now, &what);
            assert!(table.len() <= most, "{what}");
        }
        for ticket in &tickets {
            table.release(*ticket);
        }
        check(&mut table, now, &format!("seed {seed} end"));
        assert_eq!(table.outstanding(), 0, "seed {seed}");
        for load in table.loads(now).workers() {
            assert_eq!((load.booked_blocks, load.booked_requests), (0, 0));
        }
    }
}
