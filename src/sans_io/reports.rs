//! The table of reports: newest metrics and life of every worker rank, one for all links.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Instant,
};

use super::{
    admitted::Admitted,
    conflate::{Closed, Conflated},
    names::Names,
    packed::Packed,
    ranks::OtherRanks,
    slots::{Key, Renumbering, Slab, key},
};
use crate::{
    metrics::{DpRank, ForwardPassMetrics, WorkerId, WorkerRank},
    snapshot::Ticket,
    stamp,
};

/// Place of a living worker in the table; used again after it left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WorkerSlot(u32);
key!(WorkerSlot);

/// Newest of one worker rank.
#[derive(Debug, Clone)]
pub struct Report {
    worker: WorkerId,
    rank: DpRank,
    pub(crate) draining: bool,
    pub(crate) life: u64,
    pub(crate) metrics: Option<Packed>,
    pub(crate) admitted: Admitted,
    pub(crate) reported_at: Option<Instant>,
    reporter: Option<Arc<SharedReport>>,
}

impl Report {
    /// Whose report it is.
    #[inline]
    pub fn worker(&self) -> WorkerRank {
        WorkerRank::new(self.worker, self.rank)
    }

    /// Which life of the worker.
    pub fn life(&self) -> u64 {
        self.life
    }

    /// Newest metrics; `None` before the first report of this life.
    pub fn metrics(&self) -> Option<ForwardPassMetrics> {
        self.metrics.as_ref().map(Packed::unpack)
    }

    /// When it last reported in this life, changed or not; never later than the report.
    pub fn reported_at(&self) -> Option<Instant> {
        self.reported_at
    }

    /// Whether it is to get no more requests.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Takes newer metrics, word of draining and tickets over, if there are any. `reported_at`: when the metrics were
    /// reported.
    #[inline]
    fn change(
        &mut self,
        slot: WorkerSlot,
        metrics: Option<Packed>,
        reported_at: Option<Instant>,
        draining: Option<bool>,
        admit: impl FnOnce(&mut Admitted) -> bool,
    ) -> Reported {
        let (admitted, drained) = (self.admitted.version(), self.draining);
        let mut news = admit(&mut self.admitted);
        if let Some(draining) = draining {
            news |= self.drain(draining);
        }
        let is_report = metrics.is_some();
        if is_report {
            self.reported_at = self.reported_at.max(reported_at);
        }
        let metrics = if metrics.is_some() && metrics != self.metrics {
            std::mem::replace(&mut self.metrics, metrics)
        } else if news {
            self.metrics.clone()
        } else if is_report {
            return Reported::Unchanged(slot);
        } else {
            return Reported::Known;
        };
        Reported::Changed(Change {
            slot,
            is_report,
            before: Before {
                admitted,
                draining: drained,
                metrics,
            },
        })
    }

    /// Whether that is news.
    #[cold]
    fn drain(&mut self, draining: bool) -> bool {
        if draining == self.draining {
            return false;
        }
        self.draining = draining;
        if draining {
            tracing::info!(worker = %self.worker(), "a worker drains");
        } else {
            tracing::info!(worker = %self.worker(), "a worker drains no more");
        }
        true
    }
}

/// A report that differs from the one before, and what that was.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    slot: WorkerSlot,
    is_report: bool,
    before: Before,
}

impl Change {
    /// Whose report it is.
    pub fn slot(&self) -> WorkerSlot {
        self.slot
    }

    /// Whether the worker reported; else it only admitted a ticket, or began or ended to drain.
    pub(crate) fn is_report(&self) -> bool {
        self.is_report
    }

    pub(crate) fn before(&self) -> &Before {
        &self.before
    }
}

/// A report as it was before a change.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Before {
    pub(crate) admitted: u32,
    pub(crate) draining: bool,
    pub(crate) metrics: Option<Packed>,
}

/// What a reporter and the publisher share: the report that waits, and whose it is.
#[derive(Debug)]
pub(crate) struct SharedReport {
    pub(crate) worker: WorkerRank,
    /// Drawn when the reporter was made; orders reporters of one worker.
    pub(crate) life: u64,
    pub(crate) waiting: Conflated<WaitingReport>,
    /// Slot in the table; the publisher's own, so that it need not look the worker up.
    slot: AtomicU32,
    /// Whether its worker drained when its lease ended; the publisher's own, too.
    drained: AtomicBool,
}

impl SharedReport {
    pub(crate) fn new(worker: WorkerRank, life: u64) -> Self {
        Self {
            worker,
            life,
            waiting: Conflated::new(),
            slot: AtomicU32::new(u32::MAX),
            drained: AtomicBool::new(false),
        }
    }

    /// Whether the publisher has heard of it.
    pub(crate) fn is_known(&self) -> bool {
        self.slot.load(Relaxed) != u32::MAX
    }
}

#[derive(Debug, Default)]
pub(crate) struct WaitingReport {
    /// Takes room only while it waits.
    pub(crate) metrics: Option<Box<ForwardPassMetrics>>,
    /// When the first of the reports that wait here was made.
    pub(crate) reported_at: Option<Instant>,
    /// What was said last of draining.
    pub(crate) draining: Option<bool>,
    pub(crate) admitted: Admitted,
}

impl WaitingReport {
    /// The worker reports; `now` is asked only if nothing waits yet. The one stamp is never later than any of the reports
    /// that it stands for.
    #[inline]
    pub(crate) fn report(&mut self, metrics: ForwardPassMetrics, now: impl FnOnce() -> Instant) {
        match &mut self.metrics {
            Some(waiting) => **waiting = metrics,
            None => {
                self.metrics = Some(Box::new(metrics));
                self.reported_at = Some(now());
            }
        }
    }
}

/// What became of a report.
#[derive(Debug, Clone, PartialEq)]
pub enum Reported {
    /// It differs from the one before: the links must hear of it.
    Changed(Change),
    /// The worker reports the same again.
    Unchanged(WorkerSlot),
    /// It is no report, and what it says is known.
    Known,
    /// It is of a life that has ended, or of a worker that is not known.
    Late,
}

/// Newest report of every living worker rank.
#[derive(Debug, Default)]
pub struct Reports {
    names: Names<WorkerSlot>,
    other_ranks: OtherRanks<WorkerSlot>,
    rows: Slab<WorkerSlot, Report>,
    /// Reporters of workers that are not known any more, since their lease has ended.
    silent: BTreeMap<WorkerRank, Arc<SharedReport>>,
    forgotten_tickets: u64,
}

impl Reports {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Living workers.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether no worker lives.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Echoed tickets that were forgotten for others.
    pub(crate) fn forgotten_tickets(&self) -> u64 {
        self.forgotten_tickets
    }

    /// All living workers, in no meaningful but a repeatable order.
    pub fn iter(&self) -> impl Iterator<Item = (WorkerSlot, &Report)> {
        self.rows.iter()
    }

    /// Those in slots of this number and greater ones.
    pub(super) fn iter_from(&self, number: u32) -> impl Iterator<Item = (WorkerSlot, &Report)> {
        self.rows.iter_from(number)
    }

    /// Newest of a living worker.
    pub fn get(&self, worker: WorkerRank) -> Option<&Report> {
        self.at(self.slot(worker)?)
    }

    /// Where a living worker is.
    #[inline]
    fn slot(&self, worker: WorkerRank) -> Option<WorkerSlot> {
        self.names.find(worker, |slot| worker_in(&self.rows, slot))
    }

    /// The living ranks of a worker, and those with a reporter whose lease has ended.
    pub fn ranks(&self, worker: WorkerId) -> Vec<WorkerRank> {
        let others = self.other_ranks.of(worker);
        let slots = self.slot(worker.into()).into_iter().chain(others);
        let living = slots.map(|slot| worker_in(&self.rows, slot));
        let (first, last) = (worker.into(), WorkerRank::new(worker, u32::MAX));
        let silent = self.silent.range(first..=last);
        living.chain(silent.map(|(rank, _)| *rank)).collect()
    }

    /// Newest of the worker in `slot`.
    pub fn at(&self, slot: WorkerSlot) -> Option<&Report> {
        self.rows.get(slot)
    }

    /// A plain report: joins the worker's present life, or begins one.
    #[inline]
    pub fn handle_report(
        &mut self,
        worker: WorkerRank,
        metrics: ForwardPassMetrics,
        admitted: Option<Ticket>,
        now: Instant,
    ) -> Reported {
        let slot = match self.slot(worker) {
            Some(slot) => slot,
            None => self.begin(worker, stamp::next(), None),
        };
        let Some(row) = self.rows.get_mut(slot) else {
            return Reported::Late;
        };
        let forgotten = &mut self.forgotten_tickets;
        row.change(slot, Some(metrics.into()), Some(now), None, |known| {
            admitted.is_some_and(|ticket| {
                let news = known.merge(ticket);
                *forgotten += known.take_forgotten();
                news
            })
        })
    }

    /// A worker is known and has not reported yet. `None` if it is known already.
    pub fn handle_joined(&mut self, worker: WorkerRank) -> Option<WorkerSlot> {
        let known = self.slot(worker).is_some();
        (!known).then(|| self.begin(worker, stamp::next(), None))
    }

    /// A worker begins or ends to drain, in its present life. [`Late`](Reported::Late) if it is not known.
    pub fn handle_draining(&mut self, worker: WorkerRank, draining: bool) -> Reported {
        let known = self.slot(worker);
        match known.and_then(|slot| Some((slot, self.rows.get_mut(slot)?))) {
            Some((slot, row)) => row.change(slot, None, None, Some(draining), |_| false),
            None => Reported::Late,
        }
    }

    /// A worker left: its life ends. `None` if it is not known.
    pub fn handle_left(&mut self, worker: WorkerRank) -> Option<WorkerSlot> {
        let Some(slot) = self.slot(worker) else {
            if let Some(reporter) = self.silent.remove(&worker) {
                reporter.waiting.close(Closed::Ended);
            }
            return None;
        };
        tracing::info!(%worker, "a worker left");
        if let Some(reporter) = self.remove(slot, worker).and_then(|row| row.reporter) {
            reporter.waiting.close(Closed::Ended);
        }
        Some(slot)
    }

    /// The lease of the worker in `slot` has ended, and so has its life. Its reporter, if it has one, may begin another.
    pub fn handle_lease_ended(&mut self, slot: WorkerSlot) -> Option<WorkerRank> {
        let worker = self.at(slot)?.worker();
        tracing::info!(%worker, "a worker has been silent for its lease: it left");
        let row = self.remove(slot, worker)?;
        if let Some(reporter) = row.reporter {
            reporter.drained.store(row.draining, Relaxed);
            self.silent.insert(worker, reporter);
        }
        Some(worker)
    }

    fn remove(&mut self, slot: WorkerSlot, worker: WorkerRank) -> Option<Report> {
        self.names.remove(slot, worker);
        self.other_ranks.remove(slot, worker);
        self.rows.remove(slot)
    }

    /// Gives memory back after most workers have left. Slots have other numbers afterwards: every link must hear of it.
    #[must_use = "every link must hear of it"]
    pub fn compact(&mut self) -> Option<Renumbering<WorkerSlot>> {
        let renumbering = self.rows.compact()?;
        self.other_ranks.renumber(&renumbering);
        self.names = Names::default();
        for (slot, report) in self.rows.iter() {
            self.names.insert(slot, |slot| worker_in(&self.rows, slot));
            if let Some(reporter) = &report.reporter {
                reporter.slot.store(slot.number(), Relaxed);
            }
        }
        Some(renumbering)
    }

    /// A reporter was made: its life begins, unless a newer reporter has the worker. `None` if it came late.
    pub(crate) fn handle_reporter(&mut self, reporter: Arc<SharedReport>) -> Option<WorkerSlot> {
        let worker = reporter.worker;
        let Some(slot) = self.slot(worker) else {
            if let Some(silent) = self.silent.remove(&worker) {
                if silent.life > reporter.life {
                    reporter.waiting.close(Closed::Ended);
                    self.silent.insert(worker, silent);
                    return None;
                }
                silent.waiting.close(Closed::Ended);
            }
            return Some(self.begin(worker, reporter.life, Some(reporter)));
        };
        let row = self.rows.get_mut(slot)?;
        if let Some(present) = &row.reporter {
            if present.life > reporter.life {
                reporter.waiting.close(Closed::Ended);
                return None;
            }
            present.waiting.close(Closed::Ended);
        }
        // A life that plain messages began after the reporter was made is over all the same.
        row.life = if reporter.life > row.life {
            reporter.life
        } else {
            stamp::next()
        };
        row.metrics = None;
        row.reported_at = None;
        row.draining = false;
        row.admitted = Admitted::default();
        reporter.slot.store(slot.number(), Relaxed);
        row.reporter = Some(reporter);
        Some(slot)
    }

    /// Takes what waits at a reporter, and when it was reported. `None`: nothing waits, or it waits for the publisher to hear
    /// of the reporter.
    #[inline]
    pub(crate) fn handle_waiting(
        &mut self,
        reporter: &Arc<SharedReport>,
    ) -> Option<(Reported, Option<Instant>)> {
        if !reporter.is_known() && !reporter.waiting.is_closed() {
            return None;
        }
        let Some((slot, row)) = row_of(&mut self.rows, reporter) else {
            return self.handle_waiting_of_ended(reporter);
        };
        let waiting = reporter.waiting.take()?;
        let reported_at = waiting.reported_at;
        let forgotten = &mut self.forgotten_tickets;
        let (draining, admitted) = (waiting.draining, &waiting.admitted);
        let reported = row.change(
            slot,
            waiting.metrics.map(|waiting| Packed::from(*waiting)),
            reported_at,
            draining,
            |known| {
                let news = known.merge_all(admitted);
                *forgotten += known.take_forgotten();
                news
            },
        );
        Some((reported, reported_at))
    }

    /// The same of a reporter whose life has ended: it begins another if that was by its lease.
    #[cold]
    fn handle_waiting_of_ended(
        &mut self,
        reporter: &Arc<SharedReport>,
    ) -> Option<(Reported, Option<Instant>)> {
        let waiting = reporter.waiting.take()?;
        let reported_at = waiting.reported_at;
        let late = Some((Reported::Late, reported_at));
        if !self.is_silent(reporter) {
            return late;
        }
        if let Some(draining) = waiting.draining {
            reporter.drained.store(draining, Relaxed);
        }
        if waiting.metrics.is_none() {
            return late;
        }
        let slot = self.begin(reporter.worker, stamp::next(), None);
        let row = self.rows.get_mut(slot)?;
        let forgotten = &mut self.forgotten_tickets;
        let reported = row.change(
            slot,
            waiting.metrics.map(|waiting| Packed::from(*waiting)),
            reported_at,
            None,
            |known| {
                let news = known.merge_all(&waiting.admitted);
                *forgotten += known.take_forgotten();
                news
            },
        );
        Some((reported, reported_at))
    }

    fn is_silent(&self, reporter: &Arc<SharedReport>) -> bool {
        let silent = self.silent.get(&reporter.worker);
        silent.is_some_and(|silent| Arc::ptr_eq(silent, reporter))
    }

    /// A reporter is gone: ends its own life only.
    pub(crate) fn handle_reporter_left(
        &mut self,
        reporter: &Arc<SharedReport>,
    ) -> Option<WorkerSlot> {
        if self.is_silent(reporter) || row_of(&mut self.rows, reporter).is_some() {
            self.handle_left(reporter.worker)
        } else {
            None
        }
    }

    /// A shutdown begins, or the publisher is gone: no reporter takes anything more. Those in which something waits.
    pub(crate) fn close_reporters(&self, why: Closed) -> impl Iterator<Item = &Arc<SharedReport>> {
        let rows = self.rows.iter();
        let reporters = rows.filter_map(|(_, row)| row.reporter.as_ref());
        let reporters = reporters.chain(self.silent.values());
        reporters.filter(move |reporter| reporter.waiting.close(why))
    }

    fn begin(
        &mut self,
        worker: WorkerRank,
        life: u64,
        reporter: Option<Arc<SharedReport>>,
    ) -> WorkerSlot {
        tracing::info!(%worker, "a worker joined");
        // One whose lease has ended is its reporter again, whoever reports first, and has not taken back that it drains.
        let reporter = reporter.or_else(|| self.silent.remove(&worker));
        let drained = |reporter: &Arc<SharedReport>| reporter.drained.load(Relaxed);
        let slot = self.rows.insert(Report {
            worker: worker.worker(),
            rank: worker.rank(),
            draining: reporter.as_ref().is_some_and(drained),
            life,
            metrics: None,
            admitted: Admitted::default(),
            reported_at: None,
            reporter: reporter.clone(),
        });
        if let Some(reporter) = reporter {
            reporter.slot.store(slot.number(), Relaxed);
        }
        self.names.insert(slot, |slot| worker_in(&self.rows, slot));
        self.other_ranks.insert(slot, worker);
        slot
    }
}

/// Whose report a slot that is taken holds.
#[inline]
fn worker_in(rows: &Slab<WorkerSlot, Report>, slot: WorkerSlot) -> WorkerRank {
    rows.get(slot)
        .map_or_else(WorkerRank::default, Report::worker)
}

/// The row of the worker, if the reporter is its present one.
fn row_of<'a>(
    rows: &'a mut Slab<WorkerSlot, Report>,
    reporter: &Arc<SharedReport>,
) -> Option<(WorkerSlot, &'a mut Report)> {
    let slot = WorkerSlot::new(reporter.slot.load(Relaxed));
    let row = rows.get_mut(slot)?;
    let present = row.reporter.as_ref()?;
    Arc::ptr_eq(present, reporter).then_some((slot, row))
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: WorkerRank = WorkerRank::ZERO;

    fn now() -> Instant {
        actix::clock::Instant::now().into_std()
    }

    fn load(active: u64) -> ForwardPassMetrics {
        ForwardPassMetrics::new(active, 100, 0)
    }

    fn reporter() -> Arc<SharedReport> {
        Arc::new(SharedReport::new(W, stamp::next()))
    }

    #[track_caller]
    fn offer(reporter: &SharedReport, active: u64) {
        reporter
            .waiting
            .offer(|waiting| waiting.metrics = Some(load(active).into()));
    }

    #[test]
    fn a_plain_report_joins_the_present_life_or_begins_one() {
        let mut reports = Reports::new();
        assert!(matches!(
            reports.handle_report(W, load(1), None, now()),
            Reported::Changed(_)
        ));
        let first = reports.get(W).unwrap().life;
        let slot = reports.slot(W).unwrap();
        assert_eq!(
            reports.handle_report(W, load(1), None, now()),
            Reported::Unchanged(slot)
        );
        assert!(matches!(
            reports.handle_report(W, load(2), None, now()),
            Reported::Changed(_)
        ));
        assert_eq!(reports.get(W).unwrap().life, first);
        assert!(reports.handle_left(W).is_some());
        assert_eq!(reports.handle_left(W), None);
        reports.handle_report(W, load(2), None, now());
        assert!(reports.get(W).unwrap().life > first);
        assert_eq!((reports.len(), reports.rows.slots()), (1, 1));
    }

    #[test]
    fn a_newer_reporter_takes_the_worker_over_and_the_older_ones_reports_are_late() {
        let mut reports = Reports::new();
        let (older, newer) = (reporter(), reporter());
        assert!(reports.handle_reporter(older.clone()).is_some());
        offer(&older, 1);
        assert!(reports.handle_reporter(newer.clone()).is_some());
        assert_eq!(reports.get(W).unwrap().life, newer.life);
        assert_eq!(reports.handle_waiting(&older).unwrap().0, Reported::Late);
        assert_eq!(reports.handle_reporter_left(&older), None);
        assert_eq!(reports.get(W).unwrap().metrics, None);
        offer(&newer, 2);
        assert!(matches!(
            reports.handle_waiting(&newer).unwrap().0,
            Reported::Changed(_)
        ));
        assert!(reports.handle_reporter_left(&newer).is_some());
        assert!(reports.is_empty());
    }

    #[test]
    fn an_older_reporter_announced_after_a_newer_one_is_late_and_closed() {
        let mut reports = Reports::new();
        let (older, newer) = (reporter(), reporter());
        reports.handle_reporter(newer);
        assert_eq!(reports.handle_reporter(older.clone()), None);
        assert_eq!(
            older.waiting.offer(|_| ()),
            super::super::conflate::Offered::Closed(Closed::Ended)
        );
    }

    #[test]
    fn a_reporter_outranks_a_life_that_plain_messages_began() {
        let mut reports = Reports::new();
        let reporter = reporter();
        reports.handle_report(W, load(1), None, now());
        let plain = reports.get(W).unwrap().life;
        assert!(plain > reporter.life);
        reports.handle_reporter(reporter);
        let row = reports.get(W).unwrap();
        assert!(row.life > plain && row.metrics.is_none());
    }
}
