//! A server to ask, and a client that sees every byte.

use std::{net::SocketAddr, time::Duration};

use kv_engine_sim::{SimConfig, SimServer};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

pub(crate) fn server(change: impl FnOnce(&mut SimConfig)) -> SimServer {
    let mut config = SimConfig {
        speed: 20.0,
        ..SimConfig::default()
    };
    change(&mut config);
    SimServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), config).unwrap()
}

/// All that comes until the other side closes.
pub(crate) async fn send(to: SocketAddr, request: &str) -> String {
    let mut connection = TcpStream::connect(to).await.unwrap();
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut all = Vec::new();
    let read = timeout(Duration::from_secs(20), connection.read_to_end(&mut all));
    let _ = read.await.expect("it is closed in the end");
    String::from_utf8(all).unwrap()
}

/// Up to the first time that this is there.
pub(crate) async fn read_until(connection: &mut TcpStream, text: &str) -> String {
    let mut read = String::new();
    let reading = async {
        while !read.contains(text) {
            let mut more = [0; 4_096];
            let n = connection.read(&mut more).await.unwrap();
            assert!(n > 0, "it ended without {text}: {read}");
            read += std::str::from_utf8(&more[..n]).unwrap();
        }
    };
    let in_time = timeout(Duration::from_secs(20), reading).await;
    in_time.unwrap_or_else(|_| panic!("it is not there: {text}"));
    read
}

pub(crate) fn post(path: &str, headers: &str, body: &Value) -> String {
    post_text(path, headers, &body.to_string())
}

pub(crate) fn post_text(path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
}

pub(crate) async fn get(to: SocketAddr, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n");
    body_of(&send(to, &request).await).to_owned()
}

pub(crate) fn body_of(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

pub(crate) async fn complete(server: &SimServer, body: &Value) -> Value {
    let answer = send(server.address(), &post("/v1/completions", "", body)).await;
    serde_json::from_str(body_of(&answer)).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// The events of a stream, without the chunks' frames.
pub(crate) fn events(answer: &str) -> Vec<String> {
    let lines = body_of(answer).lines();
    let data = lines.filter_map(|line| line.strip_prefix("data: "));
    data.map(str::to_owned).collect()
}

pub(crate) async fn until(mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < end, "it has not come to be");
        sleep(Duration::from_millis(5)).await;
    }
}
