//! Publishers, a real nats-server, and routers: what arrives, and when, through whatever happens between them.

#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::disallowed_methods)] // A real server, in real time.

mod delivery;
mod faults;
mod fleet;
mod login;
mod proxy;
#[path = "../server/mod.rs"]
mod server;
mod strangers;
