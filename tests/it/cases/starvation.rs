//! Kind "starvation": whatever goes on, what is due gets out.

use std::{sync::Arc, time::Duration};

use crate::support::{faults::*, publishers::*, *};
use actix_kv_metrics::{
    Candidates, Coalescing, DetachRouter, Flush, GetPending, GetPublisherStats, LinkId,
    MetricsChanged, PublisherActor, SelectWorker, WorkerJoined, WorkerLeft,
    actix::{Addr, AsyncContext, Context, Handler, Message, System, clock},
};

/// Reports worker 1 every millisecond with values that grow.
async fn busy(publisher: &Addr<PublisherActor>, changes: u64) {
    for step in 1..=changes {
        report(publisher, 1, step).await;
        sleep(ms(1)).await;
    }
}

async fn known(coalescing: Coalescing) -> (Addr<PublisherActor>, LogHandle) {
    let publisher = publisher(coalescing);
    let log = attach(&publisher).await;
    report(&publisher, 1, 0).await;
    settle().await;
    log.take();
    (publisher, log)
}

/// Case 4, no cap by configuration.
#[test]
fn case_4_without_a_cap_a_busy_worker_is_published_once_when_it_is_quiet() {
    virtual_time(async {
        let settings = unpaced().debounce(ms(5)).max_delay(Duration::MAX).build();
        let (publisher, log) = known(settings.unwrap()).await;
        busy(&publisher, 300).await;
        sleep(ms(100)).await;
        assert_eq!(log.take(), [delta(304, &[(1, 300)])]);
    });
}

/// Case 4, with a cap.
#[test]
fn case_4_with_a_cap_a_busy_worker_is_published_each_time_it_is_up() {
    virtual_time(async {
        let (publisher, log) = known(windows(5, 30)).await;
        busy(&publisher, 300).await;
        sleep(ms(100)).await;
        let seen = log.take();
        assert!((8..=11).contains(&seen.len()), "{seen:?}");
        let gaps = seen.windows(2).map(|pair| pair[1].at - pair[0].at);
        assert!(gaps.max() <= Some(32), "{seen:?}");
        assert_eq!(seen.last(), Some(&delta(304, &[(1, 300)])));
    });
}

#[test]
fn case_5_a_cap_as_long_as_the_quiet_time_is_not_ignored() {
    virtual_time(async {
        let (publisher, log) = known(windows(5, 5)).await;
        busy(&publisher, 200).await;
        sleep(ms(50)).await;
        let seen = log.take();
        assert!((20..=41).contains(&seen.len()), "{}", seen.len());
        assert_eq!(log.active(1), Some(200));
    });
}

#[test]
fn case_7_a_departure_does_not_wait_for_the_windows_of_others() {
    virtual_time(async {
        let publisher = publisher(windows(100, 10_000));
        let log = attach(&publisher).await;
        let router = router();
        attach_real(&publisher, &router).await;
        for worker in 1..=4 {
            report(&publisher, worker, worker * 100).await;
        }
        settle().await;
        log.take();
        for round in 0..10 {
            report(&publisher, 2, 200 + round).await;
            report(&publisher, 3, 300 + round).await;
            if round == 5 {
                publisher.send(WorkerLeft { worker: w(1) }).await.unwrap();
                settle().await;
                for _ in 0..100 {
                    let chosen = router.send(SelectWorker::blocks(1)).await.unwrap();
                    assert_ne!(chosen.unwrap().worker(), w(1));
                }
            }
            sleep(ms(50)).await;
        }
        assert_eq!(log.take(), [left(250, &[1])]);
        sleep(ms(100)).await;
        assert_eq!(log.take(), [delta(550, &[(2, 209), (3, 309)])]);
    });
}

/// Not listed: urgent news of others, every millisecond, is no reason to keep an ordinary window open.
#[test]
fn urgent_news_of_others_every_millisecond_postpones_no_window() {
    virtual_time(async {
        let (publisher, log) = known(windows(10, 100)).await;
        report(&publisher, 1, 7).await;
        for step in 0..50 {
            report(&publisher, 100 + step, 1).await;
            if step % 2 == 1 {
                let worker = w(100 + step);
                publisher.send(WorkerLeft { worker }).await.unwrap();
            }
            sleep(ms(1)).await;
        }
        let first = log
            .take()
            .into_iter()
            .find(|seen| seen.loads.contains(&(1, Some(7))));
        assert!(first.is_some_and(|seen| (10..=11).contains(&seen.at)));
    });
}

/// Not listed: a pin to a worker that reports all the time still finds it, whatever waits in its window.
#[test]
fn a_worker_that_is_never_quiet_can_be_chosen_all_the_time() {
    virtual_time(async {
        let publisher = publisher(windows(50, 500));
        let router = router();
        attach_real(&publisher, &router).await;
        for step in 1..=200 {
            report(&publisher, 1, step).await;
            settle().await;
            let pin = SelectWorker::blocks(1).among(Candidates::Rank(w(1)));
            let chosen = router.send(pin).await.unwrap().unwrap();
            assert_eq!(chosen.worker(), w(1));
            sleep(ms(1)).await;
        }
        assert!(router.connected());
    });
}

type Feeding = Arc<dyn Fn(&Addr<PublisherActor>) + Send + Sync>;

/// Keeps the mailbox from running dry with a message of one kind.
struct Feed {
    what: Feeding,
    until: clock::Instant,
}

impl Message for Feed {
    type Result = ();
}

impl Handler<Feed> for PublisherActor {
    type Result = ();

    fn handle(&mut self, msg: Feed, ctx: &mut Context<Self>) {
        if clock::Instant::now() < msg.until {
            (msg.what)(&ctx.address());
            ctx.address().do_send(msg);
        }
    }
}

/// Case 6 and its neighbours, in real time: messages that change nothing may not keep the timer from its turn either.
#[test]
fn case_6_no_kind_of_message_keeps_the_timer_from_its_turn() {
    let kinds: [(&str, Feeding); 8] = [
        (
            "the same value",
            Arc::new(|p| p.do_send(MetricsChanged::new(2, load(0)))),
        ),
        (
            "refused metrics",
            Arc::new(|p| {
                let bad = load(1).with_gpu_cache_usage_perc(f32::NAN);
                p.do_send(MetricsChanged::new(2, bad));
            }),
        ),
        (
            "unknown departures",
            Arc::new(|p| p.do_send(WorkerLeft { worker: w(99) })),
        ),
        (
            "known joins",
            Arc::new(|p| p.do_send(WorkerJoined { worker: w(2) })),
        ),
        (
            "unknown links",
            Arc::new(|p| p.do_send(DetachRouter(LinkId::new(99)))),
        ),
        ("questions", Arc::new(|p| p.do_send(GetPublisherStats))),
        ("other questions", Arc::new(|p| p.do_send(GetPending))),
        (
            "joins and departures",
            Arc::new(|p| {
                p.do_send(WorkerJoined { worker: w(50) });
                p.do_send(WorkerLeft { worker: w(50) });
            }),
        ),
    ];
    System::new().block_on(async {
        for (kind, what) in kinds {
            let publisher = publisher(windows(5, 20));
            let log = attach(&publisher).await;
            report(&publisher, 1, 0).await;
            report(&publisher, 2, 0).await;
            let start = clock::Instant::now();
            publisher.do_send(Feed {
                what,
                until: start + ms(10_000),
            });
            report(&publisher, 1, 7).await;
            while log.active(1) != Some(7) && start.elapsed() < ms(9_000) {
                tokio::task::yield_now().await;
            }
            let in_time = log.active(1) == Some(7);
            publisher.do_send(StopIt);
            // In milliseconds, but for a busy machine; starved, it would be after the flood.
            assert!(in_time, "{kind}");
        }
    });
}

/// Not listed: whoever flushes all the time gets answers, and no more snapshots than there were changes.
#[test]
fn flushes_all_the_time_send_no_more_than_was_changed() {
    virtual_time(async {
        let (publisher, log) = known(windows(50, 500)).await;
        for step in 1..=100 {
            report(&publisher, 1, step / 2).await;
            for _ in 0..3 {
                let flushed = publisher.send(Flush { within: ms(100) }).await.unwrap();
                assert!(flushed.is_complete());
            }
            sleep(ms(1)).await;
        }
        let seen = log.take();
        assert_eq!(seen.len(), 50);
        assert!(seen.iter().all(|seen| seen.loads.len() == 1));
        assert_eq!(log.active(1), Some(50));
        assert_eq!(live_timers(&stats(&publisher).await), 0);
    });
}
