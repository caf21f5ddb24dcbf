//! Everything by which a worker comes to take requests wakes as many as it takes, and no more.

use super::*;

/// Three wait for what `begin` tells the router, and `event` makes room for one.
async fn wakes_one(
    what: &str,
    begin: impl IntoIterator<Item = WorkerLoad>,
    event: impl AsyncFnOnce(&World),
) {
    let world = World::new();
    world.router.full(1, begin).await;
    wakes_one_of(what, world, event).await;
}

async fn wakes_one_of(what: &str, world: World, event: impl AsyncFnOnce(&World)) {
    world.ask_for_any(0..3).await;
    assert_eq!(world.answered().await, [], "{what}");
    event(&world).await;
    let answers = world.answered().await;
    assert_eq!(answers.len(), 1, "{what}: {answers:?}");
    assert!(
        answers[0].0 == 0 && answers[0].2.is_ok(),
        "{what}: {answers:?}"
    );
    sleep(ms(400)).await;
    assert_eq!(world.answered().await, [], "{what}: later");
    let counts = world.waiting().await;
    assert_eq!((counts.served, counts.waiting), (1, 2), "{what}");
    world.kv.shutdown(ms(1)).await;
}

#[test]
fn a_report_a_join_and_the_end_of_a_drain_wake_one() {
    virtual_time(async {
        wakes_one("report", [reports(1, 500)], async |world| {
            world.router.delta(2, [reports(1, 495)]).await;
        })
        .await;
        wakes_one("join", [reports(1, 500)], async |world| {
            world.router.delta(2, [reports(2, 495)]).await;
        })
        .await;
        wakes_one("end of a drain", [drains(reports(1, 495))], async |world| {
            world.router.delta(2, [reports(1, 495)]).await;
        })
        .await;
        // It is taken to have 1,000 blocks, until the average is 1,020.
        let begin = [reports(1, 500), sized(2, 500, 0)];
        wakes_one("another average", begin, async |world| {
            world.router.delta(2, [sized(1, 1_020, 1_020)]).await;
        })
        .await;
    });
}

#[test]
fn a_release_and_the_end_of_a_ticket_wake_one() {
    virtual_time(async {
        for way in ["dropped", "released", "seen", "expired"] {
            let world = World::with(|config| config.reservation_ttl(ms(300)));
            world.router.full(1, [reports(1, 495)]).await;
            let chosen = world.kv.select(request()).await.unwrap();
            wakes_one_of(way, world, async |world| match way {
                "dropped" => drop(chosen),
                "released" => {
                    assert!(world.router.release(chosen.into_ticket()).await);
                }
                "seen" => {
                    let _ = chosen.into_ticket();
                    sleep(ms(60)).await;
                    world.router.delta(2, [reports(1, 495)]).await;
                }
                _ => {
                    let _ = chosen.into_ticket();
                    sleep(ms(299)).await;
                    assert_eq!(world.answered().await, []);
                    // By the router's own timer.
                    sleep(ms(2)).await;
                }
            })
            .await;
        }
    });
}

/// A worker that cools while another is full: then it gets one request, until that ends well.
#[test]
fn the_end_of_a_cooling_wakes_one_and_its_good_end_as_many_as_there_is_room_for() {
    virtual_time(async {
        let world = World::new();
        world.router.full(1, [reports(1, 0), reports(2, 500)]).await;
        world.kv.select(request()).await.unwrap().failed();
        world.ask_for_any(0..60).await;
        sleep(ms(499)).await;
        assert_eq!(world.answered().await, []);
        sleep(ms(2)).await;
        assert_eq!(world.answered().await, [(0, 500, Ok(1))]);
        // It fails again, and cools for a second.
        world.held.borrow_mut().pop().unwrap().failed();
        sleep(ms(998)).await;
        assert_eq!(world.answered().await, []);
        sleep(ms(2)).await;
        assert_eq!(world.answered().await, [(1, 1_501, Ok(1))]);
        // Its 500 blocks are room for 50.
        world.release().await;
        let answers = world.answered().await;
        let names: Vec<_> = answers.iter().map(|(name, ..)| *name).collect();
        assert_eq!(names, (2..52).collect::<Vec<_>>());
        let counts = world.waiting().await;
        assert_eq!((counts.served, counts.waiting), (52, 8));
    });
}

/// Who was full when it fell silent is the last choice, once nobody else can be waited for; so is who cools.
#[test]
fn when_nobody_can_be_waited_for_the_last_choice_serves() {
    virtual_time(async {
        let world = World::with(|config| config.stale_after(ms(2_000)));
        world.router.full(1, [reports(1, 0)]).await;
        let held = world.kv.select(SelectWorker::blocks(500)).await.unwrap();
        world.ask_for_any(0..2).await;
        sleep(ms(1_999)).await;
        assert_eq!(world.answered().await, []);
        sleep(ms(2)).await;
        let at_2_000 = [0, 1].map(|name| (name, 2_000, Ok(1)));
        assert_eq!(world.answered().await, at_2_000);
        drop(held);
    });
    for event in ["leaves", "drains", "shrinks"] {
        virtual_time(async {
            let world = World::new();
            world.router.full(1, [reports(1, 0), reports(2, 500)]).await;
            world.kv.select(request()).await.unwrap().failed();
            world.ask_for_any(0..2).await;
            assert_eq!(world.answered().await, []);
            match event {
                "leaves" => drop(world.router.take(leaves(P, 2, &[2])).await),
                "drains" => world.router.delta(2, [drains(reports(2, 500))]).await,
                _ => world.router.delta(2, [sized(2, 15, 15)]).await,
            }
            let answers = world.answered().await;
            assert_eq!(answers, [0, 1].map(|name| (name, 0, Ok(1))), "{event}");
        });
    }
}
