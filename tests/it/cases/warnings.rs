//! Kind "observability": a warning is said once for each change of state, never once a message.

use std::{
    fmt::{Debug, Write},
    sync::{Arc, Mutex},
};

use crate::support::{publishers::*, *};
use actix_kv_metrics::{
    Backoff, KvMetrics, KvMetricsConfig, MetricsChanged, SelectWorker, actix::clock,
};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

/// What was said at `WARN` and above.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").unwrap();
        }
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Runs `body` in virtual time and hands it what is warned of meanwhile.
fn warned<F: Future<Output = ()>>(body: impl FnOnce(Warnings) -> F) {
    let warnings = Warnings::default();
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
