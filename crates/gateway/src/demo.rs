//! Engines to try the gateway with.

use std::{io, net::SocketAddr, time::Duration};

use actix_kv_metrics::WorkerId;
use kv_engine_sim::{SimConfig, SimServer};
use url::Url;

use crate::config::{Config, EngineConfig, ModelConfig};

/// Eight simulated engines in this process, each on a port of its own, which serve the model `demo`. Dropped, they stop.
#[derive(Debug)]
pub struct Demo {
    engines: Vec<SimServer>,
}

impl Demo {
    /// Starts them within an actix `System`.
    ///
    /// # Errors
    ///
    /// No port is free.
    pub fn start() -> io::Result<Self> {
        let engines = (0..ENGINES).map(|_| {
            let config = SimConfig {
                model: MODEL.to_owned(),
                ..SimConfig::default()
            };
            SimServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), config)
        });
        Ok(Self {
            engines: engines.collect::<io::Result<_>>()?,
        })
    }

    /// Where they listen.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.engines.iter().map(SimServer::address)
    }

    /// Settings of a gateway before them, everything else as by default.
    pub fn config(&self) -> Config {
        let engines = self.addresses().zip(1..).map(|(address, id)| {
            let url = Url::parse(&format!("http://{address}"));
            url.map(|url| EngineConfig::new(WorkerId(id), url))
        });
        // An address makes a URL.
        let mut model = ModelConfig::new(engines.flatten().collect());
        model.scrape.every = EVERY;
        model.scrape.leave_after = Some(Duration::from_secs(1));
        let mut config = Config::default();
        config.models.insert(MODEL.to_owned(), model);
        config
    }
}

const MODEL: &str = "demo";

const ENGINES: usize = 8;

/// So that what one sees is what is so.
const EVERY: Duration = Duration::from_millis(100);
