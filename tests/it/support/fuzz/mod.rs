//! Runs a property on drawn inputs: a small fixed set of them in `cargo test`, fresh ones for `KV_FUZZ_SECONDS` if that is
//! set. `crates/stress/fuzz.sh SECONDS` runs every target that long, with overflow checks.

// It spends real time and draws fresh seeds from it; what it drives is handed its time.
#![allow(clippy::disallowed_methods)]

pub mod table;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestCaseResult, TestError, TestRng, TestRunner},
};

/// Draws `cases` inputs, or as many as there is time for, and panics with the smallest one for which `property` fails.
#[track_caller]
pub fn fuzz<S: Strategy>(
    name: &str,
    cases: u32,
    inputs: S,
    property: impl Fn(S::Value) -> TestCaseResult,
) {
    let Some(time) = time_to_spend() else {
        batch(name, 0, cases, &inputs, &property);
        return;
    };
    let started = Instant::now();
    let first_seed = fresh_seed();
    let mut batches = 0;
    while started.elapsed() < time {
        batch(name, first_seed + batches, BATCH, &inputs, &property);
        batches += 1;
    }
    let tried = batches * u64::from(BATCH);
    eprintln!("{name}: {tried} inputs in {:.0?}", started.elapsed());
}

#[track_caller]
fn batch<S: Strategy>(
    name: &str,
    seed: u64,
    cases: u32,
    inputs: &S,
    property: impl Fn(S::Value) -> TestCaseResult,
) {
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 100_000,
        max_shrink_time: 60_000,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    match runner.run(inputs, property) {
        Ok(()) => {}
        Err(TestError::Fail(reason, input)) => {
            panic!("{name}, seed {seed}: {reason}\nsmallest input: {input:#?}")
        }
        Err(TestError::Abort(reason)) => panic!("{name}, seed {seed}: {reason}"),
    }
}

fn time_to_spend() -> Option<Duration> {
    let seconds = std::env::var("KV_FUZZ_SECONDS").ok()?;
    let seconds = seconds
        .parse()
        .expect("KV_FUZZ_SECONDS is a whole number of seconds");
    Some(Duration::from_secs(seconds))
}

fn fresh_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(1, |since| since.as_micros() as u64)
}

/// A seed that failed fails again after at most this many inputs.
const BATCH: u32 = 1_000;

/// Numbers at which arithmetic goes wrong, and small ones at which logic does.
pub fn hostile_u64() -> impl Strategy<Value = u64> + Clone {
    prop_oneof![
        8 => 0..20_u64,
        4 => 0..5_000_u64,
        1 => Just(u64::MAX),
        1 => Just(u64::MAX - 1),
        1 => Just(1 << 63),
        1 => Just((1 << 53) + 1),
        1 => Just(u64::from(u32::MAX) + 1),
        1 => any::<u64>(),
    ]
}

/// Every kind of float: subnormal, negative zero, infinite, not a number.
pub fn hostile_f32() -> impl Strategy<Value = f32> + Clone {
    prop_oneof![
        6 => Just(0.0_f32),
        6 => (0..=100_u8).prop_map(|percent| f32::from(percent) / 100.0),
        1 => Just(-0.0_f32),
        1 => Just(f32::from_bits(1)),
        1 => Just(f32::MAX),
        1 => Just(f32::INFINITY),
        1 => Just(f32::NAN),
        3 => any::<u32>().prop_map(f32::from_bits),
    ]
}

/// The same for the settings.
pub fn hostile_f64() -> impl Strategy<Value = f64> + Clone {
    let edges = [0.0, 1.0, 1e9, 0.5, 64.0];
    prop_oneof![
        4 => proptest::sample::select(edges.to_vec()),
        2 => proptest::sample::select(edges.to_vec()).prop_map(f64::next_up),
        2 => proptest::sample::select(edges.to_vec()).prop_map(f64::next_down),
        2 => 0.0..1.0_f64,
        1 => Just(-0.0_f64),
        1 => Just(f64::NAN),
        1 => Just(f64::INFINITY),
        1 => Just(f64::NEG_INFINITY),
        2 => any::<u64>().prop_map(f64::from_bits),
    ]
}
