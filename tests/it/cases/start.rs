//! Kind "configuration of the whole": the order of what is set, and what is refused before anything runs.

use std::{panic, time::Duration};

use crate::support::*;
use actix_kv_metrics::{
    Coalescing, ForwardPassMetrics, KvMetrics, KvMetricsConfig, PublisherConfig, RouterConfig,
    SelectError, SelectWorker,
    actix::{Arbiter, System},
};

fn slow() -> PublisherConfig {
    let windows = Coalescing::builder().debounce(ms(500)).max_delay(ms(900));
    PublisherConfig::builder()
        .coalescing(windows.build().unwrap())
        .build()
        .unwrap()
}

fn seeded() -> RouterConfig {
    RouterConfig::builder().seed(7).build().unwrap()
}

/// Whether a worker that crosses half of its capacity is told at once, and whether it is chosen after that.
async fn is_protected(config: KvMetricsConfig) -> (bool, bool) {
    let kv = KvMetrics::start(config);
    let reporter = kv.reporter(1);
    reporter.report(ForwardPassMetrics::new(0, 100, 0)).unwrap();
    sleep(ms(2_000)).await;
    reporter
        .report(ForwardPassMetrics::new(60, 100, 0))
        .unwrap();
    sleep(ms(50)).await;
    let loads = kv.loads().await.unwrap();
    let told = loads.get(1).unwrap().metrics.clone().unwrap();
    sleep(ms(2_000)).await;
    let chosen = kv.select(SelectWorker::blocks(1)).await;
    let refused = matches!(chosen, Err(SelectError::AllSaturated));
    assert!(refused || chosen.is_ok());
    (told.kv_stats.kv_active_blocks == 60, refused)
}

#[test]
fn case_171_both_sides_are_protected_in_whatever_order_it_is_set() {
    virtual_time(async {
        let config = KvMetricsConfig::default;
        let saturated = |config: KvMetricsConfig| config.saturation(0.5).unwrap();
        for set in [
            saturated(config()).publisher(slow()).router(seeded()),
            saturated(config().publisher(slow())).router(seeded()),
            saturated(config().router(seeded())).publisher(slow()),
            saturated(config().publisher(slow()).router(seeded())),
            saturated(saturated(config()).router(seeded()).publisher(slow())),
        ] {
            assert_eq!(is_protected(set).await, (true, true));
        }
        // It goes for both sides, whatever they bring of their own, and the last one set counts.
        let own = RouterConfig::builder().saturation(1.0).build().unwrap();
        let set = config().saturation(0.9).unwrap().saturation(0.5).unwrap();
        let set = set.router(own.clone()).publisher(slow());
        assert_eq!(is_protected(set).await, (true, true));
        // Without it, what they bring counts.
        let set = config().router(own).publisher(slow());
        assert_eq!(is_protected(set).await, (false, false));
    });
}

/// What a start says when it panics.
fn panic_of(start: impl FnOnce() + panic::UnwindSafe) -> String {
    let said = panic::catch_unwind(start).unwrap_err();
    let said = said.downcast::<String>().map(|text| *text);
    said.unwrap_or_else(|said| (*said.downcast::<&str>().unwrap()).to_owned())
}

#[test]
fn a_start_outside_an_actix_context_says_what_to_do() {
    let start = || drop(KvMetrics::start(KvMetricsConfig::default()));
    let on_tokio = || {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async { start() });
    };
    let on_a_thread = || {
        let system = System::new();
        let elsewhere = std::thread::spawn(start);
        drop(system);
        panic::resume_unwind(elsewhere.join().unwrap_err());
    };
    let beside_a_system = || {
        let _system = System::new();
        start();
    };
    for said in [
        panic_of(start),
        panic_of(on_tokio),
        panic_of(on_a_thread),
        panic_of(beside_a_system),
    ] {
        for word in [
            "KvMetrics::start",
            "#[actix::main]",
            "#[actix_web::main]",
            "System::with_tokio_rt",
        ] {
            assert!(said.contains(word), "{said}");
        }
    }
}

/// Wherever actors can be started, it can: on an arbiter's thread, and on a thread with nothing but tokio's local tasks.
#[test]
fn a_start_within_an_actix_context_works_on_every_thread_of_it() {
    let answers = async || {
        let kv = KvMetrics::start(KvMetricsConfig::default());
        let reporter = kv.reporter(1);
        reporter.report(load(1)).unwrap();
        let chosen = kv.select(SelectWorker::blocks(1)).await;
        chosen.is_ok() && kv.shutdown(Duration::from_secs(10)).await.is_complete()
    };
    System::new().block_on(async {
        assert!(answers().await);
        let arbiter = Arbiter::new();
        let (say, said) = tokio::sync::oneshot::channel();
        arbiter.spawn(async move {
            let _ = say.send(answers().await);
        });
        assert!(said.await.unwrap());
        arbiter.stop();
        arbiter.join().unwrap();
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let local = tokio::task::LocalSet::new();
    assert!(local.block_on(&runtime.unwrap(), answers()));
}

/// Workers that report all the time, unchanged, would look stale to such a router.
#[test]
fn stale_after_must_exceed_what_a_report_takes_to_be_told() {
    let config = |stale_after, minor_delay, min_gap| {
        let windows = Coalescing::builder()
            .minor_delay(minor_delay)
            .min_gap(min_gap);
        let windows = windows.build().unwrap();
        let publisher = PublisherConfig::builder().coalescing(windows);
        let router = RouterConfig::builder().stale_after(stale_after);
        KvMetricsConfig::default()
            .publisher(publisher.build().unwrap())
            .router(router.build().unwrap())
    };
    let forever = Duration::MAX;
    for fits in [
        KvMetricsConfig::default(),
        config(ms(121), ms(100), ms(20)),
        config(ms(101), ms(100), ms(0)),
        // A router for which nothing is ever stale.
        config(forever, forever, ms(20)),
    ] {
        assert_eq!(fits.check(), Ok(()));
    }
    for (unfit, text) in [
        (
            config(ms(120), ms(100), ms(20)),
            "stale_after is 120ms, but must be more than minor_delay + min_gap (120ms)",
        ),
        (
            config(ms(0), ms(100), ms(0)),
            "stale_after is 0ns, but must be more than minor_delay + min_gap (100ms)",
        ),
    ] {
        assert_eq!(unfit.check().unwrap_err().to_string(), text);
        let start = || virtual_time(async { drop(KvMetrics::start(unfit)) });
        assert_eq!(panic_of(panic::AssertUnwindSafe(start)), text);
    }
    // What is set after the saturation counts.
    let patient = RouterConfig::builder().stale_after(forever);
    let halfway = config(ms(120), ms(100), ms(20)).saturation(0.5).unwrap();
    let set = halfway.router(patient.build().unwrap());
    assert_eq!(set.check(), Ok(()));
    assert!(config(ms(5_000), forever, ms(1)).check().is_err());
    assert!(config(ms(5_000), ms(1_000), forever).check().is_err());
}
