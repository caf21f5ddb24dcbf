//! Choices: the documented price, ties, errors, settings that are refused.
use std::{collections::BTreeMap, sync::Arc};

use actix_kv_metrics::{
    Candidates, RouterConfig, RouterConfigBuilder, SelectError, SelectWorker, SnapshotKind,
    WorkerId, WorkerLoad, WorkerRank, sans_io::LoadTable,
};

/// A worker's price by the public formula: overlap, active, booked, waiting.
#[test]
fn the_cheapest_of_fresh_workers_is_chosen_by_the_documented_formula() {
    for seed in 0..1500 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let saturation = rng.bool().then_some(0.8);
        let workers = *rng.choice(&[1u64, 3, 8, 40, 200]).unwrap();
        let mut config = RouterConfig::builder().seed(seed).tie_width(0.0);
        if let Some(s) = saturation {
            config = config.saturation(s);
        }
        if rng.bool() {
            config = config.overlap_weight(0.0).waiting_weight(0.0);
        }
        let config = config.build().unwrap();
        let mut table = LoadTable::new(config.clone());
        let now = super::epoch();
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
                    + config.capacity_weight() * m.kv_stats.kv_active_blocks as f64 / 1000.0
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
                    let alike = |cost: f64| (cost - best).abs() <= 1e-9 * best;
                    assert!(alike(p.cost.total()), "seed {seed} step {step} {p:?}");
                    assert!(alike(price(before.get(p.worker).unwrap())));
                    let parts =
                        p.cost.prefill() + p.cost.active() + p.cost.booked() + p.cost.waiting();
                    assert!(alike(parts));
                }
                (Err(SelectError::AllSaturated | SelectError::NoneAllowed), None) => {}
                other => panic!("seed {seed} step {step}: {other:?}"),
            }
        }
    }
}

fn table(config: RouterConfigBuilder, loads: Vec<WorkerLoad>) -> LoadTable {
    let mut table = LoadTable::new(config.build().unwrap());
    let full = super::snapshot((1, 1), 1, SnapshotKind::Full, vec![], loads);
    table.handle_snapshot(full, super::epoch());
    table
}

fn equals(workers: u64) -> Vec<WorkerLoad> {
    (0..workers).map(|w| super::load(w, 1, 10)).collect()
}

/// Workers from 0 on are chosen evenly, each 400 times on average.
#[track_caller]
fn expect_even(table: &mut LoadTable, request: &SelectWorker, workers: u64) {
    let now = super::epoch();
    let mut seen: BTreeMap<WorkerRank, u64> = BTreeMap::new();
    for _ in 0..400 * workers {
        let p = table.select(request, now).unwrap();
        *seen.entry(p.worker).or_default() += 1;
        table.release(p.ticket);
    }
    assert_eq!(seen.len() as u64, workers);
    let chi: f64 = (0..workers)
        .map(|w| {
            let c = seen.get(&w.into()).copied().unwrap_or(0);
            (c as f64 - 400.0).powi(2) / 400.0
        })
        .sum();
    let df = workers as f64 - 1.0;
    // About five standard deviations.
    assert!(
        chi < df + 5.0 * (2.0 * df).sqrt() + 10.0,
        "{workers}: {chi} {seen:?}"
    );
}

#[test]
fn ties_are_uniform() {
    for workers in [2u64, 5, 16, 64, 300] {
        // One dearer than the rest, and none of it may be chosen.
        let mut loads = equals(workers);
        loads.push(super::load(9999, 1, 11));
        let exact = RouterConfig::builder().seed(7).tie_width(0.0);
        expect_even(&mut table(exact, loads), &SelectWorker::blocks(4), workers);
    }
}

/// Ties among workers named with overlaps, and among the rest, are one lot.
#[test]
fn ties_between_overlapped_and_other_workers_are_uniform() {
    for workers in [4u64, 100] {
        let mut request = SelectWorker::blocks(4);
        for w in 0..workers / 2 {
            request = request.overlap(w, 0);
        }
        let config = RouterConfig::builder().seed(3);
        expect_even(&mut table(config, equals(workers)), &request, workers);
    }
}

#[test]
fn among_with_duplicates_is_no_bias() {
    for workers in [4u64, 100] {
        let mut table = table(RouterConfig::builder().seed(3), equals(workers));
        let now = super::epoch();
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
    let now = super::epoch();
    let mut table = LoadTable::new(RouterConfig::builder().saturation(0.5).build().unwrap());
    let empty: Arc<[WorkerRank]> = Arc::from([]);
    let ask = |t: &mut LoadTable, c: Candidates| {
        t.select(&SelectWorker::blocks(1).among(c), now)
            .map(|p| p.worker)
            .unwrap_err()
    };
    assert_eq!(ask(&mut table, Candidates::Any), SelectError::NoWorkers);
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
