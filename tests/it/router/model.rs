//! The load table against a naive model, on random histories.
//!
//! The model keeps every worker in a map and every reservation in a list, and prices each worker by the formula with a full
//! scan. The histories are seeded: a failure names the seed, and the same seed fails again.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use actix_kv_metrics::{
    Candidates, ForwardPassMetrics, Freshness, LoadSnapshot, PublisherId, RouterConfig,
    SelectError, SelectWorker, SnapshotAck, SnapshotKind, SpecDecodeStats, TableCounts, Ticket,
    WorkerLoad, WorkerRank,
    actix::clock,
    sans_io::{LoadTable, Placement},
};

const HISTORIES: u64 = 1_500;
const STEPS: usize = 150;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A request as the test sees it; the crate's own form hides its parts.
#[derive(Debug, Clone)]
struct Request {
    blocks: u32,
    overlaps: Vec<(WorkerRank, u32)>,
    candidates: Candidates,
}

impl Request {
    fn message(&self) -> SelectWorker {
        let mut message = SelectWorker::blocks(self.blocks).among(self.candidates.clone());
        for (worker, blocks) in &self.overlaps {
            message = message.overlap(*worker, *blocks);
        }
        message
    }

    fn overlap(&self, worker: WorkerRank) -> u32 {
        let of_worker = self.overlaps.iter().filter(|(w, _)| *w == worker);
        of_worker.map(|(_, blocks)| *blocks).max().unwrap_or(0)
    }
}

#[derive(Debug, Clone)]
struct Worker {
    owner: PublisherId,
    life: u64,
    metrics: Option<ForwardPassMetrics>,
    heard_at: Instant,
    echoes: bool,
    stale: bool,
    /// Since when it has had reservations without a report.
    silent_since: Option<Instant>,
}

#[derive(Debug, Clone)]
struct Reservation {
    ticket: Ticket,
    worker: WorkerRank,
    blocks: u32,
    at: Instant,
}

#[derive(Debug, Default)]
struct Known {
    incarnation: u64,
    sequence: Option<u64>,
    closed: bool,
}

/// Parts of a cost.
#[derive(Debug, Clone, Copy)]
struct Price {
    prefill: f64,
    active: f64,
    booked: f64,
    waiting: f64,
    estimated: bool,
}

impl Price {
    fn total(self) -> f64 {
        self.prefill + self.active + self.booked + self.waiting
    }
}

#[derive(Debug)]
struct Model {
    config: RouterConfig,
    workers: BTreeMap<WorkerRank, Worker>,
    reservations: Vec<Reservation>,
    publishers: BTreeMap<u64, Known>,
    issued: u64,
    counts: TableCounts,
}

impl Model {
    fn new(config: RouterConfig) -> Self {
        Self {
            config,
            workers: BTreeMap::new(),
            reservations: Vec::new(),
            publishers: BTreeMap::new(),
            issued: 0,
            counts: TableCounts::default(),
        }
    }

    fn snapshot(&mut self, snapshot: &LoadSnapshot, now: Instant) -> SnapshotAck {
        let PublisherId { id, incarnation } = snapshot.publisher;
        let closes = snapshot.kind == SnapshotKind::Closed;
        let known = self.publishers.entry(id).or_default();
        if incarnation > known.incarnation {
            *known = Known {
                incarnation,
                ..Known::default()
            };
        }
        let old_incarnation = incarnation < known.incarnation;
        let old_sequence = !old_incarnation
            && known.sequence.is_some_and(|last| {
                snapshot.sequence < last || (snapshot.sequence == last && !closes)
            });
        // An incarnation that ends late still takes its own workers with it.
        if old_sequence || (old_incarnation && !closes) {
            self.counts.superseded += 1;
            return SnapshotAck::Superseded;
        }
        let gap = match snapshot.kind {
            SnapshotKind::Delta { after } => known.closed || known.sequence != Some(after),
            _ => false,
        };
        if !old_incarnation {
            known.sequence = Some(snapshot.sequence);
            known.closed = closes;
        }
        if closes {
            self.counts.closed += 1;
            self.remove(|_, worker| worker.owner == snapshot.publisher);
            return SnapshotAck::Applied;
        }
        self.counts.applied += 1;
        self.remove(|rank, worker| worker.owner.id == id && snapshot.left.contains(rank));
        let mut named = Vec::new();
        for load in &snapshot.workers {
            // A late load changes nothing, but its publisher says that the worker lives.
            self.load(snapshot.publisher, load, now);
            named.push(load.worker);
        }
        if snapshot.kind == SnapshotKind::Full {
            self.remove(|rank, worker| worker.owner.id == id && !named.contains(rank));
        }
        if gap {
            self.counts.need_full += 1;
            return SnapshotAck::NeedFull;
        }
        SnapshotAck::Applied
    }

    fn load(&mut self, owner: PublisherId, load: &WorkerLoad, now: Instant) {
        let mut metrics = load.metrics.clone();
        if metrics.as_ref().is_some_and(|m| m.check().is_err()) {
            self.counts.rejected_loads += 1;
            metrics = None;
        }
        let fresh = Worker {
            owner,
            life: load.life,
            metrics: None,
            heard_at: now,
            echoes: false,
            stale: false,
            silent_since: None,
        };
        let worker = self
            .workers
            .entry(load.worker)
            .or_insert_with(|| fresh.clone());
        if load.life < worker.life {
            self.counts.late_loads += 1;
            return;
        }
        if load.life > worker.life {
            *worker = fresh;
            self.counts.dropped += end(&mut self.reservations, |b| b.worker == load.worker);
        }
        worker.owner = owner;
        self.counts.loads += 1;
        let reports = metrics.is_some();
        if reports {
            worker.metrics = metrics;
            worker.heard_at = now;
            worker.stale = false;
        }
        for ticket in &load.admitted {
            if ticket.router != ROUTER {
                continue;
            }
            if ticket.number == 0 || ticket.number > self.issued {
                self.counts.unknown_tickets += 1;
                continue;
            }
            worker.echoes = true;
            self.counts.admitted += end(&mut self.reservations, |b| {
                b.worker == load.worker && b.ticket.number <= ticket.number
            });
        }
        if reports && !worker.echoes {
            let settle = self.config.settle();
            self.counts.settled += end(&mut self.reservations, |b| {
                b.worker == load.worker && now - b.at >= settle
            });
        }
        let books = self.reservations.iter().any(|b| b.worker == load.worker);
        if reports && books {
            worker.silent_since = Some(now);
        }
        self.quiet();
    }

    /// Who has no reservation is not waited for.
    fn quiet(&mut self) {
        for (rank, worker) in &mut self.workers {
            if !self.reservations.iter().any(|b| b.worker == *rank) {
                worker.silent_since = None;
            }
        }
    }

    fn remove(&mut self, which: impl Fn(&WorkerRank, &Worker) -> bool) {
        let fits = self.workers.iter().filter(|(r, w)| which(r, w));
        let gone: Vec<_> = fits.map(|(rank, _)| *rank).collect();
        for rank in gone {
            self.workers.remove(&rank);
            self.counts.removed += 1;
            self.counts.dropped += end(&mut self.reservations, |b| b.worker == rank);
        }
    }

    fn expire(&mut self, now: Instant) {
        let ttl = self.config.reservation_ttl();
        self.counts.expired += end(&mut self.reservations, |b| now - b.at >= ttl);
        self.quiet();
        for worker in self.workers.values_mut() {
            let silent = worker.silent_since.is_some_and(|since| {
                now.saturating_duration_since(since) >= self.config.stale_after()
            });
            if silent {
                worker.stale = true;
                worker.silent_since = None;
                self.counts.went_stale += 1;
            }
        }
    }

    fn release(&mut self, ticket: Ticket) -> bool {
        let released = end(&mut self.reservations, |b| b.ticket == ticket) == 1;
        self.counts.released += u64::from(released);
        self.counts.unknown_releases += u64::from(!released);
        self.quiet();
        released
    }

    fn booked(&self, worker: WorkerRank) -> (u64, u64) {
        let own = self.reservations.iter().filter(|b| b.worker == worker);
        own.fold((0, 0), |(blocks, requests), reservation| {
            (blocks + u64::from(reservation.blocks), requests + 1)
        })
    }

    fn fresh(&self, worker: WorkerRank) -> Option<&ForwardPassMetrics> {
        let worker = &self.workers[&worker];
        worker.metrics.as_ref().filter(|_| !worker.stale)
    }

    fn is_saturated(&self, worker: WorkerRank) -> bool {
        let (Some(metrics), Some(share)) = (self.fresh(worker), self.config.saturation()) else {
            return false;
        };
        let kv = &metrics.kv_stats;
        let used = kv.kv_active_blocks as f64 + self.booked(worker).0 as f64;
        kv.kv_total_blocks > 0 && used >= share * kv.kv_total_blocks as f64
    }

    /// What the worker costs the request, by the formula.
    fn price(&self, request: &Request, worker: WorkerRank) -> Price {
        let (blocks, requests) = self.booked(worker);
        let weight = self.config.waiting_weight();
        let (active, waiting) = if let Some(metrics) = self.fresh(worker) {
            let active = metrics.kv_stats.kv_active_blocks as f64;
            (active, metrics.worker_stats.num_requests_waiting as f64)
        } else {
            let ranks = self.workers.keys();
            let fresh: Vec<_> = ranks.filter_map(|rank| self.fresh(*rank)).collect();
            let count = fresh.len().max(1) as f64;
            let sum = |of: fn(&ForwardPassMetrics) -> u64| {
                fresh.iter().map(|m| u128::from(of(m))).sum::<u128>() as f64
            };
            (
                sum(|m| m.kv_stats.kv_active_blocks) / count,
                sum(|m| m.worker_stats.num_requests_waiting) / count,
            )
        };
        let missing = request.blocks.saturating_sub(request.overlap(worker));
        Price {
            prefill: self.config.overlap_weight() * f64::from(missing),
            active,
            booked: self.config.booked_weight() * blocks as f64 + weight * requests as f64,
            waiting: weight * waiting,
            estimated: self.fresh(worker).is_none(),
        }
    }

    /// The candidates that may be chosen, each with its price.
    fn candidates(&self, request: &Request) -> Result<Vec<(WorkerRank, Price)>, SelectError> {
        let allowed = |rank: &WorkerRank| match &request.candidates {
            Candidates::Any => true,
            Candidates::Worker(id) => rank.worker() == *id,
            Candidates::Rank(pin) => rank == pin,
            Candidates::Among(ranks) => ranks.contains(rank),
        };
        let known: Vec<_> = self.workers.keys().copied().filter(allowed).collect();
        if known.is_empty() {
            return Err(match &request.candidates {
                Candidates::Rank(_) | Candidates::Worker(_) => SelectError::UnknownWorker,
                _ if self.workers.is_empty() => SelectError::NoWorkers,
                _ => SelectError::NoneAllowed,
            });
        }
        let free = known.into_iter().filter(|rank| !self.is_saturated(*rank));
        let priced: Vec<_> = free.map(|r| (r, self.price(request, r))).collect();
        if priced.is_empty() {
            return Err(SelectError::AllSaturated);
        }
        Ok(priced)
    }

    fn book(&mut self, request: &Request, placed: &Placement, now: Instant) {
        let blocks = request.blocks - request.overlap(placed.worker).min(request.blocks);
        self.issued += 1;
        assert_eq!(
            placed.ticket.number, self.issued,
            "tickets grow one by one over all workers"
        );
        self.reservations.push(Reservation {
            ticket: placed.ticket,
            worker: placed.worker,
            blocks,
            at: now,
        });
        let worker = self.workers.get_mut(&placed.worker).unwrap();
        if !worker.stale && worker.silent_since.is_none() {
            worker.silent_since = Some(now);
        }
    }
}

/// Ends the reservations that fit, and counts them.
fn end(reservations: &mut Vec<Reservation>, fits: impl Fn(&Reservation) -> bool) -> u64 {
    let before = reservations.len();
    reservations.retain(|reservation| !fits(reservation));
    (before - reservations.len()) as u64
}

/// Stands for the table's router in a generated ticket, until the table has named it.
const ROUTER: u64 = 0;

/// How often each kind of worker was chosen among equals, against how often it should have been.
#[derive(Debug, Default)]
struct Ties {
    of_kind: BTreeMap<&'static str, Tally>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    chosen: f64,
    expected: f64,
    variance: f64,
}

impl Ties {
    fn add(&mut self, equals: &[&'static str], chosen: &'static str) {
        let count = equals.len() as f64;
        for kind in ["known", "known, overlap", "unknown", "unknown, overlap"] {
            let share = equals.iter().filter(|k| **k == kind).count() as f64 / count;
            let tally = self.of_kind.entry(kind).or_default();
            tally.expected += share;
            tally.variance += share * (1.0 - share);
            tally.chosen += f64::from(u8::from(chosen == kind));
        }
    }
}

/// A table, its model, and the random history they go through.
struct History {
    rng: fastrand::Rng,
    now: Instant,
    table: LoadTable,
    model: Model,
    router: Option<u64>,
    senders: Vec<(PublisherId, u64)>,
    /// How many different loads workers mostly have: the fewer, the more ties.
    levels: u64,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut config = RouterConfig::builder()
            .seed(seed ^ 0x5eed)
            .overlap_weight(pick(&mut rng, &[1.0, 1.0, 1.0, 0.5, 2.0, 0.0]))
            .booked_weight(pick(&mut rng, &[1.0, 1.0, 10.0, 0.0]))
            .waiting_weight(pick(&mut rng, &[64.0, 64.0, 8.0, 0.0, 1e9]))
            .settle(pick(&mut rng, &[ms(50), ms(50), ms(0), Duration::MAX]))
            .reservation_ttl(pick(&mut rng, &[ms(30_000), ms(300), Duration::MAX]))
            .stale_after(pick(&mut rng, &[ms(5_000), ms(100), Duration::MAX]));
        if rng.bool() {
            config = config.saturation(pick(&mut rng, &[0.5, 0.9, 1.0]));
        }
        let config = config.build().unwrap();
        Self {
            levels: pick(&mut rng, &[1, 1, 2, 5]),
            rng,
            now: clock::Instant::now().into_std(),
            table: LoadTable::new(config.clone()),
            model: Model::new(config),
            router: None,
            senders: (1..4).map(|id| (PublisherId::new(id, 5), 0)).collect(),
        }
    }

    fn worker(&mut self) -> WorkerRank {
        WorkerRank::new(self.rng.u64(1..6), self.rng.u32(..2))
    }

    fn ticket(&mut self) -> Ticket {
        let number = match self.rng.u32(..12) {
            0 => u64::MAX,
            1 => 0,
            2 => self.model.issued + 1,
            _ => self.rng.u64(..=self.model.issued),
        };
        let foreign = self.router.is_none() || self.rng.u32(..8) == 0;
        let router = if foreign { 77 } else { ROUTER };
        Ticket { router, number }
    }

    fn metrics(&mut self) -> Option<ForwardPassMetrics> {
        let levels = self.levels;
        let small = |rng: &mut fastrand::Rng| rng.u64(..levels) * 10;
        let (active, total, waiting) = match self.rng.u32(..40) {
            0 => (u64::MAX, u64::MAX, u64::MAX),
            1 => (u64::MAX, 1, 0),
            2 => (u64::MAX, 0, 1),
            3 => (0, 0, u64::MAX),
            4..8 => return None,
            8..12 => (small(&mut self.rng), 0, 0),
            _ => {
                let waiting = self.rng.u64(..7 + levels.min(2)).saturating_sub(6);
                (small(&mut self.rng), 100, waiting)
            }
        };
        let metrics = ForwardPassMetrics::new(active, total, waiting);
        Some(match self.rng.u32(..30) {
            0 => metrics.with_gpu_cache_usage_perc(f32::NAN),
            1 => metrics.with_spec_decode_stats(SpecDecodeStats::default()),
            2 => metrics.with_request_active_slots(active),
            _ => metrics,
        })
    }

    fn load(&mut self) -> WorkerLoad {
        let worker = self.worker();
        let life = self.model.workers.get(&worker).map_or(3, |w| w.life);
        let life = match self.rng.u32(..20) {
            0 => life.saturating_sub(1),
            1 => life + 1,
            _ => life,
        };
        let tickets = if self.rng.u32(..4) == 0 {
            self.rng.usize(..3)
        } else {
            0
        };
        WorkerLoad {
            worker,
            life,
            metrics: self.metrics(),
            admitted: (0..tickets).map(|_| self.ticket()).collect(),
            age: ms(self.rng.u64(..50)),
            reported: None,
            draining: false,
        }
    }

    /// Mostly the next snapshot of a publisher, sometimes one that was lost, doubled, overtaken or is of another run.
    fn snapshot(&mut self) -> LoadSnapshot {
        let sender = self.rng.usize(..self.senders.len());
        let (mut publisher, last) = self.senders[sender];
        let mut sequence = last + 1;
        let mut after = last;
        match self.rng.u32(..30) {
            0 => sequence = last,
            1 => sequence = last.saturating_sub(self.rng.u64(1..4)),
            2 => after = last.wrapping_sub(1),
            3 => {
                sequence = last + 3;
                after = last + 2;
            }
            4 => publisher.incarnation -= 1,
            5 => {
                publisher.incarnation += 1;
                sequence = self.rng.u64(..3);
                after = sequence.saturating_sub(1);
            }
            _ => {}
        }
        let kind = match self.rng.u32(..20) {
            0 => SnapshotKind::Closed,
            1..4 => SnapshotKind::Full,
            _ => SnapshotKind::Delta { after },
        };
        if publisher.incarnation >= self.senders[sender].0.incarnation {
            self.senders[sender] = (publisher, sequence);
        }
        let (left, loads) = match kind {
            SnapshotKind::Full => (self.rng.usize(..2), self.rng.usize(..7)),
            _ => (self.rng.usize(..8).saturating_sub(5), self.rng.usize(..4)),
        };
        LoadSnapshot {
            publisher,
            sequence,
            kind,
            left: (0..left).map(|_| self.worker()).collect(),
            workers: (0..loads).map(|_| self.load()).collect(),
        }
    }

    fn request(&mut self) -> Request {
        let candidates = match self.rng.u32(..10) {
            0 => Candidates::Rank(self.worker()),
            1 => Candidates::Worker(self.worker().worker()),
            2 => {
                let count = self.rng.usize(..6);
                Candidates::Among((0..count).map(|_| self.worker()).collect())
            }
            _ => Candidates::Any,
        };
        let overlaps = self.rng.usize(..5);
        let blocks = self.rng.u32(..8) * 10;
        let mut request = Request {
            blocks,
            overlaps: (0..overlaps)
                .map(|_| (self.worker(), self.rng.u32(..=blocks / 10 + 1) * 10))
                .collect(),
            candidates,
        };
        if self.rng.u32(..3) == 0 {
            self.make_ties(&mut request);
        }
        request
    }

    /// Names overlaps that bring some workers down to the cost of the cheapest.
    fn make_ties(&mut self, request: &mut Request) {
        request.overlaps.clear();
        self.model.expire(self.now);
        let Ok(priced) = self.model.candidates(request) else {
            return;
        };
        let totals = priced.iter().map(|(_, price)| price.total());
        let least = totals.fold(f64::INFINITY, f64::min);
        for (worker, price) in priced {
            let surplus = (price.total() - least) / self.model.config.overlap_weight().max(0.1);
            if self.rng.bool() && surplus.fract() == 0.0 && surplus <= f64::from(request.blocks) {
                request.overlaps.push((worker, surplus as u32));
            }
        }
    }

    fn step(&mut self, ties: &mut Ties) {
        self.now += match self.rng.u32(..60) {
            0 => ms(31_000),
            1 => ms(6_000),
            2..6 => ms(60),
            6..30 => ms(self.rng.u64(1..30)),
            _ => ms(0),
        };
        match self.rng.u32(..10) {
            0..4 => self.take_snapshot(),
            4..8 => self.select(ties),
            8 => self.release(),
            _ => self.compare(),
        }
    }

    fn take_snapshot(&mut self) {
        let snapshot = self.snapshot();
        let expected = self.model.snapshot(&snapshot, self.now);
        let ack = self.table.handle_snapshot(self.named(snapshot), self.now);
        assert_eq!(ack, expected);
    }

    /// The snapshot with the table's own name in its tickets.
    fn named(&self, mut snapshot: LoadSnapshot) -> LoadSnapshot {
        for load in &mut snapshot.workers {
            for ticket in &mut load.admitted {
                *ticket = self.named_ticket(*ticket);
            }
        }
        snapshot
    }

    fn named_ticket(&self, ticket: Ticket) -> Ticket {
        Ticket {
            router: match ticket.router {
                ROUTER => self.router.unwrap_or(ROUTER),
                foreign => foreign,
            },
            ..ticket
        }
    }

    fn select(&mut self, ties: &mut Ties) {
        let request = self.request();
        self.model.expire(self.now);
        let expected = self.model.candidates(&request);
        let placed = self.table.select(&request.message(), self.now);
        let (priced, mut placed) = match (expected, placed) {
            (Ok(priced), Ok(placed)) => (priced, placed),
            (Err(expected), Err(error)) if error == expected => {
                self.model.counts.not_selected += 1;
                return;
            }
            (expected, placed) => panic!("{request:?}: {placed:?} instead of {expected:?}"),
        };
        self.model.counts.selected += 1;
        let least = priced.iter().map(|(_, price)| price.total());
        let least = least.fold(f64::INFINITY, f64::min);
        let mut equals = priced.iter().filter(|(_, p)| same(p.total(), least));
        let chosen = equals.find(|(worker, _)| *worker == placed.worker);
        let Some((worker, price)) = chosen else {
            panic!("{request:?}: {placed:?} is none of the cheapest of {priced:?}");
        };
        for (name, is, should) in [
            ("prefill", placed.cost.prefill(), price.prefill),
            ("active", placed.cost.active(), price.active),
            ("booked", placed.cost.booked(), price.booked),
            ("waiting", placed.cost.waiting(), price.waiting),
            ("total", placed.cost.total(), price.total()),
        ] {
            assert!(same(is, should), "{worker}: {name} is {is}, not {should}");
        }
        assert_eq!(placed.cost.is_estimated(), price.estimated);
        // Sums of this size are exact, so equal totals are equals.
        if least < 1e9 {
            let kind = |(worker, price): &(WorkerRank, Price)| match (
                price.estimated,
                request.overlap(*worker) > 0,
            ) {
                (false, false) => "known",
                (false, true) => "known, overlap",
                (true, false) => "unknown",
                (true, true) => "unknown, overlap",
            };
            let equals = priced.iter().filter(|(_, p)| p.total() == least);
            let equals: Vec<_> = equals.map(kind).collect();
            ties.add(&equals, kind(&(*worker, *price)));
        }
        assert_eq!(
            *self.router.get_or_insert(placed.ticket.router),
            placed.ticket.router
        );
        placed.ticket.router = ROUTER;
        self.model.book(&request, &placed, self.now);
    }

    fn release(&mut self) {
        let ticket = self.ticket();
        let expected = self.model.release(ticket);
        assert_eq!(self.table.release(self.named_ticket(ticket)), expected);
    }

    fn compare(&mut self) {
        self.model.expire(self.now);
        let loads = self.table.loads(self.now);
        let model = &self.model;
        let ranks: Vec<_> = loads.workers().iter().map(|load| load.worker).collect();
        let expected: Vec<_> = model.workers.keys().copied().collect();
        assert_eq!(ranks, expected);
        for load in loads.workers() {
            let worker = &model.workers[&load.worker];
            let freshness = match (&worker.metrics, worker.stale) {
                (None, _) => Freshness::Unknown,
                (Some(_), true) => Freshness::Stale,
                (Some(_), false) => Freshness::Fresh,
            };
            assert_eq!(
                (load.publisher, load.life, &load.metrics, load.freshness),
                (worker.owner, worker.life, &worker.metrics, freshness),
                "{}",
                load.worker
            );
            assert_eq!(load.age, self.now - worker.heard_at, "{}", load.worker);
            assert_eq!(
                (load.booked_blocks, load.booked_requests),
                model.booked(load.worker),
                "{}",
                load.worker
            );
            assert_eq!(
                load.saturated,
                model.is_saturated(load.worker),
                "{}",
                load.worker
            );
        }
        let counts = self.table.counts();
        assert_eq!(counts, model.counts);
        assert_eq!(self.table.len(), model.workers.len());
        assert_eq!(self.table.is_empty(), model.workers.is_empty());
        assert_eq!(self.table.outstanding(), model.reservations.len());
        let ended =
            counts.released + counts.admitted + counts.settled + counts.dropped + counts.expired;
        assert_eq!(counts.selected, ended + self.table.outstanding() as u64);
    }
}

fn pick<T: Copy>(rng: &mut fastrand::Rng, of: &[T]) -> T {
    of[rng.usize(..of.len())]
}

/// Equal but for the rounding of sums in another order.
fn same(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-12 * a.abs().max(b.abs())
}

#[test]
fn g15_the_table_does_what_the_model_does_on_random_histories() {
    let mut ties = Ties::default();
    let mut totals = TableCounts::default();
    for seed in 0..HISTORIES {
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut history = History::new(seed);
            let mut own = Ties::default();
            for _ in 0..STEPS {
                history.step(&mut own);
            }
            history.compare();
            (own, history.table.counts())
        }));
        let Ok((own, counts)) = failed else {
            panic!("history {seed} failed");
        };
        for (kind, tally) in own.of_kind {
            let sum = ties.of_kind.entry(kind).or_default();
            sum.chosen += tally.chosen;
            sum.expected += tally.expected;
            sum.variance += tally.variance;
        }
        add(&mut totals, counts);
    }
    for (kind, tally) in ties.of_kind {
        let deviations = (tally.chosen - tally.expected) / tally.variance.sqrt();
        assert!(
            tally.variance > 100.0 && deviations.abs() < 4.5,
            "{kind}: {deviations} standard deviations off: {tally:?}"
        );
    }
    // The histories went everywhere.
    for (name, count) in [
        ("need_full", totals.need_full),
        ("superseded", totals.superseded),
        ("closed", totals.closed),
        ("late_loads", totals.late_loads),
        ("rejected_loads", totals.rejected_loads),
        ("removed", totals.removed),
        ("unknown_tickets", totals.unknown_tickets),
        ("not_selected", totals.not_selected),
        ("released", totals.released),
        ("unknown_releases", totals.unknown_releases),
        ("admitted", totals.admitted),
        ("settled", totals.settled),
        ("dropped", totals.dropped),
        ("expired", totals.expired),
        ("went_stale", totals.went_stale),
    ] {
        assert!(count > 500, "{name} happened {count} times only");
    }
}

fn add(sum: &mut TableCounts, counts: TableCounts) {
    sum.need_full += counts.need_full;
    sum.superseded += counts.superseded;
    sum.closed += counts.closed;
    sum.late_loads += counts.late_loads;
    sum.rejected_loads += counts.rejected_loads;
    sum.removed += counts.removed;
    sum.unknown_tickets += counts.unknown_tickets;
    sum.not_selected += counts.not_selected;
    sum.released += counts.released;
    sum.unknown_releases += counts.unknown_releases;
    sum.admitted += counts.admitted;
    sum.settled += counts.settled;
    sum.dropped += counts.dropped;
    sum.expired += counts.expired;
    sum.went_stale += counts.went_stale;
}

/// A table of workers 1, 2, 3, … with these loads; `None`: announced only.
fn table(loads: &[Option<u64>]) -> LoadTable {
    let config = RouterConfig::builder()
        .seed(11)
        .overlap_weight(1.0)
        .waiting_weight(64.0)
        .build()
        .unwrap();
    let mut table = LoadTable::new(config);
    let workers = (1..).zip(loads).map(|(worker, active)| WorkerLoad {
        worker: WorkerRank::new(worker / 10, worker as u32 % 10),
        life: 1,
        metrics: active.map(|active| ForwardPassMetrics::new(active, 1_000, 0)),
        admitted: Vec::new(),
        age: ms(0),
        reported: None,
        draining: false,
    });
    let snapshot = LoadSnapshot {
        publisher: PublisherId::new(1, 1),
        sequence: 1,
        kind: SnapshotKind::Full,
        left: Vec::new(),
        workers: workers.collect(),
    };
    let ack = table.handle_snapshot(snapshot, clock::Instant::now().into_std());
    assert_eq!(ack, SnapshotAck::Applied);
    table
}

/// Draws often, each time from the same loads: the workers in `equals` share the draws evenly, the others get none.
#[track_caller]
fn expect_even(loads: &[Option<u64>], request: &SelectWorker, equals: &[u64]) {
    const DRAWS: u32 = 6_000;
    let mut table = table(loads);
    let now = clock::Instant::now().into_std();
    let mut drawn = BTreeMap::<u64, u32>::new();
    for _ in 0..DRAWS {
        let placed = table.select(request, now).unwrap();
        assert!(table.release(placed.ticket));
        let worker = placed.worker.worker().0 * 10 + u64::from(placed.worker.rank());
        *drawn.entry(worker).or_default() += 1;
    }
    assert_eq!(drawn.keys().copied().collect::<Vec<_>>(), equals);
    let expected = f64::from(DRAWS) / equals.len() as f64;
    let squares = drawn.values().map(|n| (f64::from(*n) - expected).powi(2));
    let chi_square = squares.sum::<f64>() / expected;
    // A chi-square with k - 1 degrees of freedom has mean k - 1 and variance 2 (k - 1).
    let freedom = equals.len() as f64 - 1.0;
    assert!(
        chi_square < freedom + 5.0 * (2.0 * freedom).sqrt() + 5.0,
        "chi-square {chi_square}: {drawn:?}"
    );
}

/// Cases 112, 115 and 116.
#[test]
fn g15_ties_among_known_workers_are_even() {
    let request = SelectWorker::blocks(10);
    expect_even(&[Some(5); 4], &request, &[1, 2, 3, 4]);
    expect_even(&[Some(5), Some(4), Some(9), Some(4)], &request, &[2, 4]);
    expect_even(&[Some(0); 9], &request, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn g15_ties_of_known_and_unknown_workers_are_even() {
    let request = SelectWorker::blocks(10);
    let loads = [Some(5), None, Some(5), None, None];
    expect_even(&loads, &request, &[1, 2, 3, 4, 5]);
    expect_even(&[None; 3], &request, &[1, 2, 3]);
    // The average is 5: neither the best nor the worst.
    expect_even(&[Some(5), None, Some(4), Some(6)], &request, &[3]);
}

#[test]
fn g15_ties_of_workers_with_and_without_overlap_are_even() {
    let request = SelectWorker::blocks(10).overlap(3, 0).overlap(0, 7);
    // 8 + 10 - 3 = 5 + 10.
    let loads = [Some(5), Some(8), Some(5), Some(9)];
    let overlap = |worker: u32, blocks| request.clone().overlap(WorkerRank::new(0, worker), blocks);
    expect_even(&loads, &overlap(2, 3), &[1, 2, 3]);
    expect_even(
        &loads,
        &overlap(2, 3).overlap(WorkerRank::new(0, 4), 4),
        &[1, 2, 3, 4],
    );
    // No overlap at all, named all the same: offered once, not twice.
    let named = overlap(1, 0).overlap(WorkerRank::new(0, 3), 0);
    expect_even(&loads, &named, &[1, 3]);
    // One of the cheapest has an overlap: it wins alone.
    expect_even(&loads, &overlap(3, 1), &[3]);
}

#[test]
fn g15_ties_across_both_orders_and_overlaps_are_even() {
    // Known: 10 and 20, average 15. The unknown ones cost 15 - 5.
    let unknown = |n| WorkerRank::new(0, n);
    let loads = [Some(10), Some(20), None, None];
    let one = SelectWorker::blocks(30).overlap(unknown(3), 5);
    expect_even(&loads, &one, &[1, 3]);
    expect_even(&loads, &one.clone().overlap(unknown(4), 5), &[1, 3, 4]);
    let all = one.overlap(unknown(4), 5).overlap(unknown(2), 10);
    expect_even(&loads, &all, &[1, 2, 3, 4]);
}

#[test]
fn g15_ties_within_a_restriction_are_even() {
    let rank = |n| WorkerRank::new(0, n);
    let loads = [Some(5), Some(3), Some(5), None, Some(5)];
    let among = |ranks: &[WorkerRank]| {
        SelectWorker::blocks(10).among(Candidates::Among(ranks.iter().copied().collect()))
    };
    // Duplicates and unknown ones weigh nothing.
    let ranks = [rank(5), rank(1), rank(1), rank(1), rank(99)];
    expect_even(&loads, &among(&ranks), &[1, 5]);
    let all = SelectWorker::blocks(10).among(Candidates::Worker(0.into()));
    expect_even(&loads, &all, &[2]);
    expect_even(&[Some(7); 5], &all, &[1, 2, 3, 4, 5]);
}
