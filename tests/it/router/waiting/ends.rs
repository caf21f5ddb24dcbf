//! How waiting ends without a worker, and what is left of it then: nothing.

use actix_kv_metrics::{
    RouterActor,
    actix::{Context, Handler, Message},
};

use super::*;

const SATURATED: Result<u64, SelectError> = Err(SelectError::AllSaturated);

#[test]
fn nobody_waits_longer_than_it_said_by_more_than_a_tick() {
    virtual_time(async {
        let world = World::full().await;
        for within in [0, 1, 7, 30, 7, 2_000] {
            world.ask(within as u32, request(), ms(within));
        }
        world.ask(9, request(), Duration::MAX);
        assert_eq!(world.answered().await, [(0, 0, SATURATED)]);
        sleep(ms(3_000)).await;
        let answers = world.answered().await;
        let expected = [1, 7, 7, 30, 2_000].map(|at| (at as u32, at, SATURATED));
        for ((name, at, answer), expected) in answers.iter().zip(expected) {
            assert_eq!((*name, *answer), (expected.0, expected.2));
            assert!((expected.1..=expected.1 + 1).contains(at), "{at} ms");
        }
        assert_eq!(answers.len(), 5);
        assert_eq!(counted(world.waiting().await), [6, 0, 5, 0, 0, 0, 1]);
        // In the same moment as its time is over comes room: the others have it.
        world.ask(10, request(), ms(5));
        sleep(ms(5)).await;
        world.router.delta(2, [reports(1, 495)]).await;
        let names = world
            .answered()
            .await
            .into_iter()
            .map(|(name, _, answer)| (name, answer.is_ok()));
        assert_eq!(names.collect::<Vec<_>>(), [(10, false), (9, true)]);
    });
}

#[test]
fn who_drops_the_future_waits_no_longer() {
    virtual_time(async {
        let world = World::full().await;
        let asked: Vec<_> = (0..1_024)
            .map(|name| world.ask(name, request(), LONG))
            .collect();
        settle().await;
        assert_eq!(world.waiting().await.waiting, 1_024);
        assert!(world.timer_armed().await);
        for one in &asked[..1_023] {
            one.abort();
        }
        settle().await;
        assert_eq!(
            counted(world.waiting().await),
            [1_024, 0, 0, 1_023, 0, 0, 1]
        );
        world.router.delta(2, [reports(1, 495)]).await;
        assert_eq!(world.answered().await, [(1_023, 0, Ok(1))]);
        assert!(!world.timer_armed().await);

        // In the moment in which there is room, too, and before the router has heard of the request.
        let asked = world.ask(1, request(), LONG);
        settle().await;
        drop(world.held.borrow_mut().pop());
        asked.abort();
        let asked = world.ask(2, request(), LONG);
        asked.abort();
        settle().await;
        let stats = world.kv.router_stats().await.unwrap();
        assert_eq!((stats.outstanding, stats.waiting.waiting), (0, 0));
        let kept = world.kv.loads().await.unwrap();
        assert_eq!(kept.get(1).unwrap().booked_blocks, 0);
    });
}

/// Its answer is on its way when the future is dropped: nothing stays booked.
#[test]
fn an_answer_that_nobody_takes_leaves_nothing_booked() {
    virtual_time(async {
        let world = World::full().await;
        fn sendable<T: Send>(waits: T) -> T {
            waits
        }
        let mut waits = Box::pin(sendable(world.kv.select_within(request(), LONG)));
        assert!(clock::timeout(ms(1), waits.as_mut()).await.is_err());
        world.router.delta(2, [reports(1, 495)]).await;
        assert_eq!(world.router.stats().await.outstanding, 1);
        drop(waits);
        settle().await;
        let stats = world.kv.router_stats().await.unwrap();
        assert_eq!((stats.outstanding, stats.waiting.waiting), (0, 0));
        assert_eq!(world.answered().await, []);
    });
}

#[test]
fn more_than_max_waiting_are_answered_at_once() {
    virtual_time(async {
        for most in [0, 1, 3] {
            let world = World::with(|config| config.max_waiting(most));
            world.router.full(1, [reports(1, 500)]).await;
            world.ask_for_any(0..5).await;
            let most = most as u32;
            let refused: Vec<_> = (most..5).map(|name| (name, 0, SATURATED)).collect();
            assert_eq!(world.answered().await, refused);
            let (waiting, refused) = (u64::from(most), u64::from(5 - most));
            let counts = [waiting, 0, 0, 0, 0, refused, waiting];
            assert_eq!(counted(world.waiting().await), counts);
            assert_eq!(world.router.counts().await.not_selected, refused);
        }
    });
}

#[test]
fn what_cannot_be_waited_for_is_told_at_once_and_also_to_those_who_wait() {
    use SelectError::{NoWorkers, NoneAllowed, TooLarge, UnknownWorker};
    virtual_time(async {
        let world = World::new();
        let ask = |name, request| drop(world.ask(name, request, LONG));
        ask(0, request());
        assert_eq!(world.answered().await, [(0, 0, Err(NoWorkers))]);
        let loads = [reports(1, 500), reports(2, 500), sized(3, 50, 100)];
        world.router.full(1, loads).await;
        ask(1, SelectWorker::blocks(501));
        ask(2, pinned(9));
        ask(3, request().among(among([w(9)])));
        ask(4, request().except([w(1), w(2), w(3)]));
        let mut answers = world.answered().await;
        answers.sort_unstable_by_key(|(name, ..)| *name);
        let errors = [TooLarge, UnknownWorker, NoneAllowed, NoneAllowed];
        let expected: Vec<_> = (1..)
            .zip(errors)
            .map(|(name, error)| (name, 0, Err(error)))
            .collect();
        assert_eq!(answers, expected);
        assert_eq!(counted(world.waiting().await), [0; 7]);

        ask(1, SelectWorker::blocks(200));
        ask(2, pinned(1));
        ask(3, request().among(among([w(1)])));
        ask(4, request().except([w(2), w(3)]));
        ask(5, request());
        assert_eq!(world.answered().await, []);
        world.router.take(leaves(P, 2, &[1])).await;
        let told = [(2, UnknownWorker), (3, NoneAllowed), (4, NoneAllowed)];
        assert_eq!(
            world.answered().await,
            told.map(|(name, error)| (name, 0, Err(error)))
        );
        world.router.take(leaves(P, 3, &[2])).await;
        assert_eq!(world.answered().await, [(1, 0, Err(TooLarge))]);
        world.router.take(leaves(P, 4, &[3])).await;
        assert_eq!(world.answered().await, [(5, 0, Err(NoWorkers))]);
        let counts = world.waiting().await;
        assert_eq!((counts.waiting, counts.hopeless >= 5), (0, true));
    });
}

#[test]
fn a_shutdown_answers_those_who_wait_first() {
    virtual_time(async {
        let world = World::full().await;
        world.ask_for_any(0..300).await;
        sleep(ms(5)).await;
        let kv = world.kv.clone();
        let ends = actix::spawn(async move { kv.shutdown(ms(50)).await });
        let answers = world.answered().await;
        let told = (0..300).map(|name| (name, 5, Err(SelectError::ShuttingDown)));
        assert_eq!(answers, told.collect::<Vec<_>>());
        world.ask(300, request(), LONG);
        let told = [(300, 5, Err(SelectError::ShuttingDown))];
        assert_eq!(world.answered().await, told);
        assert!(ends.await.unwrap().is_complete());
    });
}

#[test]
fn g5_no_timer_is_armed_unless_somebody_waits() {
    virtual_time(async {
        let world = World::new();
        world.router.full(1, [reports(1, 0), reports(2, 0)]).await;
        let held = world.kv.select(request()).await.unwrap();
        world.kv.select(request()).await.unwrap().failed();
        let _ = world.kv.select(request()).await.unwrap().into_ticket();
        world.ask_for_any(0..3).await;
        sleep(LONG).await;
        let timer = world.kv.router_stats().await.unwrap().timer;
        assert_eq!((timer.arms, timer.stale_fires), (0, 0));
        drop(held);
        world.held.borrow_mut().clear();

        // While somebody waits one is, and not for ever: it comes once.
        world
            .router
            .delta(2, [reports(1, 500), reports(2, 500)])
            .await;
        world.ask(9, request(), ms(500));
        settle().await;
        assert!(world.timer_armed().await);
        sleep(LONG).await;
        assert!(!world.timer_armed().await);
        let timer = world.kv.router_stats().await.unwrap().timer;
        assert_eq!((timer.arms, timer.fires, timer.cancels), (1, 1, 0));
    });
}

/// The router dies of it.
struct Die;

impl Message for Die {
    type Result = ();
}

impl Handler<Die> for RouterActor {
    type Result = ();

    fn handle(&mut self, _: Die, _: &mut Context<Self>) {
        panic!("dies, as told");
    }
}

#[test]
fn if_the_router_dies_the_next_one_is_asked_in_the_same_order_within_what_is_left() {
    virtual_time(async {
        let world = World::with(|config| config);
        let worker = world.kv.reporter(1);
        worker.report(load(500)).unwrap();
        world.kv.flush(LONG).await;
        assert_eq!(world.begun.elapsed(), ms(0));
        world.ask(0, request(), ms(103));
        world.ask_for_any(1..4).await;
        assert_eq!(world.waiting().await.waiting, 4);
        for round in 1..=3 {
            sleep(ms(20)).await;
            world.kv.router().do_send(Die);
            settle().await;
            assert_eq!(world.answered().await, []);
            if round == 2 {
                // It asks while no router runs.
                world.ask(4, request(), LONG);
                world.ask(5, request(), ms(3));
            }
            sleep(ms(15)).await;
            let told = world.answered().await;
            let expected = match round {
                1 => None,
                2 => Some((5, 58, Err(SelectError::Unavailable))),
                _ => Some((0, 103, SATURATED)),
            };
            assert_eq!(told, Vec::from_iter(expected));
            let waiting = [4, 5, 4][round - 1];
            assert_eq!(world.waiting().await.waiting, waiting, "round {round}");
        }
        for name in 1..=4 {
            worker.report(load(495)).unwrap();
            world.kv.flush(LONG).await;
            let answers = world.answered().await;
            assert_eq!(answers.len(), 1);
            assert_eq!((answers[0].0, answers[0].2), (name, Ok(1)));
            world.held.borrow_mut().clear();
            worker.report(load(500)).unwrap();
        }
    });
}

#[test]
fn a_shutdown_while_no_router_runs_is_told_to_those_who_wait() {
    virtual_time(async {
        let world = World::full().await;
        world.ask_for_any(0..2).await;
        world.kv.router().do_send(Die);
        settle().await;
        let kv = world.kv.clone();
        actix::spawn(async move { kv.shutdown(ms(50)).await });
        let told = [0, 1].map(|name| (name, 0, Err(SelectError::ShuttingDown)));
        assert_eq!(world.answered().await, told);
    });
}
