//! Requests that wait for room, and what makes them wait: drains, cooling, leases, sizes.

use actix_kv_metrics::{Candidates, WorkerRank};
use fastrand::Rng;

use crate::support::router::among;

mod ends;
mod model;
mod probe;
mod served;

/// Whom a request may go to and whom not, of these.
fn restriction(rng: &mut Rng, of: [WorkerRank; 3]) -> (Candidates, Vec<WorkerRank>) {
    let [one, other, third] = of;
    let among = match rng.u8(..10) {
        0 | 1 => Candidates::Rank(one),
        2 => Candidates::Worker(one.worker()),
        3 | 4 => among([one, other]),
        _ => Candidates::Any,
    };
    let except = match rng.u8(..4) {
        0 => vec![third],
        1 => vec![third, other],
        _ => vec![],
    };
    (among, except)
}
