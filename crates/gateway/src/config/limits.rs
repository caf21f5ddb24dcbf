use std::time::Duration;

use serde::Deserialize;

use super::ConfigError;

/// What a request may take.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of one body: 413 beyond.
    pub body_bytes: usize,
    /// Bytes of all bodies that are kept at one time, until their engines answer: 503 beyond.
    pub bodies_bytes: usize,
    /// Requests at one time, those that wait or stream among them: 429 beyond.
    pub requests: usize,
    /// Connections of clients at one time and thread; more wait to be accepted.
    pub connections: usize,
    /// Engines that are tried for one request.
    pub attempts: usize,
    /// Bytes of the body of `POST /workers/{id}/report`.
    pub report_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 8 << 20,
            bodies_bytes: 256 << 20,
            requests: 4_096,
            connections: 16_384,
            attempts: 3,
            report_bytes: 16 << 10,
        }
    }
}

impl Limits {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        for (key, value, most) in [
            ("body_bytes", self.body_bytes, u32::MAX as usize),
            ("bodies_bytes", self.bodies_bytes, 1 << 40),
            ("requests", self.requests, 1 << 20),
            ("connections", self.connections, 1 << 20),
            ("attempts", self.attempts, 100),
            ("report_bytes", self.report_bytes, 16 << 20),
        ] {
            if value == 0 || value > most {
                let bound = format!("1 to {most}");
                return Err(ConfigError::out_of_bounds(
                    format!("limits.{key}"),
                    value,
                    bound,
                ));
            }
        }
        if self.bodies_bytes < self.body_bytes {
            return Err(ConfigError::out_of_bounds(
                "limits.bodies_bytes",
                self.bodies_bytes,
                "at least limits.body_bytes",
            ));
        }
        Ok(())
    }
}

/// How long things may take.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Timeouts {
    /// Until a client has sent the head of a request, 408 beyond.
    #[serde(with = "humantime_serde")]
    pub head: Duration,
    /// Until a client has sent the body, from its head on: 408 beyond.
    #[serde(with = "humantime_serde")]
    pub body: Duration,
    /// A connection without a request stays open so long.
    #[serde(with = "humantime_serde")]
    pub keep_alive: Duration,
    /// A request waits so long for room where no engine has any: 429 beyond. Zero: it does not wait.
    #[serde(with = "humantime_serde")]
    pub room: Duration,
    /// Until an engine has taken the connection: then another one is tried.
    #[serde(with = "humantime_serde")]
    pub connect: Duration,
    /// From then until the first byte of its answer, which is all of the answer if it does not stream: then another one is tried,
    /// and 504 after the last.
    #[serde(with = "humantime_serde")]
    pub first_token: Duration,
    /// Between two pieces of an answer: then the client is told that it broke off.
    #[serde(with = "humantime_serde")]
    pub between_tokens: Duration,
    /// Told to stop: streams that still run may go on so long.
    #[serde(with = "humantime_serde")]
    pub shutdown: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(10),
            body: Duration::from_secs(30),
            keep_alive: Duration::from_secs(15),
            room: Duration::from_secs(5),
            connect: Duration::from_secs(1),
            first_token: Duration::from_secs(120),
            between_tokens: Duration::from_secs(60),
            shutdown: Duration::from_secs(30),
        }
    }
}

impl Timeouts {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let least = Duration::from_millis(1);
        for (key, value, least) in [
            ("head", self.head, least),
            ("body", self.body, least),
            ("keep_alive", self.keep_alive, least),
            ("room", self.room, Duration::ZERO),
            ("connect", self.connect, least),
            ("first_token", self.first_token, least),
            ("between_tokens", self.between_tokens, least),
            ("shutdown", self.shutdown, least),
        ] {
            if value < least || value > LONGEST {
                return Err(ConfigError::out_of_bounds(
                    format!("timeouts.{key}"),
                    format!("{value:?}"),
                    format!("{least:?} to 1 day"),
                ));
            }
        }
        Ok(())
    }
}

/// No request lives longer, and no clock overflows.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
