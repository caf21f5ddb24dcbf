//! An OpenAI-compatible gateway that places each request by the load and the prefix cache of inference engines.

mod admission;
mod auth;
mod client;
mod completions;
mod component;
pub mod config;
mod demo;
mod fleet;
mod forward;
mod gateway;
#[cfg(feature = "nats")]
mod nats;
mod openai;
mod operation;
mod prefix;
mod relay;
mod state;

#[cfg(feature = "nats")]
pub use self::nats::Agent;
pub use self::{
    demo::Demo,
    gateway::{Closed, Gateway, StartError},
};
