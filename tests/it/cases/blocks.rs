//! What blocks cost: of engines that differ in load, and of block sizes that differ.

use actix_kv_metrics::{
    ForwardPassMetrics, RouterConfig, SelectWorker, WorkerLoad, WorkerRank, actix::clock::Instant,
    sans_io::LoadTable,
};

use crate::support::{router::*, *};

fn table(config: RouterConfig, loads: impl IntoIterator<Item = WorkerLoad>) -> LoadTable {
    let mut table = LoadTable::new(config);
    table.handle_snapshot(snapshot(P, 1, FULL, loads), Instant::now().into_std());
    table
}

/// Long requests do not stack on whom they are spread over evenly: the empty one gets more than one.
#[test]
fn case_172_an_empty_worker_among_busy_ones_gets_more_than_one_of_a_wave() {
    for seed in 0..50 {
        let config = RouterConfig::builder().seed(seed).build().unwrap();
        let busy = (2..=8).map(|worker| reports(worker, 140));
        let mut table = table(config, [reports(1, 0)].into_iter().chain(busy));
        let now = Instant::now().into_std();
        let chosen = (0..7).map(|_| table.select(&SelectWorker::blocks(20), now).unwrap());
        let empty = chosen.filter(|placed| placed.worker == w(1)).count();
        assert!((2..=6).contains(&empty), "{empty}");
    }
}

/// The same engines in the same states, in blocks of 64, 16 and 1 tokens: every cost and every choice is the same.
#[test]
fn case_174_the_size_of_a_block_changes_no_choice() {
    let of_size = |tokens: u32, seed: u64| {
        let scale = u64::from(64 / tokens);
        let config = RouterConfig::builder().seed(seed).block_tokens(tokens);
        let mut rng = fastrand::Rng::with_seed(seed);
        let loads = (1..=6).map(|worker| {
            let total = if rng.bool() { 4_096 } else { 0 };
            let load =
                ForwardPassMetrics::new(rng.u64(..4_096) * scale, total * scale, rng.u64(..4));
            let backlog = rng.bool().then(|| rng.u64(..100) * scale);
            let load = match backlog {
                Some(blocks) => load.with_num_prefill_blocks(blocks),
                None => load,
            };
            of_life(worker, 1, Some(load))
        });
        let mut table = table(config.build().unwrap(), loads.collect::<Vec<_>>());
        let now = Instant::now().into_std();
        let scale = scale as u32;
        let placed = (0..40).map(|_| {
            let request = SelectWorker::blocks(rng.u32(..128) * scale);
            let worker = WorkerRank::from(rng.u64(1..=6));
            let request = request.overlap(worker, rng.u32(..64) * scale);
            let placed = table.select(&request, now).unwrap();
            (placed.worker, placed.cost)
        });
        placed.collect::<Vec<_>>()
    };
    for seed in 0..200 {
        let of_64 = of_size(64, seed);
        assert_eq!(of_size(16, seed), of_64);
        assert_eq!(of_size(1, seed), of_64);
    }
}
