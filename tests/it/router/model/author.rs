//! Makes histories up: mostly what publishers and requests do, with everything that can go wrong on the way.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use actix_kv_metrics::{
    Candidates, ForwardPassMetrics, LoadSnapshot, PublisherId, RouterConfig, SnapshotAck,
    SnapshotKind, SpecDecodeStats, Ticket, WorkerLoad, WorkerRank,
};

use super::{
    cost::Request,
    run::{Run, Step},
    truth::ROUTER,
};

#[derive(Debug)]
pub(super) struct Author {
    rng: fastrand::Rng,
    senders: Vec<Sender>,
    /// The sender of the last snapshot.
    last: usize,
    /// How many different loads workers mostly have: the fewer, the more ties.
    levels: u64,
    /// Workers may tell their backlog.
    backlogs: bool,
    /// Requests may fail, and workers may drain.
    fails: bool,
    /// How many workers of two ranks there are: the fewer, the more is said of each.
    workers: u64,
}

/// One that speaks as a publisher.
#[derive(Debug, Clone)]
struct Sender {
    publisher: PublisherId,
    sequence: u64,
    /// It was asked for everything.
    asked: bool,
    /// What it has said of its workers, and when they had reported.
    said: BTreeMap<WorkerRank, (WorkerLoad, Option<Instant>)>,
}

impl Sender {
    fn new(id: u64, incarnation: u64) -> Self {
        Self {
            publisher: PublisherId::new(id, incarnation),
            sequence: 0,
            asked: true,
            said: BTreeMap::new(),
        }
    }
}

impl Author {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let publishers = pick(&mut rng, &[1, 2, 2, 3, 3]);
        Self {
            levels: pick(&mut rng, &[1, 1, 2, 5]),
            backlogs: rng.bool(),
            fails: rng.u32(..5) < 2,
            senders: (1..=publishers).map(|id| Sender::new(id, 5)).collect(),
            last: 0,
            workers: pick(&mut rng, &[1, 2, 3, 3]),
            rng,
        }
    }

    pub(super) fn config(&mut self, seed: u64) -> RouterConfig {
        let rng = &mut self.rng;
        let mut config = RouterConfig::builder()
            .seed(seed ^ 0x5eed)
            .overlap_weight(pick(rng, &[1.0, 1.0, 1.0, 0.5, 2.0, 0.0]))
            .prefill_weight(pick(rng, &[1.0, 1.0, 4.0, 0.0]))
            .booked_weight(pick(rng, &[1.0, 1.0, 10.0, 0.0]))
            .capacity_weight(pick(rng, &[1_000.0, 1_000.0, 500.0, 0.0]))
            .block_tokens(pick(rng, &[64, 64, 64, 16, 1]))
            .tie_width(pick(rng, &[0.0, 0.0, 0.0, 0.0, 0.0, 8.0, 200.0]))
            .waiting_weight(pick(rng, &[64.0, 64.0, 8.0, 0.0, 1e9]))
            .settle(pick(rng, &[ms(50), ms(50), ms(0), Duration::MAX]))
            .reservation_ttl(pick(rng, &[ms(30_000), ms(300), Duration::MAX]))
            .stale_after(pick(rng, &[ms(5_000), ms(100), ms(100), Duration::MAX]));
        if rng.bool() {
            config = config.saturation(pick(rng, &[0.5, 0.9, 1.0]));
        }
        config.build().unwrap()
    }

    pub(super) fn next(&mut self, run: &Run) -> Step {
        if run.ack == Some(SnapshotAck::NeedFull) {
            self.senders[self.last].asked = true;
        }
        if run.truth.taking.is_some() && self.rng.u32(..3) > 0 {
            return Step::Continue(self.rng.usize(1..3));
        }
        match self.rng.u32(..20) {
            0..5 => Step::Wait(self.pause(run)),
            5..12 => self.snapshot(run),
            12..16 => Step::Select(self.request(run)),
            16..19 if self.rng.bool() => Step::Detach(self.ticket(run)),
            16..18 if self.fails => Step::Fail(self.ticket(run)),
            _ => Step::Release(self.ticket(run)),
        }
    }

    /// Some milliseconds, a silence, or the time until right about when something is to happen.
    fn pause(&mut self, run: &Run) -> Duration {
        let moments = run.truth.moments().into_iter();
        let ahead: Vec<_> = moments.filter(|at| *at > run.now).collect();
        match self.rng.u32(..30) {
            0 => ms(31_000),
            1 => ms(6_000),
            2..6 => ms(60),
            6..16 if !ahead.is_empty() => {
                let until = ahead[self.rng.usize(..ahead.len())] - run.now;
                if until > ms(100_000) {
                    return ms(1);
                }
                match self.rng.u32(..4) {
                    0 => until.saturating_sub(ms(1)),
                    1 => until + ms(1),
                    _ => until,
                }
            }
            _ => ms(self.rng.u64(..30)),
        }
    }

    fn worker(&mut self) -> WorkerRank {
        WorkerRank::new(self.rng.u64(1..=self.workers), self.rng.u32(..2))
    }

    fn ticket(&mut self, run: &Run) -> Ticket {
        let issued = run.truth.bookings.len() as u64;
        let number = match self.rng.u32(..24) {
            0 => u64::MAX,
            1 => 0,
            2 => issued + 1,
            3..8 => self.rng.u64(..=issued),
            _ => self.rng.u64(issued.saturating_sub(5)..=issued),
        };
        let foreign = issued == 0 || self.rng.u32(..12) == 0;
        let router = if foreign { 77 } else { ROUTER };
        Ticket { router, number }
    }

    fn metrics(&mut self) -> Option<ForwardPassMetrics> {
        let levels = self.levels;
        let small = |rng: &mut fastrand::Rng| rng.u64(..levels) * 10;
        let (active, total, waiting) = match self.rng.u32(..60) {
            0 => (u64::MAX, u64::MAX, u64::MAX),
            1 => (u64::MAX, 1, 0),
            2 => (u64::MAX, 0, 1),
            3 => (0, 0, u64::MAX),
            4..9 => return None,
            9..14 => (small(&mut self.rng), 0, 0),
            _ => {
                let waiting = self.rng.u64(..7 + levels.min(2)).saturating_sub(6);
                let total = pick(&mut self.rng, &[100, 100, 100, 40]);
                (small(&mut self.rng), total, waiting)
            }
        };
        let metrics = ForwardPassMetrics::new(active, total, waiting);
        Some(match self.rng.u32(..30) {
            0 => metrics.with_gpu_cache_usage_perc(f32::NAN),
            1 => metrics.with_spec_decode_stats(SpecDecodeStats::default()),
            2 => metrics.with_request_active_slots(active),
            3..12 if self.backlogs => metrics.with_num_prefill_blocks(small(&mut self.rng)),
            12 if self.backlogs => metrics.with_num_prefill_blocks(u64::MAX),
            _ => metrics,
        })
    }

    /// When a worker may have reported: mostly just now, or right about when it makes a difference.
    fn report(&mut self, run: &Run) -> Instant {
        let now = run.now;
        let moments = run.truth.moments().into_iter();
        let past: Vec<_> = moments.filter(|at| *at <= now).collect();
        match self.rng.u32(..12) {
            0 => now - ms(6_000),
            1..4 if !past.is_empty() => {
                let at = past[self.rng.usize(..past.len())];
                match self.rng.u32(..4) {
                    0 => at - ms(1),
                    1 => (at + ms(1)).min(now),
                    _ => at,
                }
            }
            4..7 => now,
            _ => now - ms(self.rng.u64(..40)),
        }
    }

    fn life(&mut self, said: Option<u64>) -> u64 {
        match (self.rng.u32(..40), said) {
            (0, _) => u64::MAX,
            (1..3, Some(life)) => life.saturating_add(1),
            (3, Some(life)) => life.saturating_sub(1),
            (4.., Some(life)) => life,
            _ => self.rng.u64(1..6),
        }
    }

    /// What is said of a worker that was told of or not: something new, or the same again.
    fn load(
        &mut self,
        said: Option<&(WorkerLoad, Option<Instant>)>,
        again: bool,
        worker: WorkerRank,
        run: &Run,
    ) -> (WorkerLoad, Option<Instant>) {
        if let Some((load, reported_at)) = said.filter(|_| again) {
            let mut load = load.clone();
            let renewed = self.rng.u32(..4) == 0;
            let reported_at = if renewed && load.metrics.is_some() {
                Some(self.report(run)).max(*reported_at)
            } else {
                *reported_at
            };
            if self.rng.u32(..4) == 0 {
                load.admitted = vec![self.ticket(run)];
            }
            return (load, reported_at);
        }
        let tickets = self.rng.usize(..5).saturating_sub(2);
        let metrics = self.metrics();
        let reports = metrics.is_some() && self.rng.u32(..6) > 0 || self.rng.u32(..20) == 0;
        let drains = self.fails && self.rng.u32(..4) == 0;
        let load = WorkerLoad {
            worker,
            life: self.life(said.map(|(load, _)| load.life)),
            metrics,
            admitted: (0..tickets).map(|_| self.ticket(run)).collect(),
            age: ms(self.rng.u64(..50)),
            reported: None,
            draining: drains,
        };
        (load, reports.then(|| self.report(run)))
    }

    /// Mostly the next snapshot of a publisher, sometimes one that was lost, doubled, overtaken, forged, or of another run.
    fn snapshot(&mut self, run: &Run) -> Step {
        self.last = self.rng.usize(..self.senders.len());
        let mut sender = self.senders[self.last].clone();
        let last = sender.sequence;
        let (mut sequence, mut after) = (last.wrapping_add(1), last);
        let mut forged = false;
        match self.rng.u32(..60) {
            0 => sequence = last,
            1 => sequence = last.saturating_sub(self.rng.u64(1..4)),
            2 => after = last.wrapping_sub(1),
            3 | 4 => (sequence, after) = (last + 3, last + 2),
            5 | 6 => {
                let other = self.rng.u64(4..8);
                sender = Sender::new(sender.publisher.id, other);
                sequence = self.rng.u64(..3);
                if self.senders.len() < 6 {
                    self.senders.push(sender.clone());
                    self.last = self.senders.len() - 1;
                }
            }
            7 => (sequence, forged) = (u64::MAX, true),
            8 => (sender.publisher.incarnation, forged) = (u64::MAX, true),
            _ => {}
        }
        let kind = match self.rng.u32(..30) {
            0 => SnapshotKind::Closed,
            1..6 => SnapshotKind::Full,
            6..20 if sender.asked => SnapshotKind::Full,
            _ => SnapshotKind::Delta { after },
        };
        let built = match self.rng.u32(..8) {
            0 => Some(ms(0)),
            1 => Some(ms(self.rng.u64(..30))),
            2 => Some(ms(pick(&mut self.rng, &[60, 150, 6_000]))),
            _ => None,
        };
        let workers = self.loads(&mut sender, kind == SnapshotKind::Full, built, run);
        let left = self.rng.usize(..10).saturating_sub(8);
        let left: Vec<_> = (0..left).map(|_| self.worker()).collect();
        if kind == SnapshotKind::Full {
            sender.asked = false;
        }
        if !forged {
            sender.sequence = sequence;
            self.senders[self.last] = sender.clone();
        }
        let most = match self.rng.u32(..3) {
            0 => self.rng.usize(1..3),
            _ => usize::MAX,
        };
        let snapshot = LoadSnapshot {
            publisher: sender.publisher,
            sequence,
            kind,
            left,
            workers,
        };
        Step::Snapshot(snapshot, built, most)
    }

    fn loads(
        &mut self,
        sender: &mut Sender,
        full: bool,
        built: Option<Duration>,
        run: &Run,
    ) -> Vec<WorkerLoad> {
        let mut of = Vec::new();
        if full {
            let mut said: Vec<_> = sender.said.keys().map(|rank| (*rank, true)).collect();
            said.retain(|_| self.rng.u32(..8) > 0);
            of = said;
        }
        for _ in 0..self.rng.usize(..3) {
            of.push((self.worker(), self.rng.u32(..4) == 0));
        }
        if full {
            sender
                .said
                .retain(|rank, _| of.iter().any(|(o, _)| o == rank));
        }
        let mut loads = Vec::new();
        for (worker, again) in of {
            let said = sender.said.get(&worker).cloned();
            let (mut load, reported_at) = self.load(said.as_ref(), again, worker, run);
            sender.said.insert(worker, (load.clone(), reported_at));
            let built_at = run.now - built.unwrap_or_default();
            load.reported = reported_at.map(|at| built_at.saturating_duration_since(at));
            if self.rng.u32(..100) == 0 {
                load.reported = Some(Duration::MAX);
            }
            loads.push(load);
        }
        loads
    }

    fn request(&mut self, run: &Run) -> Request {
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
        let exceptions = self.rng.usize(..6).saturating_sub(3);
        let blocks = match self.rng.u32(..100) {
            0 => u32::MAX,
            1..5 => pick(&mut self.rng, &[40, 41, 100, 101]),
            _ => self.rng.u32(..8) * 10,
        };
        let mut overlap = || {
            (
                self.worker(),
                self.rng.u32(..=(blocks / 10).min(8) + 1) * 10,
            )
        };
        let overlaps = (0..overlaps).map(|_| overlap()).collect();
        let mut request = Request {
            blocks,
            overlaps,
            candidates,
            exceptions: (0..exceptions).map(|_| self.worker()).collect(),
        };
        if self.rng.u32(..3) == 0 {
            self.make_ties(&mut request, run);
        }
        request
    }

    /// Names overlaps that bring some workers down to the cost of the cheapest.
    fn make_ties(&mut self, request: &mut Request, run: &Run) {
        request.overlaps.clear();
        let Ok(priced) = run.truth.choices(request) else {
            return;
        };
        let totals = priced.iter().map(|(_, price)| price.total());
        let least = totals.fold(f64::INFINITY, f64::min);
        for (worker, price) in priced {
            let surplus = (price.total() - least) / run.truth.config.overlap_weight().max(0.1);
            if self.rng.bool() && surplus.fract() == 0.0 && surplus <= f64::from(request.blocks) {
                request.overlaps.push((worker, surplus as u32));
            }
        }
    }
}

fn pick<T: Copy>(rng: &mut fastrand::Rng, of: &[T]) -> T {
    of[rng.usize(..of.len())]
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}
