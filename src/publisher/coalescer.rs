//! The windows of one link: which workers its router must hear of, and when.
//!
//! ```text
//!            first difference                       quiet for debounce,
//!            from router_has                        or max_delay is up
//!   Closed ──────────────────▶ Ordinary ─────────────────────────────▶ taken ──▶ Closed
//!     │  └──────────────────▶ Minor ──────────────────────────────────▶  ▲
//!     │         minor           │ significant: Ordinary from now on      │
//!     │ leading, failed, flush  ▼                                        │
//!     ├─────────────────────▶ Due ──────────────────────────────────────┤
//!     └─────────────────────▶ Urgent ───────────────────────────────────┘
//!        first report, saturation
//! ```
//!
//! All windows of a kind last equally long, so the lists they stand in are ordered by deadline as they are: opening,
//! moving and closing a window costs constant time, and nothing is left behind.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use super::reports::{Report, Reports, WorkerSlot};
use crate::{
    chain::{Chain, Links},
    config::Coalescing,
    metrics::{ForwardPassMetrics, WorkerRank},
    snapshot::WorkerLoad,
};

/// Nanoseconds since the coalescer was made; [`NEVER`] is no time at all.
type Nanos = u64;
const NEVER: Nanos = Nanos::MAX;

/// Decides what of the [`Reports`] is due on one link, and when.
///
/// Call protocol: `handle_*` tells it what happened, [`poll_snapshot`](Self::poll_snapshot) takes what is due,
/// [`poll_timeout`](Self::poll_timeout) says when something will be. At most one snapshot is out at a time: after each
/// one exactly one of `handle_applied`, `handle_need_full` and `handle_failed` is called. Early, late and extra calls
/// do no harm, and a `now` before an earlier one counts as that.
#[derive(Debug)]
pub struct Coalescer {
    settings: Coalescing,
    windows: WindowLengths,
    epoch: Instant,
    now: Nanos,
    tracked: Vec<Tracked>,
    open: usize,
    places: Links,
    quiet: Chain,
    due: Chain,
    urgent: Chain,
    caps: Links,
    ordinary_caps: Chain,
    minor_caps: Chain,
    departures: BTreeSet<WorkerRank>,
    departures_out: Vec<WorkerRank>,
    wants_full: bool,
    out: Option<Out>,
    rounds: u64,
    counts: CoalescerCounts,
}

/// Counters of one coalescer. `changed = opened + coalesced`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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
}

/// What a snapshot is to carry.
#[derive(Debug, PartialEq)]
pub struct SnapshotContent {
    /// Whether it is everything.
    pub full: bool,
    /// Workers that left.
    pub left: Vec<WorkerRank>,
    /// Loads that are due.
    pub workers: Vec<WorkerLoad>,
}

#[derive(Debug)]
struct WindowLengths {
    debounce: Nanos,
    max_delay: Nanos,
    minor_delay: Nanos,
}

/// The snapshot that is out.
#[derive(Debug, Clone, Copy)]
struct Out {
    full: bool,
}

/// What the router acknowledged, or will have once the snapshot that is out is acknowledged.
#[derive(Debug, Clone, Default)]
enum RouterHas {
    #[default]
    Nothing,
    /// A delivery failed: it may have the value or not.
    Unknown,
    Value {
        life: u64,
        admitted: u32,
        metrics: Option<ForwardPassMetrics>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Window {
    Closed,
    Minor,
    Ordinary,
    Due,
    Urgent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Difference {
    None,
    Minor,
    Significant,
    Urgent,
}

#[derive(Debug, Clone)]
struct Tracked {
    router_has: RouterHas,
    window: Window,
    /// The cap stands among the minor ones, also after the window became an ordinary one.
    minor_cap: bool,
    /// When the present quiet time of an ordinary window began.
    quiet_from: Nanos,
    /// Latest end of an ordinary or minor window.
    cap: Nanos,
    last_activity: Nanos,
    last_urgent: Nanos,
    differs_since: Nanos,
    /// Round of the last snapshot that carried this worker, and since when it had differed.
    sent_in: u64,
    sent_differs_since: Nanos,
}

impl Tracked {
    const NEW: Self = Self {
        router_has: RouterHas::Nothing,
        window: Window::Closed,
        minor_cap: false,
        quiet_from: NEVER,
        cap: NEVER,
        last_activity: NEVER,
        last_urgent: NEVER,
        differs_since: NEVER,
        sent_in: 0,
        sent_differs_since: NEVER,
    };

    fn take_over(&mut self, report: &Report, round: u64) {
        self.router_has = RouterHas::Value {
            life: report.life,
            admitted: report.admitted.version,
            metrics: report.metrics.clone(),
        };
        self.sent_in = round;
        self.sent_differs_since = self.differs_since;
        self.differs_since = NEVER;
    }
}

impl Coalescer {
    /// Windows for a router that has nothing yet: the first snapshot is a full one.
    pub fn new(settings: Coalescing, now: Instant) -> Self {
        Self {
            settings,
            windows: WindowLengths {
                debounce: nanos(settings.debounce()),
                max_delay: nanos(settings.max_delay()),
                minor_delay: nanos(settings.minor_delay()),
            },
            epoch: now,
            now: 0,
            tracked: Vec::new(),
            open: 0,
            places: Links::default(),
            quiet: Chain::EMPTY,
            due: Chain::EMPTY,
            urgent: Chain::EMPTY,
            caps: Links::default(),
            ordinary_caps: Chain::EMPTY,
            minor_caps: Chain::EMPTY,
            departures: BTreeSet::new(),
            departures_out: Vec::new(),
            wants_full: true,
            out: None,
            rounds: 0,
            counts: CoalescerCounts::default(),
        }
    }

    /// Its counters.
    pub fn counts(&self) -> CoalescerCounts {
        self.counts
    }

    /// Windows that are open.
    pub fn open_windows(&self) -> usize {
        self.open
    }

    /// Departures the router has not been told of.
    pub fn open_departures(&self) -> usize {
        self.departures.len()
    }

    /// Whether anything is to be told, now or later.
    pub fn is_pending(&self) -> bool {
        self.wants_full || self.open > 0 || !self.departures.is_empty()
    }

    /// Whether something is due that no pacing may hold back.
    pub fn is_urgent(&self) -> bool {
        self.wants_full || !self.departures.is_empty() || !self.urgent.is_empty()
    }

    /// A worker's report differs from its report before.
    pub fn handle_changed(&mut self, slot: WorkerSlot, report: &Report, now: Instant) {
        self.advance(now);
        self.counts.changed += 1;
        self.track(slot);
        if self.tracked[slot.0 as usize].window == Window::Closed {
            self.counts.opened += 1;
        } else {
            self.counts.coalesced += 1;
        }
        self.weigh(slot, report);
        self.tracked[slot.0 as usize].last_activity = self.now;
    }

    /// A worker is known, or begins a new life, and has not reported yet.
    pub fn handle_joined(&mut self, slot: WorkerSlot, report: &Report, now: Instant) {
        self.advance(now);
        self.track(slot);
        self.weigh(slot, report);
    }

    /// The worker that was in `slot` left; `living` are left.
    pub fn handle_left(&mut self, slot: WorkerSlot, worker: WorkerRank, living: usize) {
        self.track(slot);
        self.close(slot.0);
        let was = std::mem::replace(&mut self.tracked[slot.0 as usize], Tracked::NEW);
        if self.wants_full || matches!(was.router_has, RouterHas::Nothing) {
            return;
        }
        self.departures.insert(worker);
        if self.departures.len() > living.max(FEW_DEPARTURES) {
            self.departures.clear();
            self.wants_full = true;
        }
    }

    /// The router has what the last snapshot carried.
    pub fn handle_applied(&mut self) {
        self.out = None;
        self.departures_out.clear();
    }

    /// The router has what the last snapshot carried, but asks for everything.
    pub fn handle_need_full(&mut self) {
        self.handle_applied();
        self.want_full();
    }

    /// Whether the router has what the last snapshot carried is unknown: it is due again.
    pub fn handle_failed(&mut self) {
        let Some(out) = self.out.take() else {
            return;
        };
        self.departures.extend(self.departures_out.drain(..));
        for slot in 0..self.tracked.len() {
            let tracked = &mut self.tracked[slot];
            if tracked.sent_in != self.rounds {
                continue;
            }
            tracked.router_has = RouterHas::Unknown;
            tracked.differs_since = tracked.differs_since.min(tracked.sent_differs_since);
            if tracked.window != Window::Urgent {
                self.open_as(slot as u32, Window::Due);
            }
        }
        if out.full {
            self.want_full();
        }
    }

    /// Whether the snapshot that is out is a full one.
    pub fn is_full_out(&self) -> bool {
        self.out.is_some_and(|out| out.full)
    }

    /// The router is gone: nothing is kept for it but the counters.
    pub fn handle_lost(&mut self, now: Instant) {
        self.handle_settings(self.settings, now);
    }

    /// The windows are others from now on, and the router is to get everything: nothing is kept but the counters.
    pub fn handle_settings(&mut self, settings: Coalescing, now: Instant) {
        let counts = self.counts;
        *self = Self::new(settings, now);
        self.counts = counts;
    }

    /// The router is to get everything.
    pub fn want_full(&mut self) {
        self.wants_full = true;
        self.departures.clear();
        self.departures_out.clear();
    }

    /// Every open window is due now.
    pub fn handle_flush(&mut self) {
        while let Some(slot) = self.quiet.front() {
            self.open_as(slot, Window::Due);
        }
        while let Some(slot) = self.minor_caps.front() {
            self.open_as(slot, Window::Due);
        }
    }

    /// When the first window falls due; `None`: none will. Not after the last `now` if something is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_urgent() || !self.due.is_empty() {
            return Some(self.epoch);
        }
        let at = |slot: u32| &self.tracked[slot as usize];
        let quiet = self.quiet.front().map_or(NEVER, |slot| {
            at(slot).quiet_from.saturating_add(self.windows.debounce)
        });
        let cap = |chain: Chain| chain.front().map_or(NEVER, |slot| at(slot).cap);
        let first = quiet.min(cap(self.ordinary_caps)).min(cap(self.minor_caps));
        (first != NEVER).then(|| self.epoch + Duration::from_nanos(first))
    }

    /// Takes everything that is due, urgent or not, and compares it with what the router has. `None`: nothing is left.
    pub fn poll_snapshot(&mut self, now: Instant, reports: &Reports) -> Option<SnapshotContent> {
        self.advance(now);
        if self.out.is_some() {
            return None;
        }
        self.rounds += 1;
        let content = if std::mem::take(&mut self.wants_full) {
            self.take_all(reports)
        } else {
            self.take_due(reports)
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
        let out = self.out.map(|out| (out.full, self.rounds));
        let loads = reports.iter().filter(|(slot, _)| {
            self.wants_full
                || out.is_some_and(|(full, _)| full)
                || self.tracked.get(slot.0 as usize).is_none_or(|tracked| {
                    tracked.window != Window::Closed
                        || out.is_some_and(|(_, round)| tracked.sent_in == round)
                })
        });
        let mut workers: Vec<_> = loads.map(|(_, report)| report.worker).collect();
        workers.extend(&self.departures);
        workers.extend(&self.departures_out);
        workers.sort_unstable();
        workers.dedup();
        workers
    }

    /// How long the router has gone without the newest value of the worker in `slot`; `None` if it has it, or will have
    /// it once the snapshot that is out is acknowledged.
    pub fn age(&self, slot: WorkerSlot, now: Instant) -> Option<Duration> {
        let since = self.tracked.get(slot.0 as usize)?.differs_since;
        (since != NEVER).then(|| {
            now.saturating_duration_since(self.epoch)
                .saturating_sub(Duration::from_nanos(since))
        })
    }

    fn advance(&mut self, now: Instant) {
        let now = nanos(now.saturating_duration_since(self.epoch));
        self.now = self.now.max(now.min(NEVER - 1));
    }

    fn track(&mut self, slot: WorkerSlot) {
        let wanted = slot.0 as usize + 1;
        if self.tracked.len() < wanted {
            self.tracked.resize(wanted, Tracked::NEW);
        }
    }

    /// Opens, moves or leaves the worker's window after its report became `report`.
    fn weigh(&mut self, slot: WorkerSlot, report: &Report) {
        let difference = self.difference(slot, report);
        let (now, index) = (self.now, slot.0);
        let tracked = &mut self.tracked[index as usize];
        if difference == Difference::None {
            tracked.differs_since = NEVER;
        } else {
            tracked.differs_since = tracked.differs_since.min(now);
        }
        if difference == Difference::Urgent {
            tracked.last_urgent = now;
            if tracked.window != Window::Urgent {
                self.open_as(index, Window::Urgent);
            }
            return;
        }
        match tracked.window {
            Window::Due | Window::Urgent => {}
            Window::Closed => match difference {
                Difference::Significant if self.is_leading(slot) => {
                    self.open_as(index, Window::Due)
                }
                Difference::Significant => self.open_ordinary(index),
                Difference::Minor => self.open_minor(index),
                Difference::None | Difference::Urgent => {}
            },
            Window::Minor if tracked.cap <= now || difference != Difference::Significant => {}
            Window::Minor => self.make_ordinary(index),
            Window::Ordinary => {
                let end = tracked.quiet_from.saturating_add(self.windows.debounce);
                if end.min(tracked.cap) > now {
                    tracked.quiet_from = now;
                    self.places.move_to_back(&mut self.quiet, index);
                }
            }
        }
    }

    fn difference(&self, slot: WorkerSlot, report: &Report) -> Difference {
        let tracked = &self.tracked[slot.0 as usize];
        let (life, admitted, metrics) = match &tracked.router_has {
            RouterHas::Nothing => return Difference::Urgent,
            RouterHas::Unknown => return Difference::Significant,
            RouterHas::Value {
                life,
                admitted,
                metrics,
            } => (*life, *admitted, metrics),
        };
        if life != report.life {
            return Difference::Urgent;
        }
        let minor = if admitted == report.admitted.version {
            Difference::None
        } else {
            Difference::Minor
        };
        match (metrics, &report.metrics) {
            (None, None) => minor,
            (None, Some(_)) => Difference::Urgent,
            (Some(_), None) => Difference::Significant,
            (Some(has), Some(newest)) if has == newest => minor,
            (Some(has), Some(newest)) => self.weigh_metrics(tracked, has, newest),
        }
    }

    fn weigh_metrics(
        &self,
        tracked: &Tracked,
        has: &ForwardPassMetrics,
        newest: &ForwardPassMetrics,
    ) -> Difference {
        if let Some(saturation) = self.settings.saturation() {
            let entered = newest.is_saturated(saturation, 0) && !has.is_saturated(saturation, 0);
            let rested = tracked.last_urgent == NEVER
                || self.now - tracked.last_urgent >= self.windows.max_delay;
            if entered {
                return if rested {
                    Difference::Urgent
                } else {
                    Difference::Significant
                };
            }
        }
        let (old, new) = (&has.kv_stats, &newest.kv_stats);
        let drift = old.kv_active_blocks.abs_diff(new.kv_active_blocks);
        let least = self.settings.significance() * new.kv_total_blocks as f64;
        let significant = has.worker_stats.num_requests_waiting
            != newest.worker_stats.num_requests_waiting
            || old.kv_total_blocks != new.kv_total_blocks
            || (drift > 0 && drift as f64 >= least);
        if significant {
            Difference::Significant
        } else {
            Difference::Minor
        }
    }

    /// Whether a first change now is due at once.
    fn is_leading(&self, slot: WorkerSlot) -> bool {
        let last = self.tracked[slot.0 as usize].last_activity;
        self.settings.leading() && (last == NEVER || self.now - last >= self.windows.debounce)
    }

    fn open_ordinary(&mut self, slot: u32) {
        self.open += 1;
        let tracked = &mut self.tracked[slot as usize];
        tracked.window = Window::Ordinary;
        tracked.minor_cap = false;
        tracked.quiet_from = self.now;
        tracked.cap = self.now.saturating_add(self.windows.max_delay);
        self.places.push_back(&mut self.quiet, slot);
        self.caps.push_back(&mut self.ordinary_caps, slot);
    }

    fn open_minor(&mut self, slot: u32) {
        self.open += 1;
        let tracked = &mut self.tracked[slot as usize];
        tracked.window = Window::Minor;
        tracked.minor_cap = true;
        tracked.cap = self.now.saturating_add(self.windows.minor_delay);
        self.caps.push_back(&mut self.minor_caps, slot);
    }

    /// The first significant change of a minor window: an ordinary one from now on, at the latest at its old end.
    fn make_ordinary(&mut self, slot: u32) {
        let tracked = &mut self.tracked[slot as usize];
        tracked.window = Window::Ordinary;
        tracked.quiet_from = self.now;
        self.places.push_back(&mut self.quiet, slot);
        let cap = self.now.saturating_add(self.windows.max_delay);
        if cap < tracked.cap {
            tracked.cap = cap;
            tracked.minor_cap = false;
            self.caps.remove(&mut self.minor_caps, slot);
            self.caps.push_back(&mut self.ordinary_caps, slot);
        }
    }

    /// Makes the worker due at once, whatever its window was.
    fn open_as(&mut self, slot: u32, window: Window) {
        self.close(slot);
        self.open += 1;
        self.tracked[slot as usize].window = window;
        let chain = if window == Window::Urgent {
            &mut self.urgent
        } else {
            &mut self.due
        };
        self.places.push_back(chain, slot);
    }

    fn close(&mut self, slot: u32) {
        let tracked = &mut self.tracked[slot as usize];
        let window = std::mem::replace(&mut tracked.window, Window::Closed);
        if matches!(window, Window::Ordinary | Window::Minor) {
            let caps = if tracked.minor_cap {
                &mut self.minor_caps
            } else {
                &mut self.ordinary_caps
            };
            self.caps.remove(caps, slot);
        }
        let chain = match window {
            Window::Closed => return,
            Window::Minor => None,
            Window::Ordinary => Some(&mut self.quiet),
            Window::Due => Some(&mut self.due),
            Window::Urgent => Some(&mut self.urgent),
        };
        if let Some(chain) = chain {
            self.places.remove(chain, slot);
        }
        self.open -= 1;
    }

    fn take_all(&mut self, reports: &Reports) -> SnapshotContent {
        for chain in [
            &mut self.quiet,
            &mut self.due,
            &mut self.urgent,
            &mut self.ordinary_caps,
            &mut self.minor_caps,
        ] {
            *chain = Chain::EMPTY;
        }
        self.open = 0;
        self.departures.clear();
        let mut workers = Vec::with_capacity(reports.len());
        for (slot, report) in reports.iter() {
            self.track(slot);
            self.tracked[slot.0 as usize].window = Window::Closed;
            workers.push(self.take(slot, report));
        }
        SnapshotContent {
            full: true,
            left: Vec::new(),
            workers,
        }
    }

    fn take_due(&mut self, reports: &Reports) -> SnapshotContent {
        let mut workers = Vec::new();
        while let Some(slot) = self.first_due() {
            self.close(slot);
            let slot = WorkerSlot(slot);
            let Some(report) = reports.at(slot) else {
                continue;
            };
            if self.difference(slot, report) == Difference::None {
                self.counts.suppressed += 1;
                self.tracked[slot.0 as usize].differs_since = NEVER;
            } else {
                workers.push(self.take(slot, report));
            }
        }
        let left: Vec<_> = std::mem::take(&mut self.departures).into_iter().collect();
        self.departures_out.clone_from(&left);
        SnapshotContent {
            full: false,
            left,
            workers,
        }
    }

    fn first_due(&self) -> Option<u32> {
        let at = |slot: u32| &self.tracked[slot as usize];
        let quiet_long_enough =
            |slot: &u32| at(*slot).quiet_from.saturating_add(self.windows.debounce) <= self.now;
        let capped = |slot: &u32| at(*slot).cap <= self.now;
        (self.urgent.front())
            .or_else(|| self.due.front())
            .or_else(|| self.quiet.front().filter(quiet_long_enough))
            .or_else(|| self.ordinary_caps.front().filter(capped))
            .or_else(|| self.minor_caps.front().filter(capped))
    }

    fn take(&mut self, slot: WorkerSlot, report: &Report) -> WorkerLoad {
        let tracked = &mut self.tracked[slot.0 as usize];
        let age = self.now.saturating_sub(tracked.differs_since);
        tracked.take_over(report, self.rounds);
        WorkerLoad {
            worker: report.worker,
            life: report.life,
            metrics: report.metrics.clone(),
            admitted: report.admitted.tickets().to_vec(),
            age: Duration::from_nanos(age),
        }
    }
}

/// As many nanoseconds as fit: 584 years or more are for ever.
fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(NEVER)
}

/// Departures that are told one by one even if they outnumber the living: a full snapshot would not be smaller.
const FEW_DEPARTURES: usize = 16;
