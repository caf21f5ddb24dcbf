//! The load table against a naive model, on random histories.
//!
//! The model keeps every claim on every worker and every reservation that was ever made, and finds what is to be by looking
//! at all of them; it is written from the promises, not from the table. The histories are seeded: a failure names the seed,
//! and prints a shortest history that still fails, as a list of steps.

use std::{collections::BTreeMap, fmt::Write as _};

use actix_kv_metrics::RouterConfig;

use self::{
    author::Author,
    run::{Agreement, Run, Step},
    ties::Ties,
};

mod author;
mod claims;
mod cost;
mod run;
mod sizes;
mod speakers;
mod ties;
mod truth;

const HISTORIES: u64 = 2_000;
const STEPS: usize = 100;

/// Makes a history up while it goes on. The steps that were taken, and what the table and the model differ in.
fn tell(seed: u64) -> (RouterConfig, Vec<Step>, Agreement<Run>) {
    let mut author = Author::new(seed);
    let config = author.config(seed);
    let mut run = Run::new(config.clone());
    let mut steps = Vec::new();
    for _ in 0..STEPS {
        let step = author.next(&run);
        steps.push(step);
        if let Err(difference) = run.step(&steps[steps.len() - 1]) {
            return (config, steps, Err(difference));
        }
    }
    let agreement = run.end();
    (config, steps, agreement.map(|()| run))
}

fn replay(config: &RouterConfig, steps: &[Step]) -> Agreement {
    let mut run = Run::new(config.clone());
    for step in steps {
        run.step(step)?;
    }
    run.end()
}

/// Leaves out what can be left out of a history that fails.
fn shorten(config: &RouterConfig, steps: &mut Vec<Step>) {
    let fails = |steps: &[Step]| replay(config, steps).is_err();
    for at in (0..steps.len()).rev() {
        let step = steps.remove(at);
        if !fails(steps) {
            steps.insert(at, step);
        }
    }
    for at in 0..steps.len() {
        let loads = match &steps[at] {
            Step::Snapshot(snapshot, ..) => snapshot.workers.len(),
            _ => 0,
        };
        for load in (0..loads).rev() {
            let mut shorter = steps.clone();
            if let Step::Snapshot(snapshot, ..) = &mut shorter[at] {
                snapshot.workers.remove(load);
            }
            if fails(&shorter) {
                *steps = shorter;
            }
        }
    }
}

fn print(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        writeln!(text, "  {step}").unwrap();
    }
    text
}

#[test]
fn g15_the_table_does_what_the_model_does_on_random_histories() {
    let mut ties = Ties::default();
    let mut totals = BTreeMap::new();
    for seed in 0..HISTORIES {
        let (config, mut steps, agreement) = tell(seed);
        match agreement {
            Ok(run) => {
                for (what, count) in went_to(&run).into_iter().chain(run.seen) {
                    *totals.entry(what).or_insert(0) += count;
                }
                ties.merge(run.ties);
            }
            Err(difference) => {
                shorten(&config, &mut steps);
                let short = replay(&config, &steps).unwrap_err();
                let steps = print(&steps);
                panic!(
                    "history {seed}: {difference}\n{config:?}\nthe shortest that fails, {short}:\n{steps}"
                );
            }
        }
    }
    ties.expect_even();
    for (what, count) in totals {
        assert!(count > 200, "{what}: {count} times only");
    }
}

/// Where a history was.
fn went_to(run: &Run) -> [(&'static str, u64); 19] {
    let counts = run.table.counts();
    [
        ("need_full", counts.need_full),
        ("untold", counts.untold),
        ("superseded", counts.superseded),
        ("closed", counts.closed),
        ("late_loads", counts.late_loads),
        ("changed_hands", counts.changed_hands),
        ("rejected_loads", counts.rejected_loads),
        ("removed", counts.removed),
        ("unknown_tickets", counts.unknown_tickets),
        ("not_selected", counts.not_selected),
        ("released", counts.released),
        ("unknown_releases", counts.unknown_releases),
        ("admitted", counts.admitted),
        ("settled", counts.settled),
        ("dropped", counts.dropped),
        ("expired", counts.expired),
        ("failed", counts.failed),
        ("cooled", counts.cooled),
        ("went_stale", counts.went_stale),
    ]
}
