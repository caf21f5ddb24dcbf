//! Selection side by side with the selector of `dynamo-kv-router` 1.6.1, on the registry under Apache-2.0.
//!
//! Driven through its public API as its own `worker_selection` benchmark drives it. Fair because both have the same number
//! of workers, as many of them with overlap, and the least cost is wanted (temperature 0). In its favour: the projection of
//! every worker's load, which its host makes anew for each request, is made beforehand, and it books nothing.
//!
//! Prints the findings as JSON for the main program. `--quick` for short runs.

use std::collections::{HashMap, HashSet};

use dynamo_kv_router::{
    DefaultWorkerSelector, KvRouterConfig, SchedulingRequest, WorkerLoadProjection,
    WorkerSelectionInput, WorkerSelectionPolicy, WorkerSelector,
    protocols::{RoutingConstraints, WorkerConfigLike, WorkerId, WorkerWithDpRank},
    scheduling::{OverlapSignals, ScheduleMode},
};
use kv_metrics_bench::{
    choosers::{BLOCKS, Chooser, OVERLAPS, sizes},
    measure::{Pair, nanos_per_call},
    outcome::{Row, Target},
    plots::{Plot, Series},
    rows::{Effort, Findings},
    stream::{CAPACITY, SEED},
};
use rustc_hash::FxHashMap;

fn main() -> Result<(), serde_json::Error> {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let effort = if quick { Effort::Quick } else { Effort::Full };
    serde_json::to_writer(std::io::stdout(), &findings(effort))
}

fn findings(effort: Effort) -> Findings {
    let mut findings = Findings::default();
    let mut points = Vec::new();
    let selector = DefaultWorkerSelector::new(Some(least_cost()), "prefill");
    for (workers, overlaps) in sizes() {
        let pair = against(&selector, workers, overlaps, effort);
        if overlaps == OVERLAPS {
            points.push((workers as f64, pair.opponent().median));
        }
        let target = match workers {
            10_000 => Target::AtLeast(100.0),
            _ => Target::AtLeast(1.0),
        };
        let name = format!("select, {workers} workers, {overlaps} overlaps");
        findings
            .rows
            .push(Row::speed(name, "dynamo-kv-router 1.6.1", &pair, target));
    }
    let policy = WorkerSelectionPolicy::reference(least_cost(), "prefill");
    let pair = against(&policy, 10_000, OVERLAPS, effort);
    findings.rows.push(Row::speed(
        "select, 10000 workers, 8 overlaps",
        "its reference policy",
        &pair,
        Target::Told,
    ));
    findings
        .series
        .push(Series::new(Plot::Selection, "dynamo-kv-router", points));
    findings
}

fn against(
    selector: &impl WorkerSelector<Engine>,
    workers: u64,
    overlaps: usize,
    effort: Effort,
) -> Pair {
    let mut chooser = Chooser::new(workers, overlaps);
    let (engines, requests) = (engines(workers), requests(workers, overlaps));
    let calls = effort.pick(2_000, 20_000);
    let selections_a_sample = (2_000_000 / workers).clamp(50, calls);
    Pair::alternate(
        effort.rounds(),
        || nanos_per_call(calls, |n| chooser.choose(n)),
        || {
            nanos_per_call(selections_a_sample, |n| {
                let request = &requests[n as usize % requests.len()];
                let input = WorkerSelectionInput::configured(
                    &engines,
                    request,
                    request.eligibility(),
                    TOKENS_A_BLOCK,
                );
                selector.select_worker(input).map(|chosen| chosen.worker)
            })
        },
    )
}

fn least_cost() -> KvRouterConfig {
    KvRouterConfig {
        router_temperature: 0.0,
        ..KvRouterConfig::default()
    }
}

/// A worker as its selector wants to know it.
#[derive(Default)]
struct Engine {
    taints: HashSet<String>,
}

impl WorkerConfigLike for Engine {
    fn data_parallel_start_rank(&self) -> u32 {
        0
    }

    fn data_parallel_size(&self) -> u32 {
        1
    }

    fn max_num_batched_tokens(&self) -> Option<u64> {
        None
    }

    fn total_kv_blocks(&self) -> Option<u64> {
        Some(CAPACITY)
    }

    fn taints(&self) -> &HashSet<String> {
        &self.taints
    }
}

fn engines(workers: u64) -> HashMap<WorkerId, Engine> {
    (0..workers)
        .map(|worker| (worker, Engine::default()))
        .collect()
}

/// Requests of as many blocks as ours, with overlaps on as many random workers. They differ in those only.
fn requests(workers: u64, overlaps: usize) -> Vec<SchedulingRequest> {
    let mut rng = fastrand::Rng::with_seed(SEED);
    let loads: FxHashMap<_, _> = (0..workers)
        .map(|worker| {
            let load = WorkerLoadProjection {
                active_decode_blocks: rng.usize(..CAPACITY as usize),
                active_requests: rng.usize(..4),
                ..WorkerLoadProjection::default()
            };
            (WorkerWithDpRank::from_worker_id(worker), load)
        })
        .collect();
    let request = |_| {
        let overlaps: Vec<_> = rng
            .choose_multiple(0..workers, overlaps)
            .into_iter()
            .map(|worker| (WorkerWithDpRank::from_worker_id(worker), rng.u32(1..BLOCKS)))
            .collect();
        request(&overlaps, loads.clone())
    };
    (0..REQUESTS).map(request).collect()
}

fn request(
    overlaps: &[(WorkerWithDpRank, u32)],
    worker_loads: FxHashMap<WorkerWithDpRank, WorkerLoadProjection>,
) -> SchedulingRequest {
    let tokens = |blocks: u32| (blocks * TOKENS_A_BLOCK) as usize;
    SchedulingRequest {
        mode: ScheduleMode::QueryOnly { request_id: None },
        token_seq: None,
        isl_tokens: tokens(BLOCKS),
        lora_name: None,
        expected_output_tokens: Some(256),
        affinity_target: None,
        pinned_worker: None,
        allowed_worker_ids: None,
        routing_constraints: RoutingConstraints::default(),
        router_config_override: None,
        track_prefill_tokens: true,
        priority_jump: 0.0,
        strict_priority: 0,
        policy_class: None,
        session_context: None,
        overlap: OverlapSignals {
            tier_overlap_blocks: Default::default(),
            effective_overlap_blocks: overlaps
                .iter()
                .map(|(worker, blocks)| (*worker, f64::from(*blocks)))
                .collect(),
            effective_cached_tokens: overlaps
                .iter()
                .map(|(worker, blocks)| (*worker, tokens(*blocks)))
                .collect(),
        },
        kv_transfer_candidates: None,
        retain_kv_transfer_chain: false,
        shared_cache_hits: None,
        worker_loads,
        resp_tx: None,
    }
}

const TOKENS_A_BLOCK: u32 = 16;
/// Few, so that its map of loads, one a request, stays in the caches as it would in its host.
const REQUESTS: usize = 4;
