//! A router, or a bridge to routers elsewhere, asks for everything by `RequestFull`.

use crate::support::{publishers::*, *};
use actix_kv_metrics::{DetachRouter, Flush, LinkId, PublisherActor, RequestFull, actix::Addr};

async fn request(publisher: &Addr<PublisherActor>, link: LinkId) -> bool {
    publisher.send(RequestFull(link)).await.unwrap()
}

#[test]
fn who_asks_gets_everything_once_though_nothing_changed_and_nobody_else_does() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let asking = attach_answering(&publisher, [], Answer::Apply).await;
        let other = attach(&publisher).await;
        report(&publisher, 1, 5).await;
        report(&publisher, 2, 6).await;
        sleep(ms(1_000)).await;
        let _ = (asking.log.take(), other.take());
        assert!(request(&publisher, asking.link).await);
        sleep(ms(1_000)).await;
        assert_eq!(asking.log.take(), [full(1_000, &[(1, 5), (2, 6)])]);
        assert_eq!(other.take(), []);
        assert!(!pending(&publisher).await.timer_armed);
    });
}

#[test]
fn what_is_in_flight_answers_no_request_and_all_before_the_next_are_one() {
    virtual_time(async {
        let publisher = publisher(windows(1, 10));
        report(&publisher, 1, 5).await;
        let slow = Answer::ApplyAfter(ms(40));
        let asking = attach_answering(&publisher, [], slow).await;
        settle().await;
        for _ in 0..1_000 {
            assert!(request(&publisher, asking.link).await);
        }
        report(&publisher, 1, 6).await;
        sleep(ms(50)).await;
        // While the second is in flight.
        assert!(request(&publisher, asking.link).await);
        sleep(ms(1_000)).await;
        let expected = [full(0, &[(1, 5)]), full(40, &[(1, 6)]), full(80, &[(1, 6)])];
        assert_eq!(asking.log.take(), expected);
    });
}

#[test]
fn g8_a_request_ends_a_backoff_but_never_makes_a_loop() {
    virtual_time(async {
        let publisher = publisher(windows(1, 10));
        let asking = attach_answering(&publisher, [], Answer::Refuse).await;
        report(&publisher, 1, 5).await;
        let failures = async || stats(&publisher).await.links[0].delivery.failures;
        // Tried at 0, 10, 30, 70 and then each 80 ms.
        sleep(ms(75)).await;
        assert_eq!(failures().await, 4);
        // The first pause of 10 ms since the last try has 5 ms to go.
        assert!(request(&publisher, asking.link).await);
        sleep(ms(4)).await;
        assert_eq!(failures().await, 4);
        sleep(ms(2)).await;
        assert_eq!(failures().await, 5);
        // Who asks each millisecond and refuses is asked each 10.
        for _ in 0..1_000 {
            assert!(request(&publisher, asking.link).await);
            sleep(ms(1)).await;
        }
        let tried = failures().await - 5;
        assert!((90..=101).contains(&tried), "{tried}");
        // Who asks no more is left alone as before.
        sleep(ms(800)).await;
        assert!((9..=11).contains(&(failures().await - 5 - tried)));
    });
}

#[test]
fn g13_a_request_is_something_to_flush_and_goes_before_the_flush_is_over() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let slow = Answer::ApplyAfter(ms(40));
        let asking = attach_answering(&publisher, [], slow).await;
        report(&publisher, 1, 5).await;
        sleep(ms(1_000)).await;
        let _ = asking.log.take();
        assert!(request(&publisher, asking.link).await);
        let flushed = publisher.send(Flush { within: ms(100) }).await.unwrap();
        assert!(flushed.is_complete());
        assert_eq!(asking.log.take(), [full(1_000, &[(1, 5)])]);
        assert_eq!(pending(&publisher).await.links[0].in_flight_for, None);
    });
}

#[test]
fn a_link_that_is_detached_lost_or_never_was_asks_in_vain() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let gone = attach_answering(&publisher, [], Answer::Apply).await;
        publisher.send(DetachRouter(gone.link)).await.unwrap();
        assert!(!request(&publisher, gone.link).await);
        let lost = attach_answering(&publisher, [], Answer::Apply).await;
        lost.router.send(StopIt).await.unwrap();
        settle().await;
        report(&publisher, 1, 1).await;
        sleep(ms(100)).await;
        assert!(!request(&publisher, lost.link).await);
        assert!(!pending(&publisher).await.timer_armed);
    });
}
