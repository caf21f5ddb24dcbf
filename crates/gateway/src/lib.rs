//! An OpenAI-compatible gateway that places each request by the load and the prefix cache of inference engines.
//!
//! The command is `kv-gateway`; the package's README says what it promises. As a library it runs inside an actix `System`:
//!
//! ```no_run
//! use kv_gateway::{Gateway, config::Config};
//!
//! #[actix_web::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let settings = r#"
//!         [models.tiny]
//!         engines = [{ id = 1, url = "http://10.0.0.7:8000" }, { id = 2, url = "http://10.0.0.8:8000" }]
//!     "#;
//!     let config = Config::from_toml(settings, |name| std::env::var(name).ok())?;
//!     let gateway = Gateway::start(config, None).await?;
//!     println!("listening at {:?}", gateway.addresses());
//!     actix_web::rt::signal::ctrl_c().await?;
//!     let closed = gateway.stop().await;
//!     println!("{} requests were broken off", closed.broken_off);
//!     Ok(())
//! }
//! ```
//!
//! [`Gateway::model`] is the router of a model: [`KvMetrics`](actix_kv_metrics::KvMetrics), as in any other program.
//!
//! Feature `nats`: agents beside the engines tell their load (`Agent`), and gateways hear it over NATS.

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
