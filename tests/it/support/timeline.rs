//! One link on a timeline of its own: no actor, no runtime, and time moves only as told.

use std::time::{Duration, Instant};

use actix_kv_metrics::{
    Backoff, Coalescing, ForwardPassMetrics, LinkId, LoadSnapshot, PublisherId, SnapshotAck,
    Ticket,
    actix::clock,
    sans_io::{Delivery, Link, LinkState, Reported, Reports, WorkerSlot},
};

use super::{Seen, load, ms, w};

/// A table of reports and one link. Times are whole steps (of 1 ms, or 1 µs) since an epoch.
///
/// Every pump asserts what the actor relies on: afterwards `poll_timeout` is `None` or later than now, and what is sent
/// was announced by `poll_timeout`.
#[derive(Debug)]
pub struct Timeline {
    step: Duration,
    epoch: Instant,
    now: u64,
    pub reports: Reports,
    pub link: Link,
    /// The publisher's counter of snapshots.
    pub sequence: u64,
    /// Answers each snapshot as soon as it is sent.
    pub answers_at_once: bool,
    /// The snapshot that was sent last.
    pub last: Option<LoadSnapshot>,
}

impl Timeline {
    /// Attached at 0 to a router that answers at once, has its first full snapshot, and knows no worker.
    pub fn new(coalescing: Coalescing) -> Self {
        Self::with_backoff(coalescing, Backoff::new(ms(10), ms(80)).unwrap())
    }

    pub fn with_backoff(coalescing: Coalescing, backoff: Backoff) -> Self {
        let mut timeline = Self::unattached(coalescing, backoff, ms(1));
        timeline.expect_full(0, &[]);
        timeline
    }

    /// As [`new`](Self::new), in microseconds.
    pub fn in_micros(coalescing: Coalescing) -> Self {
        let backoff = Backoff::default();
        let mut timeline = Self::unattached(coalescing, backoff, Duration::from_micros(1));
        timeline.expect_full(0, &[]);
        timeline
    }

    /// As [`new`](Self::new), with workers that the router has with nothing in use.
    pub fn with_workers(coalescing: Coalescing, workers: &[u64]) -> Self {
        let mut timeline = Self::new(coalescing);
        for worker in workers {
            timeline.report(*worker, 0);
        }
        let loads: Vec<_> = workers.iter().map(|worker| (*worker, 0)).collect();
        timeline.expect_delta(0, &loads);
        timeline
    }

    /// Before the first full snapshot.
    pub fn unattached(coalescing: Coalescing, backoff: Backoff, step: Duration) -> Self {
        let epoch = clock::Instant::now().into_std();
        Self {
            step,
            epoch,
            now: 0,
            reports: Reports::new(),
            link: Link::new(LinkId::new(1), coalescing, backoff, epoch),
            sequence: 0,
            answers_at_once: true,
            last: None,
        }
    }

    pub fn now(&self) -> u64 {
        self.now
    }

    pub fn instant(&self) -> Instant {
        self.at_step(self.now)
    }

    fn at_step(&self, step: u64) -> Instant {
        self.epoch + self.step * u32::try_from(step).unwrap()
    }

    /// When the link wants to be polled, in steps (rounded down).
    pub fn timeout(&self) -> Option<u64> {
        let timeout = self.link.poll_timeout()?;
        let since = timeout.saturating_duration_since(self.epoch);
        Some((since.as_nanos() / self.step.as_nanos()) as u64)
    }

    /// Moves the clock without polling.
    #[track_caller]
    pub fn skip_to(&mut self, step: u64) {
        assert!(step >= self.now, "{step} is before {}", self.now);
        self.now = step;
    }

    pub fn report(&mut self, worker: u64, active: u64) -> Reported {
        self.report_metrics(worker, load(active))
    }

    pub fn report_metrics(&mut self, worker: u64, metrics: ForwardPassMetrics) -> Reported {
        let now = self.at_step(self.now);
        let reported = self.reports.handle_report(w(worker), metrics, None, now);
        self.tell(reported)
    }

    pub fn report_admitted(&mut self, worker: u64, active: u64, ticket: Ticket) -> Reported {
        let now = self.at_step(self.now);
        let reported = self
            .reports
            .handle_report(w(worker), load(active), Some(ticket), now);
        self.tell(reported)
    }

    pub fn drain(&mut self, worker: u64, draining: bool) -> Reported {
        let reported = self.reports.handle_draining(w(worker), draining);
        self.tell(reported)
    }

    fn tell(&mut self, reported: Reported) -> Reported {
        let now = self.at_step(self.now);
        match &reported {
            Reported::Changed(change) => {
                let report = self.reports.at(change.slot()).unwrap();
                self.link.handle_changed(change, report, now);
            }
            Reported::Unchanged(slot) => {
                self.link.handle_unchanged(*slot, now);
            }
            Reported::Known | Reported::Late => {}
        }
        reported
    }

    pub fn join(&mut self, worker: u64) -> Option<WorkerSlot> {
        let slot = self.reports.handle_joined(w(worker))?;
        let report = self.reports.at(slot).unwrap();
        self.link
            .handle_joined(slot, report, self.at_step(self.now));
        Some(slot)
    }

    pub fn leave(&mut self, worker: u64) {
        if let Some(slot) = self.reports.handle_left(w(worker)) {
            let now = self.at_step(self.now);
            self.link
                .handle_left(slot, w(worker), self.reports.len(), now);
            if let Some(renumbering) = self.reports.compact() {
                self.link.handle_renumbered(&renumbering);
            }
        }
    }

    /// Polls once, as the actor does after every event.
    #[track_caller]
    pub fn pump(&mut self) -> Option<Seen> {
        let now = self.instant();
        let announced = self.link.poll_timeout().is_some_and(|first| first <= now);
        let publisher = PublisherId::new(1, 1);
        let sent = self
            .link
            .poll_transmit(publisher, &mut self.sequence, &self.reports, now);
        assert!(
            announced || sent.is_none(),
            "at {}: sent without an announcement",
            self.now
        );
        if let Some(timeout) = self.link.poll_timeout() {
            assert!(timeout > now, "at {}: a timeout in the past", self.now);
        }
        let snapshot = sent?;
        let seen = Seen::of(self.now, &snapshot);
        assert_eq!(
            self.link.state(),
            LinkState::InFlight {
                sequence: snapshot.sequence,
                since: now
            }
        );
        self.last = Some(snapshot);
        if self.answers_at_once {
            self.applied();
        }
        Some(seen)
    }

    /// Answers the snapshot that was sent last.
    #[track_caller]
    pub fn answer(&mut self, delivery: Delivery) {
        let (sequence, now) = (self.sequence, self.instant());
        assert!(
            self.link.handle_delivery(sequence, delivery, now),
            "at {}: nothing is in flight",
            self.now
        );
    }

    #[track_caller]
    pub fn applied(&mut self) {
        self.answer(Delivery::Answered(SnapshotAck::Applied));
    }

    #[track_caller]
    pub fn refused(&mut self) {
        self.answer(Delivery::Failed);
    }

    /// Polls at every step from now to before `step`, and stands at `step`, not polled yet.
    #[track_caller]
    pub fn expect_nothing_until(&mut self, step: u64) {
        assert!(step >= self.now, "{step} is before {}", self.now);
        while self.now < step {
            let sent = self.pump();
            assert_eq!(sent, None, "nothing was due before {step}");
            self.now += 1;
        }
    }

    /// Nothing before `seen.at`, which `poll_timeout` names exactly, and then that.
    #[track_caller]
    pub fn expect(&mut self, seen: &Seen) {
        let early = seen.at > self.now;
        self.expect_nothing_until(seen.at);
        let timeout = self.timeout();
        if early {
            assert_eq!(timeout, Some(seen.at), "poll_timeout at {}", self.now);
        }
        assert_eq!(self.pump().as_ref(), Some(seen));
    }

    #[track_caller]
    pub fn expect_delta(&mut self, at: u64, loads: &[(u64, u64)]) {
        self.expect(&super::delta(at, loads));
    }

    #[track_caller]
    pub fn expect_full(&mut self, at: u64, loads: &[(u64, u64)]) {
        self.expect(&super::full(at, loads));
    }

    /// Nothing now, nothing later, and no wish to be polled.
    #[track_caller]
    pub fn expect_idle(&mut self) {
        assert_eq!(self.pump(), None, "at {}", self.now);
        assert_eq!(self.link.poll_timeout(), None, "at {}", self.now);
        assert_eq!(self.link.coalescer().open_windows(), 0);
        assert_eq!(self.link.coalescer().open_departures(), 0);
    }
}
