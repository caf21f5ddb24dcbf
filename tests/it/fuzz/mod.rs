//! Drawn inputs: nothing panics, and what must hold holds.

mod config;
mod link;
mod regressions;
mod table;
mod wire;
