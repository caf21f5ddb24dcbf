//! The choice among the workers of fleets that grow and shrink, by a ledger of its own; and tickets.
use std::{
    collections::{BTreeMap, HashSet},
    time::Instant,
};

use actix_kv_metrics::{
    RouterConfig, SelectError, SelectWorker, SnapshotKind, Ticket, WorkerRank, sans_io::LoadTable,
};

use super::{load, ms, snapshot};

/// What a worker said last, and what is booked on it: blocks, when, and whether that has seen them.
#[derive(Default)]
struct Row {
    active: u64,
    waiting: u64,
    backlog: Option<u64>,
    booked: BTreeMap<u64, (u64, Instant, Seen)>,
}

/// Whether what a worker said last has seen a reservation.
#[derive(Clone, Copy, PartialEq)]
enum Seen {
    No,
    Perhaps,
    /// It is three times `settle` (50 ms) old.
    Yes,
}

impl Row {
    fn sums(&self, seen: Seen) -> (u64, u64) {
        let some = self.booked.values().filter(|(.., of)| *of == seen);
        some.fold((0, 0), |sum, (blocks, ..)| (sum.0 + blocks, sum.1 + 1))
    }

    fn all(&self) -> (u64, u64) {
        let sums = [Seen::No, Seen::Perhaps, Seen::Yes].map(|seen| self.sums(seen));
        (
            sums.iter().map(|sum| sum.0).sum(),
            sums.iter().map(|sum| sum.1).sum(),
        )
    }

    /// By the documentation of `Cost`, where all report their backlog or none does.
    fn cost(&self, config: &RouterConfig, missing: u32) -> f64 {
        let (before, since, all) = (self.sums(Seen::Perhaps), self.sums(Seen::No), self.all());
        let load = match self.backlog {
            Some(backlog) => {
                config.prefill_weight() * (backlog.max(before.0) + since.0) as f64
                    + config.waiting_weight() * (self.waiting.max(before.1) + since.1) as f64
            }
            None => {
                config.booked_weight() * all.0 as f64
                    + config.waiting_weight() * (self.waiting + all.1) as f64
            }
        };
        let share = self.active as f64 / 1000.0;
        config.overlap_weight() * f64::from(missing) + load + config.capacity_weight() * share
    }

    fn is_full(&self, saturation: Option<f64>) -> bool {
        let since = self.sums(Seen::No).0;
        let used = self.active.max(self.all().0 - since) + since;
        saturation.is_some_and(|share| used as f64 >= share * 1000.0)
    }
}

struct Fleet {
    rng: fastrand::Rng,
    config: RouterConfig,
    table: LoadTable,
    rows: BTreeMap<WorkerRank, Row>,
    tells_backlog: bool,
    sequence: u64,
    joined: u64,
    now: Instant,
    /// Tickets that stand, and whose they are; and some that have ended.
    stands: Vec<(Ticket, WorkerRank)>,
    ended: Vec<Ticket>,
}

impl Fleet {
    fn new(seed: u64, tie_width: f64) -> Self {
        let mut config = RouterConfig::builder().seed(seed).tie_width(tie_width);
        if seed.is_multiple_of(2) {
            config = config.saturation(0.7);
        }
        let config = config.build().unwrap();
        Self {
            rng: fastrand::Rng::with_seed(seed),
            table: LoadTable::new(config.clone()),
            config,
            rows: BTreeMap::new(),
            tells_backlog: seed.is_multiple_of(3),
            sequence: 0,
            joined: 0,
            now: super::epoch(),
            stands: Vec::new(),
            ended: Vec::new(),
        }
    }

    fn any(&mut self) -> WorkerRank {
        let n = self.rng.usize(..self.rows.len());
        *self.rows.keys().nth(n).unwrap()
    }

    /// Some join, some leave, some report.
    fn change(&mut self, joins: usize, leaves: usize, reports: usize) {
        self.now += ms(1);
        let mut left = HashSet::new();
        for _ in 0..leaves.min(self.rows.len()) {
            let gone = self.any();
            let row = self.rows.remove(&gone).unwrap();
            self.stands.retain(|(ticket, of)| {
                if *of == gone {
                    self.ended.push(*ticket);
                }
                *of != gone
            });
            drop(row);
            left.insert(gone);
        }
        let mut names = HashSet::new();
        for _ in 0..joins {
            self.joined += 1;
            names.insert(WorkerRank::new(self.joined / 3, (self.joined % 3) as u32));
        }
        for _ in 0..reports.min(self.rows.len()) {
            names.insert(self.any());
        }
        let mut loads = Vec::new();
        for name in names {
            let row = self.rows.entry(name).or_default();
            row.active = self.rng.u64(..8) * 125;
            row.waiting = self.rng.u64(..3);
            row.backlog = self.tells_backlog.then(|| self.rng.u64(..30));
            for booked in row.booked.values_mut() {
                booked.2 = match self.now - booked.1 >= ms(150) {
                    true => Seen::Yes,
                    false => Seen::Perhaps,
                };
            }
            let mut told = load(name, 1, row.active);
            let metrics = told.metrics.as_mut().unwrap();
            metrics.worker_stats.num_requests_waiting = row.waiting;
            metrics.worker_stats.num_prefill_blocks = row.backlog;
            loads.push(told);
        }
        self.rng.shuffle(&mut loads);
        self.sequence += 1;
        let kind = match self.sequence {
            1 => SnapshotKind::Full,
            n => SnapshotKind::Delta { after: n - 1 },
        };
        let left = left.into_iter().collect();
        let told = snapshot((1, 1), self.sequence, kind, left, loads);
        self.table.handle_snapshot(told, self.now);
        assert_eq!(self.table.len(), self.rows.len());
    }

    fn select(&mut self) {
        self.now += ms(1);
        let blocks = self.rng.u32(..40);
        let mut request = SelectWorker::blocks(blocks);
        let mut overlaps = BTreeMap::new();
        for _ in 0..self.rng.usize(..6) {
            if self.rows.is_empty() {
                break;
            }
            let named = (self.any(), self.rng.u32(..50));
            request = request.overlap(named.0, named.1);
            let known = overlaps.entry(named.0).or_insert(0);
            *known = named.1.max(*known);
        }
        let missing =
            |worker: &WorkerRank| blocks.saturating_sub(overlaps.get(worker).copied().unwrap_or(0));
        let saturation = self.config.saturation();
        let rows = &self.rows;
        let best = (rows.iter())
            .filter(|(_, row)| !row.is_full(saturation))
            .map(|(worker, row)| row.cost(&self.config, missing(worker)))
            .min_by(f64::total_cmp);
        match (self.table.select(&request, self.now), best) {
            (Ok(placed), Some(best)) => {
                let row = self.rows.get_mut(&placed.worker).unwrap();
                let cost = row.cost(&self.config, missing(&placed.worker));
                assert!(
                    (placed.cost.total() - cost).abs() < 1e-6,
                    "{placed:?}: {cost}"
                );
                // "Some that cost up to half as much more are equal, too."
                let within = self.config.tie_width() * 1.5 + 1e-6;
                assert!(cost <= best + within, "{cost} where {best} is");
                assert!(!row.is_full(saturation));
                let booked = u64::from(missing(&placed.worker));
                row.booked
                    .insert(placed.ticket.number, (booked, self.now, Seen::No));
                self.stands.push((placed.ticket, placed.worker));
            }
            (Err(SelectError::AllSaturated), None) if !self.rows.is_empty() => {}
            (Err(SelectError::NoWorkers), None) if self.rows.is_empty() => {}
            other => panic!("{other:?}"),
        }
    }

    fn release(&mut self) {
        if self.stands.is_empty() {
            return;
        }
        let n = self.rng.usize(..self.stands.len());
        let (ticket, worker) = self.stands.swap_remove(n);
        self.rows
            .get_mut(&worker)
            .unwrap()
            .booked
            .remove(&ticket.number);
        assert!(self.table.release(ticket));
        assert!(!self.table.release(ticket), "released twice");
        self.ended.push(ticket);
    }

    /// Nothing that has ended or never was releases anything.
    fn forge(&mut self) {
        let outstanding = self.table.outstanding();
        assert_eq!(outstanding, self.stands.len());
        for _ in 0..4 {
            if let Some(ticket) = self.rng.choice(&self.ended).copied() {
                assert!(!self.table.release(ticket), "{ticket:?} has ended");
            }
            if let Some((ticket, _)) = self.rng.choice(&self.stands).copied() {
                let router = self.rng.u64(..);
                if router != ticket.router {
                    assert!(!self.table.release(Ticket { router, ..ticket }));
                }
                for number in [
                    self.rng.u64(..),
                    ticket.number ^ (1 << self.rng.u32(20..64)),
                ] {
                    if !self.stands.iter().any(|(t, _)| t.number == number) {
                        assert!(!self.table.release(Ticket { number, ..ticket }));
                    }
                }
            }
        }
        assert_eq!(self.table.outstanding(), outstanding);
    }

    fn check(&mut self) {
        let loads = self.table.loads(self.now);
        for (worker, row) in &self.rows {
            let told = loads.get(*worker).unwrap();
            let booked = (told.booked_blocks, told.booked_requests);
            assert_eq!(booked, row.all(), "{worker}");
        }
    }
}

#[test]
fn g15_the_cheapest_is_chosen_while_fleets_grow_and_shrink_over_every_border() {
    for seed in 0..18 {
        let tie_width = [0.0, 200.0, 3.0][seed as usize % 3];
        let mut fleet = Fleet::new(seed, tie_width);
        fleet.select();
        for border in [9, 3, 66, 7, 70, 600, 500, 530, 60, 1, 0, 12] {
            loop {
                let some = 1 + fleet.rows.len() / 8;
                match fleet.rows.len().cmp(&border) {
                    std::cmp::Ordering::Less => {
                        let joins = some.min(border - fleet.rows.len());
                        fleet.change(joins, 0, 2);
                    }
                    std::cmp::Ordering::Equal => break,
                    std::cmp::Ordering::Greater => {
                        let leaves = some.min(fleet.rows.len() - border);
                        fleet.change(0, leaves, 2);
                    }
                }
                for _ in 0..6 {
                    fleet.select();
                    if fleet.rng.bool() {
                        fleet.release();
                    }
                }
            }
            fleet.forge();
            fleet.check();
        }
    }
}

#[test]
fn g15_those_within_the_width_of_a_tie_are_chosen_alike_at_every_size() {
    for workers in [2u64, 7, 8, 9, 63, 65, 511, 513, 600] {
        let config = RouterConfig::builder().seed(workers).build().unwrap();
        let mut table = LoadTable::new(config);
        let now = super::epoch();
        // Each block in use of 1,000 costs 16: these are within 50 of each other, and one is far off.
        let mut loads: Vec<_> = (0..workers).map(|w| load(w, 1, 100 + w % 4)).collect();
        loads.push(load(9_999u64, 1, 200));
        table.handle_snapshot(snapshot((1, 1), 1, SnapshotKind::Full, vec![], loads), now);
        let mut seen: BTreeMap<WorkerRank, f64> = BTreeMap::new();
        for _ in 0..200 * workers {
            let placed = table.select(&SelectWorker::blocks(4), now).unwrap();
            *seen.entry(placed.worker).or_default() += 1.0;
            assert!(table.release(placed.ticket));
        }
        assert_eq!(seen.len() as u64, workers);
        let chi: f64 = seen.values().map(|n| (n - 200.0).powi(2) / 200.0).sum();
        let df = workers as f64 - 1.0;
        let most = df + 5.0 * (2.0 * df).sqrt() + 10.0;
        assert!(chi < most, "{workers}: {chi}");
    }
}

#[test]
fn g15_a_ticket_released_after_a_hundred_thousand_bookings_releases_its_own_alone() {
    let mut table = LoadTable::new(RouterConfig::builder().seed(1).build().unwrap());
    let now = super::epoch();
    let loads = (0..20u64).map(|w| load(w, 1, 10)).collect();
    table.handle_snapshot(snapshot((1, 1), 1, SnapshotKind::Full, vec![], loads), now);
    let book = |table: &mut LoadTable| table.select(&SelectWorker::blocks(3), now).unwrap().ticket;
    let (ended, old) = (book(&mut table), book(&mut table));
    assert!(table.release(ended));
    let mut stand = Vec::new();
    for n in 0..100_000 {
        let ticket = book(&mut table);
        if n % 100 == 0 {
            stand.push(ticket);
        } else {
            assert!(table.release(ticket));
        }
    }
    assert_eq!(table.outstanding(), stand.len() + 1);
    assert!(!table.release(ended));
    assert!(table.release(old) && !table.release(old));
    assert_eq!(table.outstanding(), stand.len());
    for ticket in stand {
        assert!(table.detach(ticket, now));
        assert!(table.release(ticket) && !table.release(ticket));
        assert!(!table.detach(ticket, now));
    }
    assert_eq!(table.outstanding(), 0);
    assert!(
        table
            .loads(now)
            .workers()
            .iter()
            .all(|l| l.booked_blocks == 0 && l.booked_requests == 0)
    );
}
