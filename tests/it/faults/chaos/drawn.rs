//! Settings and values that are drawn.

use crate::support::{ms, unpaced};
use actix_kv_metrics::{
    Coalescing, ForwardPassMetrics, RouterActor, RouterConfig,
    actix::{Actor, Addr, Supervisor},
};
use fastrand::Rng;

/// A router, and whether a supervisor starts it again.
pub fn router(rng: &mut Rng) -> (Addr<RouterActor>, bool) {
    let config = RouterConfig::builder().seed(7).build().unwrap();
    let supervised = rng.bool();
    let router = if supervised {
        Supervisor::start(move |_| RouterActor::new(config))
    } else {
        RouterActor::new(config).start()
    };
    (router, supervised)
}

pub fn coalescing(rng: &mut Rng) -> Coalescing {
    unpaced()
        .debounce(ms(rng.u64(..5)))
        .max_delay(ms(5 + rng.u64(..=MAX_DELAY - 5)))
        .minor_delay(ms(MINOR_DELAY))
        .min_gap(ms(rng.u64(..=MIN_GAP)))
        .urgent_gap(ms(rng.u64(..3)))
        .leading(rng.bool())
        .saturation(0.9)
        .significance(if rng.bool() { 0.0 } else { 0.05 })
        .build()
        .unwrap()
}

pub fn metrics(rng: &mut Rng) -> ForwardPassMetrics {
    ForwardPassMetrics::new(rng.u64(..1_000), 1_000, rng.u64(..2))
        .with_request_active_slots(rng.u64(..3))
        .with_gpu_prefix_cache_hit_rate(rng.f32())
}

/// Settings of the publishers in milliseconds, at most.
pub const BACKOFF: u64 = 80;
const MAX_DELAY: u64 = 14;
const MINOR_DELAY: u64 = 30;
const MIN_GAP: u64 = 5;
/// Once nothing is on its way any more, a link waits for the end of its backoff and sends a change; the answer may be that
/// the router wants everything, which it gets at once. What fell due meanwhile, or falls due at the latest by a minor
/// window or as word of a worker that still reports, leaves `min_gap` later. Each of the four deadlines may be met one tick
/// late.
pub const BOUND: u64 = BACKOFF + MAX_DELAY + MINOR_DELAY + MIN_GAP + 4;
