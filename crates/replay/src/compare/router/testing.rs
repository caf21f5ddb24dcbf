//! What tests of several routers need.

use std::time::{Duration, Instant};

use actix_kv_metrics::{
    ForwardPassMetrics, LoadSnapshot, PublisherId, SnapshotKind, Ticket, WorkerLoad,
};

use super::{Ask, Router};
use crate::trace::Request;

pub(super) fn now() -> Instant {
    actix_kv_metrics::actix::clock::Instant::now().into_std()
}

pub(super) fn request(input_tokens: u32, hash_ids: &[u64]) -> Request {
    Request {
        arrival: Duration::ZERO,
        input_tokens,
        output_tokens: 1,
        hash_ids: hash_ids.to_vec(),
    }
}

pub(super) fn ask<'a>(request: &'a Request, overlaps: &'a [u32]) -> Ask<'a> {
    Ask {
        request,
        blocks: request.input_tokens.div_ceil(64),
        overlaps,
        truths: &[],
    }
}

fn snapshot(left: &[u64], workers: Vec<WorkerLoad>) -> LoadSnapshot {
    LoadSnapshot {
        publisher: PublisherId::new(1, 1),
        sequence: 1,
        kind: SnapshotKind::Full,
        left: left.iter().map(|worker| (*worker).into()).collect(),
        workers,
    }
}

fn load(worker: u64, metrics: Option<ForwardPassMetrics>) -> WorkerLoad {
    WorkerLoad {
        worker: worker.into(),
        life: 1,
        metrics,
        admitted: Vec::new(),
        age: Duration::ZERO,
        reported: None,
        draining: false,
    }
}

/// Workers 0 to `count`, which have reported nothing.
pub(super) fn joined(count: u64) -> LoadSnapshot {
    snapshot(&[], (0..count).map(|worker| load(worker, None)).collect())
}

pub(super) fn left(worker: u64) -> LoadSnapshot {
    snapshot(&[worker], Vec::new())
}

pub(super) fn reported(worker: u64, active: u64, total: u64, waiting: u64) -> LoadSnapshot {
    let metrics = ForwardPassMetrics::new(active, total, waiting);
    snapshot(&[], vec![load(worker, Some(metrics))])
}

/// Places requests that are all alike and cached nowhere.
pub(super) fn place_all(router: &mut dyn Router, count: usize) -> Vec<(usize, Ticket)> {
    let request = request(64, &[]);
    let ask = ask(&request, &[0; 8]);
    (0..count)
        .map(|_| router.choose(&ask, now()).unwrap())
        .collect()
}

/// How many each of the workers got.
pub(super) fn count(placed: &[(usize, Ticket)], workers: usize) -> Vec<usize> {
    let of = |worker| {
        placed
            .iter()
            .filter(|(chosen, _)| *chosen == worker)
            .count()
    };
    (0..workers).map(of).collect()
}
