//! A simulated inference engine.
//!
//! [`Engine`] is the engine itself: blocks, prefix cache, chunked prefill, a waiting queue, preemption. It knows no clock: the
//! replay runs it in virtual time. [`SimServer`] runs one in real time behind vLLM's HTTP interface: completions, streams, page, load
//! header. What it answers depends on the prompt alone, so that whoever stands in between can be checked byte for byte. [`Faults`]
//! make it misbehave.
//!
//! ```
//! use kv_engine_sim::{Faults, SimConfig, SimServer};
//!
//! # actix_web::rt::System::new().block_on(async {
//! let server = SimServer::start(([127, 0, 0, 1], 0).into(), SimConfig::default())?;
//! println!("http://{}/v1/completions", server.address());
//! // As `POST /sim/faults` and `GET /sim/stats` do.
//! server.set_faults(Faults {
//!     refuse: Some(503),
//!     ..Faults::default()
//! });
//! assert_eq!(server.stats().running, 0);
//! server.stop().await;
//! # std::io::Result::Ok(())
//! # }).unwrap();
//! ```

mod engine;
mod faults;
mod request;
mod server;
mod sim;
mod stats;

pub use self::{
    engine::{
        Echoes, Engine, EngineConfig, Event, Job, Load, Pass, Preempts, Progress, Running, Timing,
        TooLong, Totals,
    },
    faults::Faults,
    request::{HASH_TOKENS, Request},
    server::{SimConfig, SimServer},
    stats::SimStats,
};
