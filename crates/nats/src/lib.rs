//! [`actix_kv_metrics`] across machines: worker load over core NATS, and to and from NVIDIA Dynamo.
//!
//! - [`NatsPublisher`] publishes what a `PublisherActor` says, [`NatsSubscriber`] tells a router what all of them say.
//! - [`dynamo`]: the messages of NVIDIA Dynamo 0.5 to 1.6, and who hears and publishes them.
//! - [`NatsConfig`]: servers, login, TLS, prefix, lease, [`Limits`].
//! - [`wire`]: snapshots of load as versioned messages, cut into parts and put together again; [`Subjects`]: who speaks where.
//!
//! The package's README has a minimal program, what is lost when, and the permissions of each end.
//!
//! Whatever a message holds, reading it gives a value or a typed error; it never panics, and costs memory in proportion to its
//! size.

mod clock;
mod config;
mod connection;
mod deadline;
pub mod dynamo;
mod error;
mod inbound;
mod msgpack;
mod outbound;
mod publisher;
pub mod subjects;
mod subscriber;
mod upstream;
mod waiting;
pub mod wire;

pub use crate::{
    config::{Credentials, Limits, NatsConfig, NatsConfigBuilder, NatsConfigError, Secret, Tls},
    connection::NatsError,
    inbound::InboundCounts,
    outbound::OutboundCounts,
    publisher::{GetNatsPublisherStats, NatsPublisher, NatsPublisherStats},
    subjects::{Subject, SubjectError, Subjects},
    subscriber::{
        GetNatsSubscriberStats, NatsSubscriber, NatsSubscriberBuilder, NatsSubscriberStats,
    },
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
