//! The windows of one link, step by step.

use std::time::Duration;

use crate::support::{timeline::Timeline, *};
use actix_kv_metrics::{
    Coalescing, CoalescingBuilder, ForwardPassMetrics, Ticket, WorkerRank, sans_io::Reported,
};

fn built(builder: CoalescingBuilder) -> Coalescing {
    builder.build().unwrap()
}

/// Differs from `load(active)` in a field no choice depends on.
fn minor(active: u64, slots: u64) -> ForwardPassMetrics {
    load(active).with_request_active_slots(slots)
}

fn suppressed(t: &Timeline) -> u64 {
    t.link.coalescer_counts().suppressed
}

// Quiet time and cap.

#[test]
fn g2_a_change_is_published_when_the_worker_was_quiet_for_debounce() {
    let mut t = Timeline::with_workers(windows(10, 100), &[1]);
    t.expect_nothing_until(5);
    t.report(1, 7);
    t.expect_delta(15, &[(1, 7)]);
    t.expect_nothing_until(200);
    t.expect_idle();
}

#[test]
fn g2_activity_before_the_deadline_moves_it_and_activity_at_or_after_it_does_not() {
    // (second report, published at): the first deadline is 10, and the router answers an earlier snapshot at 15.
    for (second, published) in [(9, 19), (10, 15), (11, 15)] {
        let mut t = Timeline::with_workers(windows(10, 100), &[1, 2]);
        t.answers_at_once = false;
        t.join(3);
        t.expect(&Seen {
            loads: vec![(3, None)],
            ..delta(0, &[])
        });
        t.report(1, 5);
        t.expect_nothing_until(second);
        t.report(1, 6);
        t.expect_nothing_until(15);
        t.applied();
        t.expect_delta(published, &[(1, 6)]);
    }
}

#[test]
fn g3_a_worker_that_is_never_quiet_is_published_when_max_delay_is_up() {
    let mut t = Timeline::with_workers(windows(10, 100), &[1]);
    let mut seen = Vec::new();
    for step in 1..=300 {
        t.skip_to(step);
        t.report(1, step);
        seen.extend(t.pump());
    }
    // The first unpublished change came at 1, then at 102, then at 203.
    let expected = [delta(101, &[(1, 101)]), delta(202, &[(1, 202)])];
    assert_eq!(seen, expected);
    t.expect_delta(303, &[(1, 300)]);
}

#[test]
fn g3_the_cap_clamps_the_last_quiet_time() {
    // (last activity, published at): opened at 0, debounce 10, cap 25.
    for (last, published) in [(14, 24), (15, 25), (16, 25), (24, 25)] {
        let mut t = Timeline::with_workers(windows(10, 25), &[1]);
        t.report(1, 1);
        for step in (4..last).step_by(5).chain([last]) {
            t.expect_nothing_until(step);
            t.report(1, step);
        }
        t.expect_delta(published, &[(1, last)]);
    }
}

#[test]
fn g3_what_is_due_stays_due_however_busy_the_worker_is_while_the_link_is() {
    let mut t = Timeline::with_workers(windows(10, 100), &[1]);
    t.answers_at_once = false;
    t.report(2, 0);
    t.expect_delta(0, &[(2, 0)]);
    t.report(1, 1);
    t.expect_nothing_until(10);
    for step in 10..40 {
        t.expect_nothing_until(step);
        t.report(1, step);
    }
    t.applied();
    t.expect_delta(39, &[(1, 39)]);
}

#[test]
fn a_debounce_of_zero_publishes_at_once() {
    let mut t = Timeline::with_workers(windows(0, 0), &[1]);
    t.skip_to(3);
    t.report(1, 4);
    t.expect_delta(3, &[(1, 4)]);
    t.expect_idle();
}

#[test]
fn a_clock_that_goes_back_moves_nothing_back() {
    let mut t = Timeline::with_workers(windows(10, 100), &[1]);
    t.skip_to(20);
    t.report(1, 5);
    let change = match t.report(1, 6) {
        Reported::Changed(change) => change,
        other => panic!("{other:?}"),
    };
    let earlier = t.instant() - ms(15);
    let report = t.reports.at(change.slot()).unwrap();
    t.link.handle_changed(&change, report, earlier);
    t.expect_delta(30, &[(1, 6)]);
}

// Nothing for nothing.

#[test]
fn g4_a_change_and_back_within_the_window_is_dropped_and_counted() {
    let mut t = Timeline::with_workers(values_only(10, 100), &[1]);
    t.report(1, 5);
    t.expect_nothing_until(4);
    t.report(1, 0);
    assert_eq!(t.timeout(), Some(14), "the window stays open");
    t.expect_nothing_until(30);
    assert_eq!(suppressed(&t), 1);
    t.expect_idle();
}

#[test]
fn g4_the_same_value_again_is_no_activity() {
    let mut t = Timeline::with_workers(values_only(10, 100), &[1]);
    assert!(matches!(t.report(1, 0), Reported::Unchanged(_)));
    t.expect_idle();
    t.report(1, 5);
    t.expect_nothing_until(8);
    assert!(matches!(t.report(1, 5), Reported::Unchanged(_)));
    t.expect_delta(10, &[(1, 5)]);
}

#[test]
fn g4_what_is_in_flight_counts_as_had() {
    let mut t = Timeline::with_workers(values_only(10, 100), &[1]);
    t.answers_at_once = false;
    t.report(1, 5);
    t.expect_delta(10, &[(1, 5)]);
    t.report(1, 6);
    t.report(1, 5);
    t.expect_nothing_until(12);
    t.applied();
    t.expect_nothing_until(40);
    assert_eq!(suppressed(&t), 1);
    t.expect_idle();
}

#[test]
fn g4_after_a_failure_the_value_is_sent_again_though_it_is_the_old_one() {
    let mut t = Timeline::with_workers(windows(10, 100), &[1]);
    t.answers_at_once = false;
    t.report(1, 5);
    t.expect_delta(10, &[(1, 5)]);
    t.refused();
    t.report(1, 0);
    t.expect_delta(20, &[(1, 0)]);
    t.applied();
    t.expect_idle();
}

#[test]
fn g3_b_a_b_a_does_not_begin_the_window_anew() {
    let mut t = Timeline::with_workers(windows(10, 42), &[1]);
    for step in (0..=40).step_by(5) {
        t.expect_nothing_until(step);
        t.report(1, if step % 10 == 0 { 5 } else { 0 });
    }
    t.expect_delta(42, &[(1, 5)]);
    assert_eq!(t.link.coalescer_counts().opened, 2, "first report, window");
}

#[test]
fn g1_a_snapshot_carries_the_newest_value_and_all_fields() {
    let mut t = Timeline::with_workers(windows(10, 100), &[1]);
    t.report(1, 5);
    t.expect_nothing_until(9);
    let newest = minor(6, 3).with_gpu_prefix_cache_hit_rate(0.5);
    t.report_metrics(1, newest.clone());
    t.expect_delta(19, &[(1, 6)]);
    assert_eq!(t.last.unwrap().workers[0].metrics, Some(newest));
}

// Minor changes.

#[test]
fn g3_a_minor_change_waits_for_minor_delay_and_is_not_pushed_back() {
    let settings = built(unpaced().minor_delay(ms(50)));
    let mut t = Timeline::with_workers(settings, &[1]);
    for step in 0..50 {
        t.expect_nothing_until(step);
        t.report_metrics(1, minor(0, step + 1));
    }
    t.expect_delta(50, &[(1, 0)]);
    let carried = t.last.take().unwrap().workers.remove(0);
    assert_eq!(carried.metrics, Some(minor(0, 50)));
    t.expect_idle();
}

#[test]
fn g3_the_first_significant_change_makes_a_minor_window_an_ordinary_one() {
    let settings = built(unpaced().debounce(ms(5)).max_delay(ms(20)));
    let mut t = Timeline::with_workers(settings, &[1]);
    t.report_metrics(1, minor(0, 1));
    t.expect_nothing_until(30);
    t.report(1, 9);
    t.expect_delta(35, &[(1, 9)]);
}

#[test]
fn g3_a_minor_window_that_became_ordinary_ends_at_the_earlier_of_both_caps() {
    // (significant from, published at): minor window from 0 to 100, max_delay 20, activity every step.
    for (from, published) in [(30, 50), (79, 99), (80, 100), (81, 100), (99, 100)] {
        let settings = built(
            unpaced()
                .debounce(ms(5))
                .max_delay(ms(20))
                .minor_delay(ms(100)),
        );
        let mut t = Timeline::with_workers(settings, &[1, 2]);
        t.report_metrics(1, minor(0, 1));
        for step in from..published {
            t.expect_nothing_until(step);
            t.report(1, step);
        }
        t.expect_delta(published, &[(1, published - 1)]);
        t.expect_idle();
    }
}

#[test]
fn no_window_goes_back_to_minor() {
    let mut t = Timeline::with_workers(windows(5, 20), &[1]);
    t.report(1, 9);
    t.expect_nothing_until(2);
    t.report_metrics(1, minor(0, 1));
    t.expect_delta(7, &[(1, 0)]);
}

#[test]
fn a_minor_window_that_has_ended_is_not_made_ordinary() {
    let settings = built(
        unpaced()
            .debounce(ms(5))
            .max_delay(ms(10))
            .minor_delay(ms(10)),
    );
    let mut t = Timeline::with_workers(settings, &[1]);
    t.answers_at_once = false;
    t.report(2, 0);
    t.expect_delta(0, &[(2, 0)]);
    t.report_metrics(1, minor(0, 1));
    t.expect_nothing_until(10);
    t.report(1, 9);
    t.applied();
    t.expect_delta(10, &[(1, 9)]);
}

#[test]
fn significance_is_a_share_of_the_capacity_and_drift_adds_up() {
    let settings = built(
        unpaced()
            .debounce(ms(5))
            .max_delay(ms(10))
            .significance(0.01),
    );
    // Of 1,000 blocks, 10 are significant.
    for (active, published) in [(109, 1_000), (110, 5), (91, 1_000), (90, 5)] {
        let mut t = Timeline::new(settings);
        t.report(1, 100);
        t.expect_delta(0, &[(1, 100)]);
        t.report(1, active);
        t.expect_delta(published, &[(1, active)]);
    }
    let mut t = Timeline::with_workers(settings, &[1]);
    for step in 1..=10 {
        t.expect_nothing_until(step);
        t.report(1, step);
    }
    t.expect_delta(15, &[(1, 10)]);
}

#[test]
fn waiting_requests_and_capacity_are_significant_however_small_the_difference() {
    let settings = built(unpaced().significance(1.0));
    for metrics in [
        ForwardPassMetrics::new(0, 1_000, 1),
        ForwardPassMetrics::new(0, 999, 0),
        ForwardPassMetrics::new(0, 0, 0),
    ] {
        let mut t = Timeline::with_workers(settings, &[1]);
        t.report_metrics(1, metrics);
        t.expect_delta(1, &[(1, 0)]);
    }
}

#[test]
fn a_newer_admitted_ticket_is_significant_and_an_older_one_nothing() {
    let settings = built(unpaced().significance(1.0).minor_delay(Duration::MAX));
    let ticket = |number| Ticket { router: 7, number };
    let mut t = Timeline::with_workers(settings, &[1]);
    t.report_admitted(1, 0, ticket(4));
    t.expect_delta(1, &[(1, 0)]);
    assert!(matches!(
        t.report_admitted(1, 0, ticket(3)),
        Reported::Unchanged(_)
    ));
    t.expect_nothing_until(20);
    t.report_admitted(1, 0, ticket(6));
    t.expect_delta(21, &[(1, 0)]);
    assert_eq!(t.last.take().unwrap().workers[0].admitted, [ticket(6)]);
    assert!(matches!(
        t.report_admitted(1, 0, ticket(6)),
        Reported::Unchanged(_)
    ));
    t.expect_idle();
}

// Leading, saturation, first reports.

#[test]
fn leading_sends_the_first_change_after_debounce_without_activity_at_once() {
    let settings = built(unpaced().debounce(ms(10)).max_delay(ms(100)).leading(true));
    // (pause before the change, published after)
    for (pause, after) in [(9, 10), (10, 0), (11, 0)] {
        let mut t = Timeline::with_workers(settings, &[1]);
        t.expect_nothing_until(pause);
        t.report(1, 5);
        t.expect_delta(pause + after, &[(1, 5)]);
        t.expect_idle();
    }
    // It leaves a time and no window: the change that follows opens one.
    let mut t = Timeline::with_workers(settings, &[1]);
    t.expect_nothing_until(50);
    t.report(1, 5);
    t.expect_delta(50, &[(1, 5)]);
    t.expect_nothing_until(53);
    t.report(1, 6);
    t.expect_delta(63, &[(1, 6)]);
    let counts = t.link.coalescer_counts();
    assert_eq!((counts.opened, counts.coalesced), (3, 0));
}

#[test]
fn without_leading_a_first_change_waits() {
    let mut t = Timeline::with_workers(windows(10, 100), &[1]);
    t.expect_nothing_until(500);
    t.report(1, 5);
    t.expect_delta(510, &[(1, 5)]);
}

#[test]
fn g12_a_first_report_is_due_at_once_also_of_a_worker_that_had_joined() {
    let mut t = Timeline::new(windows(10, 100));
    t.expect_nothing_until(3);
    t.join(1);
    t.expect(&Seen {
        loads: vec![(1, None)],
        ..delta(3, &[])
    });
    assert_eq!(t.join(1), None);
    t.expect_idle();
    t.report(1, 4);
    t.expect_delta(3, &[(1, 4)]);
    t.report(2, 5);
    t.expect_delta(3, &[(2, 5)]);
    t.expect_idle();
}

fn saturating() -> Coalescing {
    built(
        unpaced()
            .debounce(ms(10))
            .max_delay(ms(100))
            .saturation(0.9),
    )
}

#[test]
fn g12_entering_saturation_is_due_at_once_and_leaving_it_is_not() {
    let mut t = Timeline::with_workers(saturating(), &[1]);
    t.expect_nothing_until(100);
    t.report(1, 899);
    t.expect_nothing_until(103);
    t.report(1, 900);
    t.expect_delta(103, &[(1, 900)]);
    t.report(1, 950);
    t.expect_delta(113, &[(1, 950)]);
    t.report(1, 899);
    t.expect_delta(123, &[(1, 899)]);
}

#[test]
fn g12_a_worker_that_was_urgent_within_max_delay_waits_for_its_window() {
    // (entered at, published at): the first report, at 0, was urgent.
    for (entered, published) in [(99, 109), (100, 100), (101, 101)] {
        let mut t = Timeline::with_workers(saturating(), &[1]);
        t.expect_nothing_until(entered);
        t.report(1, 900);
        t.expect_delta(published, &[(1, 900)]);
    }
}

#[test]
fn g12_entering_saturation_by_a_drift_below_significance_never_waits_as_a_minor_change() {
    let settings = built(
        unpaced()
            .debounce(ms(10))
            .max_delay(ms(100))
            .saturation(0.9)
            .significance(0.5),
    );
    let mut t = Timeline::new(settings);
    t.report(1, 899);
    t.expect_delta(0, &[(1, 899)]);
    t.expect_nothing_until(50);
    t.report(1, 901);
    t.expect_delta(60, &[(1, 901)]);
}

#[test]
fn g12_blocks_that_toggle_across_saturation_are_not_published_once_per_answer() {
    let settings = built(unpaced().saturation(0.9));
    let mut t = Timeline::in_micros(settings);
    t.report(1, 800);
    t.expect_delta(0, &[(1, 800)]);
    let mut sent = 0;
    for step in 1..=10_000 {
        t.skip_to(step * 100);
        t.report(1, if step % 2 == 0 { 800 } else { 950 });
        sent += usize::from(t.pump().is_some());
    }
    assert!((80..=220).contains(&sent), "{sent}");
}

// A rise of what a worker has to compute.

fn rising() -> Coalescing {
    let quiet = unpaced().debounce(ms(10)).max_delay(ms(100));
    built(quiet.urgent_gap(ms(2)).significance(0.5))
}

fn backlog(active: u64, prefill: u64) -> ForwardPassMetrics {
    ForwardPassMetrics::new(active, 1_000, 0).with_num_prefill_blocks(prefill)
}

/// At 0 the worker has reported 5 blocks to compute, which is told `urgent_gap` after the full snapshot.
fn rising_from_five(settings: Coalescing) -> Timeline {
    let mut t = Timeline::new(settings);
    t.report_metrics(1, backlog(0, 5));
    t.expect_delta(2, &[(1, 0)]);
    t
}

#[test]
fn g12_a_rise_of_the_backlog_is_due_at_once_and_a_fall_waits_for_its_window() {
    let mut t = rising_from_five(rising());
    t.expect_nothing_until(20);
    t.report_metrics(1, backlog(1, 8));
    t.expect_delta(20, &[(1, 1)]);
    t.expect_nothing_until(40);
    t.report_metrics(1, backlog(2, 5));
    t.expect_delta(50, &[(1, 2)]);
    t.expect_idle();
}

#[test]
fn g12_rises_add_up_and_smaller_ones_are_minor() {
    let mut t = rising_from_five(rising());
    for (at, prefill) in [(20, 6), (40, 7)] {
        t.expect_nothing_until(at);
        t.report_metrics(1, backlog(at, prefill));
    }
    t.expect_nothing_until(60);
    t.report_metrics(1, backlog(60, 8));
    t.expect_delta(60, &[(1, 60)]);
    t.report_metrics(1, backlog(61, 6));
    t.expect_nothing_until(1_059);
    t.expect_delta(1_060, &[(1, 61)]);
}

#[test]
fn a_backlog_that_becomes_known_or_unknown_is_significant_and_no_rise() {
    let mut t = rising_from_five(rising());
    t.expect_nothing_until(20);
    t.report_metrics(1, ForwardPassMetrics::new(1, 1_000, 0));
    t.expect_delta(30, &[(1, 1)]);
    t.expect_nothing_until(50);
    t.report_metrics(1, backlog(2, 9));
    t.expect_delta(60, &[(1, 2)]);
}

#[test]
fn g12_a_rise_within_urgent_gap_of_the_last_urgent_change_waits_for_its_window() {
    // (risen again at, published at)
    for (risen, published) in [(51, 61), (52, 52), (53, 53)] {
        let mut t = rising_from_five(rising());
        t.expect_nothing_until(50);
        t.report_metrics(1, backlog(1, 8));
        t.expect_delta(50, &[(1, 1)]);
        t.expect_nothing_until(risen);
        t.report_metrics(1, backlog(2, 11));
        t.expect_delta(published, &[(1, 2)]);
    }
}

#[test]
fn g12_a_rise_does_not_keep_saturation_waiting_nor_saturation_a_rise() {
    let settings = built(
        unpaced()
            .debounce(ms(10))
            .max_delay(ms(100))
            .urgent_gap(ms(2))
            .saturation(0.9),
    );
    let mut t = rising_from_five(settings);
    t.expect_nothing_until(120);
    t.report_metrics(1, backlog(0, 8));
    t.expect_delta(120, &[(1, 0)]);
    // No rise, and it was urgent 1 ms ago: but that was one. The snapshot keeps its distance.
    t.skip_to(121);
    t.report_metrics(1, backlog(900, 8));
    t.expect_delta(122, &[(1, 900)]);
    t.expect_nothing_until(124);
    t.report_metrics(1, backlog(901, 11));
    t.expect_delta(124, &[(1, 901)]);
    // Out, and in again within max_delay: waits, unless something rises.
    t.report_metrics(1, backlog(800, 11));
    t.expect_delta(134, &[(1, 800)]);
    t.report_metrics(1, backlog(900, 11));
    t.expect_delta(144, &[(1, 900)]);
    t.report_metrics(1, backlog(800, 11));
    t.expect_delta(154, &[(1, 800)]);
    t.expect_nothing_until(156);
    t.report_metrics(1, backlog(900, 14));
    t.expect_delta(156, &[(1, 900)]);
}

#[test]
fn g12_a_backlog_that_toggles_is_published_once_per_urgent_gap_at_most() {
    let mut t = Timeline::in_micros(built(unpaced().urgent_gap(ms(2))));
    t.report_metrics(1, backlog(0, 0));
    t.skip_to(5_000);
    t.expect_delta(5_000, &[(1, 0)]);
    let mut sent = 0;
    for step in 1..=10_000 {
        t.skip_to(5_000 + step * 100);
        t.report_metrics(1, backlog(step, step % 2 * 10));
        sent += usize::from(t.pump().is_some());
    }
    assert!((300..=620).contains(&sent), "{sent}");
}

// Durations without end.

#[test]
fn a_debounce_of_for_ever_never_publishes_by_itself_but_when_flushed() {
    let mut t = Timeline::with_workers(built(unpaced().debounce(Duration::MAX)), &[1]);
    t.report(1, 5);
    assert_eq!(t.link.poll_timeout(), None);
    t.expect_nothing_until(100);
    t.link.handle_flush();
    t.expect_delta(100, &[(1, 5)]);
}

#[test]
fn a_cap_of_for_ever_leaves_the_quiet_time_alone() {
    let settings = unpaced().debounce(ms(10));
    let mut t = Timeline::with_workers(built(settings.max_delay(Duration::MAX)), &[1]);
    for step in 0..500 {
        t.expect_nothing_until(step);
        t.report(1, step + 1);
    }
    t.expect_delta(509, &[(1, 500)]);
    t.report_metrics(1, minor(500, 1));
    assert_eq!(t.link.poll_timeout(), None, "a minor one waits for ever");
}

#[test]
fn windows_of_centuries_neither_overflow_nor_end() {
    const YEAR: u64 = 365 * 24 * 3600;
    for years in [100, 583, 585, 10_000, 584_000_000_000] {
        let debounce = Duration::from_secs(YEAR * years);
        let settings = built(unpaced().debounce(debounce));
        let mut t = Timeline::with_workers(settings, &[1]);
        t.skip_to(1_000);
        t.report(1, 5);
        assert_eq!(t.pump(), None);
        if let Some(timeout) = t.link.poll_timeout() {
            let wait = timeout - t.instant();
            assert!((ms(0)..=ms(1)).contains(&(debounce - wait)), "{wait:?}");
        } else {
            assert!(years > 583);
        }
    }
}

// Departures.

#[test]
fn g13_a_departure_is_told_at_once_and_once() {
    let mut t = Timeline::with_workers(windows(10, 100), &[1, 2]);
    t.expect_nothing_until(5);
    t.report(1, 5);
    t.leave(1);
    t.expect(&left(5, &[1]));
    t.expect_nothing_until(50);
    t.expect_idle();
    t.leave(1);
    t.expect_idle();
    assert_eq!(t.link.coalescer_counts().departures, 1);
}

#[test]
fn g13_a_worker_the_router_never_had_leaves_nothing() {
    let mut t = Timeline::with_workers(windows(10, 100), &[1]);
    t.report(2, 5);
    t.leave(2);
    t.join(3);
    t.leave(3);
    t.expect_idle();
    assert_eq!(t.link.coalescer_counts().departures, 0);
}

#[test]
fn g13_a_departure_is_remembered_until_a_snapshot_that_tells_it_is_acknowledged() {
    let mut t = Timeline::with_workers(windows(10, 100), &[1, 2]);
    t.answers_at_once = false;
    t.leave(1);
    t.expect(&left(0, &[1]));
    t.refused();
    t.expect(&left(10, &[1]));
    t.refused();
    t.leave(2);
    t.expect(&left(30, &[1, 2]));
    t.applied();
    t.expect_idle();
}

#[test]
fn g13_a_worker_that_left_while_its_load_was_in_flight_is_told_gone_afterwards() {
    for refuses in [false, true] {
        let mut t = Timeline::new(windows(10, 100));
        t.answers_at_once = false;
        t.report(1, 5);
        t.expect_delta(0, &[(1, 5)]);
        t.leave(1);
        assert_eq!(t.pump(), None);
        if refuses {
            t.refused();
            t.expect(&left(10, &[1]));
        } else {
            t.applied();
            t.expect(&left(0, &[1]));
        }
        t.applied();
        t.expect_idle();
    }
}

#[test]
fn g13_a_worker_that_comes_back_begins_a_new_life_in_the_snapshot_that_tells_it_left() {
    let mut t = Timeline::with_workers(windows(10, 100), &[1]);
    let former = t.last.take().unwrap().workers[0].life;
    t.leave(1);
    t.report(1, 0);
    t.expect(&Seen {
        left: vec![1],
        ..delta(0, &[(1, 0)])
    });
    assert!(t.last.take().unwrap().workers[0].life > former);
    t.expect_idle();
}

#[test]
fn g13_a_worker_that_comes_back_and_leaves_again_while_its_departure_is_in_flight_is_told_once() {
    let mut t = Timeline::with_workers(windows(10, 100), &[1]);
    t.answers_at_once = false;
    t.leave(1);
    t.expect(&left(0, &[1]));
    t.report(1, 5);
    t.leave(1);
    t.applied();
    t.expect_idle();
}

#[test]
fn g13_a_place_used_again_while_its_former_worker_is_in_flight_is_not_taken_for_it() {
    for refuses in [false, true] {
        let mut t = Timeline::new(windows(10, 100));
        t.answers_at_once = false;
        t.report(1, 5);
        t.expect_delta(0, &[(1, 5)]);
        t.leave(1);
        t.report(2, 5);
        let at = if refuses { 10 } else { 0 };
        if refuses {
            t.refused();
        } else {
            t.applied();
        }
        t.expect(&Seen {
            left: vec![1],
            ..delta(at, &[(2, 5)])
        });
        t.applied();
        t.expect_idle();
        assert_eq!(t.reports.len(), 1);
    }
}

#[test]
fn g7_departures_that_outnumber_the_living_become_a_full_snapshot() {
    let all: Vec<u64> = (0..40).collect();
    let mut t = Timeline::with_workers(windows(10, 100), &all);
    all[..20].iter().for_each(|worker| t.leave(*worker));
    t.expect(&left(0, &all[..20]));
    let mut t = Timeline::with_workers(windows(10, 100), &all);
    all[..21].iter().for_each(|worker| t.leave(*worker));
    assert_eq!(t.link.coalescer().open_departures(), 0);
    let living: Vec<_> = all[21..].iter().map(|worker| (*worker, 0)).collect();
    t.expect_full(0, &living);
    t.expect_idle();
}

#[test]
fn g7_a_few_departures_are_told_one_by_one_even_if_nobody_is_left() {
    let few: Vec<u64> = (0..16).collect();
    let mut t = Timeline::with_workers(windows(10, 100), &few);
    few.iter().for_each(|worker| t.leave(*worker));
    t.expect(&left(0, &few));
    let many: Vec<u64> = (0..17).collect();
    let mut t = Timeline::with_workers(windows(10, 100), &many);
    many.iter().for_each(|worker| t.leave(*worker));
    t.expect_full(0, &[]);
    t.expect_idle();
}

// Several workers.

#[test]
fn g11_a_chatty_worker_postpones_nobody() {
    let mut t = Timeline::with_workers(windows(10, 100), &[1, 2]);
    let mut seen = Vec::new();
    for step in 0..=100 {
        t.skip_to(step);
        t.report(1, step + 1);
        if step == 50 {
            t.report(2, 5);
        }
        seen.extend(t.pump());
    }
    assert_eq!(seen, [delta(60, &[(2, 5)]), delta(100, &[(1, 101)])]);
}

#[test]
fn g11_ranks_of_one_worker_are_separate() {
    let mut t = Timeline::new(windows(10, 100));
    let ranks = [WorkerRank::new(1, 0), WorkerRank::new(1, 1)];
    let tell = |t: &mut Timeline, rank, active| {
        let now = t.instant();
        let reported = t.reports.handle_report(rank, load(active), None, now);
        let Reported::Changed(change) = reported else {
            panic!("{reported:?}");
        };
        let report = t.reports.at(change.slot()).unwrap();
        t.link.handle_changed(&change, report, now);
    };
    tell(&mut t, ranks[0], 1);
    tell(&mut t, ranks[1], 2);
    t.expect_delta(0, &[(1, 1), (1, 2)]);
    tell(&mut t, ranks[1], 3);
    t.expect_delta(10, &[(1, 3)]);
    assert_eq!(t.last.unwrap().workers[0].worker, ranks[1]);
}

#[test]
fn one_snapshot_carries_all_that_is_due_and_leaves_open_what_is_not() {
    let mut t = Timeline::with_workers(windows(10, 100), &[1, 2, 3]);
    t.report(1, 1);
    t.report(2, 2);
    t.expect_nothing_until(5);
    t.report(3, 3);
    t.expect_delta(10, &[(1, 1), (2, 2)]);
    t.expect_delta(15, &[(3, 3)]);
    t.report(1, 4);
    t.expect_nothing_until(25);
    t.report(4, 0);
    t.expect_delta(25, &[(1, 4), (4, 0)]);
}

// Flush.

#[test]
fn a_flush_makes_every_open_window_due_whatever_its_kind() {
    let mut t = Timeline::with_workers(windows(10, 100), &[1, 2, 3, 4]);
    t.report_metrics(1, minor(0, 1));
    t.report_metrics(2, minor(0, 1));
    t.report_metrics(3, minor(0, 1));
    t.expect_nothing_until(5);
    t.report(4, 4);
    t.link.handle_flush();
    t.expect_delta(5, &[(1, 0), (2, 0), (3, 0), (4, 4)]);
    t.expect_idle();
    t.link.handle_flush();
    t.expect_idle();
}

#[test]
fn a_flush_reaches_minor_windows_behind_one_that_became_ordinary_late() {
    let settings = built(unpaced().minor_delay(ms(100)));
    let mut t = Timeline::with_workers(settings, &[1, 2]);
    t.report_metrics(1, minor(0, 1));
    t.expect_nothing_until(1);
    t.report_metrics(2, minor(0, 1));
    t.expect_nothing_until(99);
    t.report(1, 9);
    t.link.handle_flush();
    t.expect_delta(99, &[(1, 9), (2, 0)]);
    t.expect_idle();
}

// Age, counters, what is undelivered.

#[test]
fn age_counts_from_the_first_difference_and_is_cleared_by_a_return_to_equal() {
    let mut t = Timeline::with_workers(windows(10, 100), &[1]);
    let Reported::Changed(change) = t.report(1, 5) else {
        panic!()
    };
    let slot = change.slot();
    t.expect_nothing_until(4);
    t.report(1, 6);
    assert_eq!(t.link.coalescer().age(slot, t.instant()), Some(ms(4)));
    t.report(1, 0);
    assert_eq!(t.link.coalescer().age(slot, t.instant()), None);
    t.expect_nothing_until(7);
    t.report(1, 8);
    t.expect_delta(17, &[(1, 8)]);
    assert_eq!(t.last.take().unwrap().workers[0].age, ms(10));
    assert_eq!(t.link.coalescer().age(slot, t.instant()), None);
    assert_eq!(t.link.counts().last_age, ms(10));
}

#[test]
fn age_is_kept_over_failures_of_deltas_and_of_full_snapshots() {
    let age = |t: &mut Timeline| t.last.take().unwrap().workers[0].age;
    for full in [false, true] {
        let mut t = Timeline::with_workers(windows(10, 100), &[1]);
        t.report(1, 5);
        t.answers_at_once = false;
        if full {
            t.expect_nothing_until(10);
            t.link.handle_attached_again(None, t.instant());
            t.expect_full(10, &[(1, 5)]);
        } else {
            t.expect_delta(10, &[(1, 5)]);
        }
        assert_eq!(age(&mut t), ms(10));
        t.refused();
        assert_eq!(t.pump(), None);
        let (slot, _) = t.reports.iter().next().unwrap();
        assert_eq!(t.link.coalescer().age(slot, t.instant()), Some(ms(10)));
        t.expect_nothing_until(20);
        assert!(t.pump().is_some());
        assert_eq!(age(&mut t), ms(20), "full: {full}");
        t.applied();
        t.expect_idle();
    }
}

#[test]
fn changed_is_opened_plus_coalesced_and_entries_are_what_was_told() {
    let mut t = Timeline::with_workers(saturating(), &[1, 2]);
    for step in 1..500 {
        t.skip_to(step);
        t.report(1, step * 7 % 1_000);
        if step % 40 == 0 {
            t.report(2, step);
        }
        t.pump();
    }
    let counts = t.link.coalescer_counts();
    assert_eq!(counts.changed, 499 + 12 + 2);
    assert_eq!(counts.changed, counts.opened + counts.coalesced);
    assert!(counts.coalesced > 400, "{counts:?}");
    assert_eq!(counts.entries, t.link.counts().snapshots);
}

#[test]
fn undelivered_names_what_is_open_in_flight_and_left() {
    let mut t = Timeline::with_workers(windows(10, 100), &[1, 2, 3, 4]);
    let undelivered = |t: &Timeline| t.link.coalescer().undelivered(&t.reports);
    assert_eq!(undelivered(&t), []);
    t.answers_at_once = false;
    t.report(1, 5);
    t.leave(2);
    t.expect(&left(0, &[2]));
    t.report(5, 0);
    assert_eq!(undelivered(&t), [w(1), w(2), w(5)]);
    t.applied();
    assert_eq!(undelivered(&t), [w(1), w(5)]);
    t.answers_at_once = true;
    t.expect_delta(0, &[(5, 0)]);
    t.expect_delta(10, &[(1, 5)]);
    assert_eq!(undelivered(&t), []);
}

#[test]
fn g7_open_windows_are_at_most_one_a_worker() {
    let all: Vec<u64> = (0..100).collect();
    let mut t = Timeline::with_workers(windows(10, 100), &all);
    t.answers_at_once = false;
    t.report(100, 0);
    t.expect_delta(0, &[(100, 0)]);
    for step in 1..1_000 {
        t.skip_to(step);
        t.report(step % 100, step);
        assert_eq!(t.pump(), None);
    }
    assert_eq!(t.link.coalescer().open_windows(), 100);
    t.applied();
    let newest: Vec<_> = (0..100)
        .map(|n| (n, if n == 0 { 900 } else { 900 + n }))
        .collect();
    t.expect_delta(999, &newest);
}

#[test]
fn g7_windows_that_closed_leave_nothing_behind() {
    // The size of all that a link holds, as far as its Debug form shows it.
    let size_after = |rounds: u64| {
        let mut t = Timeline::with_workers(windows(1, 10), &[1, 2, 3]);
        for round in 1..=rounds {
            t.skip_to(t.now() + 5);
            t.report(round % 3 + 1, round % 7);
            t.report_metrics(round % 2 + 1, minor(round % 5, round));
            t.leave(4);
            t.join(4);
            t.pump();
        }
        format!("{:?}", t.link).len()
    };
    let (early, late) = (size_after(50), size_after(5_000));
    assert!(late < early + 200, "{early} and then {late} characters");
}

// Below a millisecond.

/// One worker changes every `every` µs for 1 s, the router answers after 0.1 ms, as an actor would drive the link:
/// polled after every event and at every deadline. Returns the times of the snapshots in µs, and the last value.
fn stress(every: u64) -> (Vec<u64>, u64) {
    let mut t = Timeline::in_micros(windows(1, 10));
    t.answers_at_once = false;
    let (mut sent, mut last, mut answer_at) = (Vec::new(), 0, None);
    for step in 0..=1_050_000 {
        let change = step % every == 0 && step < 1_000_000;
        let answer = answer_at == Some(step);
        let deadline = t
            .link
            .poll_timeout()
            .is_some_and(|_| t.timeout() <= Some(step));
        if !(change || answer || deadline) {
            continue;
        }
        t.skip_to(step);
        if answer {
            t.applied();
            answer_at = None;
        }
        if change {
            t.report(1, step / every + 1);
        }
        if let Some(seen) = t.pump() {
            sent.push(step);
            last = seen.loads[0].1.unwrap();
            answer_at = Some(step + 100);
        }
    }
    t.expect_idle();
    (sent, last)
}

#[test]
fn g3_stress_changes_each_0_3_ms_and_each_0_1_ms_for_a_second() {
    for every in [300, 100] {
        let (sent, last) = stress(every);
        let longest = sent.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(
            (80..=110).contains(&sent.len()),
            "{} of {every}",
            sent.len()
        );
        // A window opens at the first change after the snapshot before, and lasts 10 ms at most.
        assert!(longest.unwrap() <= 10_000 + every, "{longest:?} of {every}");
        assert_eq!(last, 1_000_000_u64.div_ceil(every));
        assert!(*sent.last().unwrap() <= 1_000_000 + 1_000);
    }
}

#[test]
fn changes_slower_than_debounce_are_each_published() {
    let mut t = Timeline::with_workers(windows(1, 10), &[1]);
    let mut seen = Vec::new();
    for step in 1..=1_000 {
        t.skip_to(step);
        if step % 2 == 0 {
            t.report(1, step);
        }
        seen.extend(t.pump());
    }
    assert_eq!(seen.len(), 499);
}

#[test]
fn g3_leaving_saturation_waits_for_its_window_and_no_longer_however_small_the_step() {
    let settings = unpaced()
        .debounce(ms(10))
        .max_delay(ms(100))
        .saturation(0.5)
        .significance(0.05)
        .build()
        .unwrap();
    let mut t = Timeline::with_workers(settings, &[1]);
    t.skip_to(1_000);
    t.report(1, 500);
    t.expect_delta(1_000, &[(1, 500)]);
    t.expect_nothing_until(1_500);
    t.report(1, 499);
    t.expect_delta(1_510, &[(1, 499)]);
}

/// Worker 1 comes back, leaves, and comes back again after `others` have left: the last time it waits for its window,
/// beginning at `at`.
#[track_caller]
fn expect_flapping(t: &mut Timeline, at: u64, others: &[u64]) {
    t.skip_to(at);
    t.leave(1);
    t.report(1, 1);
    t.expect(&Seen {
        left: vec![1],
        ..delta(at, &[(1, 1)])
    });
    t.leave(1);
    others.iter().for_each(|worker| t.leave(*worker));
    assert!(t.pump().is_some_and(|seen| seen.loads.is_empty()));
    t.report(1, 2);
    // However quiet it is.
    t.expect_delta(at + 100, &[(1, 2)]);
}

#[test]
fn g12_a_worker_that_flaps_is_found_out_however_many_others_leave_meanwhile() {
    let all: Vec<u64> = (1..=100).collect();
    let mut t = Timeline::with_workers(windows(10, 100), &all);
    // None leave, then as many as are remembered without a look at them, and more.
    expect_flapping(&mut t, 0, &[]);
    expect_flapping(&mut t, 200, &all[1..17]);
    expect_flapping(&mut t, 400, &all[17..50]);
    t.expect_idle();
}

#[test]
fn g12_lives_that_ended_long_ago_do_not_hide_a_worker_that_flaps() {
    let all: Vec<u64> = (1..=2_100).collect();
    let mut t = Timeline::with_workers(windows(10, 100), &all);
    all[1..2_000].iter().for_each(|worker| t.leave(*worker));
    assert!(t.pump().is_some_and(|seen| seen.kind == Kind::Full));
    expect_flapping(&mut t, 100, &all[2_000..2_030]);
    t.expect_idle();
}

#[test]
fn g12_a_worker_that_comes_back_after_max_delay_does_not_flap_however_many_others_left() {
    let all: Vec<u64> = (1..=100).collect();
    let mut t = Timeline::with_workers(windows(10, 100), &all);
    t.leave(1);
    t.report(1, 1);
    assert!(t.pump().is_some());
    t.leave(1);
    all[1..40].iter().for_each(|worker| t.leave(*worker));
    assert!(t.pump().is_some());
    t.skip_to(100);
    t.leave(50);
    t.report(1, 2);
    t.expect(&Seen {
        left: vec![50],
        ..delta(100, &[(1, 2)])
    });
}

// That a worker still reports is told, and nothing for who does not.

fn renewals(t: &Timeline) -> u64 {
    t.link.coalescer_counts().renewals
}

/// What the last snapshot said of when each worker reported.
fn reported(t: &mut Timeline) -> Vec<Option<Duration>> {
    let last = t.last.take().unwrap();
    last.workers.iter().map(|load| load.reported).collect()
}

fn renewing(minor_delay: u64) -> Coalescing {
    built(unpaced().minor_delay(ms(minor_delay)))
}

#[test]
fn a_worker_that_reports_the_same_is_told_of_minor_delay_after_the_first_such_report() {
    let mut t = Timeline::with_workers(renewing(100), &[1]);
    t.expect_nothing_until(500);
    for _ in 0..10 {
        t.report(1, 0);
        t.expect_nothing_until(t.now() + 9);
    }
    t.expect_delta(600, &[(1, 0)]);
    assert_eq!(reported(&mut t), [Some(ms(19))]);
    assert_eq!(renewals(&t), 1);
    t.expect_idle();
}

#[test]
fn g5_who_does_not_report_causes_nothing() {
    let mut t = Timeline::with_workers(renewing(50), &[1, 2]);
    t.expect_idle();
    t.report(2, 0);
    t.expect_delta(50, &[(2, 0)]);
    t.expect_idle();
}

#[test]
fn a_change_that_is_told_says_that_the_worker_reports_and_nothing_more_is_due() {
    let mut t = Timeline::with_workers(renewing(100), &[1]);
    t.report(1, 0);
    t.expect_nothing_until(50);
    t.report(1, 5);
    t.expect_delta(51, &[(1, 5)]);
    assert_eq!(reported(&mut t), [Some(ms(1))]);
    t.expect_idle();
    assert_eq!(renewals(&t), 0);
}

/// A, B, A closes as before; that it reports is told all the same.
#[test]
fn g4_a_return_to_the_old_value_is_told_as_a_report_only() {
    let mut t = Timeline::with_workers(
        built(
            unpaced()
                .debounce(ms(10))
                .max_delay(ms(20))
                .minor_delay(ms(100)),
        ),
        &[1],
    );
    t.report(1, 5);
    t.expect_nothing_until(4);
    t.report(1, 0);
    t.expect_nothing_until(60);
    assert_eq!(suppressed(&t), 1);
    assert!(!t.link.coalescer().is_pending());
    t.expect_delta(100, &[(1, 0)]);
    assert_eq!(reported(&mut t), [Some(ms(96))]);
    assert_eq!(renewals(&t), 1);
    t.expect_idle();
}

/// Values alone are pending: a flush does not tell that a worker still reports.
#[test]
fn a_flush_goes_by_values_only() {
    let mut t = Timeline::with_workers(renewing(100), &[1, 2]);
    t.report(1, 0);
    t.link.handle_flush();
    t.expect_nothing_until(5);
    assert!(!t.link.coalescer().is_pending() && t.link.is_settled());
    assert_eq!(t.link.coalescer().undelivered(&t.reports), []);
    t.report(2, 7);
    t.link.handle_flush();
    t.expect_delta(5, &[(2, 7)]);
    t.expect_delta(100, &[(1, 0)]);
    t.expect_idle();
}

#[test]
fn g8_a_renewal_that_failed_is_told_after_the_pause_and_names_nothing_undelivered() {
    let mut t = Timeline::with_workers(renewing(100), &[1, 2]);
    t.answers_at_once = false;
    t.report(2, 0);
    t.expect_nothing_until(3);
    t.report(1, 0);
    t.expect_delta(100, &[(2, 0)]);
    t.refused();
    assert_eq!(t.link.coalescer().undelivered(&t.reports), []);
    t.expect_delta(110, &[(1, 0), (2, 0)]);
    assert_eq!(reported(&mut t), [Some(ms(110)), Some(ms(107))]);
    t.applied();
    t.expect_idle();
}

#[test]
fn g13_a_new_life_has_not_reported_whatever_becomes_of_the_former_ones_renewal() {
    let mut t = Timeline::with_workers(renewing(100), &[1]);
    t.answers_at_once = false;
    t.report(1, 0);
    t.expect_delta(100, &[(1, 0)]);
    t.leave(1);
    t.join(1);
    t.refused();
    t.answers_at_once = true;
    let seen = std::iter::from_fn(|| {
        t.skip_to(t.now() + 1);
        Some(t.pump())
    });
    assert_eq!(seen.take(200).flatten().count(), 1, "the new life, once");
    t.expect_idle();
    assert_eq!(renewals(&t), 1);
}

/// 10,000 workers that report the same every 20 ms, with the settings that nobody changed.
#[test]
fn ten_thousand_workers_that_report_the_same_cost_one_entry_a_second_each() {
    const WORKERS: u64 = 10_000;
    let mut t = Timeline::new(Coalescing::default());
    for id in 0..WORKERS {
        t.report(id, 0);
    }
    t.skip_to(20);
    t.pump();
    let (snapshots, entries) = (t.link.counts().snapshots, t.link.coalescer_counts().entries);
    let slots: Vec<_> = t.reports.iter().map(|(slot, _)| slot).collect();
    for _ in 0..5_000 {
        for slot in slots.iter().skip((t.now() % 20) as usize).step_by(20) {
            let now = t.instant();
            t.link.handle_unchanged(*slot, now);
        }
        t.pump();
        t.skip_to(t.now() + 1);
    }
    let snapshots = t.link.counts().snapshots - snapshots;
    let entries = t.link.coalescer_counts().entries - entries;
    assert!(snapshots <= 5 * 110, "{snapshots} snapshots in 5 s");
    assert!(entries * 10 <= 5 * 11 * WORKERS, "{entries} entries in 5 s");
    assert!(entries >= 4 * WORKERS - WORKERS, "{entries} entries in 5 s");
    // Once they fall silent, each is told of once more at most.
    t.skip_to(t.now() + 2_000);
    t.pump();
    t.pump();
    let told = t.link.coalescer_counts().entries;
    t.skip_to(t.now() + 10_000);
    t.pump();
    assert_eq!(t.link.coalescer_counts().entries, told);
    t.expect_idle();
}
