//! Drawn histories of reports and the links to two routers: events in any order, hostile values, clocks that jump and go
//! back, answers that fit nothing. Whatever happened, in the end each router that lives has the truth.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use crate::support::fuzz::{fuzz, hostile_f32, hostile_u64};
use crate::support::unpaced;
use actix_kv_metrics::{
    Backoff, Coalescing, ForwardPassMetrics, LinkId, LoadSnapshot, PublisherId, SnapshotAck,
    SnapshotKind, Ticket, WorkerRank,
    actix::clock,
    sans_io::{Delivery, Link, LinkState, Reported, Reports},
};
use proptest::{collection::vec, option, prelude::*, sample::select, test_runner::TestCaseResult};

#[derive(Debug, Clone)]
enum Step {
    Report(WorkerRank, ForwardPassMetrics, Option<Ticket>),
    Joined(WorkerRank),
    Left(WorkerRank),
    /// The publisher looks at this link.
    Poll(usize),
    /// The publisher looks at this link when it asked for it.
    PollInTime(usize),
    Answer(usize, Answer),
    /// An answer to a snapshot that is not in flight.
    Stray(usize, u64),
    Flush(usize),
    RetryNow(usize),
    FullRequested(usize),
    AttachAgain(usize, Option<Coalescing>),
    /// Whether what was in flight had arrived.
    Restart(usize, bool),
    Later(Duration),
    Earlier(Duration),
}

#[derive(Debug, Clone, Copy)]
enum Answer {
    Applied,
    NeedFull,
    Superseded,
    /// Whether it had been applied all the same.
    Failed(bool),
    Gone,
}

fn ranks() -> impl Strategy<Value = WorkerRank> + Clone {
    (prop_oneof![9 => 0..5_u64, 1 => 0..60_u64], 0..2_u32).prop_map(|(w, r)| WorkerRank::new(w, r))
}

fn metrics() -> impl Strategy<Value = ForwardPassMetrics> + Clone {
    let figures = (
        hostile_u64(),
        hostile_u64(),
        prop_oneof![4 => 0..3_u64, 1 => hostile_u64()],
    );
    (figures, hostile_f32()).prop_map(|((active, total, waiting), share)| {
        // What is not finite never gets here: the publisher refuses it.
        let share = if share.is_finite() { share } else { 0.0 };
        ForwardPassMetrics::new(active, total, waiting).with_gpu_cache_usage_perc(share)
    })
}

fn windows() -> impl Strategy<Value = Coalescing> + Clone {
    let spans = [0, 1, 1_000, 1_000_000, 10_000_000, 1_000_000_000].map(Duration::from_nanos);
    let mut spans = spans.to_vec();
    spans.push(Duration::MAX);
    let share = select(vec![f64::from_bits(1), 0.5, 1.0]);
    let shares = (option::of(share.clone()), option::of(share));
    let spans = [select(spans.clone()), select(spans.clone()), select(spans)];
    let gap = select(vec![0, 0, 5, u64::MAX]).prop_map(Duration::from_millis);
    (spans, gap, any::<bool>(), shares).prop_map(|(mut spans, gap, leading, shares)| {
        spans.sort_unstable();
        let mut builder = unpaced()
            .debounce(spans[0])
            .max_delay(spans[1])
            .minor_delay(spans[2])
            .min_gap(gap)
            .leading(leading)
            .significance(shares.0.unwrap_or(0.0));
        if let Some(share) = shares.1 {
            builder = builder.saturation(share);
        }
        builder.build().expect("its parts are within their bounds")
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> + Clone {
    let link = || 0..2_usize;
    let ticket = (0..3_u64, hostile_u64()).prop_map(|(router, number)| Ticket { router, number });
    let answer = prop_oneof![
        8 => Just(Answer::Applied),
        1 => Just(Answer::NeedFull),
        1 => Just(Answer::Superseded),
        2 => any::<bool>().prop_map(Answer::Failed),
    ];
    let answer = prop_oneof![40 => answer, 1 => Just(Answer::Gone)];
    let pause = prop_oneof![
        8 => (0..30_000_u64).prop_map(Duration::from_micros),
        1 => (0..10_000_u64).prop_map(Duration::from_millis),
        1 => Just(Duration::from_secs(600 * 365 * 24 * 3600)),
    ];
    let step = prop_oneof![
        8 => (ranks(), metrics(), option::weighted(0.2, ticket))
            .prop_map(|(worker, metrics, ticket)| Step::Report(worker, metrics, ticket)),
        1 => ranks().prop_map(Step::Joined),
        2 => ranks().prop_map(Step::Left),
        3 => link().prop_map(Step::Poll),
        4 => link().prop_map(Step::PollInTime),
        6 => (link(), answer).prop_map(|(link, answer)| Step::Answer(link, answer)),
        1 => (link(), hostile_u64()).prop_map(|(link, sequence)| Step::Stray(link, sequence)),
        1 => link().prop_map(Step::Flush),
        1 => link().prop_map(Step::RetryNow),
        1 => link().prop_map(Step::FullRequested),
        1 => (link(), option::of(windows())).prop_map(|(l, w)| Step::AttachAgain(l, w)),
        1 => (link(), any::<bool>()).prop_map(|(l, arrived)| Step::Restart(l, arrived)),
        4 => pause.clone().prop_map(Step::Later),
        1 => pause.prop_map(Step::Earlier),
    ];
    vec(step, 0..60)
}

/// A router as it would be, and the link to it.
struct Router {
    link: Link,
    in_flight: Option<LoadSnapshot>,
    /// It was attached again since that was sent, with other windows: whether it is a full one is not remembered.
    renewed: bool,
    acknowledged: Option<u64>,
    has: BTreeMap<WorkerRank, (u64, Option<ForwardPassMetrics>)>,
}

impl Router {
    fn apply(&mut self, snapshot: LoadSnapshot) {
        if snapshot.kind == SnapshotKind::Full {
            self.has.clear();
        }
        for worker in snapshot.left {
            self.has.remove(&worker);
        }
        for load in snapshot.workers {
            self.has.insert(load.worker, (load.life, load.metrics));
        }
    }
}

struct History {
    reports: Reports,
    routers: [Router; 2],
    sequence: u64,
    now: Instant,
    latest: Instant,
}

impl History {
    fn new(settings: [Coalescing; 2]) -> Self {
        let now = clock::Instant::now().into_std() + Duration::from_secs(1_000);
        let mut id = 0;
        Self {
            reports: Reports::new(),
            routers: settings.map(|settings| {
                id += 1;
                Router {
                    link: Link::new(LinkId::new(id), settings, Backoff::default(), now),
                    in_flight: None,
                    renewed: false,
                    acknowledged: None,
                    has: BTreeMap::new(),
                }
            }),
            sequence: 0,
            now,
            latest: now,
        }
    }

    fn step(&mut self, step: Step) -> TestCaseResult {
        match step {
            Step::Report(worker, metrics, ticket) => self.report(worker, metrics, ticket)?,
            Step::Joined(worker) => self.joined(worker),
            Step::Left(worker) => self.left(worker),
            Step::Poll(at) => self.poll(at)?,
            Step::PollInTime(at) => {
                if let Some(asked) = self.routers[at].link.poll_timeout() {
                    self.now = self.now.max(asked);
                }
                self.poll(at)?;
            }
            Step::Answer(at, answer) => self.answer(at, answer)?,
            Step::Stray(at, sequence) => self.stray(at, sequence)?,
            Step::Flush(at) => self.routers[at].link.handle_flush(),
            Step::RetryNow(at) => self.routers[at].link.handle_retry_now(),
            Step::FullRequested(at) => self.routers[at].link.handle_full_requested(),
            Step::AttachAgain(at, windows) => {
                let router = &mut self.routers[at];
                if !router.link.is_lost() {
                    router.renewed |= windows.is_some();
                    router.link.handle_attached_again(windows, self.now);
                }
            }
            Step::Restart(at, arrived) => {
                let router = &mut self.routers[at];
                router.link.handle_restart();
                if let Some(snapshot) = router.in_flight.take().filter(|_| arrived) {
                    router.apply(snapshot);
                }
            }
            Step::Later(pause) => self.now = self.now.checked_add(pause).unwrap_or(self.now),
            Step::Earlier(pause) => self.now = self.now.checked_sub(pause).unwrap_or(self.now),
        }
        self.latest = self.latest.max(self.now);
        self.adds_up()
    }

    fn report(
        &mut self,
        worker: WorkerRank,
        metrics: ForwardPassMetrics,
        ticket: Option<Ticket>,
    ) -> TestCaseResult {
        let reported = self
            .reports
            .handle_report(worker, metrics.clone(), ticket, self.now);
        let newest = self.reports.get(worker).and_then(|report| report.metrics());
        prop_assert_eq!(newest.as_ref(), Some(&metrics));
        let slot = match &reported {
            Reported::Changed(change) => change.slot(),
            Reported::Unchanged(slot) => *slot,
            Reported::Known | Reported::Late => return Ok(()),
        };
        let Some(report) = self.reports.at(slot) else {
            return Ok(());
        };
        for router in &mut self.routers {
            let before = router.link.poll_timeout();
            let look = match &reported {
                Reported::Changed(change) => router.link.handle_changed(change, report, self.now),
                _ => router.link.handle_unchanged(slot, self.now),
            };
            let after = router.link.poll_timeout();
            let earlier = after.is_some_and(|after| before.is_none_or(|before| after < before));
            prop_assert!(look || !earlier, "{:?} became {:?}", before, after);
        }
        Ok(())
    }

    fn joined(&mut self, worker: WorkerRank) {
        if let Some(slot) = self.reports.handle_joined(worker)
            && let Some(report) = self.reports.at(slot)
        {
            for router in &mut self.routers {
                router.link.handle_joined(slot, report, self.now);
            }
        }
    }

    fn left(&mut self, worker: WorkerRank) {
        if let Some(slot) = self.reports.handle_left(worker) {
            let (living, now) = (self.reports.len(), self.now);
            for router in &mut self.routers {
                router.link.handle_left(slot, worker, living, now);
            }
        }
    }

    fn poll(&mut self, at: usize) -> TestCaseResult {
        let publisher = PublisherId::new(1, 1);
        let router = &mut self.routers[at];
        let before = self.sequence;
        let (sequence, reports) = (&mut self.sequence, &self.reports);
        let snapshot = router
            .link
            .poll_transmit(publisher, sequence, reports, self.now);
        let Some(snapshot) = snapshot else {
            let next = router.link.poll_timeout();
            prop_assert!(next.is_none_or(|next| next > self.now), "due, and not sent");
            return Ok(());
        };
        prop_assert!(router.in_flight.is_none() && router.link.is_in_flight());
        prop_assert!(!router.link.is_lost());
        prop_assert_eq!(snapshot.sequence, before + 1);
        let mut named = BTreeSet::new();
        for load in &snapshot.workers {
            prop_assert!(named.insert(load.worker), "{} is there twice", load.worker);
            let Some(report) = self.reports.get(load.worker) else {
                return Err(TestCaseError::fail("a worker that left is in a snapshot"));
            };
            prop_assert_eq!(
                (load.life, &load.metrics),
                (report.life(), &report.metrics())
            );
        }
        match snapshot.kind {
            SnapshotKind::Full => {
                prop_assert_eq!(named.len(), self.reports.len());
                prop_assert!(snapshot.left.is_empty());
            }
            SnapshotKind::Delta { after } => {
                prop_assert_eq!(Some(after), router.acknowledged);
                prop_assert!(!snapshot.workers.is_empty() || !snapshot.left.is_empty());
            }
            SnapshotKind::Closed => prop_assert!(false, "a link closes nothing"),
        }
        router.in_flight = Some(snapshot);
        router.renewed = false;
        Ok(())
    }

    fn answer(&mut self, at: usize, answer: Answer) -> TestCaseResult {
        let router = &mut self.routers[at];
        let Some(snapshot) = router.in_flight.take() else {
            return Ok(());
        };
        let sequence = snapshot.sequence;
        let was_full = snapshot.kind == SnapshotKind::Full;
        let (delivery, applied) = match answer {
            Answer::Applied => (Delivery::Answered(SnapshotAck::Applied), true),
            Answer::NeedFull => (Delivery::Answered(SnapshotAck::NeedFull), true),
            Answer::Superseded => (Delivery::Answered(SnapshotAck::Superseded), false),
            Answer::Failed(applied) => (Delivery::Failed, applied),
            Answer::Gone => (Delivery::Gone, false),
        };
        prop_assert!(router.link.handle_delivery(sequence, delivery, self.now));
        prop_assert!(!router.link.handle_delivery(sequence, delivery, self.now));
        if applied {
            router.apply(snapshot);
        }
        match answer {
            Answer::Applied => router.acknowledged = Some(sequence),
            // In answer to a full one it is a failure.
            Answer::NeedFull if !was_full || router.renewed => {
                router.acknowledged = Some(sequence);
                prop_assert!(
                    router
                        .link
                        .is_due(self.latest.max(self.now), Duration::ZERO)
                );
            }
            Answer::Gone => prop_assert!(router.link.poll_timeout().is_none()),
            _ => {
                let backs_off = matches!(router.link.state(), LinkState::BackingOff { .. });
                prop_assert!(backs_off, "{:?}", router.link.state());
                prop_assert!(!router.link.is_due(self.now, Duration::ZERO));
            }
        }
        Ok(())
    }

    fn stray(&mut self, at: usize, sequence: u64) -> TestCaseResult {
        let router = &mut self.routers[at];
        if router
            .in_flight
            .as_ref()
            .is_some_and(|s| s.sequence == sequence)
        {
            return Ok(());
        }
        let state = router.link.state();
        prop_assert!(
            !router
                .link
                .handle_delivery(sequence, Delivery::Gone, self.now)
        );
        prop_assert_eq!(router.link.state(), state);
        Ok(())
    }

    fn adds_up(&self) -> TestCaseResult {
        for router in &self.routers {
            let windows = router.link.coalescer_counts();
            prop_assert_eq!(windows.changed, windows.opened + windows.coalesced);
            prop_assert_eq!(router.in_flight.is_some(), router.link.is_in_flight());
            let coalescer = router.link.coalescer();
            prop_assert!(coalescer.open_windows() <= self.reports.len());
            for (slot, _) in self.reports.iter() {
                let _ = coalescer.age(slot, self.now);
            }
        }
        Ok(())
    }

    /// Everybody answers from now on: then each router has the truth, and nothing is open.
    fn end(&mut self) -> TestCaseResult {
        // What is due at the latest time that was read is not sent before it.
        self.now = self.latest;
        for at in 0..2 {
            self.answer(at, Answer::Applied)?;
            let link = &mut self.routers[at].link;
            link.handle_retry_now();
            link.handle_flush();
            for _ in 0..8 {
                self.poll(at)?;
                self.answer(at, Answer::Applied)?;
            }
            let router = &self.routers[at];
            prop_assert_eq!(router.link.poll_timeout(), None);
            prop_assert_eq!(router.link.coalescer().open_windows(), 0);
            if router.link.is_lost() {
                continue;
            }
            prop_assert!(router.link.is_settled());
            prop_assert!(
                router
                    .link
                    .coalescer()
                    .undelivered(&self.reports)
                    .is_empty()
            );
            let truth: BTreeMap<_, _> = (self.reports.iter())
                .map(|(_, report)| (report.worker(), (report.life(), report.metrics())))
                .collect();
            prop_assert_eq!(&router.has, &truth);
        }
        self.adds_up()
    }
}

#[test]
fn g9_g16_routers_end_with_the_truth_after_any_history() {
    fuzz(
        "histories of links",
        600,
        ([windows(), windows()], steps()),
        |(settings, steps)| {
            let mut history = History::new(settings);
            for step in steps {
                history.step(step)?;
            }
            history.end()
        },
    );
}
