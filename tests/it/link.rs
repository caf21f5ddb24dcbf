//! Delivery to one router, step by step.

use std::time::Duration;

use crate::support::{timeline::Timeline, *};
use actix_kv_metrics::{
    Backoff, Coalescing, PublisherId, SnapshotAck, SnapshotKind,
    sans_io::{Delivery, LinkState},
};

const NEED_FULL: Delivery = Delivery::Answered(SnapshotAck::NeedFull);
const SUPERSEDED: Delivery = Delivery::Answered(SnapshotAck::Superseded);

/// As [`Timeline::with_workers`], with a router that answers only when told from now on.
fn waiting(coalescing: Coalescing, workers: &[u64]) -> Timeline {
    let mut timeline = Timeline::with_workers(coalescing, workers);
    timeline.answers_at_once = false;
    timeline
}

fn paced(debounce: u64, max_delay: u64, gap: u64) -> Coalescing {
    unpaced()
        .debounce(ms(debounce))
        .max_delay(ms(max_delay))
        .min_gap(ms(gap))
        .build()
        .unwrap()
}

fn last(t: &Timeline) -> (u64, SnapshotKind) {
    let snapshot = t.last.as_ref().unwrap();
    (snapshot.sequence, snapshot.kind)
}

// Late joiners and sequence numbers.

#[test]
fn g10_a_router_gets_a_full_snapshot_at_once_also_an_empty_one() {
    let mut t = Timeline::unattached(windows(10, 100), Backoff::default(), ms(1));
    t.skip_to(7);
    t.expect_full(7, &[]);
    assert_eq!(last(&t), (1, SnapshotKind::Full));
    t.expect_idle();
}

#[test]
fn g10_the_first_snapshot_carries_whoever_is_known_by_then() {
    let mut t = Timeline::unattached(windows(10, 100), Backoff::default(), ms(1));
    t.report(1, 5);
    t.report(2, 6);
    t.leave(1);
    t.expect_full(0, &[(2, 6)]);
    t.expect_idle();
}

#[test]
fn a_delta_names_the_last_snapshot_its_router_acknowledged() {
    let mut t = waiting(windows(10, 100), &[1]);
    assert_eq!(last(&t), (2, SnapshotKind::Delta { after: 1 }));
    // The counter is the publisher's: other links use it too.
    t.sequence = 40;
    t.report(1, 5);
    t.expect_delta(10, &[(1, 5)]);
    assert_eq!(last(&t), (41, SnapshotKind::Delta { after: 2 }));
    t.refused();
    t.expect_delta(20, &[(1, 5)]);
    assert_eq!(last(&t), (42, SnapshotKind::Delta { after: 2 }));
    t.applied();
    t.report(1, 6);
    t.expect_delta(30, &[(1, 6)]);
    assert_eq!(last(&t), (43, SnapshotKind::Delta { after: 42 }));
}

// One in flight.

#[test]
fn g7_while_one_is_in_flight_nothing_is_sent_and_the_next_carries_the_newest_of_all() {
    let mut t = waiting(windows(10, 100), &[1, 2]);
    t.report(1, 1);
    t.expect_delta(10, &[(1, 1)]);
    for step in 11..500 {
        t.expect_nothing_until(step);
        t.report(1 + step % 3, step);
        assert_eq!(t.link.poll_timeout(), None, "a silent router arms nothing");
    }
    t.expect_nothing_until(600);
    assert_eq!(t.link.coalescer().open_windows(), 3);
    t.applied();
    t.expect_delta(600, &[(1, 498), (2, 499), (3, 497)]);
    assert_eq!(t.link.counts().snapshots, 4);
}

#[test]
fn g7_what_comes_back_for_another_snapshot_is_ignored() {
    let mut t = waiting(windows(10, 100), &[1]);
    let now = t.instant();
    assert!(
        !t.link.handle_delivery(2, NEED_FULL, now),
        "answered before"
    );
    assert!(!t.link.handle_delivery(3, Delivery::Gone, now), "not sent");
    t.expect_idle();
    t.report(1, 5);
    t.expect_delta(10, &[(1, 5)]);
    let now = t.instant();
    let before = t.link.state();
    for sequence in [0, 1, 2, 4, u64::MAX] {
        for delivery in [NEED_FULL, Delivery::Failed, Delivery::Gone] {
            assert!(!t.link.handle_delivery(sequence, delivery, now));
        }
    }
    assert_eq!(t.link.state(), before);
    t.applied();
    assert!(!t.link.handle_delivery(3, Delivery::Failed, now), "twice");
    t.expect_idle();
    assert_eq!(t.link.counts().failures, 0);
}

// Failures.

#[test]
fn g8_a_refused_snapshot_is_retried_after_10_20_40_80_and_80_ms_with_the_newest_values() {
    let mut t = waiting(windows(1, 10), &[1]);
    t.report(1, 1);
    t.expect_delta(1, &[(1, 1)]);
    for (at, value) in [(11, 2), (31, 3), (71, 4), (151, 5), (231, 6)] {
        t.refused();
        assert_eq!(t.timeout(), Some(at));
        t.report(1, value);
        t.expect_delta(at, &[(1, value)]);
    }
    t.applied();
    t.expect_idle();
    let counts = t.link.counts();
    assert_eq!(
        (counts.failures, counts.retries, counts.snapshots),
        (5, 5, 8)
    );
    // One success, and the pause is short again.
    t.report(1, 7);
    t.expect_delta(232, &[(1, 7)]);
    t.refused();
    t.expect_delta(242, &[(1, 7)]);
}

#[test]
fn g8_urgent_changes_wait_for_the_end_of_the_pause_and_go_with_the_rest() {
    let mut t = waiting(windows(1, 10), &[1, 2]);
    t.report(1, 1);
    t.expect_delta(1, &[(1, 1)]);
    t.refused();
    t.expect_nothing_until(4);
    t.report(3, 3);
    t.leave(2);
    t.expect(&Seen {
        left: vec![2],
        ..delta(11, &[(1, 1), (3, 3)])
    });
}

#[test]
fn g8_a_failed_value_is_due_again_when_the_pause_ends_though_the_worker_is_busy() {
    let mut t = waiting(windows(10, 100), &[1]);
    t.report(1, 1);
    t.expect_delta(10, &[(1, 1)]);
    t.refused();
    for step in 10..20 {
        t.expect_nothing_until(step);
        t.report(1, step);
    }
    t.expect_delta(20, &[(1, 19)]);
}

#[test]
fn g8_a_worker_that_was_not_in_the_failed_snapshot_keeps_its_window() {
    let mut t = waiting(windows(20, 100), &[1, 2]);
    t.report(1, 1);
    t.expect_nothing_until(15);
    t.report(2, 2);
    t.expect_delta(20, &[(1, 1)]);
    t.refused();
    t.expect_delta(30, &[(1, 1)]);
    t.applied();
    t.expect_delta(35, &[(2, 2)]);
}

#[test]
fn g8_superseded_is_a_failure() {
    let mut t = waiting(windows(10, 100), &[1]);
    t.report(1, 5);
    t.expect_delta(10, &[(1, 5)]);
    t.answer(SUPERSEDED);
    t.expect_delta(20, &[(1, 5)]);
    assert_eq!(t.link.counts().failures, 1);
}

#[test]
fn g8_a_refused_full_snapshot_stays_a_full_one() {
    let mut t = Timeline::unattached(
        windows(10, 100),
        Backoff::new(ms(10), ms(80)).unwrap(),
        ms(1),
    );
    t.answers_at_once = false;
    t.report(1, 5);
    t.expect_full(0, &[(1, 5)]);
    t.refused();
    t.report(2, 6);
    t.expect_full(10, &[(1, 5), (2, 6)]);
    t.refused();
    t.leave(1);
    t.expect_full(30, &[(2, 6)]);
    t.applied();
    t.expect_idle();
}

#[test]
fn a_pause_of_an_hour_is_the_longest() {
    let hour = Duration::from_secs(3600);
    let mut t = Timeline::with_backoff(windows(1, 10), Backoff::new(hour, hour).unwrap());
    t.answers_at_once = false;
    t.report(1, 5);
    t.expect_delta(0, &[(1, 5)]);
    for hours in 1..4 {
        t.refused();
        assert_eq!(t.timeout(), Some(hours * 3_600_000));
        t.skip_to(hours * 3_600_000 - 1);
        t.expect_delta(hours * 3_600_000, &[(1, 5)]);
    }
}

// NeedFull.

#[test]
fn need_full_is_answered_with_everything_at_once() {
    let mut t = waiting(paced(10, 100, 50), &[1, 2]);
    t.report(1, 5);
    t.expect_delta(50, &[(1, 5)]);
    t.answer(NEED_FULL);
    t.expect_full(50, &[(1, 5), (2, 0)]);
    t.applied();
    t.expect_idle();
    let counts = t.link.counts();
    assert_eq!(
        (counts.failures, counts.full, counts.acknowledged),
        (0, 2, 4)
    );
}

#[test]
fn the_wish_for_everything_stays_until_a_full_snapshot_is_acknowledged() {
    let mut t = waiting(windows(10, 100), &[1]);
    t.report(1, 5);
    t.expect_delta(10, &[(1, 5)]);
    t.answer(NEED_FULL);
    t.expect_full(10, &[(1, 5)]);
    t.refused();
    t.expect_full(20, &[(1, 5)]);
    t.answer(SUPERSEDED);
    t.expect_full(40, &[(1, 5)]);
    t.applied();
    t.report(1, 6);
    t.expect_delta(50, &[(1, 6)]);
}

#[test]
fn need_full_in_answer_to_a_full_snapshot_is_a_failure() {
    let mut t = waiting(windows(10, 100), &[1]);
    t.report(1, 5);
    t.expect_delta(10, &[(1, 5)]);
    t.answer(NEED_FULL);
    t.expect_full(10, &[(1, 5)]);
    t.answer(NEED_FULL);
    t.expect_full(20, &[(1, 5)]);
    t.answer(NEED_FULL);
    t.expect_full(40, &[(1, 5)]);
    t.applied();
    t.expect_idle();
    assert_eq!(t.link.counts().failures, 2);
}

#[test]
fn a_full_snapshot_tells_departures_by_leaving_them_out() {
    let mut t = waiting(windows(10, 100), &[1, 2]);
    t.report(1, 5);
    t.expect_delta(10, &[(1, 5)]);
    t.leave(2);
    t.answer(NEED_FULL);
    t.expect_full(10, &[(1, 5)]);
    t.leave(1);
    t.applied();
    t.expect(&left(10, &[1]));
    t.applied();
    t.expect_idle();
}

// Lost.

#[test]
fn a_lost_link_arms_nothing_keeps_nothing_but_its_counters_and_stays_lost() {
    let mut t = waiting(windows(10, 100), &[1]);
    t.report(1, 5);
    t.expect_delta(10, &[(1, 5)]);
    let before = t.link.coalescer_counts();
    t.answer(Delivery::Gone);
    assert_eq!(t.link.state(), LinkState::Lost);
    assert!(t.link.is_lost());
    t.report(1, 6);
    t.report(2, 6);
    t.join(3);
    t.leave(1);
    assert_eq!(t.link.poll_timeout(), None);
    t.expect_nothing_until(1_000);
    t.link.handle_flush();
    t.link.handle_retry_now();
    t.link.handle_restart();
    assert_eq!(t.pump(), None);
    assert_eq!(t.link.poll_timeout(), None);
    assert_eq!(t.link.coalescer_counts(), before);
    assert_eq!(t.link.coalescer().open_windows(), 0);
    assert_eq!(t.link.coalescer().undelivered(&t.reports), [w(2), w(3)]);
}

// Pacing.

#[test]
fn min_gap_paces_starts_and_a_paced_snapshot_carries_more() {
    let mut t = Timeline::with_workers(paced(1, 10, 20), &[1, 2, 3]);
    // The first report went out at 0.
    t.expect_nothing_until(4);
    t.report(1, 1);
    t.expect_nothing_until(12);
    t.report(2, 2);
    t.expect_nothing_until(19);
    t.report(3, 3);
    t.expect_delta(20, &[(1, 1), (2, 2), (3, 3)]);
    t.expect_nothing_until(50);
    t.report(1, 4);
    t.expect_delta(51, &[(1, 4)]);
}

#[test]
fn min_gap_counts_from_the_start_before_not_from_its_answer() {
    let mut t = waiting(paced(1, 10, 20), &[1]);
    t.expect_nothing_until(29);
    t.report(1, 1);
    t.expect_delta(30, &[(1, 1)]);
    t.report(1, 2);
    t.expect_nothing_until(45);
    t.applied();
    t.expect_delta(50, &[(1, 2)]);
    t.report(1, 3);
    t.expect_nothing_until(75);
    t.applied();
    t.expect_delta(75, &[(1, 3)]);
}

#[test]
fn g12_urgent_changes_pass_the_pacing_and_take_what_is_due_along() {
    let mut t = Timeline::with_workers(paced(1, 10, 20), &[1, 2, 3]);
    t.report(1, 1);
    t.expect_nothing_until(6);
    t.report(2, 2);
    t.report(4, 4);
    t.expect_delta(6, &[(1, 1), (4, 4)]);
    t.expect_nothing_until(9);
    t.leave(3);
    t.expect(&Seen {
        left: vec![3],
        ..delta(9, &[(2, 2)])
    });
}

#[test]
fn a_gap_of_for_ever_lets_only_urgent_changes_and_flushes_pass() {
    let settings = unpaced().min_gap(Duration::MAX).build().unwrap();
    let mut t = Timeline::with_workers(settings, &[1]);
    t.report(1, 1);
    t.expect_nothing_until(1_000);
    t.report(2, 2);
    t.expect_delta(1_000, &[(1, 1), (2, 2)]);
    t.report(1, 3);
    t.expect_nothing_until(2_000);
    t.link.handle_flush();
    t.expect_delta(2_000, &[(1, 3)]);
}

// Flush.

#[test]
fn a_flush_skips_the_pacing_once() {
    let mut t = Timeline::with_workers(paced(5, 10, 50), &[1]);
    t.report(1, 1);
    t.expect_nothing_until(2);
    t.link.handle_flush();
    t.expect_delta(2, &[(1, 1)]);
    t.report(1, 2);
    t.expect_delta(52, &[(1, 2)]);
    t.link.handle_flush();
    t.expect_idle();
    t.report(1, 3);
    t.expect_delta(102, &[(1, 3)]);
}

#[test]
fn a_flush_does_not_skip_the_backoff_and_handle_retry_now_does() {
    let mut t = waiting(windows(10, 100), &[1]);
    t.report(1, 1);
    t.expect_delta(10, &[(1, 1)]);
    t.refused();
    t.link.handle_flush();
    t.expect_nothing_until(13);
    assert_eq!(t.timeout(), Some(20));
    t.link.handle_retry_now();
    t.expect_delta(13, &[(1, 1)]);
    t.link.handle_retry_now();
    t.expect_nothing_until(30);
    t.applied();
    t.expect_idle();
}

#[test]
fn a_flush_while_one_is_in_flight_makes_the_next_follow_at_once() {
    let mut t = waiting(paced(10, 100, 50), &[1, 2]);
    t.expect_nothing_until(100);
    t.report(1, 1);
    t.expect_delta(110, &[(1, 1)]);
    t.report(2, 2);
    t.link.handle_flush();
    assert_eq!(t.link.goal(), t.link.counts().snapshots + 1);
    t.expect_nothing_until(113);
    t.applied();
    assert!(!t.link.is_settled());
    t.expect_delta(113, &[(2, 2)]);
    t.applied();
    assert_eq!(t.link.arrived(), t.link.counts().snapshots);
    assert!(t.link.is_settled());
}

// Stop, restart, attach again.

#[test]
fn g9_the_last_snapshot_holds_everything_open_and_in_flight() {
    let mut t = waiting(windows(10, 100), &[1, 2, 3]);
    let take = |t: &mut Timeline| {
        let (publisher, now) = (PublisherId::new(1, 1), t.instant());
        let last = t
            .link
            .poll_last(publisher, &mut t.sequence, &t.reports, now)?;
        Some(Seen::of(t.now(), &last))
    };
    assert_eq!(take(&mut t), None, "nothing is open or in flight");
    t.report(1, 1);
    t.expect_delta(10, &[(1, 1)]);
    t.report(2, 2);
    t.leave(3);
    let expected = Seen {
        left: vec![3],
        ..delta(10, &[(1, 1), (2, 2)])
    };
    assert_eq!(take(&mut t), Some(expected));
    // The pause after a failure and the pacing hold nothing back.
    let mut t = waiting(paced(10, 100, 50), &[1, 2]);
    t.report(1, 1);
    t.expect_delta(50, &[(1, 1)]);
    t.refused();
    t.report(2, 2);
    assert_eq!(take(&mut t), Some(delta(50, &[(1, 1), (2, 2)])));
    // A full one stays a full one.
    let mut t = Timeline::unattached(windows(10, 100), Backoff::default(), ms(1));
    t.answers_at_once = false;
    t.report(1, 5);
    t.expect_full(0, &[(1, 5)]);
    assert_eq!(take(&mut t), Some(full(0, &[(1, 5)])));
}

#[test]
fn g9_after_a_restart_what_was_in_flight_is_unknown_and_everything_is_sent() {
    let mut t = waiting(windows(10, 100), &[1, 2]);
    t.report(1, 1);
    t.expect_delta(10, &[(1, 1)]);
    t.link.handle_restart();
    t.expect_full(10, &[(1, 1), (2, 0)]);
    t.applied();
    t.report(1, 2);
    t.expect_nothing_until(13);
    t.link.handle_restart();
    t.expect_delta(20, &[(1, 2)]);
    t.refused();
    t.link.handle_restart();
    t.expect_delta(30, &[(1, 2)]);
}

#[test]
fn g10_a_router_attached_again_gets_everything_again_with_its_new_windows() {
    let mut t = waiting(windows(10, 100), &[1]);
    t.report(1, 1);
    t.expect_nothing_until(3);
    t.link.handle_attached_again(None, t.instant());
    t.expect_full(3, &[(1, 1)]);
    t.applied();
    t.report(1, 2);
    t.expect_delta(13, &[(1, 2)]);
    let before = t.link.coalescer_counts();
    t.link
        .handle_attached_again(Some(windows(30, 300)), t.instant());
    t.expect_nothing_until(15);
    t.applied();
    t.expect_full(15, &[(1, 2)]);
    t.applied();
    t.report(1, 3);
    t.expect_delta(45, &[(1, 3)]);
    let counts = t.link.coalescer_counts();
    assert_eq!(counts.changed, before.changed + 1, "counters go on");
    assert_eq!(counts.entries, before.entries + 2);
}

#[test]
fn a_link_attached_again_takes_the_answer_to_what_its_former_windows_sent() {
    for answer in [NEED_FULL, SUPERSEDED, Delivery::Failed] {
        let mut t = waiting(windows(10, 100), &[1]);
        t.report(1, 1);
        t.expect_delta(10, &[(1, 1)]);
        let settings = Some(windows(30, 300));
        t.link.handle_attached_again(settings, t.instant());
        t.answer(answer);
        let at = if answer == NEED_FULL { 10 } else { 20 };
        t.expect_full(at, &[(1, 1)]);
        t.applied();
        t.expect_idle();
    }
}

#[test]
fn g8_a_retry_is_paced_by_its_backoff_and_not_by_min_gap_too() {
    let spaced = unpaced()
        .debounce(ms(1))
        .max_delay(ms(10))
        .min_gap(ms(500))
        .build()
        .unwrap();
    let mut t = waiting(spaced, &[1]);
    t.skip_to(1_000);
    t.report(1, 5);
    t.expect_delta(1_001, &[(1, 5)]);
    t.refused();
    t.expect_delta(1_011, &[(1, 5)]);
    t.applied();
    t.report(1, 6);
    t.expect_delta(1_511, &[(1, 6)]);
}

#[test]
fn after_need_full_everything_is_undelivered_until_a_full_snapshot_is_acknowledged() {
    let mut t = waiting(windows(10, 100), &[1, 2, 3]);
    let undelivered = |t: &Timeline| t.link.coalescer().undelivered(&t.reports);
    t.report(1, 5);
    t.expect_delta(10, &[(1, 5)]);
    assert_eq!(undelivered(&t), [w(1)]);
    t.answer(NEED_FULL);
    assert_eq!(undelivered(&t), [w(1), w(2), w(3)]);
    t.expect_full(10, &[(1, 5), (2, 0), (3, 0)]);
    assert_eq!(undelivered(&t), [w(1), w(2), w(3)]);
    t.applied();
    assert_eq!(undelivered(&t), []);
}

#[test]
fn a_lost_link_has_no_last_snapshot_and_stays_lost() {
    let mut t = waiting(windows(10, 100), &[1]);
    t.report(1, 5);
    t.expect_delta(10, &[(1, 5)]);
    t.answer(Delivery::Gone);
    t.report(1, 6);
    let (publisher, now) = (PublisherId::new(1, 1), t.instant());
    let last = t
        .link
        .poll_last(publisher, &mut t.sequence, &t.reports, now);
    assert_eq!(last, None);
    assert_eq!((t.link.state(), t.sequence), (LinkState::Lost, 3));
}

/// Worker 1 is known, and nothing has been sent for long.
fn known_at(settings: Coalescing, step: u64) -> Timeline {
    let mut t = Timeline::new(settings);
    t.report(1, 0);
    t.skip_to(step - 50);
    t.pump();
    t.skip_to(step);
    t
}

/// Departures and first reports keep a distance of `urgent_gap`, what is ordinary one of `min_gap`, and whatever goes takes
/// along what is due.
#[test]
fn urgent_changes_keep_a_smaller_distance_and_a_full_snapshot_none() {
    let settings = Coalescing::builder()
        .debounce(ms(1))
        .min_gap(ms(20))
        .urgent_gap(ms(5))
        .build()
        .unwrap();
    let mut t = known_at(settings, 100);
    t.report(1, 1);
    t.expect_delta(101, &[(1, 1)]);
    t.report(2, 2);
    t.report(1, 3);
    t.expect_delta(106, &[(1, 3), (2, 2)]);
    t.report(1, 4);
    t.expect_delta(126, &[(1, 4)]);
    t.link.handle_attached_again(None, t.instant());
    t.expect_full(126, &[(1, 4), (2, 2)]);
    t.expect_idle();
}

/// A gap for urgent changes that is longer than `min_gap` counts as that, but without one it holds by itself.
#[test]
fn without_min_gap_urgent_changes_alone_keep_urgent_gap() {
    let urgent_gap = |min_gap| {
        let builder = Coalescing::builder().debounce(ms(1)).urgent_gap(ms(8));
        let mut t = known_at(builder.min_gap(ms(min_gap)).build().unwrap(), 150);
        t.report(2, 0);
        t.expect_delta(150, &[(2, 0)]);
        t.report(3, 0);
        t
    };
    let mut t = urgent_gap(0);
    t.expect_delta(158, &[(3, 0)]);
    let mut t = urgent_gap(4);
    t.expect_delta(154, &[(3, 0)]);
    let mut t = urgent_gap(0);
    t.report(1, 6);
    t.expect_delta(151, &[(1, 6), (3, 0)]);
}

/// Case 183: newcomers, however many, make no more snapshots than one each `urgent_gap`.
#[test]
fn case_183_a_thousand_newcomers_make_eleven_snapshots_a_gap_at_most() {
    let settings = Coalescing::builder().min_gap(ms(20)).build().unwrap();
    let mut t = known_at(settings, 100);
    let mut starts = Vec::new();
    for id in 2..=1_001 {
        t.report(id, 0);
        starts.extend(t.pump().map(|seen| seen.at));
        t.skip_to(t.now() + 1);
    }
    for (first, start) in starts.iter().enumerate() {
        let within = starts[first..].iter().filter(|at| **at <= start + 20);
        assert!(within.count() <= 11, "from {start} on");
    }
    assert!(starts.len() <= 501, "{} snapshots", starts.len());
}

/// A full snapshot is built in pieces while workers change, leave, come and come back: the router ends with the truth, and
/// nobody who left is told.
#[test]
fn g9_a_full_snapshot_that_is_built_in_pieces_amid_changes_ends_with_the_truth() {
    use actix_kv_metrics::{
        ForwardPassMetrics, LinkId, WorkerRank,
        actix::clock,
        sans_io::{Link, Reported, Reports},
    };
    use std::collections::BTreeMap;

    let mut pieces = 0;
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut now = clock::Instant::now().into_std();
        let mut reports = Reports::new();
        let mut link = Link::new(LinkId::new(1), windows(1, 10), Backoff::default(), now);
        let mut sequence = 0;
        let mut table: BTreeMap<WorkerRank, (u64, Option<ForwardPassMetrics>)> = BTreeMap::new();
        for step in 0..600 {
            let worker = w(rng.u64(0..40));
            match rng.u32(0..10) {
                _ if step >= 400 => {}
                0..6 => match reports.handle_report(worker, load(rng.u64(0..5)), None, now) {
                    Reported::Changed(change) => {
                        let report = reports.at(change.slot()).unwrap();
                        link.handle_changed(&change, report, now);
                    }
                    Reported::Unchanged(slot) => {
                        link.handle_unchanged(slot, now);
                    }
                    Reported::Known | Reported::Late => {}
                },
                6..8 => {
                    if let Some(slot) = reports.handle_left(worker) {
                        link.handle_left(slot, worker, reports.len(), now);
                    }
                }
                8 if rng.u32(0..20) == 0 => link.handle_attached_again(None, now),
                _ => now += ms(rng.u64(0..3)),
            }
            if step >= 400 {
                now += ms(20);
            }
            let most = rng.usize(1..6);
            let due = link.poll_timeout().is_some_and(|at| at <= now);
            let sent = link.poll_transmit_piece(
                PublisherId::new(1, 1),
                &mut sequence,
                &reports,
                now,
                most,
            );
            pieces += u64::from(due && sent.is_none());
            let Some(snapshot) = sent else { continue };
            if snapshot.kind == SnapshotKind::Full {
                table.clear();
            }
            for left in &snapshot.left {
                table.remove(left);
            }
            for told in snapshot.workers {
                assert!(reports.get(told.worker).is_some(), "G13, seed {seed}");
                table.insert(told.worker, (told.life, told.metrics));
            }
            link.handle_delivery(sequence, Delivery::Answered(SnapshotAck::Applied), now);
        }
        let truth = reports.iter();
        let truth = truth.map(|(_, r)| (r.worker(), (r.life(), r.metrics())));
        assert_eq!(table, truth.collect(), "seed {seed}");
        assert!(link.is_settled(), "seed {seed}");
    }
    assert!(pieces > 1_000, "{pieces} pieces: too few to say much");
}

/// Asked for again and again while it is built, a full snapshot comes all the same.
#[test]
fn g10_a_router_attached_over_and_over_while_everything_is_built_gets_it() {
    use actix_kv_metrics::{
        LinkId, PublisherId, SnapshotKind,
        actix::clock,
        sans_io::{Link, Reports},
    };

    let now = clock::Instant::now().into_std();
    let mut reports = Reports::new();
    for worker in 0..50 {
        reports.handle_report(w(worker), load(worker), None, now);
    }
    let mut link = Link::new(LinkId::new(1), windows(1, 10), Backoff::default(), now);
    let mut sequence = 0;
    let everything = (0..5).find_map(|_| {
        link.handle_attached_again(None, now);
        link.poll_transmit_piece(PublisherId::new(1, 1), &mut sequence, &reports, now, 12)
    });
    let everything = everything.unwrap();
    assert_eq!(
        (everything.kind, everything.workers.len()),
        (SnapshotKind::Full, 50)
    );
}
