//! The two ends, each a process: one that changes the load of workers, one that has a table of it.

use std::{
    cell::RefCell,
    collections::HashMap,
    error::Error,
    io::{self, BufRead, Write},
    path::PathBuf,
    rc::Rc,
    time::{Duration, Instant},
};

use actix::{Actor, Addr, Context, Handler, ResponseFuture};
use actix_kv_metrics::{
    AttachRouter, Coalescing, ForwardPassMetrics, LoadSnapshot, MetricsReporter, PublisherActor,
    PublisherConfig, RouterActor, RouterConfig, Shutdown, SnapshotAck, SnapshotRejected,
    WorkerRank, wire::LoadEvent,
};
use actix_kv_metrics_nats::{
    GetNatsPublisherStats, GetNatsSubscriberStats, NatsConfig, NatsPublisher, NatsPublisherStats,
    NatsSubscriber,
};
use futures_util::StreamExt;
use nix::sys::resource::{UsageWho, getrusage};
use tokio::sync::mpsc;

use crate::events::{self, Event};

pub(crate) type Failure = Box<dyn Error>;

/// How load gets from one end to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Snapshots, with the publisher's default windows or this `min_gap` in milliseconds.
    Snapshots(Option<u64>),
    /// Every change at once, as a JSON `LoadEvent`.
    Json,
    /// Every change at once, the same entry in MessagePack.
    MessagePack,
}

/// A subject as long as those of snapshots.
const DIRECT: &str = "kv.pub.7.snapshot";
const ID: u64 = 7;

impl Way {
    pub(crate) fn named(name: &str) -> Result<Self, Failure> {
        Ok(match name {
            "json" => Self::Json,
            "messagepack" => Self::MessagePack,
            "snapshots" => Self::Snapshots(None),
            name => {
                let gap = name.strip_prefix("snapshots-").ok_or("no such way")?;
                Self::Snapshots(Some(gap.parse()?))
            }
        })
    }

    /// As an argument.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Snapshots(None) => "snapshots".to_owned(),
            Self::Snapshots(Some(gap)) => format!("snapshots-{gap}"),
            Self::Json => "json".to_owned(),
            Self::MessagePack => "messagepack".to_owned(),
        }
    }

    /// In a table.
    pub(crate) fn title(self) -> String {
        match self {
            Self::Snapshots(None) => "ours, default windows".to_owned(),
            Self::Snapshots(Some(gap)) => format!("ours, `min_gap` {gap} ms"),
            Self::Json => "each change, JSON".to_owned(),
            Self::MessagePack => "each change, MessagePack".to_owned(),
        }
    }

    fn encode(self, worker: u32, value: u32) -> Result<Vec<u8>, Failure> {
        if self == Self::Json {
            let event = LoadEvent::new(WorkerRank::from(u64::from(worker)), metrics(value));
            return Ok(event.to_json()?);
        }
        let ForwardPassMetrics {
            worker_stats: requests,
            kv_stats: kv,
            ..
        } = metrics(value);
        Ok(rmp_serde::to_vec(&(
            worker,
            (
                requests.request_active_slots,
                requests.request_total_slots,
                requests.num_requests_waiting,
            ),
            (
                kv.kv_active_blocks,
                kv.kv_total_blocks,
                kv.gpu_cache_usage_perc,
                kv.gpu_prefix_cache_hit_rate,
            ),
        ))?)
    }

    fn decode(self, message: &[u8]) -> Result<(WorkerRank, ForwardPassMetrics), Failure> {
        if self == Self::Json {
            let event = LoadEvent::from_json(message)?;
            return Ok((event.worker(), event.data));
        }
        type Entry = (u64, (u64, u64, u64), (u64, u64, f32, f32));
        let (worker, (active, total, waiting), (blocks, capacity, usage, hits)): Entry =
            rmp_serde::from_slice(message)?;
        let metrics = ForwardPassMetrics::new(blocks, capacity, waiting)
            .with_request_active_slots(active)
            .with_request_total_slots(total)
            .with_gpu_cache_usage_perc(usage)
            .with_gpu_prefix_cache_hit_rate(hits);
        Ok((WorkerRank::from(worker), metrics))
    }
}

/// Every field that engines fill.
fn metrics(value: u32) -> ForwardPassMetrics {
    let blocks = u64::from(value);
    ForwardPassMetrics::new(blocks, 16_384, blocks % 4)
        .with_request_active_slots(blocks % 64)
        .with_request_total_slots(256)
        .with_gpu_cache_usage_perc(value as f32 / 16_384.0)
        .with_gpu_prefix_cache_hit_rate(0.25)
}

fn value_of(metrics: &ForwardPassMetrics) -> u32 {
    metrics.kv_stats.kv_active_blocks as u32
}

/// What an end has cost.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Spent {
    /// Of the processor, in microseconds.
    pub(crate) cpu: u64,
    pub(crate) messages: u64,
    /// Bytes published, with what the protocol adds, and markers that came back.
    pub(crate) bytes: u64,
    /// Snapshots; of a way without, messages.
    pub(crate) snapshots: u64,
    /// Memory, in KiB.
    pub(crate) memory: u64,
}

impl Spent {
    pub(crate) fn read(line: &str) -> Result<Self, Failure> {
        let mut fields = line.split_whitespace().map(str::parse);
        let mut next = || fields.next().ok_or("a short line")?.map_err(Failure::from);
        Ok(Self {
            cpu: next()?,
            messages: next()?,
            bytes: next()?,
            snapshots: next()?,
            memory: next()?,
        })
    }

    fn print(self) -> io::Result<()> {
        say(&format!(
            "{} {} {} {} {}",
            self.cpu, self.messages, self.bytes, self.snapshots, self.memory
        ))
    }
}

fn say(line: &str) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}

/// User and system time of this process, in microseconds.
fn cpu() -> Result<u64, Failure> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let micros = |time: nix::sys::time::TimeVal| {
        time.tv_sec().unsigned_abs() * 1_000_000 + time.tv_usec().unsigned_abs()
    };
    Ok(micros(usage.user_time()) + micros(usage.system_time()))
}

/// Memory of this process just now, in KiB.
fn memory() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.ok_or("no VmRSS")?.parse()?)
}

/// Lines of the parent; `None` once it has no more.
fn told() -> mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

fn config(url: &str) -> Result<NatsConfig, Failure> {
    Ok(NatsConfig::builder().urls([url]).build()?)
}

/// Bytes of a message from a client, and to one: `PUB kv.mark 3`, `MSG kv.mark 1 3`, two line ends.
fn framed(subject: &str, payload: u64) -> u64 {
    let digits = payload.to_string().len() as u64;
    4 + subject.len() as u64 + 1 + digits + 2 + payload + 2
}

/// Changes of workers, one after another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) workers: u32,
    /// A second, of all workers together.
    pub(crate) rate: u32,
    pub(crate) seconds: u32,
}

impl Plan {
    /// Values from 1 on: 0 is what each worker begins with.
    async fn run(
        self,
        mut change: impl AsyncFnMut(u32, u32) -> Result<(), Failure>,
    ) -> Result<Vec<Event>, Failure> {
        let started = actix::clock::Instant::now();
        let mut changes = Vec::with_capacity((self.rate * self.seconds) as usize);
        for count in 0..self.rate * self.seconds {
            let due = started + Duration::from_secs(1) * count / self.rate;
            if due > actix::clock::Instant::now() {
                actix::clock::sleep_until(due).await;
            }
            let worker = count * STRIDE % self.workers;
            let value = count / self.workers + 1;
            changes.push(Event::now(worker, value));
            change(worker, value).await?;
        }
        Ok(changes)
    }
}

/// So that a change is followed by one of another publisher, and each worker has its turn: more workers than a publisher has,
/// without a common divisor with those of all.
const STRIDE: u32 = 51;

/// Time for what is on its way.
const SETTLED: Duration = Duration::from_millis(300);

pub(crate) async fn publish(way: Way, url: &str, plan: Plan, file: PathBuf) -> Result<(), Failure> {
    let (changes, mut spent) = match way {
        Way::Snapshots(gap) => publish_snapshots(url, plan, gap).await?,
        Way::Json | Way::MessagePack => publish_each(way, url, plan).await?,
    };
    spent.memory = memory()?;
    events::write(&changes, &file)?;
    Ok(spent.print()?)
}

async fn publish_snapshots(
    url: &str,
    plan: Plan,
    gap: Option<u64>,
) -> Result<(Vec<Event>, Spent), Failure> {
    let publisher = PublisherActor::new(PublisherConfig::builder().id(ID).build()?).start();
    let gap = gap.map(Duration::from_millis);
    let coalescing = gap.map(|gap| Coalescing::builder().min_gap(gap).build());
    let nats = NatsPublisher::start(config(url)?, &publisher, coalescing.transpose()?).await?;
    let reporters = reporters(&publisher, 0..plan.workers)?;
    actix::clock::sleep(SETTLED).await;
    let stats = async || nats.send(GetNatsPublisherStats).await;
    let (before, cpu_before) = (stats().await?, cpu()?);
    let changes = plan
        .run(async |worker, value| Ok(reporters[worker as usize].report(metrics(value))?))
        .await?;
    let (spent, after) = (cpu()? - cpu_before, stats().await?);
    let within = Duration::from_secs(1);
    if !publisher.send(Shutdown { within }).await?.is_complete() {
        return Err("the last values did not arrive".into());
    }
    Ok((changes, difference(&before, &after, spent)))
}

fn difference(before: &NatsPublisherStats, after: &NatsPublisherStats, cpu: u64) -> Spent {
    let parts = after.parts - before.parts;
    let marks = after.snapshots.published - before.snapshots.published;
    let bytes = after.bytes - before.bytes;
    let digits = after.snapshots.published.to_string().len() as u64;
    let part = bytes / parts.max(1);
    let added = framed("kv.pub.7.snapshot", part) - part;
    // A marker comes back with the number of its subscription, two digits and a space at most.
    // Its run, 16 digits, a space, and its number.
    let mark = 2 * framed("kv.pub.7.mark", 16 + 1 + digits) + 3;
    Spent {
        cpu,
        messages: parts + marks,
        bytes: bytes + parts * added + marks * mark,
        snapshots: marks,
        memory: 0,
    }
}

async fn publish_each(way: Way, url: &str, plan: Plan) -> Result<(Vec<Event>, Spent), Failure> {
    let client = async_nats::connect(url).await?;
    for worker in 0..plan.workers {
        client
            .publish(DIRECT, way.encode(worker, 0)?.into())
            .await?;
    }
    actix::clock::sleep(SETTLED).await;
    let mut spent = Spent::default();
    let cpu_before = cpu()?;
    let (mut messages, mut bytes) = (0, 0);
    let changes = plan
        .run(async |worker, value| {
            let message = way.encode(worker, value)?;
            messages += 1;
            bytes += framed(DIRECT, message.len() as u64);
            Ok(client.publish(DIRECT, message.into()).await?)
        })
        .await?;
    client.flush().await?;
    spent.cpu = cpu()? - cpu_before;
    (spent.messages, spent.snapshots, spent.bytes) = (messages, messages, bytes);
    Ok((changes, spent))
}

/// Reporters of these workers, each of which has said 0.
fn reporters(
    publisher: &Addr<PublisherActor>,
    workers: std::ops::Range<u32>,
) -> Result<Vec<MetricsReporter>, Failure> {
    let begin = |worker| {
        let reporter = MetricsReporter::new(publisher, u64::from(worker));
        reporter.report(metrics(0))?;
        Ok(reporter)
    };
    workers.map(begin).collect()
}

type Arrivals = Rc<RefCell<Vec<Event>>>;

/// A router that writes down when it has what.
struct Recorder {
    router: Addr<RouterActor>,
    arrivals: Arrivals,
}

impl Actor for Recorder {
    type Context = Context<Self>;
}

impl Handler<LoadSnapshot> for Recorder {
    type Result = ResponseFuture<Result<SnapshotAck, SnapshotRejected>>;

    fn handle(&mut self, msg: LoadSnapshot, _: &mut Context<Self>) -> Self::Result {
        let told = msg.workers.iter().filter_map(|load| {
            let value = value_of(load.metrics.as_ref()?);
            Some((load.worker.worker().0 as u32, value))
        });
        let told: Vec<_> = told.collect();
        let (answer, arrivals) = (self.router.send(msg), self.arrivals.clone());
        Box::pin(async move {
            let answer = answer.await.unwrap_or(Err(SnapshotRejected));
            if answer.is_ok() {
                let events = told
                    .iter()
                    .map(|(worker, value)| Event::now(*worker, *value));
                arrivals.borrow_mut().extend(events);
            }
            answer
        })
    }
}

fn recorder() -> (Addr<Recorder>, Arrivals) {
    let arrivals = Arrivals::default();
    let recorder = Recorder {
        router: RouterActor::new(RouterConfig::default()).start(),
        arrivals: arrivals.clone(),
    };
    (recorder.start(), arrivals)
}

/// Until the parent says no more.
pub(crate) async fn subscribe(way: Way, url: &str, file: PathBuf) -> Result<(), Failure> {
    let mut told = told();
    let (arrivals, cpu_before) = match way {
        Way::Snapshots(_) => {
            let (recorder, arrivals) = recorder();
            let nats = NatsSubscriber::of_recipient(config(url)?, recorder.recipient());
            let nats = nats.start().await?;
            while !nats.send(GetNatsSubscriberStats).await?.connected {
                actix::clock::sleep(Duration::from_millis(1)).await;
            }
            (arrivals, wait_for_end(&mut told).await?)
        }
        Way::Json | Way::MessagePack => {
            let client = async_nats::connect(url).await?;
            let mut messages = client.subscribe(DIRECT).await?;
            client.flush().await?;
            let arrivals = Arrivals::default();
            let into = arrivals.clone();
            actix::spawn(async move {
                let mut table: HashMap<WorkerRank, ForwardPassMetrics> = HashMap::new();
                while let Some(message) = messages.next().await {
                    let Ok((worker, metrics)) = way.decode(&message.payload) else {
                        continue;
                    };
                    let value = value_of(&metrics);
                    table.insert(worker, metrics);
                    let event = Event::now(worker.worker().0 as u32, value);
                    into.borrow_mut().push(event);
                }
            });
            (arrivals, wait_for_end(&mut told).await?)
        }
    };
    let spent = Spent {
        cpu: cpu()? - cpu_before,
        memory: memory()?,
        ..Spent::default()
    };
    events::write(&arrivals.borrow(), &file)?;
    Ok(spent.print()?)
}

/// Says that it listens. What had been spent by then.
async fn wait_for_end(told: &mut mpsc::UnboundedReceiver<String>) -> Result<u64, Failure> {
    let before = cpu()?;
    say("ready")?;
    while told.recv().await.is_some() {}
    Ok(before)
}

/// Both ends in one process, without a network.
pub(crate) async fn local(
    way: Way,
    plan: Plan,
    changed: PathBuf,
    arrived: PathBuf,
) -> Result<(), Failure> {
    let publisher = PublisherActor::new(PublisherConfig::default()).start();
    let (recorder, arrivals) = recorder();
    let mut attach = AttachRouter::new(recorder.recipient());
    if let Way::Snapshots(Some(gap)) = way {
        let gap = Duration::from_millis(gap);
        attach = attach.coalescing(Coalescing::builder().min_gap(gap).build()?);
    }
    publisher.send(attach).await?;
    let reporters = reporters(&publisher, 0..plan.workers)?;
    actix::clock::sleep(SETTLED).await;
    let changes = plan
        .run(async |worker, value| Ok(reporters[worker as usize].report(metrics(value))?))
        .await?;
    actix::clock::sleep(SETTLED).await;
    events::write(&changes, &changed)?;
    events::write(&arrivals.borrow(), &arrived)?;
    Ok(Spent::default().print()?)
}

/// The value that all workers have at the end.
pub(crate) const LAST: u32 = 16_000;

/// Many publishers, with as many connections; `plan.workers` is that of all. After the plan it waits for a line, sets every
/// worker to [`LAST`], says so, and waits for the parent to end.
pub(crate) async fn publish_fleet(url: &str, publishers: u32, plan: Plan) -> Result<(), Failure> {
    let mut told = told();
    let each = plan.workers / publishers;
    let (mut fleet, mut all) = (Vec::new(), Vec::new());
    for number in 0..publishers {
        let publisher = PublisherActor::new(PublisherConfig::default()).start();
        let nats = NatsPublisher::start(config(url)?, &publisher, None).await?;
        all.extend(reporters(&publisher, number * each..(number + 1) * each)?);
        fleet.push(nats);
    }
    let started = Instant::now();
    for nats in &fleet {
        while nats.send(GetNatsPublisherStats).await?.snapshots.arrived == 0 {
            if started.elapsed() > Duration::from_secs(30) {
                return Err("a publisher's first snapshot does not arrive".into());
            }
            actix::clock::sleep(Duration::from_millis(1)).await;
        }
    }
    say("ready")?;
    told.recv().await;
    let stats = async || {
        let mut all = Vec::new();
        for nats in &fleet {
            all.push(nats.send(GetNatsPublisherStats).await?);
        }
        Ok::<_, Failure>(all)
    };
    let before = stats().await?;
    let cpu_before = cpu()?;
    plan.run(async |worker, value| Ok(all[worker as usize].report(metrics(value))?))
        .await?;
    let mut spent = Spent {
        cpu: cpu()? - cpu_before,
        memory: memory()?,
        ..Spent::default()
    };
    for (before, after) in before.iter().zip(stats().await?) {
        let one = difference(before, &after, 0);
        spent.messages += one.messages;
        spent.bytes += one.bytes;
        spent.snapshots += one.snapshots;
    }
    spent.print()?;
    told.recv().await;
    for reporter in &all {
        reporter.report(metrics(LAST))?;
    }
    say("done")?;
    while told.recv().await.is_some() {}
    Ok(())
}
