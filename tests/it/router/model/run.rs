//! A table and its model, which go through the same steps and are compared after each.

use std::{
    collections::BTreeMap,
    fmt::{self, Debug},
    time::{Duration, Instant},
};

use actix_kv_metrics::{
    Freshness, LoadSnapshot, Loads, RankLoad, RouterConfig, SelectError, SnapshotAck, SnapshotKind,
    Ticket, WorkerRank,
    actix::clock,
    sans_io::{LoadTable, PartialSnapshot, Placement},
};

use super::{
    cost::{Price, Request, same},
    ties::Ties,
    truth::{End, ROUTER, Truth},
};

/// What happens to both.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Wait(Duration),
    /// A snapshot comes, built that long ago, and as many workers of it are taken over at once.
    Snapshot(LoadSnapshot, Option<Duration>, usize),
    /// As many more workers of it are taken over.
    Continue(usize),
    Select(Request),
    Detach(Ticket),
    Release(Ticket),
    Fail(Ticket),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Snapshot(snapshot, built, most) = self else {
            return write!(f, "{self:?}");
        };
        let (of, number) = (snapshot.publisher, snapshot.sequence);
        write!(f, "Snapshot({of} #{number} {:?}", snapshot.kind)?;
        if let Some(ago) = built {
            write!(f, ", built {ago:?} ago")?;
        }
        if *most < usize::MAX {
            write!(f, ", {most} at once")?;
        }
        for worker in &snapshot.left {
            write!(f, ", {worker} left")?;
        }
        for load in &snapshot.workers {
            write!(f, ", {} life {}: ", load.worker, load.life)?;
            if let Some(metrics) = &load.metrics {
                let (kv, workers) = (&metrics.kv_stats, &metrics.worker_stats);
                let (active, total) = (kv.kv_active_blocks, kv.kv_total_blocks);
                write!(f, "{active}/{total} +{}", workers.num_requests_waiting)?;
                if metrics.check().is_err() {
                    f.write_str(" (invalid)")?;
                }
            }
            if let Some(ago) = load.reported {
                write!(f, " {ago:?} ago")?;
            }
            if load.draining {
                f.write_str(" draining")?;
            }
            for ticket in &load.admitted {
                write!(f, " admitted {}/{}", ticket.router, ticket.number)?;
            }
        }
        f.write_str(")")
    }
}

/// What they differ in.
pub(super) type Agreement<T = ()> = Result<T, String>;

#[derive(Debug)]
pub(super) struct Run {
    pub(super) now: Instant,
    pub(super) truth: Truth,
    pub(super) table: LoadTable,
    pub(super) ties: Ties,
    /// What was answered to the last snapshot, once it was.
    pub(super) ack: Option<SnapshotAck>,
    partial: Option<PartialSnapshot>,
    /// Calls for nothing but to find who is gone.
    sweeps: usize,
    router: Option<u64>,
    tally: Tally,
    /// Times a worker began to cool, as the model has it.
    cooled: u64,
    /// How often something happened that no counter tells.
    pub(super) seen: BTreeMap<&'static str, u64>,
}

/// What the table is to have counted, but for reservations.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Tally {
    applied: u64,
    need_full: u64,
    superseded: u64,
    closed: u64,
    selected: u64,
    not_selected: u64,
    unknown_releases: u64,
}

impl Run {
    pub(super) fn new(config: RouterConfig) -> Self {
        Self {
            now: clock::Instant::now().into_std(),
            table: LoadTable::new(config.clone()),
            truth: Truth::new(config),
            ties: Ties::default(),
            ack: None,
            partial: None,
            sweeps: 0,
            router: None,
            tally: Tally::default(),
            cooled: 0,
            seen: BTreeMap::new(),
        }
    }

    /// Takes a step; one that does not fit in here is left out.
    pub(super) fn step(&mut self, step: &Step) -> Agreement {
        match step {
            // Time is not looked at in between, so that some of it passes unnoticed until the next step.
            Step::Wait(duration) => {
                if !self.truth.is_sweeping() {
                    self.now += *duration;
                }
                return Ok(());
            }
            Step::Snapshot(snapshot, built, most) => {
                self.snapshot(snapshot, *built, *most)?;
            }
            Step::Continue(most) => {
                if let Some(mut partial) = self.partial.take() {
                    self.ack = self.take_over(&mut partial, *most)?;
                    self.partial = self.ack.is_none().then_some(partial);
                }
            }
            Step::Select(request) => self.select(request)?,
            Step::Detach(ticket) => {
                let should = self.truth.detach(*ticket, self.now);
                let is = self.table.detach(self.named(*ticket), self.now);
                agree("detach", is, should)?;
            }
            Step::Release(ticket) => self.release(*ticket)?,
            Step::Fail(ticket) => {
                let outstanding = self.truth.outstanding();
                let should = self.truth.fail(*ticket, self.now);
                self.tally.unknown_releases += u64::from(self.truth.outstanding() == outstanding);
                let is = self.table.fail(self.named(*ticket), self.now);
                agree("fail", is, should)?;
                self.cooled += u64::from(should.is_some());
            }
        }
        self.compare()
    }

    fn release(&mut self, ticket: Ticket) -> Agreement {
        let should = self.truth.release(ticket);
        self.tally.unknown_releases += u64::from(!should);
        let is = self.table.release(self.named(ticket));
        agree("release", is, should)
    }

    fn snapshot(
        &mut self,
        snapshot: &LoadSnapshot,
        built: Option<Duration>,
        most: usize,
    ) -> Agreement {
        // Between the pieces of one snapshot others come whole, and not while it is unclear who is gone already.
        if self.truth.is_sweeping() || self.truth.is_taking(snapshot.publisher.id) {
            return Ok(());
        }
        let outer = (self.truth.taking.take(), self.partial.take());
        let most = if outer.0.is_some() { usize::MAX } else { most };
        let built_at = built.map_or(self.now, |ago| self.now - ago);
        let at_once = self.truth.begin(snapshot, built_at, self.now);
        let mut named = snapshot.clone();
        for load in &mut named.workers {
            for ticket in &mut load.admitted {
                *ticket = self.named(*ticket);
            }
        }
        let mut partial = self.table.begin_snapshot(named);
        if built.is_some() {
            partial = partial.built_at(built_at);
        }
        self.sweeps = 0;
        self.ack = if let Some(should) = at_once {
            let is = self.table.continue_snapshot(&mut partial, most, self.now);
            agree("ack", is, Some(should))?;
            self.tell(should, false, snapshot.kind);
            is
        } else {
            let mut ack = self.take_over(&mut partial, most)?;
            while ack.is_none() && most == usize::MAX {
                ack = self.take_over(&mut partial, most)?;
            }
            ack
        };
        self.partial = self.ack.is_none().then_some(partial);
        if outer.0.is_some() {
            (self.truth.taking, self.partial) = outer;
        }
        Ok(())
    }

    fn take_over(
        &mut self,
        partial: &mut PartialSnapshot,
        most: usize,
    ) -> Agreement<Option<SnapshotAck>> {
        let kind = self.truth.taking.as_ref().unwrap().kind;
        if most < usize::MAX {
            // Else it would be unclear afterwards whether a worker is gone by the snapshot or by itself.
            self.look();
        }
        let is = self.table.continue_snapshot(partial, most, self.now);
        if !self.truth.take_over(most, self.now) {
            agree("ack before the last piece", is, None)?;
            return Ok(None);
        }
        if is.is_none() {
            // Who is gone is found in any order: the model follows.
            self.sweeps += 1;
            if kind == SnapshotKind::Full || kind == SnapshotKind::Closed {
                agree("too many sweeps", self.sweeps > 40, false)?;
                self.follow();
                return Ok(None);
            }
        }
        let should = self.truth.finish(self.now);
        self.tell(should, true, kind);
        agree("ack", is, Some(should))?;
        Ok(is)
    }

    /// Both find out what has come about by itself.
    fn look(&mut self) -> Loads {
        self.truth.look(self.now);
        let loads = self.table.loads(self.now);
        for rank in std::mem::take(&mut self.truth.either_way) {
            let saturated = loads.get(rank).is_some_and(|load| load.saturated);
            let worker = self.truth.workers.get_mut(&rank);
            worker.unwrap().stale = Some(saturated);
        }
        loads
    }

    /// Removes from the model what the table has removed of what it is to remove.
    fn follow(&mut self) {
        let loads = self.look();
        for rank in self.truth.gone() {
            let owner = self.truth.workers[&rank].claim.publisher.id;
            let has_it = loads.get(rank).is_some_and(|l| l.publisher.id == owner);
            if self.truth.is_taking(owner) && !has_it {
                self.truth.sweep(rank, self.now);
            }
        }
    }

    fn tell(&mut self, ack: SnapshotAck, applied: bool, kind: SnapshotKind) {
        let closes = kind == SnapshotKind::Closed;
        self.tally.superseded += u64::from(ack == SnapshotAck::Superseded);
        self.tally.need_full += u64::from(ack == SnapshotAck::NeedFull);
        self.tally.closed += u64::from(applied && closes);
        self.tally.applied += u64::from(applied && !closes);
    }

    /// The ticket with the table's own name in it.
    fn named(&self, ticket: Ticket) -> Ticket {
        Ticket {
            router: match ticket.router {
                ROUTER => self.router.unwrap_or(ROUTER),
                foreign => foreign,
            },
            ..ticket
        }
    }

    fn select(&mut self, request: &Request) -> Agreement {
        self.look();
        let should = self.truth.choices(request);
        match (should, self.table.select(&request.message(), self.now)) {
            (Ok(choices), Ok(placed)) => self.check_choice(request, &choices, &placed),
            (Err(should), Err(is)) => self.check_refusal(is, should),
            (should, is) => Err(format!("{is:?} instead of {should:?}")),
        }
    }

    fn check_refusal(&mut self, is: SelectError, should: SelectError) -> Agreement {
        self.tally.not_selected += 1;
        self.see("too large", should == SelectError::TooLarge);
        self.see("none allowed", should == SelectError::NoneAllowed);
        agree("refusal", is, should)
    }

    fn see(&mut self, what: &'static str, happened: bool) {
        *self.seen.entry(what).or_default() += u64::from(happened);
    }

    fn check_choice(
        &mut self,
        request: &Request,
        choices: &[(WorkerRank, Price)],
        placed: &Placement,
    ) -> Agreement {
        self.tally.selected += 1;
        let chosen = &self.truth.workers[&placed.worker];
        let (drains, cooled) = (chosen.claim.draining, chosen.cooling.is_some());
        self.see("on one that drains", drains);
        self.see("on one that cools", self.truth.is_cooling(placed.worker));
        self.see(
            "on probation",
            cooled && !self.truth.is_cooling(placed.worker),
        );
        self.see("with exceptions", !request.exceptions.is_empty());
        let totals = choices.iter().map(|(_, price)| price.total());
        let least = totals.fold(f64::INFINITY, f64::min);
        // Buckets of a quarter of a tie hold what is up to two of them further away, too.
        let width = 1.5 * self.truth.config.tie_width();
        let is_equal = |total: f64| same(total, least) || total <= least + width;
        let mut equals = choices.iter().filter(|(_, p)| is_equal(p.total()));
        let Some((worker, price)) = equals.find(|(worker, _)| *worker == placed.worker) else {
            return Err(format!("{placed:?} is none of the cheapest of {choices:?}"));
        };
        for (part, is, should) in [
            ("prefill", placed.cost.prefill(), price.prefill),
            ("backlog", placed.cost.backlog(), price.backlog),
            ("booked", placed.cost.booked(), price.booked),
            ("waiting", placed.cost.waiting(), price.waiting),
            ("active", placed.cost.active(), price.active),
            ("total", placed.cost.total(), price.total()),
        ] {
            if !same(is, should) {
                return Err(format!("{worker}: {part} is {is}, not {should}"));
            }
        }
        agree("estimated", placed.cost.is_estimated(), price.estimated)?;
        if width == 0.0 {
            self.ties.add(request, choices, least, placed.worker);
        }
        let ticket = placed.ticket;
        let router = *self.router.get_or_insert(ticket.router);
        let number = self.truth.bookings.len() as u64 + 1;
        agree("ticket", ticket, Ticket { router, number })?;
        let blocks = request.missing(placed.worker);
        self.truth.book(placed.worker, blocks, self.now);
        Ok(())
    }

    fn compare(&mut self) -> Agreement {
        let loads = self.look();
        let ranks: Vec<_> = loads.workers().iter().map(|load| load.worker).collect();
        let should: Vec<_> = self.truth.workers.keys().copied().collect();
        agree("workers", ranks, should)?;
        for load in loads.workers() {
            self.compare_worker(load)
                .map_err(|difference| format!("{}: {difference}", load.worker))?;
        }
        agree("len", self.table.len(), self.truth.workers.len())?;
        agree(
            "empty",
            self.table.is_empty(),
            self.truth.workers.is_empty(),
        )?;
        let outstanding = self.truth.outstanding();
        agree("outstanding", self.table.outstanding(), outstanding)?;
        self.compare_counts()
    }

    fn compare_worker(&self, load: &RankLoad) -> Agreement {
        let worker = &self.truth.workers[&load.worker];
        let claim = &worker.claim;
        agree("publisher", load.publisher, claim.publisher)?;
        agree("life", load.life, claim.life)?;
        agree("metrics", &load.metrics, &claim.metrics)?;
        let ago = |at: Instant| self.now.saturating_duration_since(at);
        agree("age", load.age, ago(claim.arrived_at))?;
        agree("reported", load.reported, claim.reported_at.map(ago))?;
        let freshness = match (&claim.metrics, worker.stale) {
            (None, _) => Freshness::Unknown,
            (Some(_), Some(_)) => Freshness::Stale,
            (Some(_), None) => Freshness::Fresh,
        };
        agree("freshness", load.freshness, freshness)?;
        let booked = (load.booked_blocks, load.booked_requests);
        agree("booked", booked, self.truth.booked(load.worker).all())?;
        agree("draining", load.draining, claim.draining)?;
        let until = worker.cooling.map(|cooling| cooling.until);
        let until = until.filter(|_| self.truth.is_cooling(load.worker));
        let cooling = until.map(|until| until.saturating_duration_since(self.now));
        agree("cooling", load.cooling, cooling)?;
        let saturated = self.truth.is_saturated(load.worker);
        agree("saturated", load.saturated, saturated)
    }

    fn compare_counts(&self) -> Agreement {
        let counts = self.table.counts();
        let tally = Tally {
            applied: counts.applied,
            need_full: counts.need_full,
            superseded: counts.superseded,
            closed: counts.closed,
            selected: counts.selected,
            not_selected: counts.not_selected,
            unknown_releases: counts.unknown_releases,
        };
        agree("counts", tally, self.tally)?;
        let failed = self.truth.ended(End::Failed);
        agree(
            "failed",
            (counts.failed, counts.cooled),
            (failed, self.cooled),
        )?;
        let ends = [
            (End::Released, counts.released - failed),
            (End::Admitted, counts.admitted),
            (End::Settled, counts.settled),
            (End::Dropped, counts.dropped),
            (End::Expired, counts.expired),
        ];
        for (end, is) in ends {
            agree(&format!("{end:?}"), is, self.truth.ended(end))?;
        }
        let ended: u64 = ends.iter().map(|(_, count)| count).sum();
        let outstanding = self.table.outstanding() as u64;
        agree("selected", counts.selected, ended + failed + outstanding)
    }

    /// Which tickets stand shows when all are released.
    pub(super) fn end(&mut self) -> Agreement {
        for number in 1..=self.truth.bookings.len() as u64 {
            self.release(Ticket {
                router: ROUTER,
                number,
            })?;
        }
        self.compare()
    }
}

fn agree<T: PartialEq + Debug>(what: &str, is: T, should: T) -> Agreement {
    if is == should {
        return Ok(());
    }
    Err(format!("{what}: {is:?}, not {should:?}"))
}
