//! A nats-server of one's own on a free port of this machine.

#![allow(dead_code, unreachable_pub, clippy::disallowed_methods)] // Each test takes what it needs, in real time.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use actix_kv_metrics_nats::{NatsConfig, NatsConfigBuilder};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Killed when it is dropped.
#[derive(Debug)]
pub struct Server {
    port: u16,
    folder: tempfile::TempDir,
    process: Option<Child>,
}

impl Server {
    /// With these lines in its configuration.
    pub fn start_with(lines: &str) -> Self {
        let mut server = Self::configured(lines);
        server.up();
        server
    }

    pub fn start() -> Self {
        Self::start_with("")
    }

    /// Not started yet.
    pub fn configured(lines: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        let server = Self {
            port,
            folder,
            process: None,
        };
        server.configure(lines);
        server
    }

    /// For the next start, or [`reload`](Self::reload).
    pub fn configure(&self, lines: &str) {
        let port = self.port;
        let text = format!("host: 127.0.0.1\nport: {port}\n{lines}\n");
        fs::write(self.folder.path().join("nats.conf"), text).unwrap();
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn up(&mut self) {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.path().join("nats.log"))
            .unwrap();
        let process = Command::new(program())
            .arg("-c")
            .arg(self.folder.path().join("nats.conf"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.process = Some(process);
        let until = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(
                Instant::now() < until,
                "nats-server did not start: {}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("nats.log")).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            kill(Pid::from_raw(process.id() as i32), signal).unwrap();
        }
    }

    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    pub fn reload(&self) {
        self.signal(Signal::SIGHUP);
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// What it has had of the processor, in microseconds.
    pub fn cpu(&self) -> u64 {
        let process = self.process.as_ref();
        process.map_or(0, |process| cpu_of(process.id()))
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Settings that lead to it.
    pub fn config(&self) -> NatsConfigBuilder {
        NatsConfig::builder().urls([self.url().as_str()])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.thaw();
        self.kill();
    }
}

/// What a process has had of the processor, in microseconds, to the hundredth of a second.
pub fn cpu_of(process: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // The name of the program, in brackets, may hold spaces.
    let (_, after) = stat.rsplit_once(") ").unwrap();
    let mut ticks = after.split(' ').skip(11).map(|ticks| ticks.parse::<u64>());
    let mut next = || ticks.next().unwrap().unwrap();
    (next() + next()) * 10_000
}

fn program() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let installed = root.join("target/nats-server/bin/nats-server");
    if installed.exists() {
        return installed;
    }
    let on_path = Command::new("nats-server").arg("--version").output();
    assert!(
        on_path.is_ok(),
        "these tests need a nats-server: run crates/nats/install-nats-server.sh, or install Debian's package nats-server"
    );
    "nats-server".into()
}
