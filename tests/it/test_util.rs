//! What users' tests are given: the clock, the recording router, the gate, and the wait for reports.

use std::{panic, time::Duration};

use crate::support::{
    load, ms,
    publishers::{PanicIt, StopIt},
    virtual_time, w,
};
use actix_kv_metrics::{
    AttachRouter, Backoff, KvMetrics, KvMetricsConfig, SelectWorker, SnapshotKind,
    actix::{Actor, Context, Handler, Message, clock},
    test_util::{
        Answer, Gate, Hold, Recorded, RecordingRouter, SnapshotLog, paused, paused_within, settled,
    },
};

fn started() -> KvMetrics {
    let pauses = Backoff::new(ms(10), ms(40)).unwrap();
    KvMetrics::start(KvMetricsConfig::default().restart(pauses))
}

/// Attaches a router to it and forgets its first snapshot.
async fn attached(
    kv: &KvMetrics,
    script: impl IntoIterator<Item = Answer>,
    otherwise: Answer,
) -> SnapshotLog {
    let log = SnapshotLog::new();
    let script = [Answer::Apply].into_iter().chain(script);
    let router = RecordingRouter::answering(&log, script, otherwise).start();
    let attach = AttachRouter::new(router.recipient());
    kv.publisher().send(attach).await.unwrap();
    settled(kv).await;
    assert_eq!(log.take().len(), 1);
    log
}

#[track_caller]
fn has_told(recorded: &Recorded, at: Duration, active: u64) {
    assert_eq!(recorded.at, at);
    let loads = &recorded.snapshot.workers;
    assert_eq!((loads.len(), loads[0].worker), (1, w(1)));
    assert_eq!(loads[0].metrics, Some(load(active)));
}

#[test]
fn a_day_on_the_paused_clock_takes_no_time_and_an_hour_is_the_limit() {
    let answer = paused_within(Duration::from_secs(100_000), async {
        let begun = clock::Instant::now();
        clock::sleep(Duration::from_secs(86_400)).await;
        begun.elapsed()
    });
    assert_eq!(answer, Duration::from_secs(86_400));
    let hangs = panic::catch_unwind(|| paused(std::future::pending::<()>()));
    let said = *hangs.unwrap_err().downcast::<String>().unwrap();
    assert_eq!(said, "the test still waits after 3600s of virtual time");
    let fails = panic::catch_unwind(|| paused(async { panic!("as told") }));
    assert!(fails.is_err());
}

#[test]
fn a_recording_router_answers_as_told_and_its_log_has_the_times() {
    paused(async {
        let kv = started();
        let reporter = kv.reporter(1);
        reporter.report(load(1)).unwrap();
        let script = [Answer::Refuse, Answer::ApplyAfter(ms(30)), Answer::NeedFull];
        let log = attached(&kv, script, Answer::Apply).await;
        clock::sleep(ms(100)).await;
        reporter.report(load(2)).unwrap();
        clock::sleep(ms(3)).await;
        assert_eq!(log.take(), [], "the refused one is not in it");
        settled(&kv).await;
        // The refused one came after its window of 1 ms, and again 10 ms later.
        let taken = log.take();
        assert_eq!(taken.len(), 1);
        has_told(&taken[0], ms(111), 2);
        assert_eq!(kv.stats().await.unwrap().links[1].delivery.failures, 1);
        reporter.report(load(3)).unwrap();
        settled(&kv).await;
        let taken = log.take();
        let kinds: Vec<_> = taken
            .iter()
            .map(|recorded| recorded.snapshot.kind)
            .collect();
        assert!(matches!(
            kinds[..],
            [SnapshotKind::Delta { .. }, SnapshotKind::Full]
        ));
        has_told(&taken[1], taken[0].at, 3);
    });
}

#[test]
fn settled_waits_for_no_window_but_for_a_router_that_is_replaced() {
    virtual_time(async {
        let kv = started();
        let reporter = kv.reporter(1);
        let begun = clock::Instant::now();
        reporter.report(load(1)).unwrap();
        settled(&kv).await;
        reporter.report(load(2)).unwrap();
        settled(&kv).await;
        let told = async || kv.loads().await.unwrap().get(1).unwrap().metrics.clone();
        assert_eq!(told().await, Some(load(2)));
        assert_eq!(begun.elapsed(), Duration::ZERO);
        // With nothing to tell it returns at once.
        settled(&kv).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);

        assert!(kv.router().send(PanicIt).await.is_err());
        settled(&kv).await;
        assert_eq!(told().await, Some(load(2)));
        kv.router().send(StopIt).await.unwrap();
        reporter.report(load(3)).unwrap();
        settled(&kv).await;
        assert_eq!(told().await, Some(load(3)));
        assert!(begun.elapsed() < ms(50), "{:?}", begun.elapsed());
    });
}

#[test]
fn settled_gives_up_on_a_router_that_never_answers() {
    let said = panic::catch_unwind(|| {
        paused(async {
            let kv = started();
            let reporter = kv.reporter(1);
            let _log = attached(&kv, [], Answer::Silent).await;
            reporter.report(load(1)).unwrap();
            settled(&kv).await;
        });
    });
    let said = *said.unwrap_err().downcast::<String>().unwrap();
    assert_eq!(
        said,
        "a router runs: true; undelivered after 60s: [link 2: 1 workers]"
    );
}

#[test]
fn an_actor_at_a_gate_handles_what_came_before_and_nothing_else_until_it_opens() {
    struct Counter(u32);

    impl Actor for Counter {
        type Context = Context<Self>;
    }

    struct Count;

    impl Message for Count {
        type Result = u32;
    }

    impl Handler<Count> for Counter {
        type Result = u32;

        fn handle(&mut self, _: Count, _: &mut Context<Self>) -> u32 {
            self.0 += 1;
            self.0
        }
    }

    impl Handler<Hold> for Counter {
        type Result = ();

        fn handle(&mut self, hold: Hold, ctx: &mut Context<Self>) {
            hold.at_gate(ctx);
        }
    }

    paused(async {
        let counter = Counter(0).start();
        let before = counter.send(Count);
        let gate = Gate::close(&counter);
        assert_eq!(before.await.unwrap(), 1);
        let waits = clock::timeout(ms(1_000), counter.send(Count)).await;
        assert!(waits.is_err());
        gate.open();
        // Nobody waited for the one in between any more: actix skips it.
        assert_eq!(counter.send(Count).await.unwrap(), 2);
        drop(Gate::close(&counter));
        assert_eq!(counter.send(Count).await.unwrap(), 3);

        // Those of the crate.
        let kv = started();
        let reporter = kv.reporter(1);
        let log = attached(&kv, [], Answer::Apply).await;
        let (publisher, router) = (Gate::close(&kv.publisher()), Gate::close(&kv.router()));
        reporter.report(load(1)).unwrap();
        clock::sleep(ms(100)).await;
        assert_eq!(log.take(), []);
        publisher.open();
        clock::sleep(ms(100)).await;
        assert_eq!(log.take().len(), 1);
        let choice = clock::timeout(ms(100), kv.select(SelectWorker::blocks(1))).await;
        assert!(choice.is_err());
        router.open();
        let choice = kv.select(SelectWorker::blocks(1)).await;
        assert_eq!(choice.unwrap().worker(), w(1));
    });
}
