//! Those who wait until links have arrived somewhere. However many they are, they are looked at only when a link has moved.

use std::time::Instant;

use tokio::sync::oneshot;

use super::{
    flush::{FlushReport, Undelivered},
    routers::Attached,
};
use crate::sans_io::{
    link::{Link, LinkId},
    reports::Reports,
};

/// Everybody who waits for the same kind of report.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    waiting: Vec<Waiter>,
    /// How many of them have been looked at since the links stood as in `seen`.
    looked_at: usize,
    seen: Vec<Standing>,
    /// The earliest of their deadlines.
    deadline: Option<Instant>,
}

/// Somebody waits for a report.
#[derive(Debug)]
pub(super) struct Waiter {
    deadline: Option<Instant>,
    goals: Vec<Goal>,
    undelivered: Vec<Undelivered>,
    answer: oneshot::Sender<FlushReport>,
}

/// What is to happen on a link before the waiter is answered.
#[derive(Debug)]
pub(super) struct Goal {
    link: LinkId,
    arrived: u64,
    /// Another failure than these is the answer, too; `None`: it is tried until the deadline.
    failed: Option<u64>,
}

/// All of a link that a goal depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Standing {
    link: LinkId,
    arrived: u64,
    failed: u64,
    settled: bool,
    lost: bool,
}

impl Goal {
    /// All that is newest on the link now; `patient`: however often it fails.
    pub(super) fn everything(link: &Link, patient: bool) -> Self {
        Self {
            link: link.id(),
            arrived: link.goal(),
            failed: (!patient).then(|| link.failed()),
        }
    }

    /// Which workers there are.
    pub(super) fn announced(link: &Link) -> Self {
        Self {
            link: link.id(),
            arrived: link.announced(),
            failed: Some(link.failed()),
        }
    }
}

impl Standing {
    fn of(attached: &Attached) -> Self {
        let link = &attached.link;
        Self {
            link: link.id(),
            arrived: link.arrived(),
            failed: link.failed(),
            settled: link.is_settled(),
            lost: link.is_lost(),
        }
    }
}

impl Waiters {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// When the first of them has waited long enough.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    pub(super) fn push(&mut self, waiter: Waiter) {
        let deadlines = [self.deadline, waiter.deadline];
        self.deadline = deadlines.into_iter().flatten().min();
        self.waiting.push(waiter);
    }

    /// Takes out those that can be answered.
    pub(super) fn take_done(
        &mut self,
        attached: &[Attached],
        reports: &Reports,
        now: Instant,
    ) -> Vec<Waiter> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let standings = attached.iter().map(Standing::of);
        let moved = !standings.clone().eq(self.seen.iter().copied());
        if moved {
            self.seen.clear();
            self.seen.extend(standings);
        }
        let all = moved || self.deadline.is_some_and(|deadline| deadline <= now);
        let from = if all { 0 } else { self.looked_at };
        let is_done = |waiter: &mut Waiter| waiter.is_done(attached, reports, now, false);
        let done: Vec<_> = self.waiting.extract_if(from.., is_done).collect();
        self.looked_at = self.waiting.len();
        if self.deadline.is_some() && done.iter().any(|it| it.deadline == self.deadline) {
            self.deadline = self.waiting.iter().filter_map(|it| it.deadline).min();
        }
        done
    }

    /// Takes out all of them: there is nothing more to wait for.
    pub(super) fn take_all(
        &mut self,
        attached: &[Attached],
        reports: &Reports,
        now: Instant,
    ) -> Vec<Waiter> {
        let mut all = std::mem::take(self).waiting;
        for waiter in &mut all {
            waiter.is_done(attached, reports, now, true);
        }
        all
    }
}

impl Waiter {
    pub(super) fn new(
        deadline: Option<Instant>,
        goals: Vec<Goal>,
        answer: oneshot::Sender<FlushReport>,
    ) -> Self {
        Self {
            deadline,
            goals,
            undelivered: Vec::new(),
            answer,
        }
    }

    /// Whether the waiter can be answered. `over`: there is nothing more to wait for.
    fn is_done(
        &mut self,
        attached: &[Attached],
        reports: &Reports,
        now: Instant,
        over: bool,
    ) -> bool {
        let over = over || self.deadline.is_some_and(|deadline| deadline <= now);
        let undelivered = &mut self.undelivered;
        self.goals.retain(|goal| {
            // Links are attached in the order of their ids.
            let place = attached.binary_search_by_key(&goal.link, |a| a.link.id());
            let Ok(place) = place else {
                return false;
            };
            let link = &attached[place].link;
            if !link.is_lost() && (link.arrived() >= goal.arrived || link.is_settled()) {
                return false;
            }
            let failed = goal.failed.is_some_and(|before| link.failed() > before);
            if !(over || failed || link.is_lost()) {
                return true;
            }
            undelivered.push(Undelivered {
                link: Some(link.id()),
                workers: link.coalescer().undelivered(reports),
            });
            false
        });
        self.goals.is_empty()
    }

    /// What is known not to have arrived.
    pub(super) fn report(&self) -> FlushReport {
        FlushReport {
            undelivered: self.undelivered.clone(),
        }
    }

    /// Answers what it found.
    pub(super) fn answer(self) {
        let report = self.report();
        self.answer_with(report);
    }

    pub(super) fn answer_with(self, report: FlushReport) {
        // Whoever asked may have gone.
        let _ = self.answer.send(report);
    }
}
