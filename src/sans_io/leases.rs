//! Who has been silent for too long.

use std::time::{Duration, Instant};

use super::{
    reports::WorkerSlot,
    slots::{BySlot, Chain, Links, Renumbering},
};

/// The leases of the workers in a table of [`Reports`](super::Reports): each lasts equally long from the last report, so the
/// order of the reports is the order in which they end.
///
/// Call protocol: `handle_heard` for each report and each beginning of a life. When [`poll_timeout`](Self::poll_timeout) has
/// come, [`handle_timeout`](Self::handle_timeout) says whether to look: then take in all that has been reported, and take
/// those whose lease has ended from [`poll_ended`](Self::poll_ended) until there is none. A report costs constant time and
/// moves no deadline: who looks finds out that it has moved.
#[derive(Debug)]
pub struct Leases {
    lease: Duration,
    heard: BySlot<WorkerSlot, Option<Instant>>,
    /// Who was heard of longest ago comes first.
    order: Chain<WorkerSlot>,
    links: Links<WorkerSlot>,
    newest: Option<Instant>,
    /// When reporters were asked last, and when before that.
    asked: [Option<Instant>; 2],
    look: Look,
}

/// When somebody's lease may have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Nobody is there, or time ends before.
    Never,
    At(Instant),
    /// It may have, and what has been reported is being taken in.
    Now,
}

impl Leases {
    /// Of workers that are none yet. `Duration::MAX` ends never.
    pub fn new(lease: Duration) -> Self {
        Self {
            lease,
            heard: BySlot::new(None),
            order: Chain::EMPTY,
            links: Links::default(),
            newest: None,
            asked: [None; 2],
            look: Look::Never,
        }
    }

    /// The worker reports, or its life begins. A `now` before an earlier one counts as that.
    #[inline]
    pub fn handle_heard(&mut self, slot: WorkerSlot, now: Instant) {
        let now = self.newest.max(Some(now));
        self.newest = now;
        if std::mem::replace(&mut self.heard[slot], now).is_some() {
            self.links.move_to_back(&mut self.order, slot);
        } else {
            self.links.push_back(&mut self.order, slot);
            if self.look == Look::Never {
                self.look = self.next_look();
            }
        }
    }

    /// The worker that was in `slot` left.
    pub fn handle_left(&mut self, slot: WorkerSlot) {
        if self.heard.at(slot).is_none() {
            return;
        }
        self.heard[slot] = None;
        self.links.remove(&mut self.order, slot);
        if self.order.is_empty() {
            self.look = Look::Never;
        }
    }

    /// [`Reports::compact`](super::Reports::compact) gave workers other slots.
    pub fn handle_renumbered(&mut self, renumbering: &Renumbering<WorkerSlot>) {
        self.heard.renumber(renumbering);
        self.links.renumber(renumbering);
        self.order.renumber(renumbering);
    }

    /// Reporters are asked for what they have, and all that they said when they were asked before has been taken in.
    pub fn handle_asked(&mut self, now: Instant) {
        self.asked = [Some(now), self.asked[0]];
    }

    /// Until when everything that was reported has been taken in. `all`: also what they said when they were asked last.
    pub fn asked_until(&self, all: bool) -> Option<Instant> {
        self.asked[usize::from(!all)]
    }

    /// When to look; `None`: nobody is there, or a look is due already.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.look {
            Look::At(at) => Some(at),
            Look::Never | Look::Now => None,
        }
    }

    /// Whether to look for those whose lease has ended.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        let comes = self.poll_timeout().is_some_and(|at| at <= now);
        if comes {
            self.look = Look::Now;
        }
        comes
    }

    /// Takes out a worker whose lease had ended at `known`, up to which all reports have been taken in. `None`: there is no
    /// other, and the look is over.
    pub fn poll_ended(&mut self, known: Instant) -> Option<WorkerSlot> {
        let first = self.order.front();
        let ended = first.filter(|_| self.first_end().is_some_and(|end| end <= known));
        match ended {
            Some(slot) => {
                self.heard[slot] = None;
                self.links.remove(&mut self.order, slot);
            }
            None => self.look = self.next_look(),
        }
        ended
    }

    /// Who had begun to look will not go on.
    pub fn handle_restart(&mut self) {
        self.look = self.next_look();
    }

    fn next_look(&self) -> Look {
        self.first_end().map_or(Look::Never, Look::At)
    }

    fn first_end(&self) -> Option<Instant> {
        self.heard[self.order.front()?]?.checked_add(self.lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sans_io::slots::Key;

    fn slot(number: u32) -> WorkerSlot {
        WorkerSlot::new(number)
    }

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn ended(leases: &mut Leases, known: Instant) -> Vec<u32> {
        std::iter::from_fn(|| leases.poll_ended(known))
            .map(Key::number)
            .collect()
    }

    #[test]
    fn who_is_silent_for_a_lease_is_found_and_a_report_moves_no_deadline() {
        let start = actix::clock::Instant::now().into_std();
        let at = |n| start + ms(n);
        let mut leases = Leases::new(ms(100));
        assert_eq!(leases.poll_timeout(), None);
        for n in 0..3 {
            leases.handle_heard(slot(n), at(u64::from(n)));
        }
        leases.handle_heard(slot(0), at(50));
        // A clock that goes back.
        leases.handle_heard(slot(1), at(40));
        assert_eq!(leases.poll_timeout(), Some(at(100)));
        assert!(!leases.handle_timeout(at(99)));
        assert!(leases.handle_timeout(at(100)));
        assert_eq!(leases.poll_timeout(), None);
        assert!(!leases.handle_timeout(at(101)), "once");
        assert_eq!(ended(&mut leases, at(101)), [0; 0]);
        assert_eq!(leases.poll_timeout(), Some(at(102)));
        assert!(leases.handle_timeout(at(160)));
        // What was reported later than this is not known yet.
        assert_eq!(ended(&mut leases, at(149)), [2]);
        assert_eq!(leases.poll_timeout(), Some(at(150)));
        leases.handle_left(slot(0));
        leases.handle_left(slot(0));
        assert!(leases.handle_timeout(at(160)));
        assert_eq!(ended(&mut leases, at(160)), [1]);
        assert_eq!(leases.poll_timeout(), None);
        leases.handle_heard(slot(7), at(200));
        leases.handle_left(slot(7));
        assert_eq!(leases.poll_timeout(), None);
    }

    #[test]
    fn a_lease_of_for_ever_never_ends() {
        let start = actix::clock::Instant::now().into_std();
        let mut leases = Leases::new(Duration::MAX);
        leases.handle_heard(slot(0), start);
        assert_eq!(leases.poll_timeout(), None);
        assert_eq!(ended(&mut leases, start + ms(1 << 40)), [0; 0]);
    }
}
