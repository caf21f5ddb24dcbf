//! An engine made of scripts: what it sends to each request, byte for byte.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use actix_web::rt::task::JoinHandle;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::sleep,
};

/// What an engine does next with a connection.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Send(String),
    Pause(Duration),
    /// Until the other side closes.
    Hang,
    Close,
}

/// A request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

type Script = Box<dyn Fn(&Seen) -> Vec<Step> + Send>;

pub(crate) struct Engine {
    pub(crate) url: String,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    script: Mutex<Script>,
    page: Mutex<Vec<Step>>,
    seen: Mutex<Vec<Seen>>,
    /// Requests whose connection the other side closed before all was sent.
    cancelled: AtomicUsize,
    connections: Mutex<Vec<JoinHandle<()>>>,
}

impl Engine {
    /// One that answers each request alike.
    pub(crate) async fn start(answer: &[Step]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let answer = answer.to_vec();
        let shared = Arc::new(Shared {
            script: Mutex::new(Box::new(move |_| answer.clone())),
            page: Mutex::new(vec![page(0, 0.0)]),
            seen: Mutex::default(),
            cancelled: AtomicUsize::new(0),
            connections: Mutex::default(),
        });
        let url = format!("http://{}", listener.local_addr().unwrap());
        let task = actix_web::rt::spawn(accept(listener, shared.clone()));
        Self { url, shared, task }
    }

    /// An address where nobody listens.
    pub(crate) async fn dead() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    }

    /// From here on it answers so.
    pub(crate) fn answers(&self, script: impl Fn(&Seen) -> Vec<Step> + Send + 'static) {
        *self.shared.script.lock().unwrap() = Box::new(script);
    }

    pub(crate) fn shows(&self, page: &[Step]) {
        *self.shared.page.lock().unwrap() = page.to_vec();
    }

    /// The requests so far, without those for its page.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    pub(crate) fn cancelled(&self) -> usize {
        self.shared.cancelled.load(SeqCst)
    }

    /// As if its process were killed.
    pub(crate) fn dies(&self) {
        self.task.abort();
        let mut connections = self.shared.connections.lock().unwrap();
        connections
            .drain(..)
            .for_each(|connection| connection.abort());
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let (connection, _) = listener.accept().await.unwrap();
        let serving = actix_web::rt::spawn(serve(connection, shared.clone()));
        shared.connections.lock().unwrap().push(serving);
    }
}

async fn serve(mut connection: TcpStream, shared: Arc<Shared>) {
    let mut read = Vec::new();
    while let Some(seen) = request(&mut connection, &mut read).await {
        let steps = if seen.path == "/metrics" {
            shared.page.lock().unwrap().clone()
        } else {
            shared.seen.lock().unwrap().push(seen.clone());
            (shared.script.lock().unwrap())(&seen)
        };
        let mut closed = [0; 1];
        for step in steps {
            match step {
                Step::Send(text) => {
                    if connection.write_all(text.as_bytes()).await.is_err() {
                        shared.cancelled.fetch_add(1, SeqCst);
                        return;
                    }
                }
                Step::Pause(pause) => tokio::select! {
                    () = sleep(pause) => {}
                    _ = connection.read(&mut closed) => {
                        shared.cancelled.fetch_add(1, SeqCst);
                        return;
                    }
                },
                Step::Hang => {
                    let _ = connection.read(&mut closed).await;
                    shared.cancelled.fetch_add(1, SeqCst);
                    return;
                }
                Step::Close => return,
            }
        }
    }
}

/// The next request, all of it.
async fn request(connection: &mut TcpStream, read: &mut Vec<u8>) -> Option<Seen> {
    loop {
        if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8(read[..end].to_vec()).unwrap();
            let mut lines = head.split("\r\n");
            let path = lines.next()?.split(' ').nth(1)?.to_owned();
            let headers = lines.filter_map(|line| line.split_once(": "));
            let headers: BTreeMap<_, _> = headers
                .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
                .collect();
            let length: usize = headers
                .get("content-length")
                .map_or(0, |n| n.parse().unwrap());
            if read.len() >= end + 4 + length {
                let body = String::from_utf8(read[end + 4..end + 4 + length].to_vec()).unwrap();
                read.drain(..end + 4 + length);
                return Some(Seen {
                    path,
                    headers,
                    body,
                });
            }
        }
        let mut more = [0; 4096];
        match connection.read(&mut more).await {
            Ok(0) | Err(_) => return None,
            Ok(n) => read.extend_from_slice(&more[..n]),
        }
    }
}

/// A page of vLLM's, of 1,000 blocks of 16 tokens.
pub(crate) fn page(waiting: u32, usage: f64) -> Step {
    json_or_text(
        200,
        "text/plain",
        &format!(
            "vllm:cache_config_info{{engine=\"0\",block_size=\"16\",num_gpu_blocks=\"1000\"}} 1.0\n\
             vllm:num_requests_running{{engine=\"0\",model_name=\"m\"}} 0.0\n\
             vllm:num_requests_waiting{{engine=\"0\",model_name=\"m\"}} {waiting}\n\
             vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"m\"}} {usage}\n"
        ),
    )
}

/// An answer in one piece.
pub(crate) fn json(status: u16, body: &str) -> Step {
    json_or_text(status, "application/json", body)
}

fn json_or_text(status: u16, kind: &str, body: &str) -> Step {
    let length = body.len();
    Step::Send(format!(
        "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}"
    ))
}

/// The head of a stream of events.
pub(crate) fn events() -> Step {
    Step::Send(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
            .to_owned(),
    )
}

/// A chunk of a stream.
pub(crate) fn chunk(text: &str) -> Step {
    Step::Send(format!("{:x}\r\n{text}\r\n", text.len()))
}

pub(crate) fn last_chunk() -> Step {
    chunk("")
}
