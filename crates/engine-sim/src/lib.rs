//! A simulated inference engine.

mod engine;
mod request;

pub use self::{
    engine::{
        Echoes, Engine, EngineConfig, Event, Job, Load, Pass, Preempts, Progress, Running, Timing,
        TooLong, Totals,
    },
    request::{HASH_TOKENS, Request},
};
