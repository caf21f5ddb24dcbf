//! Guides: from the first routed request to an alert at night.
//!
//! - [Put it into your application](application): select, stream, retry elsewhere, release; a small gateway, whole.
//! - [What is a block](blocks), and where `blocks` and `overlap` come from.
//! - [Engines](engines): what vLLM, SGLang and others say of their load, and where.
//! - [Operate it](operate): metrics, alerts, settings, what to do on each error.
//! - [Several models](models): one `KvMetrics` each.
//! - [Migrate](migrate) from polling `/metrics`, or from Dynamo's publisher.
//! - [Test your own actors with it](testing).

#[doc = include_str!("application.md")]
///
#[doc = concat!("```ignore\n", include_str!("gateway.rs"), "```")]
pub mod application {}

#[doc = include_str!("blocks.md")]
pub mod blocks {}

#[doc = include_str!("engines.md")]
pub mod engines {}

#[doc = include_str!("migrate.md")]
pub mod migrate {}

#[doc = include_str!("models.md")]
pub mod models {}

#[doc = include_str!("operate.md")]
pub mod operate {}

#[doc = include_str!("testing.md")]
pub mod testing {}
