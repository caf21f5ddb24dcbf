//! Reports that wake nobody, mixed with everything that does.

use std::time::Duration;

use actix_kv_metrics::{
    AttachRouter, Coalescing, DetachRouter, Flush, MetricsChanged, MetricsReporter, PublisherActor,
    ReportError, WorkerJoined, WorkerLeft,
    actix::{Actor, Addr, Arbiter, System, clock},
};

use super::bell::{attach_with, reporters};
use crate::support::{publishers::*, *};

#[test]
fn g2_a_quiet_period_counts_from_the_report_whatever_comes_by_message_meanwhile() {
    a_quiet_period_counts_from_the_report(|publisher| {
        publisher.do_send(WorkerJoined { worker: w(1) });
    });
    a_quiet_period_counts_from_the_report(|publisher| {
        publisher.do_send(MetricsChanged::new(w(100), load(0)));
    });
    a_quiet_period_counts_from_the_report(|publisher| {
        publisher.do_send(MetricsChanged::new(w(100), load(1)));
    });
    a_quiet_period_counts_from_the_report(|publisher| {
        publisher.do_send(WorkerJoined { worker: w(101) });
        publisher.do_send(WorkerLeft { worker: w(101) });
    });
    a_quiet_period_counts_from_the_report(|publisher| {
        drop(MetricsReporter::new(publisher, w(101)));
    });
}

/// `says`: 5 ms after a report that wakes nobody, since a snapshot is in flight.
fn a_quiet_period_counts_from_the_report(says: fn(&Addr<PublisherActor>)) {
    virtual_time(async move {
        let publisher = publisher(values_only(20, 60));
        let log = attach_with(&publisher, values_only(20, 60), Answer::ApplyAfter(ms(16))).await;
        let made = reporters(&publisher, 3).await;
        publisher.do_send(MetricsChanged::new(w(100), load(0)));
        sleep(ms(100)).await;
        made[0].report(load(1)).unwrap();
        sleep(ms(20)).await;
        for _ in 0..6 {
            made[2].report(load(0)).unwrap();
            sleep(ms(1)).await;
        }
        made[1].report(load(7)).unwrap();
        let at = log.since_start();
        sleep(ms(5)).await;
        says(&publisher);
        sleep(ms(100)).await;
        let told = log.take();
        let first = told
            .iter()
            .find(|s| s.loads.contains(&(2, Some(7))))
            .unwrap();
        assert!(first.at <= at + 21, "{at}: {told:?}");
    });
}

/// One link of the chaos below.
struct Attached {
    log: LogHandle,
    bound: Option<u64>,
    /// When each worker's load began to differ from what the router has.
    differs: Vec<Option<u64>>,
    link: actix_kv_metrics::LinkId,
}

/// Bounds of every change through reporters, and the last value, on links of any windows.
#[test]
fn g3_and_g9_hold_for_any_mix_of_windows_and_reports() {
    for seed in 0..120 {
        virtual_time(async move {
            let mut rng = fastrand::Rng::with_seed(seed);
            let publisher = publisher(values_only(1, 10));
            let made = reporters(&publisher, 6).await;
            let mut links: Vec<Attached> = Vec::new();
            let mut is = [0u64; 6];
            for now in 0..600 {
                if links.len() < 3 && rng.u32(..20) == 0 {
                    let debounce = *rng.choice(&[0, 1, 3, 30]).unwrap();
                    let max_delay = debounce.max(*rng.choice(&[0, 1, 10, 40]).unwrap());
                    let min_gap = *rng.choice(&[0, 1, 10, 1_000]).unwrap();
                    let urgent_gap = *rng.choice(&[0, 2, 1_000]).unwrap();
                    let coalescing = Coalescing::builder()
                        .debounce(ms(debounce))
                        .max_delay(ms(max_delay))
                        .min_gap(ms(min_gap))
                        .urgent_gap(ms(urgent_gap))
                        .leading(rng.bool())
                        .build()
                        .unwrap();
                    let answer = *rng
                        .choice(&[
                            Answer::Apply,
                            Answer::Apply,
                            Answer::ApplyAfter(ms(7)),
                            Answer::ApplyAfter(ms(45)),
                            Answer::Silent,
                            Answer::Refuse,
                            Answer::Panic,
                            Answer::NeedFull,
                        ])
                        .unwrap();
                    let log = LogHandle::new();
                    let router = Recorder::answering(&log, [], answer).start();
                    let attach = AttachRouter::new(router.recipient()).coalescing(coalescing);
                    let link = publisher.send(attach).await.unwrap();
                    settle().await;
                    links.push(Attached {
                        log,
                        bound: (answer == Answer::Apply).then_some(max_delay + min_gap + 1),
                        differs: vec![None; 6],
                        link,
                    });
                }
                if !links.is_empty() && rng.u32(..100) == 0 {
                    let link = links.swap_remove(rng.usize(..links.len()));
                    assert!(publisher.send(DetachRouter(link.link)).await.unwrap());
                }
                for _ in 0..rng.usize(..4) {
                    let worker = rng.usize(..6);
                    is[worker] = rng.u64(..4);
                    made[worker].report(load(is[worker])).unwrap();
                    if rng.u32(..8) == 0 {
                        settle().await;
                    }
                }
                if rng.u32(..200) == 0 {
                    publisher.do_send(Flush { within: ms(5) });
                }
                match rng.u32(..12) {
                    0..3 => publisher.do_send(MetricsChanged::new(w(100), load(rng.u64(..4)))),
                    3 => publisher.do_send(WorkerJoined { worker: w(101) }),
                    4 => publisher.do_send(WorkerLeft { worker: w(101) }),
                    _ => {}
                }
                for link in &mut links {
                    let Some(bound) = link.bound else { continue };
                    for (n, differs) in link.differs.iter_mut().enumerate() {
                        if link.log.active(n as u64 + 1) == Some(is[n]) {
                            *differs = None;
                        } else {
                            let since = now - *differs.get_or_insert(now);
                            assert!(
                                since <= bound,
                                "seed {seed}: worker {} for {since} of {bound} ms",
                                n + 1
                            );
                        }
                    }
                }
                sleep(ms(1)).await;
                settle().await;
                for link in &mut links {
                    for (n, differs) in link.differs.iter_mut().enumerate() {
                        if link.log.active(n as u64 + 1) == Some(is[n]) {
                            *differs = None;
                        }
                    }
                }
            }
            sleep(ms(20_000)).await;
            for link in links.iter().filter(|link| link.bound.is_some()) {
                for (n, is) in is.iter().enumerate() {
                    assert_eq!(link.log.active(n as u64 + 1), Some(*is), "seed {seed}");
                }
            }
            let stats = stats(&publisher).await;
            assert_eq!(
                stats.received,
                stats.rejected + stats.late + stats.unchanged + stats.changed
            );
        });
    }
}

/// Threads that report, and make and drop reporters, while the publisher ends on an arbiter that is held up now and then.
#[test]
fn g9_no_thread_is_told_ok_for_ever_by_a_publisher_that_ended() {
    for round in 0..40u64 {
        let system = System::new();
        let arbiter = Arbiter::new();
        let (tell, told) = std::sync::mpsc::channel();
        arbiter.spawn_fn(move || {
            let _ = tell.send(publisher(Coalescing::default()));
        });
        let publisher = told.recv().unwrap();
        let threads: Vec<_> = (0..4u64)
            .map(|thread| {
                let publisher = publisher.clone();
                std::thread::spawn(move || {
                    let reporter = MetricsReporter::new(&publisher, thread);
                    let began = clock::Instant::now();
                    let mut taken = 0;
                    loop {
                        let fresh = MetricsReporter::new(&publisher, 100 + thread);
                        let ok = fresh.report(load(taken)).is_ok();
                        drop(fresh);
                        match reporter.report(load(taken)) {
                            Ok(()) => taken += 1,
                            Err(error) => {
                                assert_eq!(error, ReportError::PublisherGone, "after {ok}");
                                break;
                            }
                        }
                        assert!(began.elapsed() < Duration::from_secs(20), "{taken} taken");
                    }
                    for n in 0..1_000 {
                        assert_eq!(reporter.report(load(n)), Err(ReportError::PublisherGone));
                    }
                    // One that is made while the mailbox goes is told a moment later.
                    let late = MetricsReporter::new(&publisher, 200 + thread);
                    let made = clock::Instant::now();
                    while late.report(load(1)).is_ok() {
                        assert!(made.elapsed() < Duration::from_secs(5), "told");
                        std::thread::yield_now();
                    }
                    for n in 0..1_000 {
                        assert_eq!(late.report(load(n)), Err(ReportError::PublisherGone));
                    }
                })
            })
            .collect();
        std::thread::sleep(ms(round % 5));
        arbiter.spawn_fn(move || std::thread::sleep(ms(round % 3)));
        match round % 3 {
            0 => publisher.do_send(StopIt),
            1 => publisher.do_send(PanicIt),
            _ => {
                arbiter.stop();
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(!publisher.connected());
        arbiter.stop();
        arbiter.join().unwrap();
        drop(system);
    }
}
