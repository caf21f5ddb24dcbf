//! What the router of one link has, and so which workers it must hear of.
//!
//! ```text
//!            first difference                       quiet for debounce,
//!            from what the router has               or max_delay is up
//!   Closed ──────────────────▶ Ordinary ─────────────────────────────▶ taken ──▶ Closed
//!     │  └──────────────────▶ Minor ──────────────────────────────────▶  ▲
//!     │         minor           │ significant: Ordinary from now on      │
//!     │ leading, failed, flush  ▼                                        │
//!     ├─────────────────────▶ Due ──────────────────────────────────────┤
//!     └─────────────────────▶ Urgent ───────────────────────────────────┘
//!   first report, saturation, drain, rise
//! ```

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use serde::Serialize;

use super::{
    at_router::{AtRouter, Difference, OlderValues, Rested},
    nanos::{Nanos, earliest, has_come, span},
    recent_lives::RecentLives,
    reports::{Change, Report, Reports, WorkerSlot},
    slots::{BySlot, Chain, Key, Links, Renumbering},
    windows::{Phase, Windows},
};
use crate::{config::Coalescing, metrics::WorkerRank, snapshot::WorkerLoad};

/// Decides what of the [`Reports`] is due on one link, and when.
///
/// Its [`Link`](super::Link) drives it; others may look. Call protocol: `handle_*` tells it what happened, `poll_snapshot`
/// takes what is due, `poll_timeout` says when something will be. At most one snapshot is out at a time: after each one
/// exactly one of `handle_applied`, `handle_need_full` and `handle_failed` is called. Early, late and extra calls do no
/// harm, and a `now` before an earlier one counts as that.
#[derive(Debug)]
pub struct Coalescer {
    settings: Coalescing,
    origin: Instant,
    last_now: Instant,
    now: Nanos,
    windows: Windows,
    tracked: BySlot<WorkerSlot, Tracked>,
    /// When it changed last, if `leading` asks for that.
    last_activity: BySlot<WorkerSlot, Option<Nanos>>,
    /// The last rise that was urgent; takes no room where no backlog is reported.
    last_rise: BySlot<WorkerSlot, Option<Nanos>>,
    older: OlderValues,
    /// Workers that have reported since the router was last told of them, in the order of the first such report.
    unrenewed: Chain<WorkerSlot>,
    unrenewed_links: Links<WorkerSlot>,
    /// Those that the snapshot that is out renews, and since when they had been unrenewed.
    renewals_out: Vec<(WorkerSlot, Nanos)>,
    /// Those that it carries otherwise, and since when they had differed.
    loads_out: Vec<(WorkerSlot, Option<Nanos>)>,
    departures: BTreeSet<WorkerRank>,
    departures_out: Vec<WorkerRank>,
    /// How many loads the last change carried: the next mostly carries as many.
    carried: usize,
    /// Lives that ended, or began right after another, within the last `max_delay`.
    lives: RecentLives,
    wants_full: bool,
    building: Option<Building>,
    out: Option<Out>,
    counts: CoalescerCounts,
}

/// Counters of one coalescer. `changed = opened + coalesced`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CoalescerCounts {
    /// Changed reports seen.
    pub changed: u64,
    /// Changed reports that opened a window (urgent and leading ones too).
    pub opened: u64,
    /// Changed reports that joined an open window.
    pub coalesced: u64,
    /// Windows that fell due and held what the router has already.
    pub suppressed: u64,
    /// Departures told.
    pub departures: u64,
    /// Worker loads told.
    pub entries: u64,
    /// Those among them that only say that the worker still reports.
    pub renewals: u64,
}

/// What a snapshot is to carry.
#[derive(Debug, PartialEq)]
pub(super) struct SnapshotContent {
    /// Whether it is everything.
    pub(super) full: bool,
    /// When it was built, at the latest.
    pub(super) built_at: Instant,
    /// Workers that left.
    pub(super) left: Vec<WorkerRank>,
    /// Loads that are due.
    pub(super) workers: Vec<WorkerLoad>,
}

/// A full snapshot that is built piece by piece. Who changes after being taken opens a window as ever.
#[derive(Debug)]
struct Building {
    /// What it says of ages counts from here.
    began: Instant,
    workers: Vec<WorkerLoad>,
    /// Number of the first slot that has not been looked at.
    next: u32,
}

/// The snapshot that is out.
#[derive(Debug, Clone, Copy)]
struct Out {
    full: bool,
}

#[derive(Debug, Clone, Copy)]
struct Tracked {
    at_router: AtRouter,
    /// Its life began right after another, and so did the one before: this one waits for its window.
    flaps: bool,
    /// The last urgent change that was no rise.
    last_other_urgent: Option<Nanos>,
    differs_since: Option<Nanos>,
    /// When it reported first since the router was last told of it.
    unrenewed_since: Option<Nanos>,
    /// The snapshot that is out, or was last, renews it, or carries it otherwise: true of those in the lists of what is out
    /// unless their life has ended since.
    renewed: bool,
    sent: bool,
}

impl Tracked {
    const NEW: Self = Self {
        at_router: AtRouter::NOTHING,
        flaps: false,
        last_other_urgent: None,
        differs_since: None,
        unrenewed_since: None,
        renewed: false,
        sent: false,
    };
}

impl Coalescer {
    /// Windows for a router that has nothing yet: the first snapshot is a full one.
    pub(super) fn new(settings: Coalescing, now: Instant) -> Self {
        Self {
            settings,
            origin: now,
            last_now: now,
            now: Nanos::START,
            windows: Windows::new(settings),
            tracked: BySlot::new(Tracked::NEW),
            last_activity: BySlot::new(None),
            last_rise: BySlot::new(None),
            older: OlderValues::default(),
            unrenewed: Chain::EMPTY,
            unrenewed_links: Links::default(),
            renewals_out: Vec::new(),
            loads_out: Vec::new(),
            departures: BTreeSet::new(),
            departures_out: Vec::new(),
            carried: 0,
            lives: RecentLives::new(settings.max_delay()),
            wants_full: true,
            building: None,
            out: None,
            counts: CoalescerCounts::default(),
        }
    }

    /// Its counters.
    pub fn counts(&self) -> CoalescerCounts {
        self.counts
    }

    /// Windows that are open.
    pub fn open_windows(&self) -> usize {
        self.windows.count()
    }

    /// Departures the router has not been told of.
    pub fn open_departures(&self) -> usize {
        self.departures.len()
    }

    /// Whether anything is to be told, now or later.
    pub fn is_pending(&self) -> bool {
        self.wants_full() || self.windows.count() > 0 || !self.departures.is_empty()
    }

    /// Whether something is due that no pacing may hold back.
    pub fn is_urgent(&self) -> bool {
        self.wants_full() || !self.departures.is_empty() || self.windows.is_urgent()
    }

    /// Whether something is due whatever the time.
    pub(super) fn is_due_at_once(&self) -> bool {
        self.is_urgent() || self.windows.is_due_at_once()
    }

    /// A worker's report differs from its report before. `true`: that opened a window or made one due, so the first
    /// deadline may be another; else it is what it was, or later.
    pub(super) fn handle_changed(
        &mut self,
        change: &Change,
        report: &Report,
        now: Instant,
    ) -> bool {
        self.advance(now);
        let slot = change.slot();
        let before = self.windows.phase(slot);
        self.counts.changed += 1;
        if before == Phase::Closed {
            self.counts.opened += 1;
        } else {
            self.counts.coalesced += 1;
        }
        let has = self.tracked[slot].at_router;
        if has == AtRouter::NEWEST {
            let older = self.older.keep(change.before().clone());
            self.tracked[slot].at_router = older;
        } else if has == AtRouter::NOTHING && before == Phase::Closed {
            self.begin_life(slot, report.worker());
        }
        self.update_window(slot, report);
        if self.settings.leading() {
            self.last_activity[slot] = Some(self.now);
        }
        let first = change.is_report() && self.note_report(slot);
        first || self.windows.phase(slot) != before
    }

    /// A worker reports the same again. `true`: nobody had done so since the router was last told, so the first deadline
    /// may be another.
    pub(super) fn handle_unchanged(&mut self, slot: WorkerSlot, now: Instant) -> bool {
        if self.tracked[slot].unrenewed_since.is_some() {
            return false;
        }
        self.advance(now);
        self.note_report(slot)
    }

    /// A worker is known, or begins a new life, and has not reported yet.
    pub(super) fn handle_joined(&mut self, slot: WorkerSlot, report: &Report, now: Instant) {
        self.advance(now);
        if self.tracked[slot].at_router == AtRouter::NOTHING {
            self.begin_life(slot, report.worker());
        } else {
            let flaps = self.lives.began_recently(report.worker(), self.now);
            self.lives.note_rebirth(report.worker(), self.now);
            let tracked = &mut self.tracked[slot];
            tracked.flaps = flaps;
            self.older.forget(tracked.at_router);
            tracked.at_router = AtRouter::OTHER_LIFE;
            tracked.renewed = false;
            self.end_unrenewed(slot);
        }
        self.update_window(slot, report);
    }

    /// The worker that was in `slot` left; `living` are left.
    pub(super) fn handle_left(
        &mut self,
        slot: WorkerSlot,
        worker: WorkerRank,
        living: usize,
        now: Instant,
    ) {
        self.advance(now);
        self.windows.close(slot);
        self.end_unrenewed(slot);
        self.end_life(slot, worker);
        let was = std::mem::replace(&mut self.tracked[slot], Tracked::NEW);
        self.last_activity.clear_at(slot);
        self.last_rise.clear_at(slot);
        self.older.forget(was.at_router);
        if self.wants_full || was.at_router == AtRouter::NOTHING {
            return;
        }
        self.departures.insert(worker);
        if self.departures.len() > living.max(FEW_DEPARTURES) {
            self.want_full();
        }
    }

    /// The slots have new numbers, since most workers have left.
    pub(super) fn handle_renumbered(&mut self, renumbering: &Renumbering<WorkerSlot>) {
        self.windows.renumber(renumbering);
        self.tracked.renumber(renumbering);
        self.last_activity.renumber(renumbering);
        self.last_rise.renumber(renumbering);
        self.unrenewed_links.renumber(renumbering);
        self.unrenewed.renumber(renumbering);
        renumber(&mut self.renewals_out, renumbering);
        renumber(&mut self.loads_out, renumbering);
        if let Some(building) = &mut self.building {
            building.next = renumbering.below(building.next);
        }
        if let Some(older) = self.older.compact() {
            for (_, tracked) in self.tracked.iter_mut() {
                if let Some(slot) = tracked.at_router.older() {
                    let slot = older.slot(slot);
                    tracked.at_router = slot.map_or(AtRouter::UNKNOWN, AtRouter::from);
                }
            }
        }
    }

    /// The router has what the last snapshot carried.
    pub(super) fn handle_applied(&mut self) {
        self.out = None;
        self.departures_out.clear();
        clear(&mut self.renewals_out);
        clear(&mut self.loads_out);
    }

    /// The router has what the last snapshot carried, but asks for everything.
    pub(super) fn handle_need_full(&mut self) {
        self.handle_applied();
        self.want_full();
    }

    /// Whether the router has what the last snapshot carried is unknown: it is due again.
    pub(super) fn handle_failed(&mut self) {
        let Some(out) = self.out.take() else {
            return;
        };
        self.departures.extend(self.departures_out.drain(..));
        // The latest first, so that the earliest of them comes to stand first.
        while let Some((slot, since)) = self.renewals_out.pop() {
            if self.tracked[slot].renewed {
                self.end_unrenewed(slot);
                self.tracked[slot].unrenewed_since = Some(since);
                (self.unrenewed_links).push_front(&mut self.unrenewed, slot);
            }
        }
        for (slot, since) in std::mem::take(&mut self.loads_out) {
            let tracked = &mut self.tracked[slot];
            if !tracked.sent {
                continue;
            }
            self.older.forget(tracked.at_router);
            tracked.at_router = AtRouter::UNKNOWN;
            tracked.differs_since = earliest(tracked.differs_since, since);
            if self.windows.phase(slot) != Phase::Urgent {
                self.windows.open_at_once(slot, Phase::Due);
            }
        }
        if out.full {
            self.want_full();
        }
    }

    /// Whether a full snapshot is being built, and nothing of it is out.
    pub(super) fn is_building(&self) -> bool {
        self.building.is_some()
    }

    /// Whether the snapshot that is out is a full one.
    pub(super) fn is_full_out(&self) -> bool {
        self.out.is_some_and(|out| out.full)
    }

    /// The router is gone: nothing is kept for it but the counters.
    pub(super) fn handle_lost(&mut self, now: Instant) {
        self.handle_settings(self.settings, now);
    }

    /// The windows are others from now on, and the router is to get everything: nothing is kept but the counters.
    pub(super) fn handle_settings(&mut self, settings: Coalescing, now: Instant) {
        let counts = self.counts;
        *self = Self::new(settings, now);
        self.counts = counts;
    }

    /// The router is to get everything.
    pub(super) fn want_full(&mut self) {
        self.wants_full = true;
        self.building = None;
        self.departures.clear();
        self.departures_out.clear();
    }

    /// Every open window is due now.
    pub(super) fn handle_flush(&mut self) {
        self.windows.flush();
    }

    /// When the first window falls due; `None`: none will. Not after the last `now` if something is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        if self.is_urgent() {
            return Some(self.origin);
        }
        self.poll_timeout_of_others()
    }

    /// The same, but for what is urgent.
    pub(super) fn poll_timeout_of_others(&self) -> Option<Instant> {
        if self.windows.is_due_for_no_urgency() {
            return Some(self.origin);
        }
        let first = earliest(self.windows.first_deadline(), self.renewal_due())?;
        self.origin.checked_add(first.elapsed())
    }

    /// How long a change waits at least, unless it is urgent.
    pub(super) fn shortest_window(&self) -> Duration {
        if self.settings.leading() {
            Duration::ZERO
        } else {
            self.settings.debounce()
        }
    }

    /// Whether everything is to be told.
    pub(super) fn wants_full(&self) -> bool {
        self.wants_full || self.building.is_some()
    }

    /// Takes everything that is due, urgent or not, and compares it with what the router has. Of a full snapshot it takes up
    /// to `most` workers. `None`: nothing is left, or it is not complete yet.
    pub(super) fn poll_snapshot(
        &mut self,
        now: Instant,
        reports: &Reports,
        most: usize,
    ) -> Option<SnapshotContent> {
        self.advance(now);
        if self.out.is_some() {
            return None;
        }
        if std::mem::take(&mut self.wants_full) {
            self.begin_round();
            self.windows.close_all();
            self.departures.clear();
            self.building = Some(Building {
                began: now,
                workers: Vec::with_capacity(reports.len()),
                next: 0,
            });
        }
        let content = match self.building.take() {
            Some(building) => self.take_all(building, reports, most)?,
            None => {
                self.begin_round();
                self.take_due(reports, now)
            }
        };
        if !content.full && content.left.is_empty() && content.workers.is_empty() {
            return None;
        }
        self.out = Some(Out { full: content.full });
        self.counts.entries += content.workers.len() as u64;
        self.counts.departures += content.left.len() as u64;
        Some(content)
    }

    /// Workers whose newest value, or whose departure, the router is not known to have.
    pub fn undelivered(&self, reports: &Reports) -> Vec<WorkerRank> {
        let full = self.wants_full() || self.is_full_out();
        let open = |slot| full || self.windows.phase(slot) != Phase::Closed;
        let open = reports.iter().filter(|(slot, _)| open(*slot));
        let out = self
            .loads_out
            .iter()
            .filter(|(slot, _)| self.tracked[*slot].sent);
        let out = out.filter_map(|(slot, _)| reports.at(*slot));
        let loads = open.map(|(_, report)| report).chain(out);
        let mut workers: Vec<_> = loads.map(Report::worker).collect();
        workers.extend(&self.departures);
        workers.extend(&self.departures_out);
        workers.sort_unstable();
        workers.dedup();
        workers
    }

    /// How long the router has gone without the newest value of the worker in `slot`; `None` if it has it, or will have
    /// it once the snapshot that is out is acknowledged.
    pub fn age(&self, slot: WorkerSlot, now: Instant) -> Option<Duration> {
        let since = self.tracked[slot].differs_since?;
        let now = now.saturating_duration_since(self.origin);
        Some(now.saturating_sub(since.elapsed()))
    }

    fn advance(&mut self, now: Instant) {
        if now == self.last_now {
            return;
        }
        self.last_now = now;
        let elapsed = now.saturating_duration_since(self.origin);
        self.now = self.now.max(Nanos::at(elapsed));
    }

    /// When the first worker that still reports is to be told of.
    fn renewal_due(&self) -> Option<Nanos> {
        let since = self.tracked[self.unrenewed.front()?].unrenewed_since?;
        since.after(span(self.settings.minor_delay()))
    }

    /// The worker reported. `true`: it is the first to have done so since the router was last told.
    #[inline]
    fn note_report(&mut self, slot: WorkerSlot) -> bool {
        let first = self.unrenewed.is_empty();
        let since = &mut self.tracked[slot].unrenewed_since;
        if since.is_some() {
            return false;
        }
        *since = Some(self.now);
        self.unrenewed_links.push_back(&mut self.unrenewed, slot);
        first
    }

    /// The router is told of the worker, or it is gone.
    #[inline]
    fn end_unrenewed(&mut self, slot: WorkerSlot) {
        if self.tracked[slot].unrenewed_since.take().is_some() {
            self.unrenewed_links.remove(&mut self.unrenewed, slot);
        }
    }

    /// Opens, moves or leaves the worker's window after its report became `report`.
    fn update_window(&mut self, slot: WorkerSlot, report: &Report) {
        let difference = self.difference(slot, report);
        let now = self.now;
        let tracked = &mut self.tracked[slot];
        if difference == Difference::None {
            tracked.differs_since = None;
        } else {
            tracked.differs_since.get_or_insert(now);
        }
        let phase = self.windows.phase(slot);
        match difference {
            Difference::Rise | Difference::Urgent => {
                if difference == Difference::Urgent {
                    tracked.last_other_urgent = Some(now);
                } else {
                    self.last_rise[slot] = Some(now);
                }
                if phase != Phase::Urgent {
                    self.windows.open_at_once(slot, Phase::Urgent);
                }
            }
            Difference::Significant if phase == Phase::Closed => {
                if tracked.flaps {
                    self.windows.open_flapping(slot, now);
                } else if self.is_leading(slot) {
                    self.windows.open_at_once(slot, Phase::Due);
                } else {
                    self.windows.open_ordinary(slot, now);
                }
            }
            Difference::Minor if phase == Phase::Closed => self.windows.open_minor(slot, now),
            Difference::None if phase == Phase::Closed => {}
            _ if tracked.flaps => {}
            Difference::None | Difference::Minor | Difference::Significant => {
                let significant = difference == Difference::Significant;
                self.windows.handle_activity(slot, significant, now);
            }
        }
    }

    fn difference(&self, slot: WorkerSlot, report: &Report) -> Difference {
        let tracked = &self.tracked[slot];
        let has = match tracked.at_router {
            AtRouter::NOTHING | AtRouter::OTHER_LIFE if tracked.flaps => {
                return Difference::Significant;
            }
            AtRouter::NOTHING | AtRouter::OTHER_LIFE => return Difference::Urgent,
            AtRouter::UNKNOWN => return Difference::Significant,
            AtRouter::NEWEST => return Difference::None,
            older => match older.older().and_then(|slot| self.older.at(slot)) {
                Some(has) => has,
                None => return Difference::Significant,
            },
        };
        let first_report = has.metrics.is_none() && report.metrics.is_some();
        if first_report && tracked.flaps {
            return Difference::Significant;
        }
        Difference::between(has, report, &self.settings, self.rested(slot))
    }

    fn rested(&self, slot: WorkerSlot) -> Rested {
        let tracked = &self.tracked[slot];
        let last_urgent = tracked.last_other_urgent.max(self.last_rise[slot]);
        Rested {
            for_rise: !self.is_within(self.settings.urgent_gap(), last_urgent),
            // Of who flaps nothing is urgent.
            for_other: !tracked.flaps && !self.is_recent(tracked.last_other_urgent),
        }
    }

    /// A life begins of which the router has nothing.
    fn begin_life(&mut self, slot: WorkerSlot, worker: WorkerRank) {
        if let Some(reborn) = self.lives.ended_recently(worker, self.now) {
            self.tracked[slot].flaps = reborn;
            self.lives.note_rebirth(worker, self.now);
        }
    }

    fn end_life(&mut self, slot: WorkerSlot, worker: WorkerRank) {
        let tracked = self.tracked[slot];
        let reborn = tracked.flaps || self.lives.began_recently(worker, self.now);
        if reborn || tracked.at_router != AtRouter::NOTHING {
            self.lives.note_end(worker, self.now, reborn);
        }
    }

    /// Whether that was within the last `max_delay`.
    fn is_recent(&self, at: Option<Nanos>) -> bool {
        self.is_within(self.settings.max_delay(), at)
    }

    fn is_within(&self, time: Duration, at: Option<Nanos>) -> bool {
        at.is_some_and(|at| self.now.since(at) < span(time))
    }

    /// Whether a first change now is due at once.
    fn is_leading(&self, slot: WorkerSlot) -> bool {
        let last = self.last_activity[slot];
        self.settings.leading()
            && last.is_none_or(|last| self.now.since(last) >= span(self.settings.debounce()))
    }

    /// What was out before, or was to be, is not any more.
    fn begin_round(&mut self) {
        clear(&mut self.renewals_out);
        clear(&mut self.loads_out);
    }

    fn take_all(
        &mut self,
        mut building: Building,
        reports: &Reports,
        most: usize,
    ) -> Option<SnapshotContent> {
        for (taken, (slot, report)) in reports.iter_from(building.next).enumerate() {
            if taken == most {
                building.next = slot.number();
                self.building = Some(building);
                return None;
            }
            self.windows.close(slot);
            let load = self.take(slot, report, building.began);
            building.workers.push(load);
        }
        if !std::mem::take(&mut self.departures).is_empty() {
            // Who left after being taken is not in it, and so gone from the router; who came back is told of next.
            let lives = |load: &WorkerLoad| reports.get(load.worker).map(Report::life);
            building
                .workers
                .retain(|load| lives(load) == Some(load.life));
        }
        Some(SnapshotContent {
            full: true,
            built_at: building.began,
            left: Vec::new(),
            workers: building.workers,
        })
    }

    fn take_due(&mut self, reports: &Reports, now: Instant) -> SnapshotContent {
        let mut workers = Vec::with_capacity(self.windows.count().min(self.carried));
        while let Some(slot) = self.windows.first_due(self.now) {
            self.windows.close(slot);
            let Some(report) = reports.at(slot) else {
                continue;
            };
            if self.difference(slot, report) == Difference::None {
                self.counts.suppressed += 1;
                let tracked = &mut self.tracked[slot];
                tracked.differs_since = None;
                self.older.forget(tracked.at_router);
                tracked.at_router = AtRouter::NEWEST;
            } else {
                workers.push(self.take(slot, report, now));
            }
        }
        while has_come(self.renewal_due(), self.now)
            && let Some(slot) = self.unrenewed.front()
        {
            let since = self.tracked[slot].unrenewed_since;
            self.end_unrenewed(slot);
            let (Some(report), Some(since)) = (reports.at(slot), since) else {
                continue;
            };
            if self.windows.phase(slot) == Phase::Closed {
                self.tracked[slot].renewed = true;
                self.renewals_out.push((slot, since));
                self.counts.renewals += 1;
                workers.push(load_of(report, Duration::ZERO, now));
            } else {
                // Its newest value goes along, and nothing is left to tell.
                self.windows.close(slot);
                workers.push(self.take(slot, report, now));
            }
        }
        let left: Vec<_> = std::mem::take(&mut self.departures).into_iter().collect();
        self.departures_out.clone_from(&left);
        self.carried = workers.len();
        SnapshotContent {
            full: false,
            built_at: now,
            left,
            workers,
        }
    }

    fn take(&mut self, slot: WorkerSlot, report: &Report, now: Instant) -> WorkerLoad {
        self.end_unrenewed(slot);
        let tracked = &mut self.tracked[slot];
        let age = (tracked.differs_since).map_or(0, |since| self.now.since(since));
        self.older.forget(tracked.at_router);
        tracked.at_router = AtRouter::NEWEST;
        tracked.flaps &= report.metrics.is_none();
        tracked.sent = true;
        self.loads_out.push((slot, tracked.differs_since.take()));
        load_of(report, Duration::from_nanos(age), now)
    }
}

fn renumber<T: Copy>(list: &mut Vec<(WorkerSlot, T)>, renumbering: &Renumbering<WorkerSlot>) {
    list.retain_mut(|(slot, _)| match renumbering.slot(*slot) {
        Some(other) => {
            *slot = other;
            true
        }
        None => false,
    });
}

/// Keeps room for what most snapshots carry.
fn clear<T>(list: &mut Vec<T>) {
    list.clear();
    list.shrink_to(1_024);
}

fn load_of(report: &Report, age: Duration, now: Instant) -> WorkerLoad {
    let reported_at = report.reported_at;
    WorkerLoad {
        worker: report.worker(),
        life: report.life,
        metrics: report.metrics(),
        admitted: report.admitted.tickets().to_vec(),
        age,
        reported: reported_at.map(|at| now.saturating_duration_since(at)),
        draining: report.draining,
    }
}

/// Departures that are told one by one even if they outnumber the living: a full snapshot would not be smaller.
const FEW_DEPARTURES: usize = 16;
