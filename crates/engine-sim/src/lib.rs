//! A simulated inference engine.
//!
//! [`Engine`] is the engine itself: blocks, prefix cache, chunked prefill, a waiting queue, preemption. It knows no clock: the
//! replay runs it in virtual time. [`SimServer`] runs one in real time behind vLLM's HTTP interface: completions, streams, page, load
//! header. What it answers depends on the prompt alone, so that whoever stands in between can be checked byte for byte. [`Faults`]
//! make it misbehave.

mod engine;
mod faults;
mod request;
mod server;
mod sim;

pub use self::{
    engine::{
        Echoes, Engine, EngineConfig, Event, Job, Load, Pass, Preempts, Progress, Running, Timing,
        TooLong, Totals,
    },
    faults::Faults,
    request::{HASH_TOKENS, Request},
    server::{SimConfig, SimServer},
    sim::SimStats,
};
