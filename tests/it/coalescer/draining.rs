//! Beginning and ending to drain, on one link.

use crate::support::{timeline::Timeline, *};
use actix_kv_metrics::{LoadSnapshot, sans_io::Reported};

/// Who drains by the snapshot that was sent last, of those it speaks of.
#[track_caller]
fn draining(t: &Timeline) -> Vec<(u64, bool)> {
    let LoadSnapshot { workers, .. } = t.last.as_ref().expect("one was sent");
    let told = workers.iter();
    told.map(|load| (load.worker.worker().0, load.draining))
        .collect()
}

#[test]
fn g12_beginning_and_ending_to_drain_are_due_at_once_and_end_a_window_that_was_open() {
    let mut t = Timeline::with_workers(values_only(10, 100), &[1]);
    t.expect_nothing_until(100);
    t.report(1, 5);
    t.expect_nothing_until(103);
    t.drain(1, true);
    t.expect_delta(103, &[(1, 5)]);
    assert_eq!(draining(&t), [(1, true)]);
    t.expect_nothing_until(203);
    t.drain(1, false);
    t.expect_delta(203, &[(1, 5)]);
    assert_eq!(draining(&t), [(1, false)]);
    t.expect_idle();
}

#[test]
fn g12_within_max_delay_of_another_urgent_change_it_waits_for_its_window() {
    // (drains at, published at): the first report, at 0, was urgent.
    for (drains, published) in [(1, 11), (99, 109), (100, 100), (101, 101)] {
        let mut t = Timeline::with_workers(values_only(10, 100), &[1]);
        t.expect_nothing_until(drains);
        t.drain(1, true);
        t.expect_delta(published, &[(1, 0)]);
        assert_eq!(draining(&t), [(1, true)]);
        t.expect_idle();
    }
}

#[test]
fn g12_draining_that_toggles_is_not_published_once_per_answer() {
    let mut t = Timeline::with_workers(values_only(2, 10), &[1]);
    let mut sent = 0;
    for step in 1..=1_000 {
        t.skip_to(step);
        t.drain(1, step % 2 == 1);
        sent += u64::from(t.pump().is_some());
    }
    // Each is urgent again after a rest of `max_delay`, and what a window held is what the router has.
    assert!((90..=200).contains(&sent), "{sent}");
}

#[test]
fn g4_to_drain_and_not_to_within_a_window_is_dropped_and_counted() {
    let mut t = Timeline::with_workers(values_only(10, 100), &[1]);
    t.expect_nothing_until(5);
    assert!(matches!(t.drain(1, true), Reported::Changed(_)));
    assert_eq!(t.drain(1, true), Reported::Known);
    t.expect_nothing_until(8);
    t.drain(1, false);
    t.expect_nothing_until(200);
    assert_eq!(t.link.coalescer_counts().suppressed, 1);
    t.expect_idle();
}

#[test]
fn g4_who_began_to_drain_while_a_snapshot_was_out_and_ended_is_not_told_of() {
    let mut t = Timeline::with_workers(values_only(10, 100), &[1, 2]);
    t.expect_nothing_until(200);
    t.answers_at_once = false;
    t.drain(2, true);
    t.expect_delta(200, &[(2, 0)]);
    t.drain(1, true);
    t.expect_nothing_until(210);
    t.drain(1, false);
    t.applied();
    assert_eq!(t.pump(), None);
    t.expect_idle();
}

#[test]
fn g8_it_is_told_again_after_a_failure_as_it_is_then() {
    for ends in [false, true] {
        let mut t = Timeline::with_workers(values_only(10, 100), &[1]);
        t.expect_nothing_until(200);
        t.answers_at_once = false;
        t.drain(1, true);
        t.expect_delta(200, &[(1, 0)]);
        t.refused();
        if ends {
            t.drain(1, false);
        }
        t.answers_at_once = true;
        t.expect_delta(210, &[(1, 0)]);
        assert_eq!(draining(&t), [(1, !ends)]);
        t.expect_idle();
    }
}

#[test]
fn g13_a_new_life_does_not_drain() {
    let mut t = Timeline::with_workers(values_only(10, 100), &[1, 2]);
    t.expect_nothing_until(200);
    t.drain(1, true);
    t.expect_delta(200, &[(1, 0)]);
    t.leave(1);
    t.report(1, 7);
    t.expect(&seen(200, Kind::Delta, &[1], &[(1, 7)]));
    assert_eq!(draining(&t), [(1, false)]);
}

#[test]
fn a_worker_drains_before_its_first_report_and_after_it() {
    let mut t = Timeline::new(values_only(10, 100));
    t.join(1);
    let known = Seen {
        loads: vec![(1, None)],
        ..delta(0, &[])
    };
    t.expect(&known);
    t.expect_nothing_until(100);
    t.drain(1, true);
    t.expect(&Seen { at: 100, ..known });
    assert_eq!(draining(&t), [(1, true)]);
    t.report(1, 4);
    t.expect_delta(100, &[(1, 4)]);
    assert_eq!(draining(&t), [(1, true)]);
}

#[test]
fn g12_a_worker_that_flaps_drains_when_its_window_ends() {
    let mut t = Timeline::new(values_only(10, 100));
    t.report(9, 1);
    t.report(1, 0);
    t.expect_delta(0, &[(1, 0), (9, 1)]);
    for _ in 0..2 {
        t.leave(1);
        t.expect(&left(t.now(), &[1]));
        t.join(1);
        t.pump();
        t.expect_nothing_until(t.now() + 1);
    }
    // Its second return, at 1, waits for `max_delay`.
    t.drain(1, true);
    t.expect(&Seen {
        loads: vec![(1, None)],
        ..delta(101, &[])
    });
    assert_eq!(draining(&t), [(1, true)]);
    t.expect_idle();
}

#[test]
fn draining_is_no_report_and_renews_nothing() {
    let mut t = Timeline::with_workers(
        unpaced()
            .debounce(ms(10))
            .max_delay(ms(100))
            .build()
            .unwrap(),
        &[1],
    );
    t.expect_nothing_until(300);
    t.drain(1, true);
    t.expect_delta(300, &[(1, 0)]);
    let told = t.last.take().unwrap().workers.remove(0);
    assert_eq!(told.reported, Some(ms(300)));
    t.expect_nothing_until(3_000);
    t.expect_idle();
}

#[test]
fn a_worker_that_is_not_known_does_not_become_known_by_draining() {
    let mut t = Timeline::new(values_only(10, 100));
    assert_eq!(t.drain(1, true), Reported::Late);
    t.expect_idle();
    t.report(1, 4);
    t.expect_delta(0, &[(1, 4)]);
    assert_eq!(draining(&t), [(1, false)]);
}
