//! Engines and a gateway before them.

use std::{io::Write, net::SocketAddr, time::Duration};

use serde_json::Value;
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    time::{Instant, sleep},
};

use crate::{
    client::{self, Answer, get, post, send},
    process::Process,
};

pub(crate) struct Site {
    /// Numbered from 1 at the gateway.
    pub(crate) engines: Vec<Process>,
    pub(crate) gateway: Process,
    arguments: Vec<String>,
}

impl Site {
    /// So many engines with these options, and a gateway with these time-outs, all of whose engines report.
    pub(crate) async fn start(engines: usize, options: &[&str], timeouts: &str) -> Self {
        let arguments: Vec<_> = ["engine"].iter().chain(options).copied().collect();
        let engines: Vec<_> = (0..engines).map(|_| Process::start(&arguments)).collect();
        let mut settings = tempfile::NamedTempFile::new().unwrap();
        let mut text = format!("listen = \"127.0.0.1:0\"\n[timeouts]\n{timeouts}\n[models.sim]\n");
        text += "scrape = { every = \"50ms\", leave_after = \"1s\" }\n";
        for (engine, id) in engines.iter().zip(1..) {
            let url = format!("http://{}", engine.address);
            text += &format!("[[models.sim.engines]]\nid = {id}\nurl = \"{url}\"\n");
        }
        settings.write_all(text.as_bytes()).unwrap();
        let path = settings.path().to_str().unwrap();
        let site = Self {
            gateway: Process::start(&["--config", path]),
            arguments: arguments.into_iter().map(str::to_owned).collect(),
            engines,
        };
        site.until_ready(site.engines.len() as u64).await;
        site
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        send(self.gateway.address, &get(path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        send(self.gateway.address, &post(path, &body.to_string())).await
    }

    pub(crate) async fn complete(&self, body: &Value) -> Answer {
        self.post("/v1/completions", body).await
    }

    /// What an engine of that kind answers by itself: the same as any other.
    pub(crate) async fn direct(&self, engine: usize, path: &str, body: &Value) -> Answer {
        send(self.engines[engine].address, &post(path, &body.to_string())).await
    }

    /// Engines that may be chosen.
    pub(crate) async fn ready(&self) -> u64 {
        self.get("/ready").await.json()["engines"]["sim"]
            .as_u64()
            .unwrap()
    }

    pub(crate) async fn until_ready(&self, engines: u64) {
        until(async || self.ready().await == engines).await;
    }

    pub(crate) async fn stats(&self, engine: usize, name: &str) -> u64 {
        let stats = send(self.engines[engine].address, &get("/sim/stats")).await;
        stats.json()[name].as_u64().unwrap()
    }

    /// Of all of these engines together.
    pub(crate) async fn sum(&self, engines: &[usize], name: &str) -> u64 {
        let mut sum = 0;
        for &engine in engines {
            sum += self.stats(engine, name).await;
        }
        sum
    }

    pub(crate) async fn faults(&self, engines: &[usize], faults: Value) {
        for &engine in engines {
            let answer = self.direct(engine, "/sim/faults", &faults).await;
            assert_eq!(answer.status, 200, "{answer:?}");
        }
    }

    /// What the router knows of an engine, by its place.
    pub(crate) async fn known(&self, engine: usize) -> Value {
        let workers = self.get("/workers").await.json();
        workers["workers"][engine]["ranks"][0].clone()
    }

    pub(crate) async fn start_again(&mut self, engine: usize) {
        let listen = self.engines[engine].address.to_string();
        let mut arguments: Vec<_> = self.arguments.iter().map(String::as_str).collect();
        arguments.extend(["--listen", &listen]);
        self.engines[engine] = Process::start(&arguments);
    }

    /// Until nothing is under way or booked, and these engines have nothing to do.
    pub(crate) async fn until_at_rest(&self, engines: &[usize]) {
        until(async || {
            let told = self.get("/workers").await.json();
            let workers = told["workers"].as_array().unwrap().iter();
            let ranks = workers.flat_map(|worker| worker["ranks"].as_array().unwrap());
            let booked: u64 = ranks
                .map(|rank| rank["booked_requests"].as_u64().unwrap())
                .sum();
            told["open_requests"] == 0
                && booked == 0
                && self.sum(engines, "running").await == 0
                && self.sum(engines, "waiting").await == 0
        })
        .await;
    }

    /// The engine that has it, of those that have none but this.
    pub(crate) async fn until_begun(&self) -> usize {
        loop {
            for engine in 0..self.engines.len() {
                if self.stats(engine, "running").await == 1 {
                    return engine;
                }
            }
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A stream that is read as it comes.
pub(crate) struct Open {
    connection: TcpStream,
    read: Vec<u8>,
}

impl Open {
    pub(crate) async fn ask(to: SocketAddr, body: &Value) -> Self {
        let mut connection = TcpStream::connect(to).await.unwrap();
        let request = post("/v1/completions", &body.to_string());
        connection.write_all(request.as_bytes()).await.unwrap();
        Self {
            connection,
            read: Vec::new(),
        }
    }

    /// Until so many events are there.
    pub(crate) async fn until_events(&mut self, events: usize) {
        use tokio::io::AsyncReadExt;
        while client::answer(&self.read).body.matches("data: ").count() < events {
            let mut more = [0; 4_096];
            let read = tokio::time::timeout(LONGEST, self.connection.read(&mut more)).await;
            let n = read.expect("more comes").unwrap();
            assert!(n > 0, "it ended: {:?}", String::from_utf8_lossy(&self.read));
            self.read.extend_from_slice(&more[..n]);
        }
    }

    pub(crate) fn so_far(&self) -> Answer {
        client::answer(&self.read)
    }

    pub(crate) async fn rest(mut self) -> Answer {
        use tokio::io::AsyncReadExt;
        let read = tokio::time::timeout(LONGEST, self.connection.read_to_end(&mut self.read));
        let _ = read.await.expect("it ends");
        client::answer(&self.read)
    }
}

/// Waits until it is so, for some seconds at most.
pub(crate) async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + LONGEST;
    while !is_so().await {
        assert!(Instant::now() < end, "it has not come to be");
        sleep(Duration::from_millis(10)).await;
    }
}

/// The place of the engine that answered.
pub(crate) fn worker_of(answer: &Answer) -> usize {
    let worker = answer.header("x-kv-worker").unwrap();
    let id = worker.split_once('/').unwrap().0;
    id.parse::<usize>().unwrap() - 1
}

const LONGEST: Duration = Duration::from_secs(20);
