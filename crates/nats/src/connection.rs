//! The connection to the servers: how it is made, kept, and what is heard of it.

use std::{future::ready, io, time::Duration};

use actix_kv_metrics::PublisherId;
use async_nats::{Client, ConnectOptions, Event, ServerError, Subscriber};
use futures_util::{Stream, stream::poll_fn};
use thiserror::Error;
use tokio::sync::mpsc;

use crate::config::{Credentials, NatsConfig};

#[cfg(doc)]
use actix_kv_metrics::PublisherActor;

/// Why a connection cannot even be tried.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NatsError {
    /// The credentials file cannot be read.
    #[error("credentials.file: {0}")]
    CredentialsFile(#[source] io::Error),
    /// The client refuses the settings.
    #[error("the settings of the connection: {0}")]
    Settings(#[from] async_nats::ConnectError),
    /// The publisher is gone.
    #[error("the publisher is gone")]
    PublisherGone,
}

/// What happened to the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Heard {
    Connected,
    Disconnected,
    /// Messages were dropped here, before they were read.
    Dropped,
    /// The server refused what was published on this subject, or anything, if it did not say.
    RefusedPublish(String),
    /// The server refused a subscription to this subject.
    RefusedSubscription(String),
    /// The server refused the login.
    RefusedLogin,
    /// Something else, to be logged.
    Other(String),
}

impl From<Event> for Heard {
    fn from(event: Event) -> Self {
        match event {
            Event::Connected => Self::Connected,
            Event::Disconnected | Event::Closed => Self::Disconnected,
            Event::SlowConsumer(_) | Event::ServerError(ServerError::SlowConsumer(_)) => {
                Self::Dropped
            }
            Event::ServerError(ServerError::AuthorizationViolation) => Self::RefusedLogin,
            Event::ServerError(ServerError::Other(error)) => Self::of_error(error),
            Event::ClientError(error) => {
                let error = error.to_string();
                if error.contains("authorization violation") || error.contains("authentication") {
                    Self::RefusedLogin
                } else {
                    Self::Other(error)
                }
            }
            other => Self::Other(other.to_string()),
        }
    }
}

impl Heard {
    /// As servers word it: `Permissions Violation for Publish to "kv.pub.7.snapshot"`.
    fn of_error(error: String) -> Self {
        let lower = error.to_lowercase();
        let subject = || {
            let quoted = error.split('"').nth(1);
            quoted.unwrap_or_default().to_owned()
        };
        if lower.starts_with("permissions violation for publish")
            || lower.starts_with("maximum payload")
        {
            Self::RefusedPublish(subject())
        } else if lower.starts_with("permissions violation for subscription") {
            Self::RefusedSubscription(subject())
        } else {
            Self::Other(error)
        }
    }
}

/// Connects, and keeps connecting, until the client is dropped; and what is heard of that.
pub(crate) async fn connect(
    config: &NatsConfig,
) -> Result<(Client, impl Stream<Item = Heard> + use<>), NatsError> {
    let (heard, mut hears) = mpsc::unbounded_channel();
    let longest = config.reconnect_delay();
    let mut options = ConnectOptions::new()
        .retry_on_initial_connect()
        .max_reconnects(None)
        .ping_interval(config.ping_interval())
        .connection_timeout(CONNECT_WITHIN)
        .require_tls(config.tls().require)
        .reconnect_delay_callback(move |attempts| delay(attempts, longest))
        .event_callback(move |event| {
            // Nobody listens any more: the client is about to be dropped.
            let _ = heard.send(Heard::from(event));
            ready(())
        });
    if let Some(name) = config.name() {
        options = options.name(name);
    }
    let tls = config.tls();
    if let Some(ca) = &tls.ca {
        options = options.add_root_certificates(ca.clone());
    }
    if let (Some(cert), Some(key)) = (&tls.cert, &tls.key) {
        options = options.add_client_certificate(cert.clone(), key.clone());
    }
    options = match config.credentials() {
        None => options,
        Some(Credentials::UserPassword { user, password }) => {
            options.user_and_password(user.clone(), password.expose().to_owned())
        }
        Some(Credentials::Token(token)) => options.token(token.expose().to_owned()),
        Some(Credentials::NkeySeed(seed)) => options.nkey(seed.expose().to_owned()),
        Some(Credentials::File(file)) => options
            .credentials_file(file)
            .await
            .map_err(NatsError::CredentialsFile)?,
    };
    let client = options.connect(config.urls()).await?;
    Ok((client, poll_fn(move |cx| hears.poll_recv(cx))))
}

/// Subscribes to these. One that fails is logged, and left out.
pub(crate) async fn subscribe(
    client: Client,
    subjects: impl IntoIterator<Item = String>,
) -> Vec<Subscriber> {
    let mut heard = Vec::new();
    for subject in subjects {
        match client.subscribe(subject).await {
            Ok(messages) => heard.push(messages),
            Err(error) => tracing::error!(%error, "a subscription failed"),
        }
    }
    heard
}

/// Between two attempts to connect: at once the first time, then a random pause up to the longest. All clients of a server that
/// is back come one after another.
fn delay(attempts: usize, longest: Duration) -> Duration {
    if attempts <= 1 {
        return Duration::ZERO;
    }
    longest.mul_f64(0.5 + 0.5 * fastrand::f64())
}

/// A server that takes a connection and says nothing for so long is none.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Warns of what the servers refuse, once each time it begins.
#[derive(Debug, Default)]
pub(crate) struct LoginWatch {
    refused: bool,
}

impl LoginWatch {
    pub(crate) fn handle(&mut self, heard: &Heard) {
        match heard {
            Heard::RefusedLogin if !std::mem::replace(&mut self.refused, true) => {
                tracing::error!("the server refuses the login; it is tried again and again");
            }
            Heard::Connected => {
                if std::mem::take(&mut self.refused) {
                    tracing::info!("the server accepts the login");
                }
                tracing::info!("connected");
            }
            Heard::Disconnected => tracing::warn!("the connection is gone"),
            Heard::Other(text) => tracing::debug!(text, "the connection"),
            _ => {}
        }
    }
}

/// Names a publisher in logs.
pub(crate) fn named(publisher: Option<PublisherId>) -> String {
    publisher.map_or_else(|| "none yet".to_owned(), |publisher| publisher.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_refuses_is_told_by_its_words() {
        let heard = |text: &str| Heard::from(Event::ServerError(ServerError::Other(text.into())));
        assert_eq!(
            heard("Permissions Violation for Publish to \"kv.pub.7.snapshot\""),
            Heard::RefusedPublish("kv.pub.7.snapshot".into())
        );
        assert_eq!(
            heard("Permissions Violation for Subscription to \"kv.pub.7.mark\""),
            Heard::RefusedSubscription("kv.pub.7.mark".into())
        );
        assert_eq!(
            heard("Maximum Payload Violation"),
            Heard::RefusedPublish(String::new())
        );
        assert!(matches!(heard("Stale Connection"), Heard::Other(_)));
    }

    #[test]
    fn a_pause_between_attempts_is_half_the_longest_to_the_longest() {
        let longest = Duration::from_millis(100);
        assert_eq!(delay(1, longest), Duration::ZERO);
        for attempt in 2..200 {
            let delay = delay(attempt, longest);
            assert!(delay >= longest / 2 && delay <= longest, "{delay:?}");
        }
    }
}
