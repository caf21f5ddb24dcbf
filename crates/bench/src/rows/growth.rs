//! Cost of a change through the cores, from report to table, as the workers grow at a fixed total rate of changes:
//! 100,000 a second, so a change every 10 µs of simulated time.
//!
//! Time grows with the cache misses; the target is judged by the instructions, which `crates/bench/instructions.sh` counts.

use super::{Effort, Findings};
use crate::{
    cores::InTurn,
    measure::{Pair, nanos_per_call},
    outcome::{Row, Target},
};

pub(super) fn run(effort: Effort) -> Findings {
    let mut few = InTurn::new(1_000);
    let sizes: &[u64] = effort.pick(&[4_000], &[2_000, 4_000, 8_000, 16_000, 32_000, 64_000]);
    let row = |workers: &u64| {
        let mut many = InTurn::new(*workers);
        let calls = effort.pick(20_000, 100_000);
        let pair = Pair::alternate(
            effort.rounds(),
            || nanos_per_call(calls, |_| many.change()),
            || nanos_per_call(calls, |_| few.change()),
        );
        let name = format!("cost per change, {} k workers against 1 k", workers / 1_000);
        Row::cost(name, "ours, 1 k workers", &pair, Target::Told)
    };
    Findings {
        rows: sizes.iter().map(row).collect(),
        ..Findings::default()
    }
}
