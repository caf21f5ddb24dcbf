//! A table that chooses, with its stream of requests: shared by the comparisons of selection.

use std::{collections::VecDeque, time::Instant};

use actix_kv_metrics::{
    Candidates, ForwardPassMetrics, LoadSnapshot, RouterConfig, SelectWorker, Ticket, WorkerRank,
    sans_io::LoadTable,
};

use crate::stream::{CAPACITY, SEED, Snapshots, shuffled};

/// Our table with its stream of requests.
#[derive(Debug)]
pub struct Chooser {
    table: LoadTable,
    snapshots: Snapshots,
    requests: Vec<Request>,
    outstanding: VecDeque<Ticket>,
    now: Instant,
}

impl Chooser {
    /// Over so many workers, with requests of so many overlaps.
    pub fn new(workers: u64, overlaps: usize) -> Self {
        Self::with_requests(workers, requests(workers, overlaps))
    }

    /// With requests that leave no choice, so that what is left is to book and to release.
    pub fn pinned(workers: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(SEED);
        let mut requests = requests(workers, 0);
        for Request { request, .. } in &mut requests {
            let pin = WorkerRank::from(rng.u64(..workers));
            *request = SelectWorker::blocks(BLOCKS).among(Candidates::Rank(pin));
        }
        Self::with_requests(workers, requests)
    }

    fn with_requests(workers: u64, requests: Vec<Request>) -> Self {
        let mut rng = fastrand::Rng::with_seed(SEED);
        let mut snapshots = Snapshots::of_publisher(1);
        let config = RouterConfig::builder()
            .seed(SEED)
            .build()
            .unwrap_or_default();
        let mut table = LoadTable::new(config);
        let now = Instant::now();
        let loads = shuffled(workers)
            .into_iter()
            .map(|worker| (worker, random_load(&mut rng)));
        table.handle_snapshot(snapshots.next(loads), now);
        Self {
            table,
            snapshots,
            requests,
            outstanding: VecDeque::new(),
            now,
        }
    }

    /// Chooses and books for request `n`, and releases an earlier booking.
    pub fn choose(&mut self, n: u64) -> Option<WorkerRank> {
        let chosen = self.book(n);
        if self.outstanding.len() > OUTSTANDING
            && let Some(ticket) = self.outstanding.pop_front()
        {
            self.table.release(ticket);
        }
        chosen
    }

    /// Chooses and books for request `n`.
    pub fn book(&mut self, n: u64) -> Option<WorkerRank> {
        let request = &self.requests[n as usize % self.requests.len()].request;
        let placement = self.table.select(request, self.now).ok()?;
        self.outstanding.push_back(placement.ticket);
        Some(placement.worker)
    }

    /// A snapshot of these loads.
    pub fn snapshot_of(
        &mut self,
        loads: impl IntoIterator<Item = (WorkerRank, ForwardPassMetrics)>,
    ) -> LoadSnapshot {
        self.snapshots.next(loads)
    }

    /// The table takes a snapshot over.
    pub fn apply(&mut self, snapshot: LoadSnapshot) {
        self.table.handle_snapshot(snapshot, self.now);
    }
}

/// A request, and its overlaps once more for those who need them apart.
#[derive(Debug, Clone)]
pub struct Request {
    pub request: SelectWorker,
    pub overlaps: Vec<(WorkerRank, u32)>,
}

/// Requests of 128 blocks with overlaps on as many random workers.
pub fn requests(workers: u64, overlaps: usize) -> Vec<Request> {
    let mut rng = fastrand::Rng::with_seed(SEED);
    let request = |_| {
        let mut request = SelectWorker::blocks(BLOCKS);
        let mut named = Vec::new();
        for worker in rng.choose_multiple(0..workers, overlaps) {
            let overlap = rng.u32(1..BLOCKS);
            named.push((WorkerRank::from(worker), overlap));
            request = request.overlap(worker, overlap);
        }
        Request {
            request,
            overlaps: named,
        }
    };
    (0..1_024).map(request).collect()
}

/// Any load.
pub fn random_load(rng: &mut fastrand::Rng) -> ForwardPassMetrics {
    ForwardPassMetrics::new(rng.u64(..CAPACITY), CAPACITY, rng.u64(..4))
}

/// Every number of workers with every number of overlaps that it has room for.
pub fn sizes() -> Vec<(u64, usize)> {
    let of_size = |workers: u64| {
        let mut overlaps = [0, 2, 8]
            .map(|most: u64| most.min(workers) as usize)
            .to_vec();
        overlaps.dedup();
        overlaps
            .into_iter()
            .map(move |overlaps| (workers, overlaps))
    };
    SIZES.into_iter().flat_map(of_size).collect()
}

/// Workers in the table.
const SIZES: [u64; 9] = [2, 4, 8, 16, 32, 64, 256, 1_024, 10_000];
/// Overlaps where one number of them is enough.
pub const OVERLAPS: usize = 8;
/// Blocks of a request.
pub const BLOCKS: u32 = 128;
/// Bookings that stand at any time.
pub const OUTSTANDING: usize = 64;
