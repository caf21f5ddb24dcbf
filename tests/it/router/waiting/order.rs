//! Who is served, and who before whom.

use super::*;

#[test]
fn first_come_first_served_and_before_any_new_request() {
    virtual_time(async {
        let world = World::full().await;
        world.ask_for_any(0..3).await;
        assert_eq!(world.answered().await, []);
        // There is room for one: its 10 blocks fill the worker again.
        sleep(ms(7)).await;
        world.router.delta(2, [reports(1, 495)]).await;
        let new = world.kv.select(request()).await;
        assert_eq!(new.unwrap_err(), SelectError::AllSaturated);
        assert_eq!(world.answered().await, [(0, 7, Ok(1))]);

        // A new request that may wait comes last, also in the moment in which a place becomes free.
        for name in 1..4 {
            sleep(ms(1)).await;
            drop(world.held.borrow_mut().pop());
            world.ask(name + 2, request(), LONG);
            let new = world.kv.select(request()).await;
            assert_eq!(new.unwrap_err(), SelectError::AllSaturated);
            let at = 7 + u64::from(name);
            assert_eq!(world.answered().await, [(name, at, Ok(1))]);
        }
        assert_eq!(counted(world.waiting().await), [6, 4, 0, 0, 0, 0, 2]);
        assert_eq!(world.waiting().await.tries, 4);
    });
}

#[test]
fn where_there_is_room_nobody_waits() {
    virtual_time(async {
        let world = World::new();
        world.router.full(1, [reports(1, 0)]).await;
        world.ask_for_any(0..3).await;
        let answers = world.answered().await;
        assert_eq!(answers, [0, 1, 2].map(|name| (name, 0, Ok(1))));
        assert_eq!(counted(world.waiting().await), [0; 7]);
        assert_eq!(world.router.counts().await.selected, 3);
    });
}

/// Who waits for a worker by name, or for any but some, keeps nobody from the others.
#[test]
fn who_waits_for_some_workers_blocks_nobody() {
    virtual_time(async {
        let world = World::new();
        let full = (1..=4).map(|worker| reports(worker, 500));
        world.router.full(1, full).await;
        let requests = [
            pinned(1),
            request().among(among([w(1), w(2)])),
            request().except([w(3), w(4)]),
            request().among(Candidates::Worker(w(2).worker())),
            request(),
            pinned(3),
        ];
        for (name, request) in (0..).zip(requests) {
            world.ask(name, request, LONG);
        }
        settle().await;
        let served_by = async |sequence, worker| {
            world.router.delta(sequence, [reports(worker, 495)]).await;
            let answers = world.answered().await;
            let names = answers.into_iter().map(|(name, _, answer)| {
                assert_eq!(answer, Ok(worker));
                name
            });
            names.collect::<Vec<_>>()
        };
        assert_eq!(served_by(2, 4).await, [4]);
        assert_eq!(served_by(3, 3).await, [5]);
        assert_eq!(served_by(4, 2).await, [1]);
        assert_eq!(served_by(5, 1).await, [0]);
        // Nobody waits for worker 4 any more.
        world.release().await;
        assert_eq!(world.answered().await, []);
        world.held.borrow_mut().clear();
        assert_eq!(world.answered().await, [(2, 0, Ok(2))]);
        world.held.borrow_mut().clear();
        assert_eq!(world.answered().await, [(3, 0, Ok(2))]);
        let counts = world.waiting().await;
        assert_eq!((counts.tries, counts.served, counts.waiting), (6, 6, 0));
    });
}

#[test]
fn a_request_that_is_too_large_for_what_is_free_lets_smaller_ones_pass_and_is_served_when_it_fits()
{
    virtual_time(async {
        let world = World::new();
        let loads = [sized(1, 100, 100), sized(2, 1_000, 1_000)];
        world.router.full(1, loads).await;
        world.ask(0, SelectWorker::blocks(300), LONG);
        world.ask(1, SelectWorker::blocks(50), LONG);
        world.ask(2, SelectWorker::blocks(51), LONG);
        world.ask(3, SelectWorker::blocks(10), LONG);
        settle().await;
        world.router.delta(2, [sized(1, 45, 100)]).await;
        assert_eq!(world.answered().await, [(1, 0, Ok(1))]);
        world.router.delta(3, [sized(2, 499, 1_000)]).await;
        assert_eq!(world.answered().await, [(0, 0, Ok(2))]);
        world.held.borrow_mut().pop();
        assert_eq!(world.answered().await, [(2, 0, Ok(2))]);
        // It grows: that it holds more now is room, too.
        world.router.delta(4, [sized(1, 100, 10_000)]).await;
        assert_eq!(world.answered().await, [(3, 0, Ok(1))]);
        assert_eq!(world.waiting().await.tries, 4);
    });
}

/// Prices are computed for each place that becomes free, not for each who waits.
#[test]
fn a_freed_place_is_offered_once_however_many_wait() {
    virtual_time(async {
        let world = World::full().await;
        world.ask_for_any(0..1_000).await;
        world.router.delta(2, [reports(1, 495)]).await;
        for name in 0..100 {
            assert_eq!(world.answered().await, [(name, 0, Ok(1))]);
            drop(world.held.borrow_mut().pop());
        }
        settle().await;
        let counts = world.waiting().await;
        assert_eq!((counts.served, counts.tries), (101, 101));
    });
}
