//! What it costs to tell routers on other machines, in one run against publishing every change directly with async-nats.
//!
//! Run `cargo run --release -p actix-kv-metrics-nats --example figures`. It needs a nats-server
//! (`crates/nats/install-nats-server.sh`) and takes some four minutes; the two ends and the server are processes of their own on
//! this machine. It prints the tables of the README's section *Figures*. With `-- fleet` or `-- ways` it prints only that one.
//!
//! Direct: each change is published at once, as one message, and put into a map by the subscriber. Ours: the same changes go to a
//! reporter, and from the subscriber to a router. Delay: from a change to the moment at which the table has it or a newer value of
//! that worker. Each figure is the median of the rounds, in which the ways take turns.

#![allow(clippy::disallowed_methods)] // It measures.

mod ends;
mod events;
#[path = "../../tests/server/mod.rs"]
mod server;

use std::{
    env,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};

use self::{
    ends::{Failure, LAST, Plan, Spent, Way},
    server::Server,
};

fn main() -> Result<(), Failure> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [] => {
            ways()?;
            fleet()
        }
        ["ways"] => ways(),
        ["fleet"] => fleet(),
        ["publish", way, url, workers, rate, seconds, file] => {
            let plan = plan(workers, rate, seconds)?;
            run(ends::publish(Way::named(way)?, url, plan, file.into()))
        }
        ["subscribe", way, url, file] => run(ends::subscribe(Way::named(way)?, url, file.into())),
        ["local", way, workers, rate, seconds, changed, arrived] => {
            let plan = plan(workers, rate, seconds)?;
            let (changed, arrived) = (changed.into(), arrived.into());
            run(ends::local(Way::named(way)?, plan, changed, arrived))
        }
        ["publish-fleet", url, publishers, workers, rate, seconds] => {
            let plan = plan(workers, rate, seconds)?;
            run(ends::publish_fleet(url, publishers.parse()?, plan))
        }
        _ => Err("figures [ways | fleet]".into()),
    }
}

fn run(end: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    actix::System::new().block_on(end)
}

fn plan(workers: &str, rate: &str, seconds: &str) -> Result<Plan, Failure> {
    Ok(Plan {
        workers: workers.parse()?,
        rate: rate.parse()?,
        seconds: seconds.parse()?,
    })
}

/// A process of this program.
struct End {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl End {
    fn start(args: &[&str]) -> Result<Self, Failure> {
        let mut process = Command::new(env::current_exe()?)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = process.stdin.take();
        let output = process.stdout.take().ok_or("no output")?;
        Ok(Self {
            process,
            input,
            output: BufReader::new(output),
        })
    }

    /// Its next line.
    fn hear(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.is_empty() {
            return Err("an end has ended".into());
        }
        Ok(line)
    }

    fn tell(&mut self) -> Result<(), Failure> {
        let input = self.input.as_mut().ok_or("it was told to end")?;
        Ok(writeln!(input)?)
    }

    /// What it has spent, once it is told that there is no more.
    fn end(mut self) -> Result<Spent, Failure> {
        self.input = None;
        let spent = Spent::read(&self.hear()?)?;
        self.process.wait()?;
        Ok(spent)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // It has ended, unless something failed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// One way, one round.
struct Round {
    publisher: Spent,
    subscriber: Spent,
    /// Of the server, in microseconds of the processor.
    server: u64,
    p50: Duration,
    p99: Duration,
}

/// Time for what is on its way.
const SETTLED: Duration = Duration::from_millis(300);
const WORKERS: u32 = 100;
const SECONDS: u32 = 5;
const ROUNDS: usize = 3;
const RATES: [u32; 2] = [1_000, 10_000];

/// A way, and its rounds.
struct Measured {
    way: Way,
    far: Vec<Round>,
    /// The same in one process, each right after the other.
    near: Vec<Round>,
}

fn ways() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    for rate in RATES {
        let ways = [
            Way::Snapshots(None),
            Way::Snapshots(Some(20)),
            Way::Json,
            Way::MessagePack,
        ];
        let mut all = ways.map(|way| Measured {
            way,
            far: Vec::new(),
            near: Vec::new(),
        });
        for _ in 0..ROUNDS {
            for Measured { way, far, near } in &mut all {
                far.push(far_apart(*way, rate, folder.path())?);
                if matches!(way, Way::Snapshots(_)) {
                    near.push(in_one_process(*way, rate, folder.path())?);
                }
            }
        }
        show_figures(rate, &all)?;
        let [ours, gap, json, messagepack] = &all;
        show_ratios([ours, gap], json, messagepack)?;
    }
    Ok(())
}

fn show_figures(rate: u32, all: &[Measured]) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    writeln!(
        out,
        "\n| {rate} changes/s of {WORKERS} workers | snapshots a change | messages | bytes | CPU publisher | subscriber | server | delay p50 | p99 |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|---|---|")?;
    let changes = f64::from(rate * SECONDS);
    for Measured { way, far, near } in all {
        let each = |figure: fn(&Round) -> f64| median(far, figure) / changes;
        writeln!(
            out,
            "| {} | {:.4} | {:.4} | {:.1} | {:.2} µs | {:.2} µs | {:.1} µs | {:.2} ms | {:.2} ms |",
            way.title(),
            each(|round| round.publisher.snapshots as f64),
            each(|round| round.publisher.messages as f64),
            each(|round| round.publisher.bytes as f64),
            each(|round| round.publisher.cpu as f64),
            each(|round| round.subscriber.cpu as f64),
            each(|round| round.server as f64),
            median(far, |round| millis(round.p50)),
            median(far, |round| millis(round.p99)),
        )?;
        if !near.is_empty() {
            writeln!(
                out,
                "| the same in one process | | | | | | | {:.2} ms | {:.2} ms |",
                median(near, |round| millis(round.p50)),
                median(near, |round| millis(round.p99)),
            )?;
        }
    }
    Ok(())
}

fn show_ratios(
    ours: [&Measured; 2],
    json: &Measured,
    messagepack: &Measured,
) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    writeln!(
        out,
        "\n| to each change as JSON; as MessagePack | bytes | CPU publisher | subscriber | server | delay p50, to one process |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|")?;
    for Measured { way, far, near } in ours {
        let ratios = |figure: fn(&Round) -> f64| {
            let [to_json, to_messagepack] =
                [json, messagepack].map(|direct| median(far, figure) / median(&direct.far, figure));
            format!("{to_json:.2}; {to_messagepack:.2}")
        };
        let further = far.iter().zip(near);
        let further = further.map(|(far, near)| millis(far.p50) - millis(near.p50));
        writeln!(
            out,
            "| {} | {} | {} | {} | {} | {:+.2} ms |",
            way.title(),
            ratios(|round| round.publisher.bytes as f64),
            ratios(|round| round.publisher.cpu as f64),
            ratios(|round| round.subscriber.cpu as f64),
            ratios(|round| round.server as f64),
            middle(further.collect()),
        )?;
    }
    Ok(())
}

fn far_apart(way: Way, rate: u32, folder: &Path) -> Result<Round, Failure> {
    let server = Server::start();
    let (changed, arrived) = (folder.join("changed"), folder.join("arrived"));
    let (url, name) = (server.url(), way.name());
    let [workers, rate, seconds] = [WORKERS, rate, SECONDS].map(|number| number.to_string());
    let file = arrived.to_str().ok_or("no such folder")?;
    let mut subscriber = End::start(&["subscribe", &name, &url, file])?;
    subscriber.hear()?;
    let file = changed.to_str().ok_or("no such folder")?;
    let publisher = End::start(&["publish", &name, &url, &workers, &rate, &seconds, file])?;
    let publisher = publisher.end()?;
    thread::sleep(SETTLED);
    let subscriber = subscriber.end()?;
    round(publisher, subscriber, server.cpu(), folder)
}

fn in_one_process(way: Way, rate: u32, folder: &Path) -> Result<Round, Failure> {
    let name = way.name();
    let [workers, rate, seconds] = [WORKERS, rate, SECONDS].map(|number| number.to_string());
    let files = [folder.join("changed"), folder.join("arrived")];
    let [changed, arrived] = files.each_ref().map(|file| file.to_str());
    let files = changed.zip(arrived).ok_or("no such folder")?;
    let end = End::start(&["local", &name, &workers, &rate, &seconds, files.0, files.1])?;
    round(end.end()?, Spent::default(), 0, folder)
}

fn round(
    publisher: Spent,
    subscriber: Spent,
    server: u64,
    folder: &Path,
) -> Result<Round, Failure> {
    let changes = events::read(&folder.join("changed"))?;
    let arrivals = events::read(&folder.join("arrived"))?;
    let (delays, missing) = events::delays(&changes, &arrivals);
    if missing > 0 {
        return Err(format!("{missing} of {} changes never arrived", changes.len()).into());
    }
    let at = |share: usize| delays.get(delays.len() * share / 100).copied();
    Ok(Round {
        publisher,
        subscriber,
        server,
        p50: at(50).ok_or("nothing arrived")?,
        p99: at(99).ok_or("nothing arrived")?,
    })
}

fn median(rounds: &[Round], figure: impl Fn(&Round) -> f64) -> f64 {
    middle(rounds.iter().map(figure).collect())
}

fn middle(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

const PUBLISHERS: u32 = 200;
const EACH: u32 = 50;
const ROUTERS: usize = 4;
/// Changes a second, of all workers.
const FLEET_RATE: u32 = 2_000;
const DOWN: Duration = Duration::from_secs(2);

fn fleet() -> Result<(), Failure> {
    let mut server = Server::start();
    let folder = tempfile::tempdir()?;
    let url = server.url();
    let files: Vec<_> = (0..ROUTERS)
        .map(|router| folder.path().join(router.to_string()))
        .collect();
    let mut routers = Vec::new();
    for file in &files {
        let file = file.to_str().ok_or("no such folder")?;
        let mut router = End::start(&["subscribe", "snapshots", &url, file])?;
        router.hear()?;
        routers.push(router);
    }
    let workers = PUBLISHERS * EACH;
    let [publishers, all, rate, seconds] =
        [PUBLISHERS, workers, FLEET_RATE, SECONDS].map(|number| number.to_string());
    let args = ["publish-fleet", &url, &publishers, &all, &rate, &seconds];
    let mut fleet = End::start(&args)?;
    fleet.hear()?;
    thread::sleep(Duration::from_secs(1));
    let (server_before, started) = (server.cpu(), Instant::now());
    let cpu_before: Vec<u64> = routers
        .iter()
        .map(|router| server::cpu_of(router.process.id()))
        .collect();
    fleet.tell()?;
    let spent = Spent::read(&fleet.hear()?)?;
    let took = started.elapsed().as_secs_f64();
    let server_cpu = server.cpu() - server_before;
    let cpu: Vec<u64> = routers
        .iter()
        .zip(cpu_before)
        .map(|(router, before)| server::cpu_of(router.process.id()) - before)
        .collect();

    server.kill();
    fleet.tell()?;
    fleet.hear()?;
    thread::sleep(DOWN);
    server.up();
    let back = SystemTime::now();
    thread::sleep(Duration::from_secs(5));
    let mut memory = 0;
    for router in routers {
        memory = memory.max(router.end()?.memory);
    }
    let mut right = Duration::ZERO;
    for file in &files {
        let all = events::all_have(&events::read(file)?, LAST, workers as usize, back);
        right = right.max(all.ok_or("a router never had every last value")?);
    }
    let share = |micros: u64| micros as f64 / took / 1e4;
    let mut out = std::io::stdout();
    writeln!(
        out,
        "\n| {PUBLISHERS} publishers × {EACH} workers, {FLEET_RATE} changes/s, {ROUTERS} routers | |"
    )?;
    writeln!(out, "|---|---|")?;
    let per_second = |count: u64| count as f64 / took;
    writeln!(
        out,
        "| published | {:.0} snapshots/s, {:.0} messages/s, {:.0} kB/s |",
        per_second(spent.snapshots),
        per_second(spent.messages),
        per_second(spent.bytes) / 1e3
    )?;
    writeln!(
        out,
        "| CPU | all publishers {:.1} % of a core, a router {:.1} %, the server {:.1} % |",
        share(spent.cpu),
        share(cpu.iter().max().copied().unwrap_or_default()),
        share(server_cpu)
    )?;
    writeln!(
        out,
        "| memory | all publishers {} MiB, a router {} MiB (its list of arrivals included) |",
        spent.memory / 1024,
        memory / 1024
    )?;
    writeln!(
        out,
        "| server killed for {} s while every worker changed | every router right {right:.0?} after its return |",
        DOWN.as_secs()
    )?;
    Ok(())
}
