//! The command and its engines as processes of their own.

#[path = "../it/client.rs"]
#[allow(dead_code)]
mod client;
mod command;
mod engines;
mod load;
mod process;
mod site;
mod streams;
