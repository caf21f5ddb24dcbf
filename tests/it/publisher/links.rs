//! A publisher and its routers: slow, silent, refusing, dying, flooded, late, and several at once.

use std::{
    cell::Cell,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::support::{publishers::*, *};
use actix_kv_metrics::{
    AttachRouter, DetachRouter, LoadSnapshot, MetricsChanged, PublisherActor, SnapshotAck,
    SnapshotKind, SnapshotRejected,
    actix::{
        Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Message,
        ResponseActFuture, Supervised, Supervisor, System, clock, fut::wrap_future,
    },
};

// One in flight.

#[test]
fn g7_a_slow_router_gets_fewer_and_larger_snapshots() {
    virtual_time(async {
        let publisher = publisher(windows(1, 10));
        let slow = Answer::ApplyAfter(ms(40));
        let log = attach_answering(&publisher, [Answer::Apply], slow)
            .await
            .log;
        for worker in 0..3 {
            publisher.do_send(MetricsChanged::new(worker, load(0)));
        }
        settle().await;
        // The first one went alone, the others waited for its answer.
        assert_eq!(
            log.take(),
            [delta(0, &[(0, 0)]), delta(0, &[(1, 0), (2, 0)])]
        );
        for step in 1..=200 {
            report(&publisher, step % 3, step).await;
            sleep(ms(1)).await;
        }
        sleep(ms(200)).await;
        let expected = [
            delta(40, &[(0, 39), (1, 40), (2, 38)]),
            delta(80, &[(0, 78), (1, 79), (2, 80)]),
            delta(120, &[(0, 120), (1, 118), (2, 119)]),
            delta(160, &[(0, 159), (1, 160), (2, 158)]),
            delta(201, &[(0, 198), (1, 199), (2, 200)]),
        ];
        let seen = log.take();
        assert_eq!(seen.len(), expected.len(), "{seen:?}");
        for (seen, expected) in seen.iter().zip(&expected) {
            assert_eq!(seen.loads.len(), 3);
            assert!(seen.at.abs_diff(expected.at) <= 1, "{seen:?}");
        }
        assert_eq!(seen[4].loads, expected[4].loads);
        assert_eq!(stats(&publisher).await.links[0].delivery.failures, 0);
    });
}

#[test]
fn g7_a_silent_router_holds_its_link_and_nothing_else() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let silent = attach_answering(&publisher, [], Answer::Silent).await;
        let log = attach(&publisher).await;
        report(&publisher, 1, 1).await;
        report(&publisher, 1, 2).await;
        sleep(ms(5_000)).await;
        assert_eq!(silent.log.take(), [delta(0, &[(1, 1)])]);
        assert_eq!(log.take(), [delta(0, &[(1, 1)]), delta(10, &[(1, 2)])]);
        let pending = pending(&publisher).await;
        assert_eq!(pending.links[0].in_flight_for, Some(ms(5_000)));
        assert_eq!(pending.links[0].windows, 1);
        assert_eq!(pending.links[0].ages, [(w(1), ms(5_000))]);
        assert_eq!(pending.links[1].in_flight_for, None);
        assert!(!pending.timer_armed);
    });
}

#[test]
fn g7_an_answer_is_heard_though_another_router_is_silent_and_nothing_else_happens() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let silent = attach_answering(&publisher, [], Answer::Silent).await;
        let log = attach(&publisher).await;
        report(&publisher, 1, 0).await;
        report(&publisher, 2, 0).await;
        settle().await;
        log.take();
        // The timer sends the first load; the second one's window ends while that is in flight.
        report(&publisher, 1, 1).await;
        sleep(ms(5)).await;
        report(&publisher, 2, 2).await;
        sleep(ms(500)).await;
        assert_eq!(log.take(), [delta(10, &[(1, 1)]), delta(15, &[(2, 2)])]);
        assert_eq!(pending(&publisher).await.links[1].in_flight_for, None);
        assert_eq!(silent.log.snapshots(), 1);
    });
}

// Refusals.

#[test]
fn g8_a_refusing_router_is_asked_again_after_a_growing_pause_with_the_newest_value() {
    virtual_time(async {
        let publisher = publisher(windows(1, 10));
        let script = [Answer::Apply].into_iter().chain([Answer::Refuse; 5]);
        let log = attach_answering(&publisher, script, Answer::Apply)
            .await
            .log;
        report(&publisher, 1, 0).await;
        settle().await;
        for step in 1..=300 {
            report(&publisher, 1, step).await;
            sleep(ms(1)).await;
        }
        sleep(ms(20)).await;
        // Refused at 1, 11, 31, 71 and 151; taken at 231.
        let mut expected = vec![delta(0, &[(1, 0)])];
        expected.extend((231..300).step_by(2).map(|at| delta(at, &[(1, at + 1)])));
        assert_eq!(log.take(), expected);
        let delivery = stats(&publisher).await.links[0].delivery;
        assert_eq!((delivery.failures, delivery.retries), (5, 5));
        assert_eq!(log.active(1), Some(300));
    });
}

#[test]
fn g8_a_router_that_always_refuses_is_never_asked_in_a_loop_and_loses_nothing() {
    virtual_time(async {
        let publisher = publisher(windows(1, 10));
        let refusing = attach_answering(&publisher, [], Answer::Refuse).await;
        report(&publisher, 1, 1).await;
        sleep(ms(10_000)).await;
        let stats = stats(&publisher).await;
        let delivery = stats.links[0].delivery;
        // 10 + 20 + 40, then one each 80 ms.
        assert_eq!(delivery.failures, 4 + (10_000 - 150) / 80 + 1);
        assert_eq!(stats.timer.fires, delivery.retries);
        assert_eq!(live_timers(&stats), 1);
        publisher.send(DetachRouter(refusing.link)).await.unwrap();
        assert!(!pending(&publisher).await.timer_armed);
    });
}

#[test]
fn need_full_and_superseded() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let script = [Answer::Apply, Answer::NeedFull, Answer::Superseded];
        let log = attach_answering(&publisher, script, Answer::Apply)
            .await
            .log;
        report(&publisher, 1, 0).await;
        report(&publisher, 2, 5).await;
        settle().await;
        report(&publisher, 1, 1).await;
        sleep(ms(100)).await;
        let everything = [(1, 1), (2, 5)];
        let expected = [
            delta(0, &[(1, 0)]),
            delta(0, &[(2, 5)]),
            full(0, &[(1, 0), (2, 5)]),
            full(10, &everything),
        ];
        assert_eq!(log.take(), expected);
    });
}

// Late joiners and replacements.

#[test]
fn g10_a_router_attached_late_gets_everything_at_once() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        for worker in 0..5 {
            report(&publisher, worker, worker).await;
        }
        report(&publisher, 1, 9).await;
        let log = LogHandle::new();
        let router = Recorder::new(&log).start();
        attach_router(&publisher, &router).await;
        sleep(ms(1_000)).await;
        let everybody = [(0, 0), (1, 9), (2, 2), (3, 3), (4, 4)];
        assert_eq!(log.take(), [full(0, &everybody)]);
        assert_eq!(stats(&publisher).await.timer.arms, 0, "nobody to wait for");
    });
}

#[test]
fn g10_attaching_a_router_again_keeps_its_link_and_tells_it_everything() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let one = attach_answering(&publisher, [], Answer::Apply).await;
        report(&publisher, 1, 5).await;
        settle().await;
        report(&publisher, 1, 6).await;
        let again = AttachRouter::new(one.router.clone().recipient());
        let link = publisher.send(again.coalescing(windows(30, 300))).await;
        assert_eq!(link.unwrap(), one.link);
        settle().await;
        report(&publisher, 1, 7).await;
        sleep(ms(100)).await;
        let expected = [
            delta(0, &[(1, 5)]),
            full(0, &[(1, 6)]),
            delta(30, &[(1, 7)]),
        ];
        assert_eq!(one.log.take(), expected);
        assert_eq!(stats(&publisher).await.links.len(), 1);
    });
}

#[test]
fn g9_a_router_that_died_is_lost_and_its_replacement_gets_the_newest() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let first = attach_answering(&publisher, [], Answer::Apply).await;
        report(&publisher, 1, 5).await;
        settle().await;
        first.router.send(StopIt).await.unwrap();
        settle().await;
        report(&publisher, 1, 6).await;
        sleep(ms(20)).await;
        let pending = pending(&publisher).await;
        assert!(pending.links[0].lost && !pending.timer_armed);
        report(&publisher, 1, 7).await;
        let log = LogHandle::new();
        let second = Recorder::new(&log).start();
        let link = attach_router(&publisher, &second).await;
        assert_ne!(link, first.link);
        sleep(ms(20)).await;
        report(&publisher, 1, 8).await;
        sleep(ms(20)).await;
        assert_eq!(log.take(), [full(0, &[(1, 7)]), delta(30, &[(1, 8)])]);
        assert_eq!(first.log.take(), [delta(0, &[(1, 5)])]);
        assert_eq!(stats(&publisher).await.links[0].delivery.failures, 1);
        assert!(publisher.connected());
    });
}

#[test]
fn a_router_that_panics_is_lost_while_its_snapshot_is_in_flight() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let one = attach_answering(&publisher, [Answer::Panic], Answer::Apply).await;
        let log = attach(&publisher).await;
        report(&publisher, 1, 5).await;
        sleep(ms(100)).await;
        assert!(pending(&publisher).await.links[0].lost);
        assert!(!one.router.connected());
        assert_eq!(log.take(), [delta(0, &[(1, 5)])]);
    });
}

/// A router whose answers die with it when its supervisor starts it again.
struct Mortal {
    log: LogHandle,
    answers_after: u64,
}

impl Actor for Mortal {
    type Context = Context<Self>;
}

impl Supervised for Mortal {}

impl Handler<LoadSnapshot> for Mortal {
    type Result = ResponseActFuture<Self, Result<SnapshotAck, SnapshotRejected>>;

    fn handle(&mut self, snapshot: LoadSnapshot, _: &mut Context<Self>) -> Self::Result {
        self.log.record(snapshot);
        let pause = sleep(ms(self.answers_after));
        Box::pin(wrap_future::<_, Self>(pause).map(|(), _, _| Ok(SnapshotAck::Applied)))
    }
}

impl Handler<StopIt> for Mortal {
    type Result = ();

    fn handle(&mut self, _: StopIt, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}

#[test]
fn g9_a_router_that_restarts_under_a_supervisor_gets_again_what_was_in_flight() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let log = LogHandle::new();
        let mortal = Mortal {
            log: log.clone(),
            answers_after: 5,
        };
        let router = Supervisor::start(|_| mortal);
        let attach = AttachRouter::new(router.clone().recipient());
        publisher.send(attach).await.unwrap();
        sleep(ms(20)).await;
        report(&publisher, 1, 5).await;
        sleep(ms(2)).await;
        router.do_send(StopIt);
        sleep(ms(100)).await;
        let expected = [full(0, &[]), delta(20, &[(1, 5)]), delta(32, &[(1, 5)])];
        assert_eq!(log.take(), expected);
        let stats = stats(&publisher).await;
        assert_eq!(stats.links[0].delivery.failures, 1);
        assert!(router.connected());
    });
}

// Detach.

#[test]
fn a_detached_router_is_told_closed_and_nothing_more() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let one = attach_answering(&publisher, [], Answer::Apply).await;
        let log = attach(&publisher).await;
        report(&publisher, 1, 5).await;
        settle().await;
        report(&publisher, 1, 6).await;
        assert!(publisher.send(DetachRouter(one.link)).await.unwrap());
        assert!(!publisher.send(DetachRouter(one.link)).await.unwrap());
        sleep(ms(100)).await;
        let closed = seen(0, Kind::Closed, &[], &[]);
        assert_eq!(one.log.take(), [delta(0, &[(1, 5)]), closed]);
        assert_eq!(one.log.workers(), [0; 0]);
        let raw = one.log.take_raw();
        assert!(raw[1].sequence > raw[0].sequence);
        assert_eq!(log.take(), [delta(0, &[(1, 5)]), delta(10, &[(1, 6)])]);
        // Its number is not given out again.
        let link = attach_router(&publisher, &one.router).await;
        assert!(link > one.link);
    });
}

#[test]
fn a_detached_router_does_not_read_what_was_on_its_way() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let one = attach_answering(&publisher, [], Answer::Apply).await;
        hold_up(&one.router, ms(50));
        settle().await;
        report(&publisher, 1, 5).await;
        settle().await;
        publisher.send(DetachRouter(one.link)).await.unwrap();
        sleep(ms(100)).await;
        assert_eq!(one.log.take(), [seen(50, Kind::Closed, &[], &[])]);
    });
}

// Several routers.

#[test]
fn g14_four_links_keep_their_own_windows_and_all_their_answers_are_heard() {
    virtual_time(async {
        let publisher = publisher(windows(1, 10));
        let mut logs = Vec::new();
        for debounce in [1, 5, 20, 50] {
            let log = LogHandle::new();
            let slow = Answer::ApplyAfter(ms(1));
            let router = Recorder::answering(&log, [], slow).start();
            let attach = AttachRouter::new(router.recipient());
            let own = windows(debounce, debounce * 2);
            publisher.send(attach.coalescing(own)).await.unwrap();
            logs.push(log);
        }
        report(&publisher, 1, 0).await;
        sleep(ms(10)).await;
        for step in 1..=1_000 {
            publisher.do_send(MetricsChanged::new(1, load(step)));
            sleep(ms(1)).await;
        }
        sleep(ms(200)).await;
        let counts: Vec<_> = logs.iter().map(LogHandle::snapshots).collect();
        // Never quiet for 5, 20, 50 ms: one each cap. At 1 ms every change is published, or every other.
        for (count, cap) in counts.iter().zip([2, 10, 40, 100]).skip(1) {
            let right = 1_000 / cap;
            assert!(
                (right - right / 8..=right + 5).contains(count),
                "{counts:?}"
            );
        }
        assert!((300..=1_002).contains(&counts[0]), "{counts:?}");
        assert!(logs.iter().all(|log| log.active(1) == Some(1_000)));
        let stats = stats(&publisher).await;
        for link in &stats.links {
            assert_eq!(link.delivery.acknowledged, link.delivery.snapshots);
            assert_eq!(link.windows.changed, 1_001);
            assert_eq!(
                link.windows.changed,
                link.windows.opened + link.windows.coalesced
            );
        }
        assert_eq!(live_timers(&stats), 0);
    });
}

#[test]
fn sequences_grow_over_all_links_and_each_delta_names_its_own_links_last() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let one = attach(&publisher).await;
        let other = attach(&publisher).await;
        for value in 1..=4 {
            report(&publisher, 1, value).await;
            sleep(ms(20)).await;
        }
        let (one, other) = (one.take_raw(), other.take_raw());
        let mut sequences: Vec<_> = one.iter().chain(&other).map(|s| s.sequence).collect();
        sequences.sort_unstable();
        assert_eq!(sequences, [3, 4, 5, 6, 7, 8, 9, 10]);
        for (link, first) in [(one, 1), (other, 2)] {
            let mut last = first;
            for snapshot in link {
                assert_eq!(snapshot.kind, SnapshotKind::Delta { after: last });
                last = snapshot.sequence;
            }
        }
    });
}

// Floods.

#[test]
fn g7_a_router_whose_small_mailbox_is_flooded_by_others_still_gets_one_at_a_time() {
    virtual_time(async {
        let publisher = publisher(windows(1, 10));
        let one = attach_answering(&publisher, [], Answer::Apply).await;
        one.router.send(Capacity(1)).await.unwrap();
        let stop = Rc::new(Cell::new(false));
        for _ in 0..20 {
            let (router, stop) = (one.router.clone(), stop.clone());
            actix_rt::spawn(async move {
                while !stop.get() {
                    let _ = router.send(Block(ms(1))).await;
                }
            });
        }
        report(&publisher, 1, 0).await;
        for step in 1..=500 {
            report(&publisher, 1, step).await;
            sleep(ms(1)).await;
        }
        sleep(ms(60)).await;
        stop.set(true);
        let seen = one.log.take();
        // 21 senders take turns of 1 ms each.
        assert!((15..=40).contains(&seen.len()), "{}", seen.len());
        let longest = seen.windows(2).map(|pair| pair[1].at - pair[0].at).max();
        assert!(longest <= Some(45), "{longest:?}");
        assert_eq!(one.log.active(1), Some(500));
        assert_eq!(stats(&publisher).await.links[0].delivery.failures, 0);
        sleep(ms(100)).await;
    });
}

/// Counts how often it gets a turn, and wants one always.
async fn count_turns(turns: Rc<Cell<u64>>) {
    std::future::poll_fn(|task| {
        turns.set(turns.get() + 1);
        task.waker().wake_by_ref();
        std::task::Poll::<()>::Pending
    })
    .await;
}

#[test]
fn g14_a_burst_starves_neither_answers_nor_neighbours() {
    virtual_time(async {
        let publisher = publisher(windows(0, 0));
        let log = attach(&publisher).await;
        let turns = Rc::new(Cell::new(0));
        let neighbour = actix_rt::spawn(count_turns(turns.clone()));
        for value in 1..=25_600 {
            publisher.do_send(MetricsChanged::new(1, load(value)));
        }
        let before = turns.get();
        // A barrier behind the burst.
        let stats = stats(&publisher).await;
        neighbour.abort();
        let got = turns.get() - before;
        // Of the publisher's 100 turns each ends with a look of tokio's at its timers, up to 61 turns of who wants one always.
        assert!((100..=6_200).contains(&got), "{got} turns");
        // Every change is due at once, so every turn in which an answer is heard sends one more.
        let sent = stats.links[0].delivery.snapshots;
        assert!((25..=102).contains(&sent), "{sent} snapshots");
        settle().await;
        assert_eq!(log.active(1), Some(25_600));
    });
}

/// Reports without end, from within the publisher's own mailbox.
struct Feed {
    value: u64,
    /// It ends by itself even if nobody gets a turn to stop it.
    until: clock::Instant,
    stop: Arc<AtomicBool>,
}

impl Message for Feed {
    type Result = ();
}

impl Handler<Feed> for PublisherActor {
    type Result = ();

    fn handle(&mut self, msg: Feed, ctx: &mut Context<Self>) {
        if !msg.stop.load(Ordering::Relaxed) && clock::Instant::now() < msg.until {
            let me = ctx.address();
            me.do_send(MetricsChanged::new(1, load(msg.value % 1_000)));
            me.do_send(Feed {
                value: msg.value + 1,
                ..msg
            });
        }
    }
}

/// In real time: a mailbox that never runs dry leaves a paused clock where it is.
#[test]
fn g14_a_mailbox_that_never_runs_dry_starves_nobody() {
    System::new().block_on(async {
        let publisher = publisher(windows(5, 20));
        let log = attach(&publisher).await;
        report(&publisher, 2, 0).await;
        let stop = Arc::new(AtomicBool::new(false));
        publisher.do_send(Feed {
            value: 0,
            until: clock::Instant::now() + ms(3_000),
            stop: stop.clone(),
        });
        let start = clock::Instant::now();
        report(&publisher, 2, 7).await;
        while log.active(2) != Some(7) && start.elapsed() < ms(5_000) {
            tokio::task::yield_now().await;
        }
        let took = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        assert!(took >= ms(5) && took < ms(1_000), "{took:?}");
        assert!(publisher.connected());
    });
}

#[test]
fn a_router_that_is_gone_is_lost_though_an_answer_of_its_hangs_on() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let gone = attach_answering(&publisher, [], Answer::Silent).await;
        report(&publisher, 1, 1).await;
        settle().await;
        assert!(pending(&publisher).await.links[0].in_flight_for.is_some());
        gone.router.do_send(StopIt);
        settle().await;
        assert!(!gone.router.connected());
        report(&publisher, 1, 2).await;
        settle().await;
        let link = &pending(&publisher).await.links[0];
        assert!(link.lost && link.in_flight_for.is_none(), "{link:?}");
        assert!(publisher.connected());
    });
}
