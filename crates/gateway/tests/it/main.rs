//! The gateway over real sockets, before engines that do exactly what a test says.

mod abuse;
mod client;
mod demo;
mod deploy;
mod engine;
mod failures;
mod fleet;
mod operation;
mod routing;
