//! An isolated change: from `report()` until it is in the router's table.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use actix::{Actor, Addr, Context, Handler, Message};
use actix_kv_metrics::{Coalescing, MetricsReporter};
use tokio::sync::oneshot;

use super::{Effort, Findings};
use crate::{
    measure::{Pair, Spread, percentile},
    opponents::debounce_task,
    outcome::{Row, Target, Unit},
    stream::load,
    systems::{self, Witness, Witnessed, now},
};

pub(super) fn run(effort: Effort) -> Findings {
    let mut rows = systems::in_system(async { leading(effort).await });
    rows.extend(systems::in_system(async { in_real_time(effort).await }));
    Findings {
        rows,
        ..Findings::default()
    }
}

async fn leading(effort: Effort) -> Vec<Row> {
    let coalescing = Coalescing::builder().leading(true).build();
    let course = Course::new(coalescing.unwrap_or_default()).await;
    let echo = Echo.start();
    let samples = effort.pick(20, 100);
    let mut trips = Pair::default();
    for _ in 0..effort.pick(3, 15) {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for n in 0..samples {
            actix::clock::sleep(QUIET).await;
            ours.push(course.nanos_to_table(n).await);
            actix::clock::sleep(QUIET).await;
            theirs.push(round_trip(&echo).await);
        }
        trips.push(Spread::of(ours).median, Spread::of(theirs).median);
    }
    vec![Row::cost(
        "isolated change to the table, leading on",
        "plain message round trip",
        &trips,
        Target::AtMost(3.0),
    )]
}

async fn in_real_time(effort: Effort) -> Vec<Row> {
    let course = Course::new(Coalescing::default()).await;
    let arrival = Arc::<Mutex<Arrival>>::default();
    let router = Witnessed::new(arrival.clone()).start();
    let task = debounce_task::spawn(7.into(), router.recipient());
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for n in 1..effort.pick(20, 500) {
        actix::clock::sleep(QUIET).await;
        ours.push(course.nanos_to_table(n).await / 1e6);
        actix::clock::sleep(QUIET).await;
        let started = now();
        let arrived = expect(&arrival);
        let _ = task.send(load(n));
        theirs.push(elapsed(started, arrived.await) / 1e6);
    }
    let debounce = Coalescing::default().debounce().as_secs_f64() * 1e3;
    let most = Target::AtMost(debounce + TICK_MILLIS + WAKING_MILLIS);
    [("median", 0.5, most), ("p99", 0.99, Target::Told)]
        .map(|(at, share, target)| {
            let mine = Spread::once(percentile(&mut ours, share));
            let other = Spread::once(percentile(&mut theirs, share));
            let name = format!("isolated change to the table, leading off, {at}");
            Row::own(name, mine, Unit::Millis, target).beside("(d) debounce task", other)
        })
        .into()
}

/// From a reporter to a table, on the current thread.
struct Course {
    reporter: MetricsReporter,
    arrival: Arc<Mutex<Arrival>>,
}

impl Course {
    async fn new(coalescing: Coalescing) -> Self {
        let arrival = Arc::<Mutex<Arrival>>::default();
        let router = Witnessed::new(arrival.clone()).start();
        let publisher = systems::publisher_to(coalescing, router.recipient()).await;
        let reporter = MetricsReporter::new(&publisher, 7);
        let _ = reporter.report(load(u64::MAX));
        systems::handled(&publisher).await;
        Self { reporter, arrival }
    }

    async fn nanos_to_table(&self, n: u64) -> f64 {
        let arrived = expect(&self.arrival);
        let started = now();
        let _ = self.reporter.report(load(n));
        elapsed(started, arrived.await)
    }
}

/// Tells when the next snapshot is in the table.
#[derive(Debug, Default)]
struct Arrival(Option<oneshot::Sender<Instant>>);

impl Witness for Arrival {
    fn applied(&mut self, at: Instant) {
        if let Some(waiting) = self.0.take() {
            let _ = waiting.send(at);
        }
    }
}

fn expect(arrival: &Mutex<Arrival>) -> oneshot::Receiver<Instant> {
    let (told, arrived) = oneshot::channel();
    arrival.lock().unwrap_or_else(PoisonError::into_inner).0 = Some(told);
    arrived
}

fn elapsed(started: Instant, arrived: Result<Instant, oneshot::error::RecvError>) -> f64 {
    let arrived = arrived.expect("the router lives");
    (arrived - started).as_nanos() as f64
}

struct Echo;

impl Actor for Echo {
    type Context = Context<Self>;
}

struct Call;

impl Message for Call {
    type Result = ();
}

impl Handler<Call> for Echo {
    type Result = ();

    fn handle(&mut self, _: Call, _: &mut Context<Self>) {}
}

async fn round_trip(echo: &Addr<Echo>) -> f64 {
    let started = now();
    let _ = echo.send(Call).await;
    (now() - started).as_nanos() as f64
}

/// Longer than the debounce, so that each change is isolated.
const QUIET: Duration = Duration::from_millis(4);
/// tokio's timers are that coarse.
const TICK_MILLIS: f64 = 1.0;
/// So late does the kernel wake a sleeper, and do the actors run. That it is a tick at most in virtual time is tested in
/// the crate; a clock that can be paused is slower to read, for which reason it is not used here.
const WAKING_MILLIS: f64 = 0.3;
