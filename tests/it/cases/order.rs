//! Kinds "duplicates" and "ordering": everything once, in its order.

use std::collections::BTreeSet;

use crate::support::{faults::*, publishers::*, *};
use actix_kv_metrics::{
    AttachRouter, Coalescing, DetachRouter, MetricsReporter, PublisherActor, actix::Addr,
};

async fn known(coalescing: Coalescing) -> (Addr<PublisherActor>, Attached) {
    let publisher = publisher(coalescing);
    let one = attach_answering(&publisher, [], Answer::Apply).await;
    report(&publisher, 1, 0).await;
    settle().await;
    one.log.take();
    one.log.take_raw();
    (publisher, one)
}

async fn settle_once() {
    tokio::task::yield_now().await;
}

// Duplicates.

#[test]
fn case_54_the_same_value_a_thousand_times_is_one_snapshot() {
    virtual_time(async {
        let (publisher, one) = known(windows(1, 10)).await;
        let reporter = MetricsReporter::new(&publisher, 2);
        for _ in 0..1_000 {
            report(&publisher, 1, 5).await;
            reporter.report(load(5)).unwrap();
            sleep(ms(1)).await;
        }
        let seen = one.log.take();
        let of = |worker| {
            let loads = seen.iter().flat_map(|seen| &seen.loads);
            loads.filter(|load| **load == (worker, Some(5))).count()
        };
        assert_eq!((of(1), of(2)), (1, 1));
        assert!(seen.len() <= 3, "{seen:?}");
    });
}

/// Case 55, and the same with a leading edge: then a burst is its first and its last value.
#[test]
fn case_55_each_burst_is_published_as_often_as_the_first() {
    virtual_time(async {
        for leading in [false, true] {
            let settings = unpaced().debounce(ms(5)).leading(leading);
            let (publisher, one) = known(settings.build().unwrap()).await;
            sleep(ms(100)).await;
            let mut expected = Vec::new();
            for burst in 1..=3 {
                for change in 1..=10 {
                    report(&publisher, 1, burst * 100 + change).await;
                    if change % 5 == 0 {
                        sleep(ms(1)).await;
                    }
                }
                let base = 100 * burst;
                if leading {
                    expected.push(delta(base, &[(1, burst * 100 + 1)]));
                }
                expected.push(delta(base + 6, &[(1, burst * 100 + 10)]));
                sleep(ms(98)).await;
            }
            assert_eq!(one.log.take(), expected, "leading: {leading}");
        }
    });
}

// Ordering.

/// Case 56, with routers that listen to both.
#[test]
fn case_56_publishers_far_apart_in_their_sequences_do_not_shade_each_other() {
    virtual_time(async {
        let (far, near) = (publisher(windows(0, 0)), publisher(windows(0, 0)));
        let router = router();
        attach_real(&far, &router).await;
        for value in 1..=500 {
            report(&far, 1, value).await;
            settle_once().await;
        }
        attach_real(&near, &router).await;
        report(&near, 2, 3).await;
        settle().await;
        report(&near, 2, 4).await;
        report(&far, 1, 501).await;
        settle().await;
        assert_eq!(table(&router).await, table_of(&[(1, 501), (2, 4)]));
        let stats = router.send(actix_kv_metrics::GetRouterStats).await.unwrap();
        assert_eq!((stats.table.superseded, stats.table.need_full), (0, 0));
    });
}

/// Case 59: no two snapshots share a sequence, through detaching, attaching, restarts and the end.
#[test]
fn case_59_a_sequence_is_never_used_twice() {
    virtual_time(async {
        let publisher = supervised(windows(1, 10));
        let mut one = attach_answering(&publisher, [], Answer::Apply).await;
        let two = attach_answering(&publisher, [Answer::Refuse], Answer::Apply).await;
        for step in 0..30 {
            report(&publisher, step % 3, step).await;
            sleep(ms(1)).await;
            match step % 5 {
                1 => publisher.do_send(StopIt),
                3 => {
                    assert!(publisher.send(DetachRouter(one.link)).await.unwrap());
                    one.link = attach_router(&publisher, &one.router).await;
                }
                _ => {}
            }
            sleep(ms(2)).await;
        }
        sleep(ms(200)).await;
        let mut numbers = BTreeSet::new();
        for log in [&one.log, &two.log] {
            let raw = log.take_raw();
            let growing: Vec<_> = raw.iter().map(|snapshot| snapshot.sequence).collect();
            assert!(growing.is_sorted(), "{growing:?}");
            assert!(growing.iter().all(|number| numbers.insert(*number)));
            assert!(raw.iter().all(|it| it.publisher == raw[0].publisher));
        }
        assert_eq!(one.log.active(2), Some(29));
        assert_eq!(two.log.active(2), Some(29));
    });
}

/// Not listed: the same router under two recipients of its address is one link; under two publishers it is two owners.
#[test]
fn a_router_attached_through_clones_of_its_address_is_one_link() {
    virtual_time(async {
        let (publisher, one) = known(windows(10, 100)).await;
        for _ in 0..10 {
            let again = AttachRouter::new(one.router.clone().recipient());
            assert_eq!(publisher.send(again).await.unwrap(), one.link);
        }
        settle().await;
        // While one full snapshot was in flight the others became one.
        assert!(one.log.take().len() <= 11);
        report(&publisher, 1, 5).await;
        sleep(ms(50)).await;
        assert_eq!(one.log.take(), [delta(10, &[(1, 5)])]);
        assert_eq!(stats(&publisher).await.links.len(), 1);
    });
}

/// Two processes that are started in the same second draw different ids, and order by when what they name began.
#[test]
fn case_180_ids_are_drawn_at_random_and_lives_by_the_time() {
    virtual_time(async {
        let publisher = publisher(windows(1, 10));
        let first = attach(&publisher).await;
        let other = self::publisher(windows(1, 10));
        let second = attach(&other).await;
        let told = async |publisher, log: &LogHandle, worker| {
            report(publisher, worker, 1).await;
            sleep(ms(5)).await;
            let snapshot = log.take_raw().remove(0);
            (snapshot.publisher, snapshot.workers[0].life)
        };
        let (one, life) = told(&publisher, &first, 1).await;
        let (two, _) = told(&other, &second, 1).await;
        assert!(two.incarnation > one.incarnation);
        assert_ne!(one.id, one.incarnation);
        // Neither is near the other, as draws from a counter or a clock are.
        assert!(one.id.abs_diff(two.id) > 1 << 32, "{one} {two}");
        // In real time, which lives go by.
        std::thread::sleep(ms(20));
        let (_, later) = told(&publisher, &first, 2).await;
        assert!(later >= life + 20_000, "{later} {life}");
    });
}
