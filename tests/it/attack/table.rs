//! The table, by random abuse: its counters' identities, its costs, its end.
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use actix_kv_metrics::{
    Candidates, ForwardPassMetrics, Freshness, LoadSnapshot, PublisherId, RouterConfig,
    SelectError, SelectWorker, SnapshotAck, SnapshotKind, Ticket, WorkerId, WorkerLoad, WorkerRank,
    sans_io::LoadTable,
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
    let mut load = |rng: &mut fastrand::Rng| WorkerLoad {
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
    for seed in 0..4000 {
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
        let mut now = Instant::now() + ms(10);
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

/// A worker's price by the public formula: overlap, active, booked, waiting.
#[test]
fn the_cheapest_of_fresh_workers_is_chosen_by_the_documented_formula() {
    for seed in 0..1500 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let saturation = rng.bool().then_some(0.8);
        let workers = *rng.choice(&[1u64, 3, 8, 40, 200]).unwrap();
        let mut config = RouterConfig::builder().seed(seed);
        if let Some(s) = saturation {
            config = config.saturation(s);
        }
        if rng.bool() {
            config = config.overlap_weight(0.0).waiting_weight(0.0);
        }
        let config = config.build().unwrap();
        let mut table = LoadTable::new(config.clone());
        let now = Instant::now();
        let mut loads: Vec<_> = (0..workers)
            .map(|w| super::load(w, 1, rng.u64(0..1000)))
            .collect();
        for load in &mut loads {
            load.metrics
                .as_mut()
                .unwrap()
                .worker_stats
                .num_requests_waiting = rng.u64(0..3);
        }
        table.handle_snapshot(
            super::snapshot((1, 1), 1, SnapshotKind::Full, vec![], loads),
            now,
        );
        for step in 0..100 {
            let blocks = rng.u32(0..40);
            let overlaps: BTreeMap<WorkerRank, u32> = (0..rng.usize(0..60))
                .map(|_| (rng.u64(0..workers + 2).into(), rng.u32(0..60)))
                .collect();
            let mut named: Vec<_> = overlaps.iter().map(|(w, b)| (*w, *b)).collect();
            rng.shuffle(&mut named);
            let mut request = SelectWorker::blocks(blocks);
            for (w, b) in named {
                request = request.overlap(w, b / 2).overlap(w, b);
            }
            let allowed: Option<Vec<WorkerRank>> = rng.bool().then(|| {
                (0..rng.usize(1..20))
                    .map(|_| rng.u64(0..workers + 1).into())
                    .collect()
            });
            if let Some(allowed) = &allowed {
                request = request.among(Candidates::Among(allowed.clone().into()));
            }
            let before = table.loads(now);
            let price = |load: &actix_kv_metrics::RankLoad| {
                let m = load.metrics.as_ref().unwrap();
                let overlap = overlaps.get(&load.worker).copied().unwrap_or(0);
                config.overlap_weight() * f64::from(blocks.saturating_sub(overlap))
                    + m.kv_stats.kv_active_blocks as f64
                    + config.booked_weight() * load.booked_blocks as f64
                    + config.waiting_weight()
                        * (load.booked_requests + m.worker_stats.num_requests_waiting) as f64
            };
            let best = before
                .workers()
                .iter()
                .filter(|l| allowed.as_ref().is_none_or(|a| a.contains(&l.worker)))
                .filter(|l| {
                    saturation.is_none_or(|s| {
                        ((l.metrics.as_ref().unwrap().kv_stats.kv_active_blocks + l.booked_blocks)
                            as f64)
                            < s * 1000.0
                    })
                })
                .map(price)
                .min_by(f64::total_cmp);
            match (table.select(&request, now), best) {
                (Ok(p), Some(best)) => {
                    assert_eq!(p.cost.total(), best, "seed {seed} step {step} {p:?}");
                    assert_eq!(price(before.get(p.worker).unwrap()), best);
                    let parts =
                        p.cost.prefill() + p.cost.active() + p.cost.booked() + p.cost.waiting();
                    assert_eq!(parts, p.cost.total());
                }
                (Err(SelectError::AllSaturated | SelectError::NoneAllowed), None) => {}
                other => panic!("seed {seed} step {step}: {other:?}"),
            }
        }
    }
}

#[test]
fn ties_are_uniform() {
    for workers in [2u64, 5, 16, 64, 300] {
        let mut table = LoadTable::new(RouterConfig::builder().seed(7).build().unwrap());
        let now = Instant::now();
        // One dearer than the rest, and none of it may be chosen.
        let mut loads: Vec<_> = (0..workers).map(|w| super::load(w, 1, 10)).collect();
        loads.push(super::load(9999, 1, 11));
        table.handle_snapshot(
            super::snapshot((1, 1), 1, SnapshotKind::Full, vec![], loads),
            now,
        );
        let n = 400 * workers;
        let mut seen: BTreeMap<WorkerRank, u64> = BTreeMap::new();
        for _ in 0..n {
            let p = table.select(&SelectWorker::blocks(4), now).unwrap();
            *seen.entry(p.worker).or_default() += 1;
            table.release(p.ticket);
        }
        assert_eq!(seen.len() as u64, workers);
        let chi: f64 = seen
            .values()
            .map(|c| (*c as f64 - 400.0).powi(2) / 400.0)
            .sum();
        let df = workers as f64 - 1.0;
        // About five standard deviations.
        assert!(
            chi < df + 5.0 * (2.0 * df).sqrt() + 10.0,
            "{workers}: {chi}"
        );
    }
}

/// Ties among workers named with overlaps, and among the rest, are one lot.
#[test]
fn ties_between_overlapped_and_other_workers_are_uniform() {
    for workers in [4u64, 100] {
        let mut table = LoadTable::new(RouterConfig::builder().seed(3).build().unwrap());
        let now = Instant::now();
        let loads: Vec<_> = (0..workers).map(|w| super::load(w, 1, 10)).collect();
        table.handle_snapshot(
            super::snapshot((1, 1), 1, SnapshotKind::Full, vec![], loads),
            now,
        );
        let mut request = SelectWorker::blocks(4);
        for w in 0..workers / 2 {
            request = request.overlap(w, 0);
        }
        let mut seen: BTreeMap<WorkerRank, u64> = BTreeMap::new();
        for _ in 0..400 * workers {
            let p = table.select(&request, now).unwrap();
            *seen.entry(p.worker).or_default() += 1;
            table.release(p.ticket);
        }
        let chi: f64 = (0..workers)
            .map(|w| {
                let c = seen.get(&w.into()).copied().unwrap_or(0);
                (c as f64 - 400.0).powi(2) / 400.0
            })
            .sum();
        let df = workers as f64 - 1.0;
        assert!(
            chi < df + 5.0 * (2.0 * df).sqrt() + 10.0,
            "{workers}: {chi} {seen:?}"
        );
    }
}

#[test]
fn among_with_duplicates_is_no_bias() {
    for workers in [4u64, 100] {
        let mut table = LoadTable::new(RouterConfig::builder().seed(3).build().unwrap());
        let now = Instant::now();
        let loads: Vec<_> = (0..workers).map(|w| super::load(w, 1, 10)).collect();
        table.handle_snapshot(
            super::snapshot((1, 1), 1, SnapshotKind::Full, vec![], loads),
            now,
        );
        let among: Arc<[WorkerRank]> = [0u64, 0, 0, 0, 0, 0, 0, 1, 777]
            .into_iter()
            .map(WorkerRank::from)
            .collect();
        let request = SelectWorker::blocks(4).among(Candidates::Among(among));
        let mut zero = 0;
        for _ in 0..2000 {
            let p = table.select(&request, now).unwrap();
            zero += u32::from(p.worker == 0.into());
            table.release(p.ticket);
        }
        assert!((900..1100).contains(&zero), "{workers}: {zero} of 2000");
    }
}

#[test]
fn errors_are_the_right_ones() {
    let now = Instant::now();
    let mut table = LoadTable::new(RouterConfig::builder().saturation(0.5).build().unwrap());
    let empty: Arc<[WorkerRank]> = Arc::from([]);
    let ask = |t: &mut LoadTable, c: Candidates| {
        t.select(&SelectWorker::blocks(1).among(c), now)
            .map(|p| p.worker)
            .unwrap_err()
    };
    assert_eq!(ask(&mut table, Candidates::Any), SelectError::NoWorkers);
    println!(
        "empty table, among empty: {:?}",
        ask(&mut table, Candidates::Among(empty.clone()))
    );
    println!(
        "empty table, rank: {:?}",
        ask(&mut table, Candidates::Rank(1.into()))
    );
    table.handle_snapshot(
        super::snapshot(
            (1, 1),
            1,
            SnapshotKind::Full,
            vec![],
            vec![super::load(1, 1, 900)],
        ),
        now,
    );
    assert_eq!(ask(&mut table, Candidates::Any), SelectError::AllSaturated);
    assert_eq!(
        ask(&mut table, Candidates::Rank(1.into())),
        SelectError::AllSaturated
    );
    assert_eq!(
        ask(&mut table, Candidates::Rank(2.into())),
        SelectError::UnknownWorker
    );
    assert_eq!(
        ask(&mut table, Candidates::Worker(WorkerId(2))),
        SelectError::UnknownWorker
    );
    assert_eq!(
        ask(&mut table, Candidates::Among(empty)),
        SelectError::NoneAllowed
    );
    assert_eq!(
        ask(
            &mut table,
            Candidates::Among(Arc::from([WorkerRank::from(2)]))
        ),
        SelectError::NoneAllowed
    );
}

#[test]
fn bad_numbers_are_refused_at_construction() {
    for bad in [f64::NAN, f64::INFINITY, -1.0, -0.1] {
        assert!(RouterConfig::builder().saturation(bad).build().is_err());
        assert!(RouterConfig::builder().overlap_weight(bad).build().is_err());
        assert!(RouterConfig::builder().booked_weight(bad).build().is_err());
        assert!(RouterConfig::builder().waiting_weight(bad).build().is_err());
        assert!(
            actix_kv_metrics::Coalescing::builder()
                .saturation(bad)
                .build()
                .is_err()
        );
        assert!(
            actix_kv_metrics::Coalescing::builder()
                .significance(bad)
                .build()
                .is_err()
        );
        assert!(
            actix_kv_metrics::KvMetricsConfig::default()
                .saturation(bad)
                .is_err()
        );
    }
    assert!(RouterConfig::builder().saturation(0.0).build().is_err());
    assert!(RouterConfig::builder().saturation(1.1).build().is_err());
    assert!(RouterConfig::builder().max_workers(0).build().is_err());
}
