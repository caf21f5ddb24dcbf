//! `kv-gateway engine`: one simulated engine.

use std::{error::Error, net::SocketAddr, process::ExitCode};

use clap::Args;
use kv_engine_sim::{SimConfig, SimServer};

use crate::{say_line, told_to_stop};

#[derive(Debug, Args)]
pub(crate) struct EngineOptions {
    /// Where to listen; port 0 takes any that is free.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// The name of the model.
    #[arg(long, default_value = "sim")]
    model: String,
    /// Blocks of 16 tokens.
    #[arg(long, default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(10..))]
    blocks: u32,
    /// Requests that run at one time; more wait.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    sequences: u32,
    /// How many times as fast as a real one.
    #[arg(long, default_value_t = 1.0, value_parser = speed)]
    speed: f64,
    /// Answers at once, whatever it costs: to measure what stands before it.
    #[arg(long)]
    instant: bool,
}

pub(crate) async fn engine(options: EngineOptions) -> Result<ExitCode, Box<dyn Error>> {
    let mut config = SimConfig {
        model: options.model,
        speed: options.speed,
        instant: options.instant,
        ..SimConfig::default()
    };
    config.engine.total_blocks = options.blocks;
    config.engine.max_sequences = options.sequences as usize;
    let server = SimServer::start(options.listen, config)?;
    say_line(format_args!("listening on http://{}", server.address()));
    told_to_stop().await?;
    server.stop().await;
    Ok(ExitCode::SUCCESS)
}

fn speed(text: &str) -> Result<f64, String> {
    let speed: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (1e-3..=1e4).contains(&speed) {
        Ok(speed)
    } else {
        Err("it must be 0.001 to 10000".to_owned())
    }
}
