//! An OpenAI-compatible gateway that places each request by the load and the prefix cache of inference engines.

mod admission;
mod auth;
mod client;
mod completions;
pub mod config;
mod demo;
mod fleet;
mod forward;
mod gateway;
mod openai;
mod operation;
mod prefix;
mod relay;
mod state;

pub use self::{
    demo::Demo,
    gateway::{Closed, Gateway, StartError},
};
