use std::time::Duration;

use actix_kv_metrics::{ForwardPassMetrics, WorkerLoad};

use super::*;

const LEASE: Duration = Duration::from_secs(9);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A subscriber, and a clock in milliseconds.
struct Timeline {
    epoch: Instant,
    inbound: Inbound,
}

fn part(id: u64, sequence: u64, kind: SnapshotKind, workers: &[(u64, u64)]) -> Part {
    let told = |(worker, active): &(u64, u64)| WorkerLoad {
        worker: (*worker).into(),
        life: 1,
        metrics: Some(ForwardPassMetrics::new(*active, 100, 0)),
        admitted: Vec::new(),
        age: Duration::ZERO,
        reported: None,
        draining: false,
    };
    Part {
        publisher: PublisherId::new(id, 1),
        sequence,
        kind,
        part: 0,
        parts: 1,
        left: Vec::new(),
        workers: workers.iter().map(told).collect(),
        lost: Default::default(),
        bytes: 100,
    }
}

fn after(before: u64) -> SnapshotKind {
    SnapshotKind::Delta { after: before }
}

const FULL: SnapshotKind = SnapshotKind::Full;

/// A snapshot as it goes to a router: sequence, kind, loads.
type Told = (u64, SnapshotKind, Vec<(u64, u64)>);

impl Timeline {
    fn new(lease: Duration, limits: Limits) -> Self {
        #[allow(clippy::disallowed_methods)] // An epoch; no time passes.
        let epoch = Instant::now();
        let mut inbound = Inbound::new(lease, limits);
        inbound.handle_connected(epoch);
        Self { epoch, inbound }
    }

    fn at(&self, t: u64) -> Instant {
        self.epoch + ms(t)
    }

    fn hear(&mut self, t: u64, part: Part) {
        self.inbound.handle_part(part, self.at(t)).unwrap();
    }

    fn alive(&mut self, t: u64, id: u64, sequence: u64) {
        let alive = Alive {
            incarnation: 1,
            sequence,
        };
        self.inbound.handle_alive(id, alive, self.at(t));
    }

    fn told(&mut self, t: u64) -> Option<Told> {
        let snapshot = self.inbound.poll_delivery(self.at(t))?;
        let load = |load: WorkerLoad| {
            let metrics = load.metrics.unwrap();
            (load.worker.worker().0, metrics.kv_stats.kv_active_blocks)
        };
        let loads = snapshot.workers.into_iter().map(load).collect();
        Some((snapshot.sequence, snapshot.kind, loads))
    }

    fn answer(&mut self, t: u64, id: u64, answer: Result<SnapshotAck, SnapshotRejected>) {
        self.inbound.handle_answer(id, answer, self.at(t));
    }

    fn applied(&mut self, t: u64, id: u64) {
        self.answer(t, id, Ok(SnapshotAck::Applied));
    }

    /// Calls for what is due, when it is due, until then; who was asked for everything, and when.
    fn asked_until(&mut self, until: u64) -> Vec<(u64, u64)> {
        let mut log = Vec::new();
        while let Some(at) = self.inbound.poll_timeout() {
            if at > self.at(until) {
                break;
            }
            let at = at.max(self.epoch);
            let t = (at - self.epoch).as_millis() as u64;
            let asked = self.inbound.handle_timeout(at);
            log.extend(asked.into_iter().map(|id| (t, id)));
        }
        log
    }
}

#[test]
fn one_snapshot_of_a_publisher_is_on_its_way_and_what_comes_meanwhile_is_merged() {
    let mut line = Timeline::new(LEASE, Limits::default());
    line.hear(0, part(7, 1, FULL, &[(1, 1), (2, 1)]));
    assert_eq!(line.told(0), Some((1, FULL, vec![(1, 1), (2, 1)])));
    line.hear(1, part(7, 2, after(1), &[(1, 2)]));
    line.hear(2, part(7, 3, after(2), &[(1, 3)]));
    line.hear(2, part(8, 1, FULL, &[(9, 9)]));
    assert_eq!(line.told(3), Some((1, FULL, vec![(9, 9)])));
    assert_eq!(line.told(3), None);
    line.applied(4, 7);
    assert_eq!(line.told(4), Some((3, after(1), vec![(1, 3)])));
    line.applied(5, 7);
    assert_eq!(line.told(5), None);
    assert_eq!(line.asked_until(100), []);
    let counts = line.inbound.counts();
    assert_eq!((counts.delivered, counts.merged, counts.gaps), (3, 1, 0));
}

#[test]
fn what_is_missing_is_asked_for_at_once_then_ever_more_seldom_until_everything_comes() {
    let mut line = Timeline::new(LEASE, Limits::default());
    line.hear(0, part(7, 1, FULL, &[(1, 1)]));
    line.hear(10, part(7, 3, after(2), &[(1, 3)]));
    // It is silent from then on, and gone at 9,010.
    let asked = line.asked_until(9_009);
    assert_eq!(asked, [(10, 7), (1_010, 7), (3_010, 7), (6_010, 7)]);
    line.hear(9_009, part(7, 4, FULL, &[(1, 4)]));
    assert_eq!(line.asked_until(18_000), []);
}

#[test]
fn a_sign_of_life_tells_of_what_was_missed() {
    let mut line = Timeline::new(LEASE, Limits::default());
    line.alive(0, 7, 5);
    assert_eq!(line.asked_until(10), [(0, 7)]);
    line.hear(20, part(7, 5, FULL, &[(1, 1)]));
    line.alive(3_000, 7, 5);
    assert_eq!(line.asked_until(5_000), []);
    line.alive(6_000, 7, 6);
    assert_eq!(line.asked_until(6_000), [(6_000, 7)]);
}

#[test]
fn a_refusal_is_answered_by_asking_later_and_a_need_at_once() {
    let mut line = Timeline::new(LEASE, Limits::default());
    line.hear(0, part(7, 1, FULL, &[(1, 1)]));
    assert!(line.told(0).is_some());
    line.answer(1, 7, Err(SnapshotRejected));
    assert_eq!(line.asked_until(1_500), [(1_001, 7)]);
    line.hear(1_600, part(7, 2, FULL, &[(1, 2)]));
    assert!(line.told(1_600).is_some());
    line.answer(1_700, 7, Ok(SnapshotAck::NeedFull));
    assert_eq!(line.asked_until(1_800), [(1_700, 7)]);
}

#[test]
fn a_publisher_silent_for_its_lease_is_gone_and_only_connected_time_counts() {
    let mut line = Timeline::new(LEASE, Limits::default());
    line.hear(0, part(7, 1, FULL, &[(1, 1)]));
    assert!(line.told(0).is_some());
    line.applied(0, 7);
    assert_eq!(line.asked_until(4_000), []);
    line.inbound.handle_disconnected(line.at(4_000));
    assert_eq!(line.asked_until(100_000), []);
    assert_eq!(line.told(100_000), None);
    line.inbound.handle_connected(line.at(100_000));
    // Five seconds of nine are left.
    line.asked_until(104_999);
    assert_eq!(line.told(104_999), None);
    line.asked_until(105_000);
    let goodbye = Some((1, SnapshotKind::Closed, vec![]));
    assert_eq!(line.told(105_000), goodbye);
    line.applied(105_000, 7);
    assert_eq!(line.inbound.sizes(), (0, 0));
    assert_eq!(line.inbound.counts().leases_ended, 1);
}

#[test]
fn after_a_reconnect_a_third_of_the_lease_is_left_and_a_link_that_flaps_keeps_nobody_alive() {
    let mut line = Timeline::new(LEASE, Limits::default());
    line.hear(0, part(7, 1, FULL, &[(1, 1)]));
    assert!(line.told(0).is_some());
    line.applied(0, 7);
    line.inbound.handle_disconnected(line.at(8_900));
    line.inbound.handle_connected(line.at(9_500));
    line.asked_until(12_499);
    assert_eq!(line.told(12_499), None);
    line.asked_until(12_500);
    assert!(line.told(12_500).is_some());

    let mut line = Timeline::new(LEASE, Limits::default());
    line.hear(0, part(7, 1, FULL, &[(1, 1)]));
    assert!(line.told(0).is_some());
    line.applied(0, 7);
    // Connected for one second of two; nothing is heard.
    for t in (0..40_000).step_by(2_000) {
        line.inbound.handle_connected(line.at(t));
        line.asked_until(t + 999);
        line.inbound.handle_disconnected(line.at(t + 1_000));
    }
    let gone = line.told(40_000);
    assert_eq!(gone, Some((1, SnapshotKind::Closed, vec![])));
}

#[test]
fn what_comes_again_or_late_is_dropped_and_a_straggler_after_a_goodbye_brings_nobody_back() {
    let mut line = Timeline::new(LEASE, Limits::default());
    line.hear(0, part(7, 1, FULL, &[(1, 1)]));
    line.hear(0, part(7, 2, after(1), &[(1, 2)]));
    line.hear(1, part(7, 2, after(1), &[(1, 2)]));
    line.hear(1, part(7, 1, FULL, &[(1, 1)]));
    assert_eq!(line.told(1), Some((2, FULL, vec![(1, 2)])));
    line.applied(1, 7);
    line.hear(2, part(7, 3, SnapshotKind::Closed, &[]));
    line.hear(3, part(7, 2, after(1), &[(1, 2)]));
    assert_eq!(line.told(4), Some((3, SnapshotKind::Closed, vec![])));
    line.applied(4, 7);
    assert_eq!(line.told(5), None);
    assert_eq!(line.inbound.sizes(), (0, 0));
    assert_eq!(line.inbound.counts().late, 3);
}

#[test]
fn limits_hold_whoever_speaks_and_who_is_known_is_still_heard() {
    let limits = Limits {
        publishers: 2,
        workers: 5,
        workers_per_publisher: 3,
        ..Limits::default()
    };
    let mut line = Timeline::new(LEASE, limits);
    line.hear(0, part(1, 1, FULL, &[(11, 1), (12, 1), (13, 1)]));
    line.hear(0, part(2, 1, FULL, &[(21, 1), (22, 1), (23, 1)]));
    line.hear(0, part(3, 1, FULL, &[(31, 1)]));
    line.alive(0, 4, 1);
    assert_eq!(line.inbound.sizes(), (2, 5));
    let counts = line.inbound.counts();
    assert_eq!(
        (counts.too_many_workers, counts.too_many_publishers),
        (1, 2)
    );
    assert_eq!(
        line.told(0),
        Some((1, FULL, vec![(11, 1), (12, 1), (13, 1)]))
    );
    line.applied(0, 1);
    line.hear(1, part(1, 2, after(1), &[(12, 2), (14, 1)]));
    assert_eq!(line.told(1), Some((1, FULL, vec![(21, 1), (22, 1)])));
    assert_eq!(line.told(1), Some((2, after(1), vec![(12, 2)])));
    // Who leaves makes room.
    let mut next = part(1, 3, after(2), &[(14, 1)]);
    next.left.push(11.into());
    line.applied(2, 1);
    line.hear(2, next);
    assert_eq!(line.told(2), Some((3, after(2), vec![(14, 1)])));
}

#[test]
fn without_a_lease_nobody_is_ever_gone() {
    let mut line = Timeline::new(Duration::MAX, Limits::default());
    line.hear(0, part(7, 1, FULL, &[(1, 1)]));
    line.alive(5, 7, 1);
    line.inbound.handle_disconnected(line.at(10));
    line.inbound.handle_connected(line.at(20));
    line.hear(30, part(7, 3, after(2), &[(1, 3)]));
    // All were asked when the connection was made; it alone is, and never given up.
    let times = [1_020, 3_020, 7_020, 15_020, 25_020, 35_020, 45_020, 55_020];
    assert_eq!(line.asked_until(60_000), times.map(|t| (t, 7)));
    assert_eq!(line.inbound.counts().leases_ended, 0);
}
