//! Faults of workers: panicking, flapping, coming back while their last words are on the way, two reporters for one, and
//! plain messages beside a reporter. And what toggles faster than anybody wants to know.

use crate::support::{faults::*, publishers::*, *};
use actix_kv_metrics::{
    Flush, MetricsChanged, MetricsReporter, PublisherActor, ReportError, SelectWorker, Shutdown,
    WorkerJoined, WorkerLeft,
    actix::{Actor, Addr, Context, Handler, Message},
};

/// A worker actor that reports what it is told, or panics.
struct Worker(MetricsReporter);

impl Actor for Worker {
    type Context = Context<Self>;
}

struct Work(u64);

impl Message for Work {
    type Result = ();
}

impl Handler<Work> for Worker {
    type Result = ();

    fn handle(&mut self, work: Work, _: &mut Context<Self>) {
        assert!(work.0 < 1_000, "too much, as told");
        // An error would show in the router's table.
        let _ = self.0.report(load(work.0));
    }
}

fn worker(publisher: &Addr<PublisherActor>, id: u64) -> Addr<Worker> {
    Worker(MetricsReporter::new(publisher, id)).start()
}

async fn flushed(publisher: &Addr<PublisherActor>) -> bool {
    let flush = publisher.send(Flush { within: ms(100) });
    flush.await.unwrap().is_complete()
}

/// Long enough for an answer.
async fn turn() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

/// Worker actors that panic with something to say, at each delay of the router; each is gone at once, and its successor
/// begins anew.
#[test]
fn g13_workers_that_panic_are_gone_and_their_successors_begin_anew() {
    virtual_time(async {
        for answer in [0, 3, 20] {
            let publisher = publisher(windows(5, 20));
            let router = router();
            attach_real(&publisher, &router).await;
            let slow = Answer::ApplyAfter(ms(answer));
            let one = attach_answering(&publisher, [], slow).await;
            let steady = worker(&publisher, 0);
            steady.do_send(Work(7));
            for round in 0..50 {
                let fragile = worker(&publisher, 1);
                fragile.do_send(Work(round));
                sleep(ms(round % 4)).await;
                fragile.do_send(Work(round + 100));
                fragile.do_send(Work(1_000));
                sleep(ms(round % 3)).await;
                settle().await;
                assert_eq!(table(&router).await, table_of(&[(0, 7)]), "{round}");
                let chosen = router.send(SelectWorker::blocks(1)).await.unwrap();
                assert_eq!(chosen.unwrap().worker(), w(0));
            }
            sleep(ms(200)).await;
            assert_eq!(one.log.workers(), [0]);
            // A life is its announcement, two values and its departure at most.
            assert!(one.log.snapshots() <= 4 * 50 + 2, "{}", one.log.snapshots());
            let last = worker(&publisher, 1);
            last.do_send(Work(9));
            assert!(flushed(&publisher).await);
            settle().await;
            assert!(flushed(&publisher).await);
            assert_eq!(table(&router).await, table_of(&[(0, 7), (1, 9)]));
            assert!(steady.connected() && last.connected());
        }
    });
}

/// Leaves and joins with every message of one burst: the router hears of next to nothing, and the end is right.
#[test]
fn g7_a_worker_that_flaps_with_every_message_of_a_burst_is_told_once_a_turn() {
    virtual_time(async {
        for present in [true, false] {
            let publisher = publisher(windows(5, 20));
            let log = attach(&publisher).await;
            report(&publisher, 1, 0).await;
            settle().await;
            for flap in 1..=10_000 {
                publisher.do_send(WorkerLeft { worker: w(1) });
                publisher.do_send(WorkerJoined { worker: w(1) });
                publisher.do_send(MetricsChanged::new(1, load(flap)));
            }
            if !present {
                publisher.do_send(WorkerLeft { worker: w(1) });
            }
            sleep(ms(100)).await;
            // 30,000 messages are 118 turns of 256, and after each turn an answer may have come.
            let seen = log.take().len();
            assert!(seen <= 125, "{seen}");
            assert_eq!(log.active(1), present.then_some(10_000));
            assert_eq!(live_timers(&stats(&publisher).await), 0);
        }
    });
}

/// Leaves and joins ten times a millisecond for a second, and each time the router answers in between. Its first return is
/// told at once; a life that begins right after such a return waits for its window, and ends before it is due.
#[test]
fn g7_a_worker_that_flaps_between_answers_is_not_told_of_each_time() {
    virtual_time(async {
        let publisher = publisher(windows(5, 20));
        let log = attach(&publisher).await;
        let slow = Answer::ApplyAfter(ms(10));
        let slow = attach_answering(&publisher, [], slow).await;
        let mut reporter = None;
        for flap in 0..10_000 {
            reporter = match reporter {
                None => {
                    let reporter = MetricsReporter::new(&publisher, 1);
                    reporter.report(load(flap % 1_000)).unwrap();
                    Some(reporter)
                }
                Some(_) => None,
            };
            turn().await;
            if flap % 10 == 9 {
                sleep(ms(1)).await;
            }
        }
        sleep(ms(100)).await;
        // The full one, and announced, first value, departure, twice.
        assert!(log.snapshots() <= 7, "{}", log.snapshots());
        assert!(slow.log.snapshots() <= 7, "{}", slow.log.snapshots());
        assert_eq!(log.workers(), [0; 0]);
        assert_eq!(slow.log.workers(), [0; 0]);
        assert_eq!(live_timers(&stats(&publisher).await), 0);
    });
}

/// Comes back under its id while its last report is in a window, in flight, refused, or unanswered, by each way to come
/// back; its former life is over, whatever arrives when.
#[test]
fn g13_a_worker_that_comes_back_while_its_last_report_is_on_the_way_begins_a_new_life() {
    let answers = [
        Answer::Apply,
        Answer::ApplyAfter(ms(15)),
        Answer::Refuse,
        Answer::NeedFull,
        Answer::Superseded,
    ];
    virtual_time(async {
        for answer in answers {
            for moment in [0, 3, 5, 8, 12, 25] {
                for way in 0..4 {
                    let publisher = publisher(windows(5, 20));
                    let script = [Answer::Apply, Answer::Apply, answer];
                    let one = attach_answering(&publisher, script, Answer::Apply).await;
                    let first = MetricsReporter::new(&publisher, 1);
                    first.report(load(1)).unwrap();
                    sleep(ms(1)).await;
                    first.report(load(2)).unwrap();
                    sleep(ms(moment)).await;
                    one.log.take_raw();
                    // Said to have left, dropped, taken over, or both at once.
                    let second = match way {
                        0 => {
                            publisher.do_send(WorkerLeft { worker: w(1) });
                            MetricsReporter::new(&publisher, 1)
                        }
                        1 => {
                            drop(first);
                            MetricsReporter::new(&publisher, 1)
                        }
                        2 => MetricsReporter::new(&publisher, 1),
                        _ => {
                            let second = MetricsReporter::new(&publisher, 1);
                            drop(first);
                            second
                        }
                    };
                    settle().await;
                    second.report(load(3)).unwrap();
                    sleep(ms(200)).await;
                    let case = format!("{answer:?} {moment} {way}");
                    assert_eq!(one.log.active(1), Some(3), "{case}");
                    let told = one.log.take_raw();
                    let lives: Vec<_> = told
                        .iter()
                        .flat_map(|it| it.workers.iter().map(|load| load.life))
                        .collect();
                    assert!(lives.is_sorted(), "{case}: {lives:?}");
                    assert!(told.len() <= 6, "{case}: {told:?}");
                    assert_eq!(pending(&publisher).await.links[0].windows, 0);
                }
            }
        }
    });
}

/// Two reporters for one worker, which take turns and take over from each other: only the newer one is heard, the older
/// one is told, and dropping it is no departure.
#[test]
fn g13_of_two_reporters_only_the_newer_one_is_heard_and_the_older_one_is_told() {
    virtual_time(async {
        let publisher = publisher(windows(2, 8));
        let router = router();
        attach_real(&publisher, &router).await;
        let mut older = MetricsReporter::new(&publisher, 1);
        for round in 0..100 {
            older.report(load(round)).unwrap();
            let newer = MetricsReporter::new(&publisher, 1);
            if round % 3 == 0 {
                newer.report(load(500 + round)).unwrap();
            }
            // On its way already, or not: it may say so late, but it never counts.
            let told = older.report(load(900)).is_err();
            settle().await;
            assert_eq!(older.report(load(901)), Err(ReportError::LifeEnded));
            assert!(told || round < 100);
            newer.report(load(600 + round)).unwrap();
            assert!(flushed(&publisher).await);
            assert_eq!(table(&router).await, table_of(&[(1, 600 + round)]));
            drop(older);
            settle().await;
            assert_eq!(table(&router).await, table_of(&[(1, 600 + round)]));
            older = newer;
            sleep(ms(round % 3)).await;
        }
        drop(older);
        settle().await;
        assert!(table(&router).await.is_empty());
        let stats = stats(&publisher).await;
        let reports = stats.rejected + stats.late + stats.unchanged + stats.changed;
        assert_eq!(stats.received, reports);
        assert!(stats.links[0].delivery.snapshots <= 400);
    });
}

/// Plain messages beside a reporter: a report travels in the place of the one it was joined to, so within one turn the
/// order of the two is not that of sending. What is said in different turns is in order, and what is invalid does nothing.
#[test]
fn plain_messages_beside_a_reporter_are_in_order_between_turns_and_either_within_one() {
    virtual_time(async {
        let publisher = publisher(windows(2, 8));
        let router = router();
        attach_real(&publisher, &router).await;
        let reporter = MetricsReporter::new(&publisher, 1);
        let is = async |active| {
            assert!(flushed(&publisher).await);
            assert_eq!(table(&router).await, table_of(&[(1, active)]));
        };
        reporter.report(load(5)).unwrap();
        publisher.do_send(MetricsChanged::new(1, load(6)));
        is(6).await;
        reporter.report(load(7)).unwrap();
        is(7).await;
        publisher.do_send(MetricsChanged::new(1, load(8)));
        reporter.report(load(9)).unwrap();
        is(9).await;
        reporter.report(load(10)).unwrap();
        publisher.do_send(MetricsChanged::new(1, load(11)));
        reporter.report(load(12)).unwrap();
        assert!(flushed(&publisher).await);
        let has = table(&router).await[&w(1)];
        assert!(has == Some(11) || has == Some(12), "{has:?}");
        let bad = load(13).with_gpu_cache_usage_perc(f32::NAN);
        assert!(reporter.report(bad.clone()).is_err());
        let refused = publisher.send(MetricsChanged::new(1, bad)).await.unwrap();
        assert!(refused.is_err());
        reporter.report(load(14)).unwrap();
        is(14).await;
        // A plain departure ends the life of the reporter too; a plain report begins one that is not the reporter's.
        publisher.do_send(WorkerLeft { worker: w(1) });
        publisher.do_send(MetricsChanged::new(1, load(15)));
        settle().await;
        assert_eq!(reporter.report(load(16)), Err(ReportError::LifeEnded));
        is(15).await;
        drop(reporter);
        is(15).await;
        publisher.send(WorkerLeft { worker: w(1) }).await.unwrap();
        settle().await;
        assert!(table(&router).await.is_empty());
    });
}

/// A load that jumps across the threshold and back every 0.1 ms for a second, answered each time: at random, because what
/// toggles in step with the ticks is the same at each of them.
#[test]
fn g12_a_load_that_jumps_across_the_threshold_is_told_twice_in_max_delay_at_most() {
    virtual_time(async {
        for (workers, most) in [(1, 220), (10, 1_100)] {
            // Longer than the millisecond between two bursts, which would be quiet enough for the default.
            let settings = unpaced().debounce(ms(2)).saturation(0.9).build();
            let publisher = publisher(settings.unwrap());
            let log = attach(&publisher).await;
            let mut rng = fastrand::Rng::with_seed(workers);
            for jump in 0..10_000 {
                for worker in 1..=workers {
                    let active = if rng.bool() { 950 } else { 100 };
                    publisher.do_send(MetricsChanged::new(worker, load(active)));
                }
                turn().await;
                if jump % 10 == 9 {
                    sleep(ms(1)).await;
                }
            }
            let seen = log.snapshots();
            assert!((90..=most).contains(&seen), "{workers}: {seen}");
            for worker in 1..=workers {
                publisher.do_send(MetricsChanged::new(worker, load(100)));
            }
            assert!(flushed(&publisher).await);
            assert!((1..=workers).all(|worker| log.active(worker) == Some(100)));
        }
    });
}

/// A shutdown while workers flap and panic: everybody is told, and the end is one of what they said.
#[test]
fn a_shutdown_among_flapping_workers_ends_complete() {
    virtual_time(async {
        for flaps in 0..8 {
            let publisher = publisher(windows(5, 20));
            let router = router();
            attach_real(&publisher, &router).await;
            let mut last = None;
            for flap in 0..=flaps {
                let worker = worker(&publisher, 1);
                worker.do_send(Work(flap));
                settle().await;
                if flap < flaps {
                    worker.do_send(Work(1_000));
                }
                last = Some(worker);
            }
            let within = ms(100);
            let report = publisher.send(Shutdown { within }).await.unwrap();
            assert!(report.is_complete());
            drop(last);
            settle().await;
            assert_eq!(table(&router).await, table_of(&[(1, flaps)]));
            assert!(!publisher.connected());
        }
    });
}
