//! What the recorder of the `metrics` facade is told (feature `metrics`).

pub mod page;

use std::collections::{BTreeMap, BTreeSet};

use crate::support::{
    publishers::{PanicIt, StopIt},
    *,
};
use actix_kv_metrics::{
    Candidates, DetachRouter, KvMetrics, SelectError, SelectWorker, WorkerLeft, WorkerRank,
    actix::Actor,
};
use page::Page;

/// Runs `body` in virtual time, with a recorder.
fn recorded<F: Future<Output = ()>>(body: impl FnOnce(Page) -> F) {
    let page = Page::default();
    let told = page.clone();
    let _recorder = metrics::set_default_local_recorder(&page);
    virtual_time(body(told));
}

fn started() -> KvMetrics {
    KvMetrics::start(settings().saturation(0.9).unwrap())
}

/// The rows of the tables in the docs: name, and kind, unit, labels with the values named for each, words.
type Documented = BTreeMap<String, (String, String, BTreeMap<String, BTreeSet<String>>, String)>;

fn documented() -> Documented {
    let docs = include_str!("../../../src/docs/metrics.md");
    let rows = docs.lines().filter(|line| line.starts_with("| `"));
    let row = |line: &str| {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, unit, labels, words] = cells[..] else {
            panic!("{line}");
        };
        let mut named = BTreeMap::new();
        // A label without values stands between commas, too.
        let mut label = String::new();
        let mut rest = labels;
        while let Some((_, after)) = rest.split_once('`') {
            let (word, after) = after.split_once('`').unwrap();
            if after.starts_with(':') {
                label = word.to_owned();
                named.insert(label.clone(), BTreeSet::new());
            } else if label.is_empty() {
                named.insert(word.to_owned(), BTreeSet::new());
            } else {
                named.get_mut(&label).unwrap().insert(word.to_owned());
            }
            rest = after;
        }
        let what = (kind.to_owned(), unit.to_owned(), named, words.to_owned());
        (name.trim_matches('`').to_owned(), what)
    };
    rows.map(row).collect()
}

#[test]
fn the_table_in_the_docs_is_what_is_told_and_how_it_is_described() {
    recorded(async |page| {
        let kv = started();
        let reporter = kv.reporter(WorkerRank::new(7, 3));
        let metrics = load(5).with_num_prefill_blocks(4);
        reporter.report(metrics).unwrap();
        settle().await;
        kv.record_metrics().await;
        kv.record_metrics().await;

        let documented = documented();
        assert!(documented.len() > 40);
        let mut told = Documented::new();
        for (kind, name, labels) in page.series() {
            let words = documented.get(&name).map(|row| row.3.clone());
            let unit = documented.get(&name).map(|row| row.1.clone());
            let (words, unit) = (words.unwrap_or_default(), unit.unwrap_or_default());
            let empty = || (kind.to_owned(), unit, BTreeMap::new(), words);
            let row = told.entry(name).or_insert_with(empty);
            for (label, value) in labels {
                let values = row.2.entry(label.clone()).or_default();
                // Any number.
                if !["worker", "rank"].contains(&label.as_str()) {
                    values.insert(value);
                }
            }
        }
        assert_eq!(told, documented);

        // Once, whatever is asked for how often.
        let described = page.described.lock().unwrap();
        assert_eq!(described.len(), documented.len());
        for (name, (kind, unit, words)) in described.iter() {
            let row = &documented[name];
            assert_eq!((*kind, words), (row.0.as_str(), &row.3), "{name}");
            let unit = unit.map_or("", |unit| unit.as_str());
            assert_eq!(unit, row.1, "{name}");
            assert_eq!(*kind == "counter", name.ends_with("_total"));
            assert_eq!(unit == "seconds", name.ends_with("_seconds"));
        }
    });
}

#[test]
fn nothing_is_told_before_somebody_asks() {
    recorded(async |page| {
        let kv = started();
        let reporter = kv.reporter(1);
        reporter.report(load(5)).unwrap();
        settle().await;
        drop(kv.select(SelectWorker::blocks(10)).await.unwrap());
        kv.shutdown(ms(10)).await;
        assert_eq!(page.series(), []);
    });
}

#[test]
fn what_is_measured_is_exact() {
    recorded(async |page| {
        let kv = started();
        kv.record_metrics().await;
        let reporter = kv.reporter(1);
        reporter.report(load(5)).unwrap();
        settle().await;
        // A change that waits for its window.
        reporter.report(load(6)).unwrap();
        sleep(ms(51)).await;
        let told = |name: &str| page.told(&format!("actix_kv_metrics_{name}"));
        // The first, the worker's announcement and first report, the window.
        let ages = told("age_of_information_seconds");
        assert_eq!(ages.last(), Some(&0.05));
        assert!(ages[..ages.len() - 1].iter().all(|age| *age == 0.0));
        // In one turn of the clock.
        let answers = told("delivery_seconds");
        assert_eq!(answers, vec![0.0; ages.len()]);

        let held = kv.select(SelectWorker::blocks(10)).await.unwrap();
        let cost = held.cost().total();
        assert_eq!(told("choice_cost"), [cost]);
        let failed = kv.select(SelectWorker::blocks(10)).await.unwrap();
        sleep(ms(30)).await;
        failed.failed();
        sleep(ms(40)).await;
        drop(held);
        settle().await;
        // When it is over is known at once, though the next message comes later.
        sleep(ms(500)).await;
        kv.record_metrics().await;
        assert_eq!(told("booking_lifetime_seconds"), [0.03, 0.07]);
        assert_eq!(page.counter(r#"bookings_ended_total{by="released"}"#), 1.0);
        assert_eq!(page.counter(r#"bookings_ended_total{by="failed"}"#), 1.0);
        assert_eq!(page.counter("coolings_total"), 1.0);
        assert_eq!(page.counter("selections_total"), 2.0);
        assert_eq!(page.gauge("bookings"), Some(0.0));
        // A router in its place goes on to measure, once asked.
        assert!(kv.router().send(PanicIt).await.is_err());
        sleep(ms(11)).await;
        kv.record_metrics().await;
        drop(kv.select(SelectWorker::blocks(10)).await.unwrap());
        settle().await;
        kv.record_metrics().await;
        assert_eq!(told("booking_lifetime_seconds"), [0.03, 0.07, 0.0]);
    });
}

#[test]
fn a_delivery_takes_as_long_as_its_answer() {
    recorded(async |page| {
        let kv = started();
        kv.record_metrics().await;
        settle().await;
        let router = kv.router();
        hold_up(&router, ms(70));
        let reporter = kv.reporter(1);
        settle().await;
        // One that asks meanwhile hears of what is on its way.
        let asked = kv.clone();
        actix_kv_metrics::actix::spawn(async move { asked.record_metrics().await });
        sleep(ms(71)).await;
        let told = page.told("actix_kv_metrics_delivery_seconds");
        assert_eq!(told.last(), Some(&0.07));
        drop(reporter);
    });
}

#[test]
fn counters_are_what_the_actors_count_and_nothing_is_taken_back_when_a_router_is_replaced() {
    recorded(async |page| {
        let kv = started();
        let reporter = kv.reporter(1);
        reporter.report(load(5)).unwrap();
        settle().await;
        for _ in 0..3 {
            drop(kv.select(SelectWorker::blocks(10)).await.unwrap());
        }
        reporter.report(load(6)).unwrap();
        reporter.report(load(6)).unwrap();
        sleep(ms(100)).await;
        reporter.report(load(6)).unwrap();
        sleep(ms(100)).await;
        kv.record_metrics().await;
        kv.record_metrics().await;
        let stats = kv.stats().await.unwrap();
        let counted = |of: u64| of as f64;
        assert_eq!(
            page.counter(r#"reports_total{result="changed"}"#),
            counted(stats.changed)
        );
        assert_eq!(
            page.counter(r#"reports_total{result="unchanged"}"#),
            counted(stats.unchanged)
        );
        let sent = |page: &Page| {
            page.counter(r#"snapshots_sent_total{kind="full"}"#)
                + page.counter(r#"snapshots_sent_total{kind="delta"}"#)
        };
        let first = stats.links[0].delivery.snapshots;
        assert_eq!(sent(&page), counted(first));
        assert_eq!(page.counter("selections_total"), 3.0);
        assert_eq!(page.gauge(r#"up{actor="router"}"#), Some(1.0));

        // What it counted after the last scrape is lost with a router that panics.
        drop(kv.select(SelectWorker::blocks(10)).await.unwrap());
        assert!(kv.router().send(PanicIt).await.is_err());
        settle().await;
        kv.record_metrics().await;
        assert_eq!(page.counter("selections_total"), 3.0);
        assert_eq!(page.gauge(r#"up{actor="router"}"#), Some(0.0));
        assert_eq!(page.gauge(r#"up{actor="publisher"}"#), Some(1.0));
        let refused = kv.select(SelectWorker::blocks(10)).await;
        assert_eq!(refused.unwrap_err(), SelectError::Unavailable);

        // Another router, and another link.
        sleep(ms(30)).await;
        drop(kv.select(SelectWorker::blocks(10)).await.unwrap());
        kv.record_metrics().await;
        assert_eq!(page.gauge(r#"up{actor="router"}"#), Some(1.0));
        assert_eq!(page.counter("selections_total"), 4.0);
        assert_eq!(page.counter(r#"refusals_total{reason="unavailable"}"#), 1.0);
        let second = kv.stats().await.unwrap().links[0].delivery.snapshots;
        assert_eq!(sent(&page), counted(first + second));
        assert_eq!(page.gauge(r#"links{state="idle"}"#), Some(1.0));

        // What was counted after the last scrape is told at the end.
        drop(kv.select(SelectWorker::blocks(10)).await.unwrap());
        kv.shutdown(ms(10)).await;
        let late = kv.select(SelectWorker::blocks(10)).await;
        assert_eq!(late.unwrap_err(), SelectError::ShuttingDown);
        settle().await;
        kv.record_metrics().await;
        assert_eq!(page.counter("selections_total"), 5.0);
        assert_eq!(
            page.counter(r#"refusals_total{reason="shutting_down"}"#),
            1.0
        );
        assert_eq!(page.gauge(r#"up{actor="router"}"#), Some(0.0));
        assert_eq!(page.gauge(r#"up{actor="publisher"}"#), Some(0.0));
    });
}

#[test]
fn a_detached_router_takes_no_counts_with_it() {
    recorded(async |page| {
        let kv = started();
        let log = LogHandle::new();
        let other = Recorder::new(&log).start();
        let attach = actix_kv_metrics::AttachRouter::new(other.recipient());
        let link = kv.publisher().send(attach).await.unwrap();
        kv.record_metrics().await;
        let reporter = kv.reporter(1);
        reporter.report(load(5)).unwrap();
        settle().await;
        let links = kv.stats().await.unwrap().links;
        let sent: u64 = links.iter().map(|link| link.delivery.snapshots).sum();
        assert!(kv.publisher().send(DetachRouter(link)).await.unwrap());
        kv.record_metrics().await;
        let full = page.counter(r#"snapshots_sent_total{kind="full"}"#);
        let deltas = page.counter(r#"snapshots_sent_total{kind="delta"}"#);
        assert_eq!(full + deltas, sent as f64);
        assert_eq!(page.gauge(r#"links{state="idle"}"#), Some(1.0));
    });
}

#[test]
fn refusals_are_told_by_reason() {
    recorded(async |page| {
        let kv = started();
        let refused = async |request: SelectWorker| kv.select(request).await.unwrap_err();
        let nobody = refused(SelectWorker::blocks(10)).await;
        assert_eq!(nobody, SelectError::NoWorkers);
        let reporter = kv.reporter(1);
        reporter.report(load(1_000)).unwrap();
        settle().await;
        let full = refused(SelectWorker::blocks(10)).await;
        assert_eq!(full, SelectError::AllSaturated);
        let large = refused(SelectWorker::blocks(5_000)).await;
        assert_eq!(large, SelectError::TooLarge);
        let named = SelectWorker::blocks(1).among(Candidates::Rank(w(2)));
        assert_eq!(refused(named).await, SelectError::UnknownWorker);
        let others = SelectWorker::blocks(1).except([w(1)]);
        assert_eq!(refused(others).await, SelectError::NoneAllowed);
        kv.record_metrics().await;
        let counts = kv.router_stats().await.unwrap().table;
        let reasons = counts.refusals;
        let each = [
            ("no_workers", reasons.no_workers),
            ("all_saturated", reasons.all_saturated),
            ("too_large", reasons.too_large),
            ("unknown_worker", reasons.unknown_worker),
            ("none_allowed", reasons.none_allowed),
        ];
        for (reason, count) in each {
            let told = page.counter(&format!("refusals_total{{reason={reason:?}}}"));
            assert_eq!(told, count as f64, "{reason}");
            assert!(count > 0, "{reason}");
        }
        let sum: u64 = each.iter().map(|(_, count)| count).sum();
        assert_eq!(sum, counts.not_selected);
    });
}

#[test]
fn workers_stand_with_their_load_and_one_that_left_is_never_told_of_again() {
    recorded(async |page| {
        let kv = started();
        let one = kv.reporter(1);
        one.report(load(5)).unwrap();
        let two = kv.reporter(WorkerRank::new(2, 1));
        two.report(load(7).with_num_prefill_blocks(3)).unwrap();
        settle().await;
        let held = kv.select(SelectWorker::blocks(10).overlap(1, 10)).await;
        let ticket = held.unwrap().into_ticket();
        sleep(ms(20)).await;
        kv.record_metrics().await;
        let first = r#"{rank="0",worker="1"}"#;
        let second = r#"{rank="1",worker="2"}"#;
        let of = |name: &str, worker: &str| page.gauge(&format!("worker_{name}{worker}"));
        assert_eq!(of("active_blocks", first), Some(5.0));
        assert_eq!(of("capacity_blocks", second), Some(1_000.0));
        assert_eq!(of("prefill_blocks", first), None);
        assert_eq!(of("prefill_blocks", second), Some(3.0));
        assert_eq!(of("waiting_requests", second), Some(0.0));
        assert_eq!(of("report_age_seconds", second), Some(0.02));
        assert_eq!(of("booked_requests", first), Some(1.0));
        assert_eq!(of("booked_blocks", first), Some(0.0));
        assert_eq!(of("available", second), Some(1.0));
        let in_state = |state: &str| page.gauge(&format!("workers{{state={state:?}}}"));
        assert_eq!(in_state("free"), Some(2.0));

        // Urgent, but so was its first report.
        two.drain(true).unwrap();
        sleep(ms(501)).await;
        kv.record_metrics().await;
        assert_eq!(of("available", second), Some(0.0));
        assert_eq!(
            (in_state("free"), in_state("draining")),
            (Some(1.0), Some(1.0))
        );

        // It leaves, with something booked on it, and reports late; so does another in a plain message.
        let worker = w(1);
        kv.publisher().send(WorkerLeft { worker }).await.unwrap();
        settle().await;
        let told = |page: &Page| {
            let names = page.series().into_iter();
            let of_first = names.filter(|(_, _, labels)| labels.get("worker") == Some(&"1".into()));
            let names = of_first.map(|(_, name, _)| page.told(&format!("{name}{first}")).len());
            names.sum::<usize>()
        };
        let before = told(&page);
        assert!(before > 0);
        assert!(one.report(load(99)).is_err());
        kv.release(ticket);
        for _ in 0..10 {
            sleep(ms(100)).await;
            kv.record_metrics().await;
        }
        assert_eq!(told(&page), before);
        assert_eq!(in_state("free"), Some(0.0));
        // The others go on to be told of.
        let second_told = page.told(&format!("actix_kv_metrics_worker_available{second}"));
        assert_eq!(second_told.len(), 12);
        // Until it comes back.
        let again = kv.reporter(1);
        again.report(load(9)).unwrap();
        settle().await;
        kv.record_metrics().await;
        assert_eq!(of("active_blocks", first), Some(9.0));
    });
}

#[test]
fn each_model_has_series_of_its_own() {
    recorded(async |page| {
        let (small, large) = (started(), started());
        let reporters = [small.reporter(1), large.reporter(1), large.reporter(2)];
        settle().await;
        small.record_metrics_of("small").await;
        large.record_metrics_of("large".to_owned()).await;
        let workers = |model: &str| {
            let series = format!("workers{{model={model:?},state=\"unknown\"}}");
            page.gauge(&series)
        };
        assert_eq!((workers("small"), workers("large")), (Some(1.0), Some(2.0)));
        let series = page.series();
        assert!(
            series
                .iter()
                .all(|(_, _, labels)| labels.contains_key("model"))
        );
        // A router that is stopped tells what it counted, under its name.
        drop(small.select(SelectWorker::blocks(1)).await.unwrap());
        small.router().do_send(StopIt);
        settle().await;
        let selected = |model: &str| page.counter(&format!("selections_total{{model={model:?}}}"));
        assert_eq!((selected("small"), selected("large")), (1.0, 0.0));
        drop(reporters);
    });
}

#[test]
fn who_waits_for_room_is_told_of_and_how_it_ended() {
    recorded(async |page| {
        let kv = started();
        let reporter = kv.reporter(1);
        reporter.report(load(950)).unwrap();
        settle().await;
        let waits = |within: u64| {
            let kv = kv.clone();
            actix_kv_metrics::actix::spawn(async move {
                kv.select_within(SelectWorker::blocks(10), ms(within)).await
            })
        };
        let (impatient, patient) = (waits(10), waits(10_000));
        settle().await;
        kv.record_metrics().await;
        assert_eq!(page.gauge("waiting_for_room"), Some(2.0));
        assert_eq!(page.counter("waits_total"), 2.0);
        let refused = impatient.await.unwrap().unwrap_err();
        assert_eq!(refused, SelectError::AllSaturated);
        reporter.report(load(5)).unwrap();
        drop(patient.await.unwrap().unwrap());
        kv.record_metrics().await;
        assert_eq!(page.gauge("waiting_for_room"), Some(0.0));
        for by in ["timed_out", "served"] {
            let ended = page.counter(&format!("waits_ended_total{{by={by:?}}}"));
            assert_eq!(ended, 1.0, "{by}");
        }
        let full = page.counter(r#"refusals_total{reason="all_saturated"}"#);
        assert_eq!(full, 1.0);
        // Its cost is measured like any other's.
        assert_eq!(page.told("actix_kv_metrics_choice_cost").len(), 1);
        // While no router runs it waits for the next, and that is no refusal until it is one.
        assert!(kv.router().send(PanicIt).await.is_err());
        let served = waits(10_000).await.unwrap();
        assert!(served.is_ok());
        assert!(kv.router().send(PanicIt).await.is_err());
        let unavailable = waits(1).await.unwrap().unwrap_err();
        assert_eq!(unavailable, SelectError::Unavailable);
        sleep(ms(100)).await;
        kv.record_metrics().await;
        let refused = page.counter(r#"refusals_total{reason="unavailable"}"#);
        assert_eq!(refused, 1.0);
    });
}
