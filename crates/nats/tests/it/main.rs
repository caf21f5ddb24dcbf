//! Tests that need no server.

#![allow(missing_docs, unreachable_pub)]

mod assembler;
mod config;
mod hostile;
mod properties;
mod support;
mod wire;
