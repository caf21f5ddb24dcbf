//! Loads actix-kv-metrics and checks that it holds. Each command prints its figures and what was checked, and ends with
//! status 1 if a check failed.
//!
//! ```sh
//! cargo run --release -p kv-metrics-stress -- flood
//! ```

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod checks;
mod cores;
#[cfg(feature = "heap")]
mod departures;
mod faults;
#[cfg(feature = "heap")]
mod flat;
mod flood;
#[cfg(feature = "heap")]
mod heap;
mod latency;
mod machine;
mod memory;
mod mishaps;
mod neighbour;
#[cfg(feature = "virtual-time")]
mod overload;
mod routers;
#[cfg(feature = "heap")]
mod soak;

/// Loads actix-kv-metrics and checks that it holds.
#[derive(Debug, Parser)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Two threads send `MetricsChanged` by `do_send` as fast as they can.
    Flood(flood::Options),
    /// Two threads report through a `MetricsReporter` each as fast as they can.
    Reporters(flood::Options),
    /// Requests are placed while full snapshots of 100,000 workers are built and applied.
    Neighbour(neighbour::Options),
    /// Routers and publishers die, refuse, stall and panic at random; then the truth must have arrived.
    Faults(faults::Options),
    #[cfg(feature = "virtual-time")]
    /// More requests than the workers can take, and a worker that takes none, in virtual time.
    Overload(overload::Options),
    #[cfg(feature = "heap")]
    /// A large fleet joins, reports and leaves, but for one worker: memory must follow those that live.
    Departures(departures::Options),
    #[cfg(feature = "heap")]
    /// Workers come and go, routers are replaced, requests are placed, for a long time; then nothing may be left.
    Soak(soak::Options),
}

fn main() -> ExitCode {
    let checks = match Options::parse().command {
        Command::Flood(options) => flood::run(&options, flood::Sending::Messages),
        Command::Reporters(options) => flood::run(&options, flood::Sending::Reporters),
        Command::Neighbour(options) => neighbour::run(&options),
        Command::Faults(options) => faults::run(&options),
        #[cfg(feature = "virtual-time")]
        Command::Overload(options) => overload::run(&options),
        #[cfg(feature = "heap")]
        Command::Departures(options) => departures::run(&options),
        #[cfg(feature = "heap")]
        Command::Soak(options) => soak::run(&options),
    };
    checks.end()
}
