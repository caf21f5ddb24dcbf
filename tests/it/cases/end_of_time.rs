//! Case 184: durations that end where time does. What is later than the last instant is never, and so is what would be
//! later once a timer's tick is added.

use std::time::{Duration, Instant};

use crate::support::{faults::attach_real, publishers::*, *};
use actix_kv_metrics::{
    Backoff, Coalescing, CoalescingBuilder, Flush, GetLoads, GetRouterStats, KvMetrics,
    KvMetricsConfig, LinkId, MetricsChanged, MetricsReporter, PublisherId, RouterActor,
    RouterConfig, SelectWorker, Shutdown, SnapshotAck,
    actix::{Actor, clock},
    sans_io::{Delivery, Link, Reported, Reports},
};

/// How long it is from `now` to the last instant there is.
fn rest_of_time(now: Instant) -> Duration {
    let (mut fits, mut overflows) = (0, Duration::MAX.as_nanos() + 1);
    while overflows - fits > 1 {
        let middle = fits.midpoint(overflows);
        let fit = now.checked_add(nanos(middle)).is_some();
        *(if fit { &mut fits } else { &mut overflows }) = middle;
    }
    nanos(fits)
}

fn nanos(n: u128) -> Duration {
    let second = 1_000_000_000;
    Duration::new((n / second) as u64, (n % second) as u32)
}

/// Microseconds from the last instant: from 2 ms before it to 2 ms after it.
fn around_the_end() -> impl Iterator<Item = i64> {
    let others = [-1_001, -999, -1, 1];
    (-2_000..=2_000).step_by(125).chain(others)
}

/// So many microseconds longer than the rest of time from `now` on.
fn from(now: Instant, micros: i64) -> Duration {
    let (rest, span) = (
        rest_of_time(now),
        Duration::from_micros(micros.unsigned_abs()),
    );
    if micros < 0 { rest - span } else { rest + span }
}

/// The same, from the present moment of tokio's clock on.
fn from_now(micros: i64) -> Duration {
    from(clock::Instant::now().into_std(), micros)
}

#[test]
fn case_184_the_rest_of_time_is_found() {
    let now = clock::Instant::now().into_std();
    let rest = rest_of_time(now);
    assert!(now.checked_add(rest).is_some());
    assert!(now.checked_add(rest + Duration::from_nanos(1)).is_none());
}

/// Each window and gap of a link, with changes that wait for it.
#[test]
fn case_184_windows_that_end_where_time_does_are_never_due() {
    type Set = fn(CoalescingBuilder, Duration) -> CoalescingBuilder;
    let settings: [(&str, Set); 6] = [
        ("debounce", |it, d| it.debounce(d)),
        ("max_delay", |it, d| it.max_delay(d).debounce(d)),
        ("minor_delay", |it, d| it.minor_delay(d)),
        ("min_gap", |it, d| it.min_gap(d)),
        ("urgent_gap", |it, d| it.urgent_gap(d).min_gap(d)),
        ("all", |it, d| it.debounce(d).min_gap(d).urgent_gap(d)),
    ];
    virtual_time(async {
        for (name, set) in settings {
            for micros in around_the_end() {
                let settings = set(unpaced(), from_now(micros));
                let publisher = publisher(settings.build().unwrap());
                let log = attach(&publisher).await;
                for (worker, active) in [(1, 5), (1, 6), (2, 7)] {
                    publisher.do_send(MetricsChanged::new(worker, load(active)));
                    settle().await;
                }
                let minor = load(6).with_request_active_slots(3);
                publisher.do_send(MetricsChanged::new(1, minor));
                let reporter = MetricsReporter::new(&publisher, 3);
                settle().await;
                drop(reporter);
                sleep(ms(5)).await;
                let flush = publisher.send(Flush { within: ms(10) }).await;
                assert!(flush.unwrap().is_complete(), "{name}, {micros} µs");
                assert_eq!((log.active(1), log.active(2)), (Some(6), Some(7)));
                assert_eq!(log.workers(), [1, 2]);
            }
        }
    });
}

#[test]
fn case_184_a_flush_and_a_shutdown_may_last_until_the_end_of_time() {
    virtual_time(async {
        for micros in around_the_end() {
            let publisher = publisher(windows(0, 0));
            let one = attach_answering(&publisher, [], Answer::ApplyAfter(ms(20))).await;
            report(&publisher, 1, 5).await;
            settle().await;
            report(&publisher, 1, 6).await;
            let within = from_now(micros);
            let flush = actix_rt::spawn(publisher.send(Flush { within }));
            settle().await;
            // Only what a timer can still be armed for is a deadline.
            let armed = pending(&publisher).await.timer_armed;
            assert_eq!(armed, micros <= -1_000, "{micros} µs");
            assert!(flush.await.unwrap().unwrap().is_complete());
            report(&publisher, 1, 7).await;
            let within = from_now(micros);
            let shutdown = publisher.send(Shutdown { within }).await.unwrap();
            assert!(shutdown.is_complete(), "{micros} µs");
            assert_eq!(one.log.active(1), Some(7));
        }
    });
}

#[test]
fn case_184_a_system_may_be_shut_down_until_the_end_of_time() {
    virtual_time(async {
        for micros in around_the_end() {
            // What a blocked arbiter gets comes on top.
            for grace in [ms(0), ms(100)] {
                let kv = KvMetrics::start(KvMetricsConfig::default());
                let reporter = kv.reporter(1);
                reporter.report(load(5)).unwrap();
                drop(kv.select(SelectWorker::blocks(1)).await.unwrap());
                let report = kv.shutdown(from_now(micros) - grace).await;
                assert!(report.is_complete(), "{micros} µs: {report}");
            }
        }
    });
}

#[test]
fn case_184_a_router_may_believe_until_the_end_of_time() {
    virtual_time(async {
        for micros in around_the_end() {
            let span = from_now(micros);
            let config = RouterConfig::builder()
                .settle(span)
                .reservation_ttl(span)
                .stale_after(span);
            let patient = RouterActor::new(config.build().unwrap()).start();
            let publisher = publisher(windows(0, 0));
            attach_real(&publisher, &patient).await;
            report(&publisher, 1, 5).await;
            settle().await;
            let chosen = patient.send(SelectWorker::blocks(3)).await.unwrap();
            chosen.unwrap().into_ticket();
            sleep(ms(10)).await;
            report(&publisher, 1, 6).await;
            settle().await;
            let stats = patient.send(GetRouterStats).await.unwrap();
            let counted = (stats.outstanding, stats.table.went_stale);
            assert_eq!(counted, (1, 0), "{micros} µs");
            patient.send(GetLoads).await.unwrap();
        }
    });
}

/// A link whose own clock reads the end of time: it tells, waits, fails and backs off without a panic.
#[test]
fn case_184_a_link_lives_at_the_end_of_time() {
    let start = clock::Instant::now().into_std();
    for micros in around_the_end() {
        let Some(now) = start.checked_add(from(start, micros)) else {
            continue;
        };
        let settings = Coalescing::builder().build().unwrap();
        let mut link = Link::new(LinkId::new(1), settings, Backoff::default(), now);
        let (mut reports, mut sequence) = (Reports::new(), 0);
        let publisher = PublisherId::new(1, 1);
        let first = link.poll_transmit(publisher, &mut sequence, &reports, now);
        assert!(first.is_some(), "{micros} µs");
        link.handle_delivery(1, Delivery::Answered(SnapshotAck::Applied), now);
        for active in [1, 2] {
            let reported = reports.handle_report(w(1), load(active), None, now);
            let Reported::Changed(change) = reported else {
                panic!("it changed");
            };
            let report = reports.at(change.slot()).unwrap();
            link.handle_changed(&change, report, now);
        }
        // Nothing more is paced out, since that would be later than the last instant.
        assert!(link.poll_timeout().is_none_or(|at| at >= now));
        link.handle_flush();
        let told = link.poll_transmit(publisher, &mut sequence, &reports, now);
        assert!(told.is_some(), "{micros} µs");
        link.handle_delivery(2, Delivery::Failed, now);
        assert!(link.poll_timeout().is_none_or(|at| at >= now));
        link.handle_retry_now();
        link.handle_flush();
        let again = link.poll_transmit(publisher, &mut sequence, &reports, now);
        assert_eq!(again.unwrap().workers.len(), 1);
        link.handle_delivery(3, Delivery::Gone, now);
    }
}
