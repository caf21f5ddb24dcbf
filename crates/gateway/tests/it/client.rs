//! A client that shows exactly what came back.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// An answer, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
    /// Whether the body came to its end.
    pub(crate) whole: bool,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let found = lines.find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value)
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// `error.code`.
    pub(crate) fn code(&self) -> String {
        let json = self.json();
        json["error"]["code"]
            .as_str()
            .unwrap_or_else(|| panic!("{self:?}"))
            .to_owned()
    }
}

/// Sends a request of this text, and reads until the other side closes.
pub(crate) async fn send(to: SocketAddr, request: &str) -> Answer {
    let mut connection = TcpStream::connect(to).await.unwrap();
    let _ = connection.write_all(request.as_bytes()).await;
    read(&mut connection).await
}

/// What comes until the other side closes.
pub(crate) async fn read(connection: &mut TcpStream) -> Answer {
    let mut all = Vec::new();
    let read = timeout(LONGEST, connection.read_to_end(&mut all)).await;
    let _ = read.expect("the connection is closed in the end");
    answer(&all)
}

pub(crate) fn post(path: &str, body: &str) -> String {
    post_with(path, "", body)
}

/// Headers each end with a line break.
pub(crate) fn post_with(path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
}

pub(crate) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n\r\n")
}

pub(crate) fn answer(all: &[u8]) -> Answer {
    let text = String::from_utf8_lossy(all);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let mut answer = Answer {
        status: status.unwrap_or(0),
        head: head.to_owned(),
        body: body.to_owned(),
        whole: true,
    };
    if answer.header("transfer-encoding") == Some("chunked") {
        (answer.body, answer.whole) = joined(body);
    } else if let Some(length) = answer.header("content-length") {
        answer.whole = length.parse() == Ok(body.len());
    }
    answer
}

/// The chunks' text, and whether the last one was there.
fn joined(mut chunks: &str) -> (String, bool) {
    let mut all = String::new();
    while let Some((length, rest)) = chunks.split_once("\r\n") {
        let Ok(length) = usize::from_str_radix(length, 16) else {
            break;
        };
        if length == 0 {
            return (all, true);
        }
        let there = length.min(rest.len());
        all.push_str(&rest[..there]);
        chunks = rest.get(length + 2..).unwrap_or("");
    }
    (all, false)
}

const LONGEST: Duration = Duration::from_secs(20);
