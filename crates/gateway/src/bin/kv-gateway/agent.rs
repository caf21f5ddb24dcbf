//! `kv-gateway agent`: tells the load of the engines it stands beside.

use std::{error::Error, path::PathBuf, process::ExitCode};

use clap::Args;
use kv_gateway::Agent;

use crate::{read, say_line, say_missed, told_to_stop};

#[derive(Debug, Args)]
pub(crate) struct AgentOptions {
    /// Settings like the gateway's, with the engines of this machine: models, engines and `nats` are used.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The NATS server, whatever the settings say.
    #[arg(long, value_name = "URL")]
    nats: Option<String>,
}

pub(crate) async fn agent(options: AgentOptions) -> Result<ExitCode, Box<dyn Error>> {
    let mut config = read(&options.config)?;
    if let Some(url) = options.nats {
        config.nats = Some(config.nats.unwrap_or_default().urls([url]));
    }
    let engines: usize = config
        .models
        .values()
        .map(|model| model.engines.len())
        .sum();
    let agent = Agent::start(config).await?;
    say_line(format_args!("telling the load of {engines} engines"));
    told_to_stop().await?;
    let flushed = agent.stop().await;
    Ok(if say_missed(&flushed) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
