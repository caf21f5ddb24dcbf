//! Who is believed about a worker of which several speak, or one that contradicts itself: what the model found.

use std::time::{Duration, Instant};

use crate::support::router::{FULL, after, of_life, snapshot};
use crate::support::{load, ms, w};
use actix_kv_metrics::{
    ForwardPassMetrics, Freshness, LoadSnapshot, PublisherId, RouterConfig, SelectWorker,
    SnapshotAck, SnapshotKind, WorkerLoad, actix::clock, sans_io::LoadTable,
};

/// A table whose `stale_after` is 5 s, and the time.
struct Scene {
    table: LoadTable,
    now: Instant,
}

impl Scene {
    fn new() -> Self {
        let config = RouterConfig::builder().seed(7).saturation(0.9);
        Self {
            table: LoadTable::new(config.build().unwrap()),
            now: clock::Instant::now().into_std(),
        }
    }

    fn wait(&mut self, milliseconds: u64) {
        self.now += ms(milliseconds);
    }

    fn say(
        &mut self,
        publisher: PublisherId,
        sequence: u64,
        kind: SnapshotKind,
        loads: &[WorkerLoad],
    ) -> SnapshotAck {
        let said = snapshot(publisher, sequence, kind, loads.to_vec());
        self.table.handle_snapshot(said, self.now)
    }

    fn leave(&mut self, publisher: PublisherId, sequence: u64) -> SnapshotAck {
        let left = LoadSnapshot {
            left: vec![w(1)],
            ..snapshot(publisher, sequence, after(sequence - 1), [])
        };
        self.table.handle_snapshot(left, self.now)
    }

    /// Id of the publisher that is believed about worker 1, and the life.
    fn owner(&mut self) -> Option<(u64, u64)> {
        let loads = self.table.loads(self.now);
        loads.get(1).map(|load| (load.publisher.id, load.life))
    }
}

fn of(id: u64) -> PublisherId {
    PublisherId::new(id, 5)
}

/// Worker 1 in this life, which reported that long ago.
fn reported(life: u64, ago: u64) -> WorkerLoad {
    WorkerLoad {
        reported: Some(ms(ago)),
        ..of_life(1, life, Some(load(10)))
    }
}

/// Worker 1 in this life, of which nothing more is known.
fn announced(life: u64) -> WorkerLoad {
    of_life(1, life, None)
}

/// The second forger falls silent a second after the first, and has the worker for no more than that second.
#[test]
fn g18_of_several_forgers_only_the_last_ones_silence_counts() {
    let mut scene = Scene::new();
    scene.say(of(1), 1, FULL, &[reported(3, 0)]);
    scene.say(of(8), 1, FULL, &[reported(u64::MAX, 0)]);
    scene.wait(1_000);
    scene.say(of(9), 1, FULL, &[reported(u64::MAX - 1, 0)]);
    scene.wait(4_000);
    scene.say(of(1), 2, after(1), &[reported(3, 0)]);
    assert_eq!(scene.owner(), Some((9, u64::MAX - 1)));
    scene.wait(999);
    assert_eq!(scene.owner(), Some((9, u64::MAX - 1)));
    scene.wait(1);
    assert_eq!(scene.owner(), Some((1, 3)));
}

/// The same of one that never said that the worker reported, and succeeds long after.
#[test]
fn g18_a_forger_that_succeeds_has_been_silent_before() {
    let mut scene = Scene::new();
    scene.say(of(1), 1, FULL, &[reported(3, 0)]);
    scene.say(of(8), 1, FULL, &[announced(u64::MAX)]);
    scene.say(of(2), 1, FULL, &[reported(u64::MAX, 0)]);
    scene.wait(4_900);
    scene.say(of(2), 2, after(1), &[reported(u64::MAX, 0)]);
    scene.wait(100);
    scene.say(of(1), 2, after(1), &[reported(3, 0)]);
    assert_eq!(scene.owner(), Some((2, u64::MAX)));
    scene.leave(of(2), 3);
    assert_eq!(scene.owner(), Some((1, 3)));
}

/// Its publisher told it while it was kept out, and does not tell it again.
#[test]
fn g9_who_was_ousted_and_reports_again_succeeds() {
    let mut scene = Scene::new();
    scene.say(of(1), 1, FULL, &[reported(3, 0)]);
    scene.wait(5_000);
    scene.say(of(2), 1, FULL, &[reported(2, 0)]);
    assert_eq!(scene.owner(), Some((2, 2)));
    scene.say(of(3), 1, FULL, &[reported(4, 0)]);
    scene.wait(10);
    scene.say(of(1), 2, after(1), &[reported(3, 0)]);
    assert_eq!(scene.owner(), Some((3, 4)));
    scene.leave(of(3), 2);
    assert_eq!(scene.owner(), Some((1, 3)));
}

/// A worker that is idle says nothing, but it is not gone for that.
#[test]
fn g18_who_was_ousted_while_idle_succeeds_if_nobody_else_does() {
    let mut scene = Scene::new();
    scene.say(of(1), 1, FULL, &[reported(3, 0)]);
    scene.wait(5_000);
    scene.say(of(2), 1, FULL, &[reported(2, 0)]);
    scene.say(of(3), 1, FULL, &[announced(1)]);
    assert_eq!(scene.owner(), Some((2, 2)));
    scene.leave(of(2), 2);
    assert_eq!(scene.owner(), Some((3, 1)));
    scene.leave(of(3), 2);
    assert_eq!(scene.owner(), Some((1, 3)));
}

/// Of two lives that one publisher told, the one that was ousted is not kept in the way of the other.
#[test]
fn g18_an_ousted_life_does_not_hide_the_one_that_its_publisher_still_tells() {
    let mut scene = Scene::new();
    scene.say(of(1), 1, FULL, &[reported(u64::MAX, 0)]);
    scene.wait(4_999);
    scene.say(of(2), 1, FULL, &[reported(4, 0)]);
    scene.say(of(1), 2, after(1), &[reported(3, 0)]);
    scene.wait(1);
    assert_eq!(scene.owner(), Some((2, 4)));
    scene.say(of(1), 3, after(2), &[of_life(1, 3, Some(load(20)))]);
    scene.leave(of(2), 2);
    assert_eq!(scene.owner(), Some((1, 3)));
    let loads = scene.table.loads(scene.now);
    assert_eq!(loads.workers()[0].metrics, Some(load(20)));
}

/// Whoever was silent too is passed over before the worker is judged.
#[test]
fn a_worker_that_turns_stale_is_judged_by_who_is_believed_in_the_end() {
    let mut scene = Scene::new();
    let says = |active, total| {
        let metrics = ForwardPassMetrics::new(active, total, 0);
        of_life(1, 3, Some(metrics))
    };
    scene.say(of(1), 1, FULL, &[]);
    scene.say(of(2), 1, FULL, &[]);
    scene.say(of(3), 1, FULL, &[reported(9, 0)]);
    let placed = scene.table.select(&SelectWorker::blocks(90), scene.now);
    assert!(placed.is_ok());
    scene.wait(1);
    // Of unknown capacity, so never saturated.
    scene.say(
        of(2),
        2,
        after(1),
        &[WorkerLoad {
            life: 4,
            ..says(0, 0)
        }],
    );
    scene.wait(1);
    scene.say(of(1), 2, after(1), &[says(90, 100)]);
    scene.wait(5_000);
    let loads = scene.table.loads(scene.now);
    let worker = &loads.workers()[0];
    assert_eq!(
        (worker.publisher, worker.freshness),
        (of(1), Freshness::Stale)
    );
    assert!(worker.saturated);
}

/// A publisher comes back with a clock that was set back.
#[test]
fn the_higher_life_owns_a_worker_also_when_its_owners_becomes_lower() {
    let mut scene = Scene::new();
    scene.say(of(1), 1, FULL, &[reported(7, 0)]);
    scene.say(of(2), 1, FULL, &[reported(5, 0)]);
    assert_eq!(scene.owner(), Some((1, 7)));
    scene.say(PublisherId::new(1, 6), 1, FULL, &[reported(3, 0)]);
    assert_eq!(scene.owner(), Some((2, 5)));
    scene.leave(of(2), 2);
    assert_eq!(scene.owner(), Some((1, 3)));
}

/// What a forger said of a worker that another publisher owns.
#[test]
fn g18_what_takes_over_is_kept_beside_instead_of_what_was_forged() {
    let mut scene = Scene::new();
    scene.say(of(1), 1, FULL, &[]);
    scene.say(of(2), 1, FULL, &[reported(9, 0)]);
    scene.say(of(1), u64::MAX, after(1), &[reported(8, 0)]);
    scene.wait(5_000);
    assert_eq!(scene.say(of(1), 2, after(1), &[]), SnapshotAck::NeedFull);
    let told = scene.say(of(1), 3, FULL, &[reported(3, 0)]);
    assert_eq!(told, SnapshotAck::Applied);
    assert_eq!(scene.owner(), Some((1, 3)));
}

#[test]
fn of_a_worker_that_is_named_twice_in_what_takes_over_the_higher_life_counts() {
    let mut scene = Scene::new();
    scene.say(of(1), u64::MAX, FULL, &[reported(7, 0)]);
    scene.wait(5_000);
    scene.say(of(1), 2, after(1), &[]);
    scene.say(of(1), 3, FULL, &[reported(3, 0), reported(2, 0)]);
    assert_eq!(scene.owner(), Some((1, 3)));
}

#[test]
fn g18_two_lower_incarnations_that_speak_by_turns_do_not_shut_each_other_out() {
    let mut scene = Scene::new();
    let [one, other] = [3, 4].map(|incarnation| PublisherId::new(1, incarnation));
    scene.say(PublisherId::new(1, u64::MAX), 1, FULL, &[]);
    scene.wait(5_000);
    assert_eq!(scene.say(one, 8, after(7), &[]), SnapshotAck::NeedFull);
    assert_eq!(scene.say(other, 8, after(7), &[]), SnapshotAck::NeedFull);
    assert_eq!(scene.say(one, 9, FULL, &[]), SnapshotAck::Applied);
}

#[test]
fn a_full_snapshot_from_before_the_question_is_no_answer_to_it() {
    let mut scene = Scene::new();
    let lower = PublisherId::new(1, 3);
    scene.say(of(1), 1, FULL, &[]);
    scene.wait(5_000);
    assert_eq!(scene.say(lower, 7, after(6), &[]), SnapshotAck::NeedFull);
    assert_eq!(scene.say(lower, 3, after(2), &[]), SnapshotAck::NeedFull);
    assert_eq!(scene.say(lower, 4, FULL, &[]), SnapshotAck::NeedFull);
    assert_eq!(scene.say(lower, 8, FULL, &[]), SnapshotAck::Applied);
}

/// 40 of 100 blocks in use, and 70 more since it said so.
#[test]
fn to_let_a_reservation_end_by_itself_is_no_report() {
    let mut scene = Scene::new();
    let of_worker = WorkerLoad {
        reported: Some(Duration::ZERO),
        ..of_life(1, 1, Some(ForwardPassMetrics::new(40, 100, 0)))
    };
    scene.say(of(1), 1, FULL, &[of_worker]);
    let placed = scene.table.select(&SelectWorker::blocks(70), scene.now);
    let ticket = placed.unwrap().ticket;
    assert!(scene.table.loads(scene.now).workers()[0].saturated);
    assert!(scene.table.detach(ticket, scene.now));
    assert!(scene.table.loads(scene.now).workers()[0].saturated);
}
