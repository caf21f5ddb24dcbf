//! Kind "observability": a warning is said once for each change of state, never once a message.

use std::{
    fmt::{Debug, Write},
    sync::{Arc, LazyLock, Mutex},
};

use crate::support::{
    faults::{attach_real, router},
    publishers::*,
    *,
};
use actix_kv_metrics::{
    Backoff, Candidates, KvMetrics, KvMetricsConfig, MetricsChanged, SelectWorker, WorkerDraining,
    WorkerJoined, WorkerLeft, WorkerRank,
    actix::{Arbiter, clock},
};
use tracing::{
    Dispatch, Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::Interest,
};

/// What was said at a level and above.
#[derive(Clone)]
struct Warnings {
    level: Level,
    said: Arc<Mutex<Vec<String>>>,
}

impl Warnings {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.said.lock().unwrap())
    }

    /// What was said since, with level, text and fields, that has `word` in it.
    fn take_with(&self, word: &str) -> Vec<String> {
        let said = self.take();
        said.into_iter()
            .filter(|line| line.contains(word))
            .collect()
    }
}

/// The text of an event, and whether its fields are wanted too.
struct Text(String, bool);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").unwrap();
        } else if self.1 {
            write!(self.0, " {field}={value:?}").unwrap();
        }
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // What is said of everybody's own affairs is not the component's.
        metadata.target().starts_with("actix_kv_metrics") && *metadata.level() <= self.level
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new(), self.level > Level::WARN);
        if text.1 {
            write!(text.0, "{} ", event.metadata().level()).unwrap();
        }
        event.record(&mut text);
        self.said.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Other tests run beside these, with no subscriber: whether anybody wants to hear of an event is to be asked each time. It
/// takes a while until that holds for one that is being said for the first time just now.
pub(super) static ASKED_EACH_TIME: LazyLock<Dispatch> = LazyLock::new(|| {
    let kept = Dispatch::new(Deaf);
    std::thread::sleep(ms(50));
    tracing::callsite::rebuild_interest_cache();
    kept
});

struct Deaf;

impl Subscriber for Deaf {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        false
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Runs `body` in virtual time and hands it what is warned of meanwhile.
fn warned<F: Future<Output = ()>>(body: impl FnOnce(Warnings) -> F) {
    said(Level::WARN, body);
}

/// The same with all that is said at `level` and above.
fn said<F: Future<Output = ()>>(level: Level, body: impl FnOnce(Warnings) -> F) {
    LazyLock::force(&ASKED_EACH_TIME);
    let said = Arc::default();
    let warnings = Warnings { level, said };
    let body = body(warnings.clone());
    tracing::subscriber::with_default(warnings, || virtual_time(body));
}

#[test]
fn a_router_that_refuses_for_a_minute_is_one_warning() {
    warned(async |warnings| {
        let publisher = publisher(windows(1, 10));
        let script = [Answer::Apply].into_iter().chain([Answer::Refuse; 500]);
        let one = attach_answering(&publisher, script, Answer::Apply).await;
        report(&publisher, 1, 0).await;
        for step in 1..=10_000 {
            report(&publisher, 1, step % 900).await;
            sleep(ms(1)).await;
        }
        let failures = stats(&publisher).await.links[0].delivery.failures;
        assert!(failures > 100, "{failures}");
        let refused = "a router refuses snapshots or fails: backing off";
        assert_eq!(warnings.take(), [refused]);
        sleep(ms(60_000)).await;
        assert_eq!(one.log.active(1), Some(10_000 % 900));
        assert_eq!(warnings.take(), [""; 0]);
    });
}

#[test]
fn a_silent_router_and_a_lost_one_are_one_warning_each() {
    warned(async |warnings| {
        let publisher = publisher(windows(1, 10));
        let silent = attach_answering(&publisher, [], Answer::Silent).await;
        let dead = attach_answering(&publisher, [], Answer::Apply).await;
        dead.router.send(StopIt).await.unwrap();
        for step in 0..5_000 {
            report(&publisher, 1, step % 900).await;
            let bad = load(1).with_gpu_cache_usage_perc(f32::NAN);
            publisher.do_send(MetricsChanged::new(1, bad));
            sleep(ms(1)).await;
        }
        // A router that is silent is told of as soon as something happens then; with nothing to do, nobody wakes for it.
        let mut said = warnings.take();
        said.sort();
        assert_eq!(
            said,
            [
                "a router has not answered a snapshot for a second",
                "a router is gone: nothing more is sent to it",
            ]
        );
        assert!(silent.router.connected());
    });
}

#[test]
fn reports_departures_and_choices_are_no_warnings() {
    warned(async |warnings| {
        let kv = KvMetrics::start(
            KvMetricsConfig::default().restart(Backoff::new(ms(10), ms(10)).unwrap()),
        );
        for step in 0..500 {
            let reporter = kv.reporter(step % 5);
            reporter.report(load(step)).unwrap();
            drop(kv.select(SelectWorker::blocks(1)).await);
            sleep(ms(step % 3)).await;
        }
        let begun = clock::Instant::now();
        while kv.select(SelectWorker::blocks(1)).await.is_ok() {
            assert!(begun.elapsed() < ms(1_000));
        }
        assert!(kv.shutdown(ms(100)).await.is_complete());
        assert_eq!(warnings.take(), [""; 0]);
    });
}

/// A restart is tried each 1 to 5 ms for a second.
fn restarting() -> KvMetricsConfig {
    KvMetricsConfig::default().restart(Backoff::new(ms(1), ms(5)).unwrap())
}

#[test]
fn case_185_a_router_that_cannot_be_started_is_one_line() {
    for level in [Level::WARN, Level::INFO] {
        said(level, async |lines| {
            let arbiter = Arbiter::new();
            let kv = KvMetrics::start(restarting().router_arbiter(arbiter.handle()));
            let reporter = kv.reporter(1);
            reporter.report(load(1)).unwrap();
            sleep(ms(50)).await;
            lines.take();
            arbiter.stop();
            arbiter.join().unwrap();
            for step in 0..1_000 {
                reporter.report(load(step)).unwrap();
                sleep(ms(1)).await;
            }
            let said = lines.take();
            assert_eq!(said.len(), 1, "{said:#?}");
            assert!(said[0].contains("the router died and is started again"));
            assert!(!kv.shutdown(ms(10)).await.is_complete());
        });
    }
}

#[test]
fn case_185_a_router_that_dies_over_and_over_is_told_of_again_after_one_that_lived() {
    warned(async |warnings| {
        let kv = KvMetrics::start(restarting());
        let reporter = kv.reporter(1);
        let mut step = 0;
        let mut die = async |times| {
            for _ in 0..times {
                kv.router().do_send(PanicIt);
                step += 1;
                reporter.report(load(step % 900)).unwrap();
                settle().await;
                sleep(ms(5)).await;
            }
        };
        sleep(ms(50)).await;
        let once = ["the router died and is started again"];
        die(200).await;
        assert_eq!(warnings.take(), once);
        sleep(ms(50)).await;
        die(200).await;
        assert_eq!(warnings.take(), once);
        // A router of somebody else's is told of by its link, once.
        let other = router();
        attach_real(&kv.publisher(), &other).await;
        other.do_send(PanicIt);
        settle().await;
        for step in 0..1_000 {
            reporter.report(load(step % 900)).unwrap();
            sleep(ms(1)).await;
        }
        assert_eq!(
            warnings.take(),
            ["a router is gone: nothing more is sent to it"]
        );
        assert!(!kv.shutdown(ms(100)).await.is_complete());
    });
}

#[test]
fn every_report_and_every_decision_can_be_followed() {
    said(Level::TRACE, async |lines| {
        let kv = KvMetrics::start(KvMetricsConfig::default());
        let reporter = kv.reporter(WorkerRank::new(7, 2));
        reporter.report(load(1)).unwrap();
        let changed = MetricsChanged::new(8, load(2));
        kv.publisher().send(changed).await.unwrap().unwrap();
        sleep(ms(5)).await;
        let reports = lines.take_with("TRACE report");
        assert_eq!(
            reports,
            ["TRACE report worker=7/2", "TRACE report worker=8/0"]
        );

        let request = SelectWorker::blocks(64).overlap(WorkerRank::new(7, 2), 48);
        let chosen = kv.select(request).await.unwrap();
        let ticket = chosen.ticket();
        let expected = format!(
            "DEBUG selected worker=7/2 ticket={ticket} blocks=64 overlap=48 cost={}",
            chosen.cost()
        );
        assert_eq!(lines.take_with("selected"), [expected]);
        let pinned = SelectWorker::blocks(3).among(Candidates::Worker(99.into()));
        assert!(kv.select(pinned).await.is_err());
        assert_eq!(
            lines.take_with("refused"),
            ["DEBUG refused blocks=3 error=the worker asked for is not known"; 2],
            "asked again when the router knows all that was announced"
        );
    });
}

#[test]
fn who_comes_and_goes_is_told_once_and_what_did_not_arrive_in_the_end() {
    said(Level::INFO, async |lines| {
        let kv = KvMetrics::start(KvMetricsConfig::default());
        let silent = attach_answering(&kv.publisher(), [], Answer::Silent).await;
        let reporter = kv.reporter(1);
        for active in 0..10 {
            reporter.report(load(active)).unwrap();
            let changed = MetricsChanged::new(2, load(active));
            kv.publisher().send(changed).await.unwrap().unwrap();
            kv.publisher().do_send(WorkerJoined { worker: w(3) });
            sleep(ms(1)).await;
        }
        let joined = |worker| format!("INFO a worker joined worker={worker}/0");
        let mut said = lines.take();
        said.sort();
        assert_eq!(said, [1, 2, 3].map(joined));
        for draining in [true, true, false] {
            let (publisher, worker) = (kv.publisher(), w(2));
            publisher.do_send(WorkerDraining { worker, draining });
            reporter.drain(draining).unwrap();
            sleep(ms(20)).await;
        }
        let mut said = lines.take();
        said.sort();
        let drains = |worker| format!("INFO a worker drains worker={worker}/0");
        let ends = |worker| format!("INFO a worker drains no more worker={worker}/0");
        assert_eq!(said, [ends(1), ends(2), drains(1), drains(2)]);
        drop(reporter);
        kv.publisher().do_send(WorkerLeft { worker: w(2) });
        kv.publisher().do_send(WorkerLeft { worker: w(2) });
        settle().await;
        let left = |worker| format!("INFO a worker left worker={worker}/0");
        let mut said = lines.take();
        said.sort();
        assert_eq!(said, [1, 2].map(left));
        let report = kv.shutdown(ms(20)).await;
        assert!(!report.is_complete());
        let said = lines.take();
        assert_eq!(said.len(), 1, "{said:?}");
        let missing = format!(
            "INFO the publisher is shut down undelivered=[link {}: 3 workers]",
            silent.link
        );
        assert_eq!(said, [missing]);
    });
    said(Level::INFO, async |lines| {
        let kv = KvMetrics::start(KvMetricsConfig::default());
        assert!(kv.shutdown(ms(20)).await.is_complete());
        assert_eq!(
            lines.take(),
            ["INFO the publisher is shut down undelivered=[]"]
        );
    });
}
