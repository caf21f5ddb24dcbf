//! What the handle answers: loads and counters, while all is well, while a router is replaced, and after the end; and how
//! answers and tickets are written.

use std::time::Duration;

use crate::support::{
    publishers::{PanicIt, StopIt},
    *,
};
use actix_kv_metrics::{
    AskError, AttachRouter, Flush, KvMetrics, ParseTicketError, SelectError, SelectWorker,
    Shutdown, Ticket,
    actix::{self, Actor, clock::Instant},
};
use serde_json::{Value, json};

fn started() -> KvMetrics {
    KvMetrics::start(settings())
}

fn request() -> SelectWorker {
    SelectWorker::blocks(10)
}

#[test]
fn loads_counters_and_a_flush_are_had_from_the_handle() {
    virtual_time(async {
        let kv = started();
        let reporter = kv.reporter(1);
        reporter.report(load(5)).unwrap();
        settle().await;
        let begun = Instant::now();
        reporter.report(load(6)).unwrap();
        settle().await;
        let active = async || {
            let loads = kv.loads().await.unwrap();
            let metrics = loads.get(1).unwrap().metrics.clone();
            metrics.unwrap().kv_stats.kv_active_blocks
        };
        assert_eq!(active().await, 5, "its window is open");
        assert!(kv.flush(ms(100)).await.is_complete());
        assert_eq!(active().await, 6);
        assert_eq!(begun.elapsed(), Duration::ZERO);

        let stats = kv.stats().await.unwrap();
        assert_eq!(
            (stats.received, stats.workers, stats.links.len()),
            (2, 1, 1)
        );
        let ticket = kv.select(request()).await.unwrap().into_ticket();
        let booked = kv.router_stats().await.unwrap();
        assert_eq!((booked.workers, booked.outstanding), (1, 1));
        kv.release(ticket);
        // Once more does no harm, and is counted.
        kv.release(ticket);
        let released = kv.router_stats().await.unwrap();
        assert_eq!(released.outstanding, 0);
        assert_eq!(
            (released.table.released, released.table.unknown_releases),
            (1, 1)
        );
        assert!(kv.publisher().connected() && kv.router().connected());
    });
}

#[test]
fn what_a_flush_through_the_handle_could_not_tell_is_said() {
    virtual_time(async {
        let kv = started();
        let log = LogHandle::new();
        let silent = Recorder::answering(&log, [], Answer::Silent).start();
        let attach = AttachRouter::new(silent.clone().recipient());
        let link = kv.publisher().send(attach).await.unwrap();
        let reporter = kv.reporter(1);
        reporter.report(load(5)).unwrap();
        let begun = Instant::now();
        let report = kv.flush(ms(30)).await;
        assert_eq!(begun.elapsed(), ms(30));
        let lacks = report.undelivered();
        assert_eq!((lacks.len(), lacks[0].link), (1, Some(link)));
        assert_eq!(lacks[0].workers, [w(1)]);
        assert!(silent.connected());
    });
}

#[test]
fn while_a_router_is_replaced_questions_to_it_are_answered_unavailable() {
    virtual_time(async {
        let kv = started();
        let reporter = kv.reporter(1);
        reporter.report(load(5)).unwrap();
        let ticket = {
            settle().await;
            kv.select(request()).await.unwrap().into_ticket()
        };
        assert!(kv.router().send(PanicIt).await.is_err());
        assert_eq!(kv.loads().await.unwrap_err(), AskError::Unavailable);
        settle().await;
        assert_eq!(kv.loads().await.unwrap_err(), AskError::Unavailable);
        assert_eq!(kv.router_stats().await.unwrap_err(), AskError::Unavailable);
        kv.release(ticket);
        assert_eq!(kv.stats().await.unwrap().received, 1);
        // The link of the router that died.
        reporter.report(load(6)).unwrap();
        assert_eq!(kv.flush(ms(5)).await.undelivered().len(), 1);

        sleep(ms(11)).await;
        assert_eq!(kv.loads().await.unwrap().len(), 1);
        assert_eq!(kv.router_stats().await.unwrap().outstanding, 0);
        // A ticket of the former router is nothing to this one.
        kv.release(ticket);
        let counts = kv.router_stats().await.unwrap().table;
        assert_eq!((counts.released, counts.unknown_releases), (0, 1));
        assert!(kv.flush(ms(5)).await.is_complete());
    });
}

/// A question that waits while its router dies is answered, too.
#[test]
fn a_router_that_dies_over_a_question_leaves_nobody_waiting() {
    virtual_time(async {
        let kv = started();
        settle().await;
        kv.router().do_send(StopIt);
        assert_eq!(kv.loads().await.unwrap_err(), AskError::Unavailable);
    });
}

#[test]
fn after_the_end_questions_say_so_and_a_flush_answers_what_the_shutdown_did() {
    virtual_time(async {
        let kv = started();
        let reporter = kv.reporter(1);
        reporter.report(load(5)).unwrap();
        let log = LogHandle::new();
        let silent = Recorder::answering(&log, [], Answer::Silent).start();
        let attach = AttachRouter::new(silent.clone().recipient());
        kv.publisher().send(attach).await.unwrap();
        let other = kv.clone();
        let meanwhile = actix::spawn(async move {
            sleep(ms(10)).await;
            // A choice is refused from the beginning of it on; a look is not.
            let chosen = other.select(request()).await;
            assert_eq!(chosen.unwrap_err(), SelectError::ShuttingDown);
            other.loads().await
        });
        let report = kv.shutdown(ms(50)).await;
        let loads = meanwhile.await.unwrap();
        assert_eq!(loads.unwrap().len(), 1);
        assert_eq!(report.undelivered().len(), 1);
        settle().await;
        assert_eq!(kv.loads().await.unwrap_err(), AskError::ShutDown);
        assert_eq!(kv.router_stats().await.unwrap_err(), AskError::ShutDown);
        assert_eq!(kv.stats().await.unwrap_err(), AskError::ShutDown);
        assert_eq!(kv.flush(ms(50)).await, report);
        kv.release(Ticket {
            router: 1,
            number: 1,
        });
        assert!(silent.connected());
    });
    // Also if the publisher was asked for it.
    virtual_time(async {
        let kv = started();
        let within = ms(50);
        let report = kv.publisher().send(Shutdown { within }).await.unwrap();
        settle().await;
        assert_eq!(kv.stats().await.unwrap_err(), AskError::ShutDown);
        assert_eq!(kv.flush(within).await, report);
        assert!(kv.loads().await.unwrap().is_empty(), "it still runs");
    });
}

#[test]
fn a_publisher_that_died_is_missed_by_name() {
    virtual_time(async {
        let kv = started();
        assert!(kv.publisher().send(PanicIt).await.is_err());
        let gone = kv.stats().await.unwrap_err();
        assert_eq!(gone, AskError::PublisherGone);
        assert_eq!(gone.to_string(), "the publisher is gone");
        let report = kv.flush(ms(50)).await;
        assert_eq!(report.undelivered().len(), 1);
        assert_eq!(report.undelivered()[0].link, None);
        assert!(kv.loads().await.unwrap().is_empty());
        let flushed = kv.publisher().send(Flush { within: ms(1) }).await;
        assert!(flushed.is_err());
    });
}

#[test]
fn what_the_handle_answers_can_be_written_as_json() {
    virtual_time(async {
        let kv = started();
        let reporter = kv.reporter(7);
        reporter.report(load(5)).unwrap();
        let _announced = kv.reporter(8);
        settle().await;
        sleep(ms(1_500)).await;
        let _held = kv.select(request()).await.unwrap();

        let loads = serde_json::to_value(kv.loads().await.unwrap()).unwrap();
        let first = &loads["workers"][0];
        assert_eq!(first["worker"], json!({ "worker_id": 7, "dp_rank": 0 }));
        assert_eq!(first["metrics"]["kv_stats"]["kv_active_blocks"], 5);
        assert_eq!(first["age"], "1s 500ms");
        assert_eq!(first["reported"], "1s 500ms");
        assert_eq!(first["freshness"], "fresh");
        assert_eq!(first["saturated"], false);
        assert_eq!(first["booked_requests"], 1);
        assert_eq!(loads["workers"][1]["freshness"], "unknown");
        assert_eq!(loads["workers"][1]["reported"], Value::Null);

        let stats = serde_json::to_value(kv.stats().await.unwrap()).unwrap();
        assert_eq!(
            (&stats["received"], &stats["workers"]),
            (&json!(1), &json!(2))
        );
        assert_eq!(stats["timer"]["stale_fires"], 0);
        let link = &stats["links"][0];
        assert_eq!(link["link"], 1);
        assert_eq!(link["windows"]["suppressed"], 0);
        assert_eq!(link["delivery"]["full"], 1);
        assert_eq!(link["delivery"]["max_age"], "0s");
        assert_eq!(link["in_flight_for"], Value::Null);

        let stats = serde_json::to_value(kv.router_stats().await.unwrap()).unwrap();
        assert_eq!(stats["outstanding"], 1);
        assert_eq!(stats["table"]["selected"], 1);
    });
}

#[test]
fn a_ticket_travels_in_a_header() {
    for (router, number) in [(0, 0), (1_700_000_000, 12), (u64::MAX, u64::MAX)] {
        let ticket = Ticket { router, number };
        let text = ticket.to_string();
        assert_eq!(text, format!("{router}-{number}"));
        assert!(text.bytes().all(|b| b.is_ascii_digit() || b == b'-'));
        assert_eq!(text.parse(), Ok(ticket));
    }
    for text in [
        "",
        "-",
        "5",
        "5-",
        "-5",
        "5-6-7",
        "+5-6",
        "5-+6",
        "5--6",
        " 5-6",
        "5-6\n",
        "5-6 ",
        "٥-6",
        "0x5-6",
        "18446744073709551616-1",
    ] {
        let refused: ParseTicketError = text.parse::<Ticket>().unwrap_err();
        assert_eq!(
            refused.to_string(),
            "a ticket is two numbers, as in 1700000000-12",
            "{text:?}"
        );
    }
}
