//! One link on random schedules, against a model that looks everything up in what happened since a worker was last
//! told, and against a router that applies what it gets.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use crate::support::unpaced;
use crate::support::w;
use actix_kv_metrics::{
    Backoff, Coalescing, ForwardPassMetrics, LinkId, LoadSnapshot, PublisherId, SnapshotAck,
    SnapshotKind, Ticket,
    actix::clock,
    sans_io::{Delivery, Link, LinkState, Reported, Reports},
};
use fastrand::Rng;

/// Microseconds since the epoch of a schedule.
type Micros = u64;

fn us(n: Micros) -> Duration {
    Duration::from_micros(n)
}

fn micros(duration: Duration) -> Micros {
    duration.as_micros().try_into().unwrap_or(Micros::MAX)
}

/// The newest of one worker, as it is compared.
#[derive(Debug, Clone, PartialEq)]
struct Value {
    life: u64,
    metrics: Option<ForwardPassMetrics>,
    tickets: Vec<Ticket>,
    draining: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Difference {
    None,
    Minor,
    Significant,
    Rise,
    Urgent,
}

/// Whether the worker's last urgent change was long enough before for a rise to be another, and its last one but for rises
/// for another of those.
#[derive(Debug, Clone, Copy)]
struct Rested {
    for_rise: bool,
    for_other: bool,
}

const TIRED: Rested = Rested {
    for_rise: false,
    for_other: false,
};

#[derive(Debug, Clone, PartialEq)]
enum Has {
    Unknown,
    Value(Value),
}

fn difference(has: Option<&Has>, new: &Value, settings: &Coalescing, rested: Rested) -> Difference {
    let old = match has {
        None => return Difference::Urgent,
        Some(Has::Unknown) => return Difference::Significant,
        Some(Has::Value(old)) if old == new => return Difference::None,
        Some(Has::Value(old)) => old,
    };
    let drains = old.draining != new.draining;
    if drains && rested.for_other {
        return Difference::Urgent;
    }
    let (Some(a), Some(b)) = (&old.metrics, &new.metrics) else {
        let same = old.life == new.life && old.metrics == new.metrics;
        return if same {
            Difference::Significant
        } else {
            Difference::Urgent
        };
    };
    let moved = a
        .kv_stats
        .kv_active_blocks
        .abs_diff(b.kv_stats.kv_active_blocks) as f64;
    let backlog = |metrics: &ForwardPassMetrics| metrics.worker_stats.num_prefill_blocks;
    let grown = backlog(a).zip(backlog(b));
    let grown = grown.map(|(before, now)| i128::from(now) - i128::from(before));
    let least = settings.prefill_significance();
    let backlog_differs = match grown {
        Some(grown) => grown != 0 && grown.abs() >= i128::from(least),
        None => backlog(a) != backlog(b),
    };
    let significant = drains
        || old.tickets != new.tickets
        || backlog_differs
        || a.worker_stats.num_requests_waiting != b.worker_stats.num_requests_waiting
        || a.kv_stats.kv_total_blocks != b.kv_stats.kv_total_blocks
        || (moved > 0.0 && moved >= settings.significance() * b.kv_stats.kv_total_blocks as f64);
    let rises = backlog_differs && grown > Some(0);
    if old.life != new.life {
        Difference::Urgent
    } else if rises && rested.for_rise {
        Difference::Rise
    } else if significant {
        Difference::Significant
    } else {
        Difference::Minor
    }
}

/// A living worker: its newest, and what changed since its last window was closed.
#[derive(Debug)]
struct Worker {
    newest: Value,
    /// With each, whether it came long enough after the last urgent one to be another.
    changes: Vec<(Micros, Value, Rested)>,
    /// When the last urgent change came, and the last that was no rise.
    last_urgent: Option<Micros>,
    last_other_urgent: Option<Micros>,
    /// When it reported in this life.
    reports: Vec<Micros>,
    /// When it reported first since it was last told of.
    unrenewed_since: Option<Micros>,
    /// Failed or flushed: due whatever its changes say.
    forced: bool,
    /// What was urgent when what the router has became unknown stays so.
    urgent: bool,
    /// When this life began, if that was within `max_delay` of the end of another.
    reborn_at: Option<Micros>,
    /// And so did the one before: nothing is urgent until its first report is told.
    flaps: bool,
}

#[derive(Debug)]
struct Flight {
    full: bool,
    carried: Vec<(u64, u64)>,
    /// Workers told only because they still report: id, life, since when they had been unrenewed.
    renewed: Vec<(u64, u64, Micros)>,
    left: BTreeSet<u64>,
}

/// The naive model. It keeps no deadlines: they are folded from the list of changes whenever they are asked for.
#[derive(Debug)]
struct Model {
    settings: Coalescing,
    workers: BTreeMap<u64, Worker>,
    has: BTreeMap<u64, Has>,
    departed: BTreeSet<u64>,
    /// When lives ended, and whether they had begun right after another.
    ended: BTreeMap<u64, (Micros, bool)>,
    wants_full: bool,
    flight: Option<Flight>,
    until: Option<Micros>,
    failures: u32,
    last_start: Option<Micros>,
    unpaced: bool,
}

impl Model {
    fn new(settings: Coalescing) -> Self {
        Self {
            settings,
            workers: BTreeMap::new(),
            has: BTreeMap::new(),
            departed: BTreeSet::new(),
            ended: BTreeMap::new(),
            wants_full: true,
            flight: None,
            until: None,
            failures: 0,
            last_start: None,
            unpaced: false,
        }
    }

    fn difference(&self, id: u64, value: &Value, rested: Rested) -> Difference {
        let difference = difference(self.has.get(&id), value, &self.settings, rested);
        let flaps = self.workers.get(&id).is_some_and(|worker| worker.flaps);
        if flaps && difference > Difference::Significant {
            Difference::Significant
        } else {
            difference
        }
    }

    fn is_recent(&self, at: Micros, now: Micros) -> bool {
        now - at < micros(self.settings.max_delay())
    }

    /// `None`: no window. Else when it ends; 0: it is due or urgent.
    fn end(&self, id: u64) -> Option<Micros> {
        let worker = &self.workers[&id];
        if worker.forced {
            return Some(0);
        }
        let (debounce, max_delay, minor_delay) = (
            micros(self.settings.debounce()),
            micros(self.settings.max_delay()),
            micros(self.settings.minor_delay()),
        );
        let mut end = None;
        let mut cap = None;
        for (at, value, rested) in &worker.changes {
            let difference = self.difference(id, value, *rested);
            if difference > Difference::Significant {
                return Some(0);
            }
            match (end, cap) {
                (None, _) if difference == Difference::None => {}
                (None, _) if difference == Difference::Minor => end = Some(at + minor_delay),
                (None, _) if worker.flaps => {
                    // Who flaps waits, however quiet it is.
                    let end = at + max_delay;
                    return Some(if end == *at { 0 } else { end });
                }
                (None, _) => {
                    cap = Some(at + max_delay);
                    end = Some(at + debounce);
                }
                (Some(ended), _) if ended <= *at => return end,
                (Some(_), None) if difference < Difference::Significant => {}
                (Some(minor_end), None) => {
                    cap = Some(minor_end.min(at + max_delay));
                    end = Some((at + debounce).min(minor_end));
                }
                (Some(_), Some(cap)) => end = Some((at + debounce).min(cap)),
            }
        }
        end
    }

    fn is_urgent(&self) -> bool {
        self.wants_full
            || !self.departed.is_empty()
            || self.workers.keys().any(|id| self.has_urgent(*id))
    }

    fn has_urgent(&self, id: u64) -> bool {
        let worker = &self.workers[&id];
        let mut changes = worker.changes.iter();
        let urgent = |value, rested| self.difference(id, value, rested) > Difference::Significant;
        worker.urgent || changes.any(|(_, value, rested)| urgent(value, *rested))
    }

    fn is_pending(&self) -> bool {
        self.is_urgent() || self.workers.keys().any(|id| self.end(*id).is_some())
    }

    /// When the worker is to be told of because it still reports.
    fn renewal(&self, id: u64) -> Option<Micros> {
        let minor_delay = micros(self.settings.minor_delay());
        Some(self.workers[&id].unrenewed_since? + minor_delay)
    }

    fn urgent_gap(&self) -> Micros {
        let (min_gap, urgent_gap) = (self.settings.min_gap(), self.settings.urgent_gap());
        let gap = if min_gap.is_zero() {
            urgent_gap
        } else {
            urgent_gap.min(min_gap)
        };
        micros(gap)
    }

    fn timeout(&self) -> Option<Micros> {
        if self.flight.is_some() {
            return None;
        }
        if self.until.is_some() {
            return self.until;
        }
        let renewals = self.workers.keys().filter_map(|id| self.renewal(*id));
        let others = self.workers.keys().filter(|id| !self.has_urgent(**id));
        let others = others.filter_map(|id| self.end(*id)).chain(renewals).min();
        let urgent = self.is_urgent().then_some(0);
        let pace = self
            .last_start
            .filter(|_| !self.unpaced && !self.wants_full);
        let Some(last_start) = pace else {
            return urgent.into_iter().chain(others).min();
        };
        let others = others.map(|at| at.max(last_start + micros(self.settings.min_gap())));
        let urgent = urgent.map(|_| last_start + self.urgent_gap());
        urgent.into_iter().chain(others).min()
    }

    fn change(&mut self, now: Micros, id: u64, newest: Value) {
        let ended = self.ended.get(&id).copied();
        let ended = ended.filter(|(at, _)| self.is_recent(*at, now));
        let worker = self.workers.entry(id).or_insert_with(|| Worker {
            newest: newest.clone(),
            changes: Vec::new(),
            last_urgent: None,
            last_other_urgent: None,
            reports: Vec::new(),
            unrenewed_since: None,
            forced: false,
            urgent: false,
            reborn_at: ended.map(|_| now),
            flaps: ended.is_some_and(|(_, reborn)| reborn),
        });
        worker.newest = newest.clone();
        let (gap, max_delay) = (self.settings.urgent_gap(), self.settings.max_delay());
        let over = |at: Option<Micros>, rest| at.is_none_or(|at| now - at >= micros(rest));
        let rested = Rested {
            for_rise: over(worker.last_urgent, gap),
            for_other: over(worker.last_other_urgent, max_delay),
        };
        worker.changes.push((now, newest.clone(), rested));
        let difference = self.difference(id, &newest, rested);
        let worker = self.workers.get_mut(&id).unwrap();
        if difference > Difference::Significant {
            worker.last_urgent = Some(now);
        }
        if difference == Difference::Urgent {
            worker.last_other_urgent = Some(now);
        }
    }

    fn report(&mut self, now: Micros, id: u64) {
        let worker = self.workers.get_mut(&id).unwrap();
        worker.reports.push(now);
        worker.unrenewed_since.get_or_insert(now);
    }

    fn leave(&mut self, now: Micros, id: u64) {
        let Some(worker) = self.workers.remove(&id) else {
            return;
        };
        let reborn = worker.flaps || worker.reborn_at.is_some_and(|at| self.is_recent(at, now));
        let had = self.has.remove(&id).is_some();
        if had || reborn {
            self.ended.insert(id, (now, reborn));
        }
        if had && !self.wants_full {
            self.departed.insert(id);
            if self.departed.len() > self.workers.len().max(16) {
                self.want_full();
            }
        }
    }

    fn want_full(&mut self) {
        self.wants_full = true;
        self.departed.clear();
    }

    fn flush(&mut self) {
        let open: Vec<_> = self.workers.keys().copied().collect();
        for id in open {
            if self.end(id).is_some() {
                self.workers.get_mut(&id).unwrap().forced = true;
            }
        }
        self.unpaced = self.is_pending();
    }

    /// What is sent now: `(full, left, workers)`.
    fn poll(&mut self, now: Micros) -> Option<(bool, Vec<u64>, Vec<u64>)> {
        if self.timeout().is_none_or(|timeout| timeout > now) {
            return None;
        }
        // A retry has been paced by its backoff.
        self.until = None;
        self.unpaced = false;
        let full = std::mem::take(&mut self.wants_full);
        let ids: Vec<_> = self.workers.keys().copied().collect();
        let (mut told, mut renewed) = (Vec::new(), Vec::new());
        for id in ids {
            let ended = full || self.end(id).is_some_and(|end| end <= now);
            let still = self.renewal(id).is_some_and(|due| due <= now);
            let has_newest =
                Some(&Has::Value(self.workers[&id].newest.clone())) == self.has.get(&id);
            if still && !full && (ended && has_newest || self.end(id).is_none()) {
                let worker = self.workers.get_mut(&id).unwrap();
                let since = worker.unrenewed_since.take().unwrap();
                worker.forced = false;
                worker.changes.clear();
                renewed.push((id, worker.newest.life, since));
                continue;
            }
            if !ended && !still {
                continue;
            }
            let newest = self.workers[&id].newest.clone();
            let worker = self.workers.get_mut(&id).unwrap();
            worker.forced = false;
            worker.urgent = false;
            worker.changes.clear();
            if full || still || self.difference(id, &newest, TIRED) != Difference::None {
                self.workers.get_mut(&id).unwrap().unrenewed_since = None;
                self.workers.get_mut(&id).unwrap().flaps &= newest.metrics.is_none();
                self.has.insert(id, Has::Value(newest));
                told.push(id);
            }
        }
        let left = std::mem::take(&mut self.departed);
        let left = if full { BTreeSet::new() } else { left };
        if !full && told.is_empty() && renewed.is_empty() && left.is_empty() {
            return None;
        }
        let life = |id: &u64| (*id, self.workers[id].newest.life);
        let carried = told.iter().map(life).collect();
        told.extend(renewed.iter().map(|(id, ..)| *id));
        told.sort_unstable();
        self.flight = Some(Flight {
            full,
            carried,
            renewed,
            left: left.clone(),
        });
        self.last_start = Some(now);
        Some((full, left.into_iter().collect(), told))
    }

    fn applied(&mut self, needs_full: bool) {
        self.flight = None;
        self.failures = 0;
        if needs_full {
            self.want_full();
        }
    }

    fn unknown(&mut self) {
        let Some(flight) = self.flight.take() else {
            return;
        };
        self.departed.extend(flight.left);
        for (id, life, since) in flight.renewed {
            let worker = self.workers.get_mut(&id);
            if let Some(worker) = worker.filter(|worker| worker.newest.life == life) {
                worker.unrenewed_since = Some(since);
            }
        }
        for (id, life) in flight.carried {
            if self
                .workers
                .get(&id)
                .is_none_or(|worker| worker.newest.life != life)
            {
                continue;
            }
            let urgent = self.has_urgent(id);
            let worker = self.workers.get_mut(&id).unwrap();
            worker.forced = true;
            worker.urgent = urgent;
            self.has.insert(id, Has::Unknown);
        }
        if flight.full {
            self.want_full();
        }
    }

    fn failed(&mut self, now: Micros) {
        self.unknown();
        self.failures += 1;
        let pause = BACKOFF.0 << (self.failures - 1).min(20);
        self.until = Some(now + pause.min(BACKOFF.1));
    }
}

/// First and longest pause.
const BACKOFF: (Micros, Micros) = (3_000, 20_000);

/// A schedule under way: the link, the model, the router, and the truth.
struct Run {
    rng: Rng,
    /// Whether the model foretells every snapshot and every deadline.
    exact: bool,
    /// Whether workers report what they have to compute.
    backlog: bool,
    settings: Coalescing,
    epoch: Instant,
    now: Micros,
    reports: Reports,
    link: Link,
    sequence: u64,
    model: Model,
    /// What the router applied.
    table: BTreeMap<u64, Value>,
    in_flight: Option<LoadSnapshot>,
    acknowledged: Option<u64>,
    links: u64,
    tickets: BTreeMap<u64, Ticket>,
    sent: u64,
    compactions: u64,
    /// Since when a living worker has differed, significantly and at all, from what the router has or is being told.
    differs: BTreeMap<u64, (Option<Micros>, Option<Micros>)>,
}

impl Run {
    fn new(seed: u64, exact: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let settings = settings(&mut rng, exact);
        let epoch = clock::Instant::now().into_std();
        Self {
            backlog: rng.bool(),
            rng,
            exact,
            settings,
            epoch,
            now: 0,
            reports: Reports::new(),
            link: Link::new(LinkId::new(1), settings, backoff(), epoch),
            sequence: 0,
            model: Model::new(settings),
            table: BTreeMap::new(),
            in_flight: None,
            acknowledged: None,
            links: 1,
            tickets: BTreeMap::new(),
            sent: 0,
            compactions: 0,
            differs: BTreeMap::new(),
        }
    }

    fn instant(&self) -> Instant {
        self.epoch + us(self.now)
    }

    fn truth(&self, id: u64) -> Option<Value> {
        let report = self.reports.get(w(id))?;
        Some(Value {
            life: report.life(),
            metrics: report.metrics(),
            tickets: self.tickets.get(&id).copied().into_iter().collect(),
            draining: report.is_draining(),
        })
    }

    fn living(&self) -> Vec<u64> {
        let all = self.reports.iter();
        let mut ids: Vec<_> = all.map(|(_, r)| r.worker().worker().0).collect();
        ids.sort_unstable();
        ids
    }

    fn step(&mut self, workers: u64) {
        let id = self.rng.u64(0..workers);
        match self.rng.u32(0..100) {
            0..56 => self.report(id),
            56..60 => self.drain(id),
            60..64 => self.join(id),
            64..70 => self.leave(id),
            70..90 => self.answer(),
            90..92 => {
                self.link.handle_flush();
                self.model.flush();
            }
            92 => {
                self.link.handle_retry_now();
                self.model.until = None;
            }
            93 => self.restart(),
            94 => self.replace(),
            _ => {}
        }
        self.note_differences();
        if self.rng.bool() {
            self.pump();
        }
        let pause = match self.rng.u32(0..10) {
            0..2 => 0,
            2..6 => self.rng.u64(0..500),
            6..9 => self.rng.u64(0..4_000),
            _ => self.rng.u64(0..30_000),
        };
        // A late caller misses deadlines on the way.
        let late = self.rng.u32(0..10) == 0;
        self.run_to(self.now + pause, late);
    }

    fn run_to(&mut self, target: Micros, late: bool) {
        self.pump();
        while let Some(timeout) = self.timeout().filter(|at| !late && *at <= target) {
            self.now = timeout;
            self.pump();
        }
        self.now = target;
        self.pump();
    }

    fn timeout(&self) -> Option<Micros> {
        let timeout = self.link.poll_timeout()?;
        let nanos = timeout.saturating_duration_since(self.epoch).as_nanos();
        assert_eq!(nanos % 1_000, 0);
        Some((nanos / 1_000) as Micros)
    }

    fn report(&mut self, id: u64) {
        // Few values, so that workers often return to what the router has.
        let metrics = match self.rng.u32(0..10) {
            0..6 => ForwardPassMetrics::new(self.rng.u64(0..3) * 50, 100, 0),
            6..8 => ForwardPassMetrics::new(self.rng.u64(0..101), 100, self.rng.u64(0..2)),
            8 => ForwardPassMetrics::new(100, 100, 0).with_request_active_slots(self.rng.u64(0..3)),
            _ => ForwardPassMetrics::new(0, 100, 0).with_gpu_cache_usage_perc(self.rng.f32()),
        };
        let metrics = match self.rng.u32(0..4) {
            0..2 if self.backlog => metrics.with_num_prefill_blocks(self.rng.u64(0..12)),
            _ => metrics,
        };
        let ticket = (self.rng.u32(0..8) == 0).then(|| Ticket {
            router: 1,
            number: self.rng.u64(0..100),
        });
        let before = self.truth(id);
        let now = self.instant();
        let reported = self
            .reports
            .handle_report(w(id), metrics.clone(), ticket, now);
        let new = before
            .as_ref()
            .is_none_or(|value| value.metrics != Some(metrics));
        let mut news = false;
        if let Some(ticket) = ticket {
            let known = self.tickets.get(&id);
            news = known.is_none_or(|known| known.number < ticket.number);
            if news {
                self.tickets.insert(id, ticket);
            }
        }
        match reported {
            Reported::Changed(change) => {
                assert!(new || news, "nothing changed");
                let now = self.instant();
                let report = self.reports.at(change.slot()).unwrap();
                self.link.handle_changed(&change, report, now);
                let newest = self.truth(id).unwrap();
                self.model.change(self.now, id, newest);
            }
            Reported::Unchanged(slot) => {
                assert!(!new && !news, "a change was missed");
                self.link.handle_unchanged(slot, now);
            }
            Reported::Known => panic!("metrics are a report"),
            Reported::Late => panic!("plain reports are never late"),
        }
        self.model.report(self.now, id);
    }

    fn drain(&mut self, id: u64) {
        let draining = self.rng.bool();
        let before = self.truth(id);
        match self.reports.handle_draining(w(id), draining) {
            Reported::Changed(change) => {
                assert_eq!(before.unwrap().draining, !draining, "nothing changed");
                let now = self.instant();
                let report = self.reports.at(change.slot()).unwrap();
                self.link.handle_changed(&change, report, now);
                let newest = self.truth(id).unwrap();
                self.model.change(self.now, id, newest);
            }
            Reported::Known => assert_eq!(before.unwrap().draining, draining),
            Reported::Late => assert_eq!(before, None),
            Reported::Unchanged(_) => panic!("draining is no report"),
        }
    }

    fn join(&mut self, id: u64) {
        if let Some(slot) = self.reports.handle_joined(w(id)) {
            let now = self.instant();
            let report = self.reports.at(slot).unwrap();
            self.link.handle_joined(slot, report, now);
            let newest = self.truth(id).unwrap();
            self.model.change(self.now, id, newest);
        }
    }

    fn leave(&mut self, id: u64) {
        if let Some(slot) = self.reports.handle_left(w(id)) {
            let now = self.instant();
            self.link.handle_left(slot, w(id), self.reports.len(), now);
            self.tickets.remove(&id);
            self.model.leave(self.now, id);
            if let Some(renumbering) = self.reports.compact() {
                self.link.handle_renumbered(&renumbering);
                self.compactions += 1;
            }
        }
    }

    fn answer(&mut self) {
        let kind = self.rng.u32(0..10);
        if let Some(snapshot) = self.in_flight.take() {
            self.answer_with(&snapshot, kind);
        } else {
            // Nothing is in flight: whatever comes is stray.
            let state = self.link.state();
            let now = self.instant();
            let stray = self.rng.u64(0..self.sequence + 2);
            assert!(!self.link.handle_delivery(stray, Delivery::Gone, now));
            assert_eq!(self.link.state(), state);
        }
    }

    fn answer_with(&mut self, snapshot: &LoadSnapshot, kind: u32) {
        let now = self.instant();
        let wrong = snapshot.sequence + self.rng.u64(1..3);
        assert!(!self.link.handle_delivery(wrong, Delivery::Failed, now));
        let delivery = match kind {
            0..6 => Delivery::Answered(SnapshotAck::Applied),
            6 => Delivery::Answered(SnapshotAck::NeedFull),
            7 => Delivery::Answered(SnapshotAck::Superseded),
            _ => Delivery::Failed,
        };
        // A router that fails may have applied the snapshot all the same.
        if kind < 7 || self.rng.bool() {
            self.apply(snapshot);
        }
        assert!(self.link.handle_delivery(snapshot.sequence, delivery, now));
        let full = snapshot.kind == SnapshotKind::Full;
        match delivery {
            Delivery::Answered(SnapshotAck::Applied) => self.model.applied(false),
            Delivery::Answered(SnapshotAck::NeedFull) if !full => self.model.applied(true),
            _ => {
                self.model.failed(self.now);
                return;
            }
        }
        self.acknowledged = Some(snapshot.sequence);
    }

    fn apply(&mut self, snapshot: &LoadSnapshot) {
        if snapshot.kind == SnapshotKind::Full {
            self.table.clear();
        }
        for worker in &snapshot.left {
            self.table.remove(&worker.worker().0);
        }
        for load in &snapshot.workers {
            let value = Value {
                life: load.life,
                metrics: load.metrics.clone(),
                tickets: load.admitted.clone(),
                draining: load.draining,
            };
            let before = self.table.insert(load.worker.worker().0, value);
            assert!(before.is_none_or(|before| before.life <= load.life), "G13");
        }
    }

    /// A supervised restart: nobody will hear what becomes of the snapshot in flight.
    fn restart(&mut self) {
        self.link.handle_restart();
        if let Some(snapshot) = self.in_flight.take() {
            if self.rng.bool() {
                self.apply(&snapshot);
            }
            self.model.unknown();
            self.model.want_full();
        }
    }

    /// The router dies and another is attached.
    fn replace(&mut self) {
        let Some(snapshot) = self.in_flight.take() else {
            return;
        };
        let now = self.instant();
        assert!(
            self.link
                .handle_delivery(snapshot.sequence, Delivery::Gone, now)
        );
        assert_eq!(self.link.state(), LinkState::Lost);
        assert_eq!(self.link.poll_timeout(), None);
        assert_eq!(self.link.coalescer().open_windows(), 0);
        self.links += 1;
        self.link = Link::new(LinkId::new(self.links), self.settings, backoff(), now);
        self.acknowledged = None;
        self.table.clear();
        let workers = std::mem::take(&mut self.model.workers);
        self.model = Model::new(self.settings);
        self.model.workers = workers;
        for worker in self.model.workers.values_mut() {
            worker.changes.clear();
            worker.unrenewed_since = None;
            worker.forced = false;
            worker.urgent = false;
            worker.flaps = false;
            worker.last_urgent = None;
            worker.last_other_urgent = None;
            worker.reborn_at = None;
        }
    }

    fn note_differences(&mut self) {
        let living = self.living();
        self.differs
            .retain(|id, _| living.binary_search(id).is_ok());
        for id in living {
            let newest = self.truth(id).unwrap();
            let difference = self.model.difference(id, &newest, TIRED);
            let (significant, any) = self.differs.entry(id).or_default();
            let now = self.now;
            let keep = |since: &mut Option<Micros>, holds: bool| {
                *since = if holds { since.or(Some(now)) } else { None };
            };
            keep(significant, difference >= Difference::Significant);
            keep(any, difference != Difference::None);
        }
    }

    /// Polls once; the model agrees, and no guarantee is broken.
    fn pump(&mut self) {
        let now = self.instant();
        let snapshot = self.link.poll_transmit(
            PublisherId::new(1, 1),
            &mut self.sequence,
            &self.reports,
            now,
        );
        if let Some(timeout) = self.link.poll_timeout() {
            assert!(timeout > now, "a deadline in the past");
        }
        if let Some(snapshot) = &snapshot {
            self.check_snapshot(snapshot);
        }
        if self.exact {
            let expected = self.model.poll(self.now);
            let sent = snapshot.as_ref().map(told);
            assert_eq!(sent, expected, "what is sent at {}", self.now);
            assert_eq!(
                self.timeout(),
                self.model.timeout(),
                "deadline at {}",
                self.now
            );
        } else if let Some(snapshot) = &snapshot {
            self.follow(snapshot);
        }
        if let Some(snapshot) = snapshot {
            self.sent += 1;
            self.in_flight = Some(snapshot);
        }
        self.note_differences();
        self.check_bounds();
    }

    /// Without foretelling: the model takes over what was sent.
    fn follow(&mut self, snapshot: &LoadSnapshot) {
        let (full, left, told) = told(snapshot);
        self.model.wants_full = false;
        self.model.until = None;
        self.model.departed.clear();
        let (mut carried, mut renewed) = (Vec::new(), Vec::new());
        for id in &told {
            let worker = self.model.workers.get_mut(id).unwrap();
            worker.flaps &= worker.newest.metrics.is_none();
            let newest = Has::Value(worker.newest.clone());
            let since = worker.unrenewed_since.take();
            let has = self.model.has.insert(*id, newest.clone());
            let only_renewed = !full && has.as_ref() == Some(&newest);
            if let Some(since) = since.filter(|_| only_renewed) {
                renewed.push((*id, self.model.workers[id].newest.life, since));
            } else {
                carried.push((*id, self.model.workers[id].newest.life));
            }
        }
        self.model.flight = Some(Flight {
            full,
            carried,
            renewed,
            left: left.into_iter().collect(),
        });
        self.model.last_start = Some(self.now);
    }

    fn check_snapshot(&self, snapshot: &LoadSnapshot) {
        assert!(self.in_flight.is_none(), "G7: one in flight");
        assert!(
            self.model.until.is_none_or(|until| until <= self.now),
            "G8: sent while backing off"
        );
        assert_eq!(snapshot.sequence, self.sequence);
        for load in &snapshot.workers {
            let id = load.worker.worker().0;
            let newest = self.truth(id).expect("G13: nobody who left is told");
            let carried = Value {
                life: load.life,
                metrics: load.metrics.clone(),
                tickets: load.admitted.clone(),
                draining: load.draining,
            };
            assert_eq!(carried, newest, "G1: the newest of {id}");
            let last = self.model.workers[&id].reports.last();
            let reported = last.map(|at| us(self.now - at));
            assert_eq!(load.reported, reported, "when {id} reported");
            if snapshot.kind != SnapshotKind::Full {
                let still = self.model.renewal(id).is_some_and(|due| due <= self.now);
                let has = self.model.has.get(&id);
                assert!(still || has != Some(&Has::Value(newest)), "G4: {id}");
            }
        }
        match snapshot.kind {
            SnapshotKind::Full => {
                assert_eq!(told(snapshot).2, self.living(), "G10: everybody");
                assert!(snapshot.left.is_empty());
            }
            SnapshotKind::Delta { after } => {
                assert_eq!(Some(after), self.acknowledged);
                assert!(
                    !(snapshot.workers.is_empty() && snapshot.left.is_empty()),
                    "G4"
                );
            }
            SnapshotKind::Closed => panic!("a link never closes by itself"),
        }
    }

    /// Right after a pump: what the link was free to send is sent.
    fn check_bounds(&self) {
        let windows = self.link.coalescer();
        assert!(windows.open_windows() <= self.reports.len(), "G7: memory");
        let most = 2 * self.reports.len().max(16) + 1;
        assert!(windows.open_departures() <= most, "G7: memory");
        let mut renewals = self.model.workers.keys();
        let reports = renewals.any(|id| self.model.renewal(*id).is_some());
        let backing_off = matches!(self.link.state(), LinkState::BackingOff { .. });
        if !windows.is_pending() && !reports && !backing_off {
            assert_eq!(self.link.poll_timeout(), None, "G5: nothing pending");
        }
        if self.link.state() != LinkState::Idle {
            return;
        }
        let paced_by = |gap| {
            let last_start = self.model.last_start;
            last_start.is_some_and(|start| start + gap > self.now)
        };
        let urgent_paced = paced_by(self.model.urgent_gap());
        if !urgent_paced {
            assert_eq!(windows.open_departures(), 0, "G12, G13: departures");
            for id in self.table.keys() {
                assert!(self.truth(*id).is_some(), "G13: {id} has left");
            }
        }
        let paced = paced_by(micros(self.settings.min_gap()));
        for id in self.living() {
            let newest = self.truth(id).unwrap();
            let Some(has) = self.table.get(&id) else {
                // What failed is due again, and paced if its backoff was ended.
                let unknown = self.model.has.contains_key(&id);
                let waits = urgent_paced || paced && unknown || self.model.workers[&id].flaps;
                assert!(waits, "G12: a first report of {id}");
                continue;
            };
            assert!(
                urgent_paced || has.life == newest.life,
                "G13: a new life of {id}"
            );
            let renewal = self.model.renewal(id);
            assert!(
                paced || renewal.is_none_or(|due| due > self.now),
                "{id} still reports"
            );
            let (significant, any) = self.differs[&id];
            if paced || urgent_paced {
                continue;
            }
            for (since, cap, what) in [
                (significant, self.settings.max_delay(), "max_delay"),
                (any, self.settings.minor_delay(), "minor_delay"),
            ] {
                let over = since.is_some_and(|since| since + micros(cap) <= self.now);
                assert!(
                    !over,
                    "G3: {id} at {} differs since {since:?}: {what}",
                    self.now
                );
            }
        }
    }

    /// G9: everything quiets down and every answer is Applied.
    fn quiet_down(&mut self) {
        let (from, sent) = (self.now, self.sent);
        self.pump();
        loop {
            if let Some(snapshot) = self.in_flight.take() {
                self.now += 100;
                self.answer_with(&snapshot, 0);
                self.pump();
            } else if let Some(timeout) = self.timeout() {
                self.now = self.now.max(timeout);
                self.pump();
            } else {
                break;
            }
        }
        let truth: BTreeMap<_, _> = self
            .living()
            .into_iter()
            .map(|id| (id, self.truth(id).unwrap()))
            .collect();
        assert_eq!(self.table, truth, "G9");
        assert_eq!(self.link.coalescer().open_windows(), 0);
        assert_eq!(self.link.coalescer().undelivered(&self.reports), []);
        assert!(self.link.is_settled());
        let most = 2 * self.reports.len() as u64 + 3;
        assert!(self.sent - sent <= most, "{} snapshots", self.sent - sent);
        let longest = micros(self.settings.minor_delay()) + BACKOFF.1;
        let paced = micros(self.settings.min_gap()) * most;
        assert!(self.now - from <= longest + paced + 100 * most, "G3");
        let counts = self.link.coalescer_counts();
        assert_eq!(counts.changed, counts.opened + counts.coalesced);
    }
}

fn backoff() -> Backoff {
    Backoff::new(us(BACKOFF.0), us(BACKOFF.1)).unwrap()
}

fn settings(rng: &mut Rng, exact: bool) -> Coalescing {
    let debounce = [0, 300, 1_000, 5_000][rng.usize(0..4)];
    let max_delay = debounce + [0, 1_000, 10_000][rng.usize(0..3)];
    let minor_delay = max_delay + [0, 2_000, 50_000][rng.usize(0..3)];
    let mut builder = unpaced()
        .debounce(us(debounce))
        .max_delay(us(max_delay))
        .minor_delay(us(minor_delay))
        .min_gap(us([0, 0, 4_000][rng.usize(0..3)]))
        .urgent_gap(us([0, 2_000, 6_000][rng.usize(0..3)]))
        .significance([0.0, 0.0, 0.1, 0.6][rng.usize(0..4)])
        .prefill_significance([0, 1, 3, 8][rng.usize(0..4)]);
    if !exact {
        builder = builder.leading(rng.bool());
        if rng.bool() {
            builder = builder.saturation(0.9);
        }
    }
    builder.build().unwrap()
}

/// `(full, left, workers)` of a snapshot, sorted.
fn told(snapshot: &LoadSnapshot) -> (bool, Vec<u64>, Vec<u64>) {
    let ids = |workers: Vec<actix_kv_metrics::WorkerRank>| {
        let mut ids: Vec<_> = workers.iter().map(|rank| rank.worker().0).collect();
        ids.sort_unstable();
        ids
    };
    let workers = snapshot.workers.iter().map(|load| load.worker).collect();
    (
        snapshot.kind == SnapshotKind::Full,
        ids(snapshot.left.clone()),
        ids(workers),
    )
}

/// Names the schedule if it fails.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}", self.0);
        }
    }
}

fn schedule(seed: u64, exact: bool) -> u64 {
    let _named = Named(seed);
    let mut run = Run::new(seed, exact);
    let workers = [1, 3, 8, 40][run.rng.usize(0..4)];
    if workers == 40 {
        (0..workers).for_each(|id| run.report(id));
        run.note_differences();
    }
    let steps = if workers == 40 { 80 } else { 150 };
    for _ in 0..steps {
        run.step(workers);
        if workers == 40 && run.rng.u32(0..40) == 0 {
            let gone = run.rng.u64(0..workers);
            (0..gone).for_each(|id| run.leave(id));
        }
    }
    run.quiet_down();
    run.sent
}

#[test]
fn random_schedules_are_told_to_the_microsecond_as_the_model_foretells() {
    let sent: u64 = (0..2_000).map(|seed| schedule(seed, true)).sum();
    assert!(sent > 2_000 * 20, "{sent} snapshots: too few to say much");
}

#[test]
fn random_schedules_keep_the_guarantees_with_leading_and_saturation() {
    let sent: u64 = (10_000..10_600).map(|seed| schedule(seed, false)).sum();
    assert!(sent > 600 * 20, "{sent} snapshots: too few to say much");
}

/// Most workers leave, again and again, whatever is open, out or failed: what remains is told as before.
#[test]
fn g7_mass_departures_change_nothing_for_who_stays() {
    let mut compactions = 0;
    for seed in 20_000..20_040 {
        let _named = Named(seed);
        let mut run = Run::new(seed, true);
        for _ in 0..3 {
            (0..300).for_each(|id| run.report(id));
            run.note_differences();
            (0..10).for_each(|_| run.step(300));
            let stay = run.rng.u64(1..20);
            let mut ids = run.living();
            run.rng.shuffle(&mut ids);
            for id in ids.split_off(stay as usize) {
                run.leave(id);
            }
            run.note_differences();
            (0..10).for_each(|_| run.step(300));
        }
        run.quiet_down();
        compactions += run.compactions;
    }
    assert!(compactions >= 40, "{compactions} times slots were given up");
}
