//! Drawn histories of a router's table: snapshots in any order, twice, with gaps, of old incarnations and with hostile
//! numbers, in pieces, with requests placed and released in between.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use crate::support::fuzz::{
    fuzz,
    table::{Drawn, Echo, Kind, Order, Request, Step, configs, steps},
};
use actix_kv_metrics::{
    Candidates, ForwardPassMetrics, Freshness, LoadSnapshot, Loads, PublisherId, RankLoad,
    RouterConfig, SelectError, SelectWorker, SnapshotAck, SnapshotKind, Ticket, WorkerLoad,
    WorkerRank,
    actix::clock,
    sans_io::{LoadTable, Placement},
};
use proptest::{prelude::*, sample::Index, test_runner::TestCaseResult};

/// A table, and what was done to it.
struct History {
    config: RouterConfig,
    table: LoadTable,
    now: Instant,
    issued: Vec<Ticket>,
    sequences: BTreeMap<PublisherId, u64>,
    saw: BTreeSet<PublisherId>,
}

impl History {
    fn new(config: RouterConfig) -> Self {
        Self {
            table: LoadTable::new(config.clone()),
            config,
            now: clock::Instant::now().into_std() + Duration::from_secs(1_000_000),
            issued: Vec::new(),
            sequences: BTreeMap::new(),
            saw: BTreeSet::new(),
        }
    }

    fn step(&mut self, step: Step) -> TestCaseResult {
        match step {
            Step::Snapshot(drawn) => self.snapshot(drawn)?,
            Step::Select(request) => self.select(&request)?,
            Step::Release(index) => self.release(&index)?,
            Step::ReleaseUnknown(router, number) => {
                let ours = self.issued.iter().any(|ticket| ticket.router == router);
                let released = self.table.release(Ticket { router, number });
                prop_assert!(ours || !released);
            }
            // The order of the two keeps the clock within what an `Instant` holds.
            Step::Later(pause) => self.now = self.now.checked_add(pause).unwrap_or(self.now),
            Step::Earlier(pause) => self.now = self.now.checked_sub(pause).unwrap_or(self.now),
        }
        self.adds_up()
    }

    fn snapshot(&mut self, drawn: Drawn) -> TestCaseResult {
        let publisher = PublisherId::new(drawn.publisher, drawn.incarnation);
        self.saw.insert(publisher);
        let last = self.sequences.get(&publisher).copied().unwrap_or(0);
        let sequence = match drawn.order {
            Order::Next => last.saturating_add(1),
            Order::Again => last,
            Order::Skipping(steps) => last.saturating_add(steps),
            Order::Any(sequence) => sequence,
        };
        self.sequences.insert(publisher, sequence.max(last));
        let snapshot = LoadSnapshot {
            publisher,
            sequence,
            kind: match drawn.kind {
                Kind::Full => SnapshotKind::Full,
                Kind::Delta => SnapshotKind::Delta { after: last },
                Kind::DeltaAfter(after) => SnapshotKind::Delta { after },
                Kind::Closed => SnapshotKind::Closed,
            },
            left: drawn.left,
            workers: drawn.loads.into_iter().map(|l| self.load(l)).collect(),
        };
        let told = snapshot.clone();
        let untold = self.table.counts().untold;
        let ack = match drawn.piece {
            None => self.table.handle_snapshot(snapshot, self.now),
            Some(most) => self.in_pieces(snapshot, most.max(1))?,
        };
        if self.table.counts().untold > untold {
            // Not taken over: its publisher has to tell everything first.
            prop_assert_eq!(ack, SnapshotAck::NeedFull);
            return Ok(());
        }
        self.follows(&told, ack)
    }

    fn in_pieces(
        &mut self,
        snapshot: LoadSnapshot,
        most: usize,
    ) -> Result<SnapshotAck, TestCaseError> {
        let mut taking = self.table.begin_snapshot(snapshot);
        for _ in 0..10_000 {
            let ack = self.table.continue_snapshot(&mut taking, most, self.now);
            if let Some(ack) = ack {
                return Ok(ack);
            }
            let any = Request {
                blocks: 1,
                overlaps: Vec::new(),
                candidates: Candidates::Any,
            };
            self.select(&any)?;
            self.adds_up()?;
        }
        Err(TestCaseError::fail("a snapshot is never taken over"))
    }

    /// After a snapshot was taken over, its workers are known, and after a full one no others of its publisher.
    fn follows(&mut self, told: &LoadSnapshot, ack: SnapshotAck) -> TestCaseResult {
        if ack == SnapshotAck::Superseded {
            return Ok(());
        }
        let loads = self.table.loads(self.now);
        let named: BTreeSet<_> = told.workers.iter().map(|load| load.worker).collect();
        if told.kind == SnapshotKind::Closed {
            prop_assert!(
                loads
                    .workers()
                    .iter()
                    .all(|load| load.publisher != told.publisher)
            );
            return Ok(());
        }
        for worker in &named {
            prop_assert!(loads.get(*worker).is_some(), "{} is not known", worker);
        }
        if told.kind == SnapshotKind::Full {
            prop_assert_eq!(ack, SnapshotAck::Applied);
            for load in loads.workers() {
                let owned = load.publisher.id == told.publisher.id;
                prop_assert!(
                    !owned || named.contains(&load.worker),
                    "{} is known",
                    load.worker
                );
            }
        }
        Ok(())
    }

    fn load(
        &self,
        (worker, life, metrics, echo): (WorkerRank, u64, Option<ForwardPassMetrics>, Option<Echo>),
    ) -> WorkerLoad {
        let router = self.issued.first().map_or(0, |ticket| ticket.router);
        let ticket = echo.and_then(|echo| match echo {
            Echo::Issued(index) if self.issued.is_empty() => {
                let _ = index;
                None
            }
            Echo::Issued(index) => Some(*index.get(&self.issued)),
            Echo::Unknown(number) => Some(Ticket { router, number }),
            Echo::OfAnotherRouter(number) => Some(Ticket { router: 1, number }),
        });
        WorkerLoad {
            worker,
            life,
            metrics,
            admitted: ticket.into_iter().collect(),
            age: Duration::ZERO,
            reported: None,
            draining: false,
        }
    }

    fn select(&mut self, request: &Request) -> TestCaseResult {
        let before = self.table.loads(self.now);
        let outstanding = self.table.outstanding();
        let mut message = SelectWorker::blocks(request.blocks).among(request.candidates.clone());
        for (worker, blocks) in &request.overlaps {
            message = message.overlap(*worker, *blocks);
        }
        match self.table.select(&message, self.now) {
            Ok(placement) => {
                prop_assert_eq!(self.table.outstanding(), outstanding + 1);
                let last = self.issued.last().map_or(0, |ticket| ticket.number);
                prop_assert!(placement.ticket.number > last);
                self.issued.push(placement.ticket);
                self.is_cheapest(request, &before, &placement)
            }
            Err(error) => {
                prop_assert_eq!(self.table.outstanding(), outstanding);
                self.is_right(request, &before, error)
            }
        }
    }

    fn is_cheapest(&self, request: &Request, before: &Loads, placed: &Placement) -> TestCaseResult {
        let chosen = before.get(placed.worker);
        // One that was full when it turned stale is the last choice.
        let is_last = |load: &RankLoad| load.freshness != Freshness::Fresh;
        prop_assert!(chosen.is_some_and(|load| !load.saturated || is_last(load)));
        prop_assert!(request.allows(placed.worker));
        let cost = placed.cost;
        for part in [
            cost.prefill(),
            cost.backlog(),
            cost.active(),
            cost.booked(),
            cost.waiting(),
            cost.total(),
        ] {
            prop_assert!(part.is_finite() && part >= 0.0, "{:?}", cost);
        }
        // Averages are sums of shares in units of 2^-32.
        let slack = self.config.capacity_weight() * 2_f64.powi(-31);
        let price = self.price(request, before, placed.worker);
        prop_assert!(
            alike(price, cost.total(), slack),
            "{} is not {}",
            cost.total(),
            price
        );
        prop_assert!(chosen.is_some_and(|load| self.holds(request, load)));
        for load in before.workers() {
            if load.saturated || !request.allows(load.worker) || !self.holds(request, load) {
                continue;
            }
            let price = self.price(request, before, load.worker);
            // Near ties are ties, and buckets of a quarter of a tie hold what is up to two of them further away.
            let price = price + 1.5 * self.config.tie_width();
            let dearer = price >= cost.total() || alike(price, cost.total(), slack);
            prop_assert!(dearer, "{} costs {}, not {:?}", load.worker, price, placed);
        }
        Ok(())
    }

    /// Whether the worker can ever hold the request.
    fn holds(&self, request: &Request, load: &RankLoad) -> bool {
        let capacity = load.metrics.as_ref().map(|m| m.kv_stats.kv_total_blocks);
        let share = self.config.saturation().unwrap_or(1.0);
        let bound = capacity
            .filter(|blocks| *blocks > 0)
            .map(|blocks| share * blocks as f64);
        bound.is_none_or(|bound| f64::from(request.blocks) <= bound)
    }

    /// The cost by its formula, from what the table tells of its workers.
    fn price(&self, request: &Request, loads: &Loads, worker: WorkerRank) -> f64 {
        let fresh = (loads.workers().iter())
            .filter(|load| load.freshness == Freshness::Fresh && !load.saturated)
            .filter_map(|load| load.metrics.as_ref());
        let figures = |metrics: &ForwardPassMetrics| {
            let kv = &metrics.kv_stats;
            let total = match kv.kv_total_blocks {
                0 => 16_384,
                total => total,
            };
            let share = f64::min(kv.kv_active_blocks as f64 / total as f64, 1.0);
            (share, metrics.worker_stats.num_requests_waiting as f64)
        };
        let (count, active, waiting) = fresh.fold((0.0, 0.0, 0.0), |(n, a, w), metrics| {
            let (active, waiting) = figures(metrics);
            (n + 1.0, a + active, w + waiting)
        });
        let average = (
            active / f64::max(count, 1.0),
            waiting / f64::max(count, 1.0),
        );
        let Some(load) = loads.get(worker) else {
            return f64::NAN;
        };
        let (active, waiting) = match (&load.metrics, load.freshness) {
            (Some(metrics), Freshness::Fresh) => figures(metrics),
            _ => average,
        };
        let missing = request.blocks.saturating_sub(request.overlap(worker));
        let config = &self.config;
        let requests = waiting + load.booked_requests as f64;
        config.overlap_weight() * f64::from(missing)
            + config.capacity_weight() * active
            + config.booked_weight() * load.booked_blocks as f64
            + config.waiting_weight() * requests
    }

    fn is_right(&self, request: &Request, before: &Loads, error: SelectError) -> TestCaseResult {
        let workers = before.workers().iter();
        let allowed: Vec<_> = workers.filter(|l| request.allows(l.worker)).collect();
        let mut holding = allowed.iter().filter(|load| self.holds(request, load));
        let right = match error {
            SelectError::NoWorkers => before.is_empty(),
            SelectError::AllSaturated => {
                holding.next().is_some_and(|load| load.saturated)
                    && holding.all(|load| load.saturated)
            }
            SelectError::TooLarge => !allowed.is_empty() && holding.next().is_none(),
            SelectError::UnknownWorker | SelectError::NoneAllowed => allowed.is_empty(),
            _ => false,
        };
        prop_assert!(right, "{:?} for {:?}", error, request);
        Ok(())
    }

    fn release(&mut self, index: &Index) -> TestCaseResult {
        if self.issued.is_empty() {
            return Ok(());
        }
        let outstanding = self.table.outstanding();
        let released = self.table.release(*index.get(&self.issued));
        prop_assert_eq!(
            self.table.outstanding() + usize::from(released),
            outstanding
        );
        Ok(())
    }

    /// What holds at every moment.
    fn adds_up(&mut self) -> TestCaseResult {
        let counts = self.table.counts();
        let ended = counts.released + counts.admitted + counts.settled + counts.dropped;
        let outstanding = self.table.outstanding();
        prop_assert_eq!(counts.selected, ended + counts.expired + outstanding as u64);
        let loads = self.table.loads(self.now);
        let booked: u64 = loads
            .workers()
            .iter()
            .map(|load| load.booked_requests)
            .sum();
        prop_assert_eq!(booked, self.table.outstanding() as u64);
        prop_assert_eq!(loads.len(), self.table.len());
        prop_assert_eq!(loads.is_empty(), self.table.is_empty());
        for load in loads.workers() {
            prop_assert!(load.booked_requests > 0 || load.booked_blocks == 0);
            prop_assert_eq!(load.metrics.is_none(), load.freshness == Freshness::Unknown);
            let finite = load.metrics.as_ref().is_none_or(|m| m.check().is_ok());
            prop_assert!(finite, "{} was poisoned", load.worker);
        }
        Ok(())
    }

    /// Everything is released and everybody leaves.
    fn end(&mut self) -> TestCaseResult {
        for ticket in std::mem::take(&mut self.issued) {
            self.table.release(ticket);
            prop_assert!(!self.table.release(ticket));
        }
        prop_assert_eq!(self.table.outstanding(), 0);
        for load in self.table.loads(self.now).workers() {
            prop_assert_eq!((load.booked_blocks, load.booked_requests), (0, 0));
        }
        for publisher in std::mem::take(&mut self.saw) {
            let closed = LoadSnapshot {
                publisher,
                sequence: u64::MAX,
                kind: SnapshotKind::Closed,
                left: Vec::new(),
                workers: Vec::new(),
            };
            prop_assert_eq!(
                self.table.handle_snapshot(closed, self.now),
                SnapshotAck::Applied
            );
        }
        prop_assert_eq!(self.table.len(), 0);
        self.adds_up()
    }
}

/// Floats are added up in another order here, and the smallest ones have few digits.
fn alike(a: f64, b: f64, slack: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()) + slack
}

#[test]
fn g15_g16_a_table_holds_under_any_history() {
    fuzz(
        "histories of a table",
        400,
        (configs(), steps()),
        |(config, steps)| {
            let mut history = History::new(config);
            for step in steps {
                history.step(step)?;
            }
            history.end()
        },
    );
}
