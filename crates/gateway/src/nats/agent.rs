use actix::Addr;
use actix_kv_metrics::{FlushReport, KvMetrics};
use actix_kv_metrics_engines::{EngineReports, Scraper};
use actix_kv_metrics_nats::{NatsConfigBuilder, NatsPublisher};

use super::config_of;
use crate::{
    component::component,
    config::{Config, ModelConfig},
    gateway::{FLUSH, StartError},
};

/// Stands beside engines: reads their pages, and tells gateways over NATS. It needs the gateway's settings, of which it uses the models
/// and `nats`. Dropped, its engines leave.
#[derive(Debug)]
pub struct Agent {
    models: Vec<Told>,
}

/// A model's engines.
#[derive(Debug)]
struct Told {
    model: String,
    kv: KvMetrics,
    #[allow(dead_code, reason = "held: it ends when nobody has its address")]
    nats: Addr<NatsPublisher>,
    #[allow(dead_code, reason = "held: it asks no more once it is dropped")]
    scrapers: Vec<Scraper>,
}

impl Agent {
    /// Starts it within an actix `System`. That no server is there yet is no error.
    ///
    /// # Errors
    ///
    /// The settings are wrong.
    ///
    /// # Panics
    ///
    /// Outside an actix `System`.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        config.check()?;
        let nats = config.nats.unwrap_or_default();
        let mut models = Vec::new();
        for (model, settings) in &config.models {
            models.push(Told::start(model, settings, &nats).await?);
        }
        Ok(Self { models })
    }

    /// Tells what is newest, and ends: for each model, what did not arrive. The engines are not said to have left: an agent that takes
    /// over within the lease does so without a gap.
    pub async fn stop(self) -> Vec<(String, FlushReport)> {
        let mut flushed = Vec::new();
        for told in self.models {
            let report = told.kv.shutdown(FLUSH).await;
            flushed.push((told.model, report));
        }
        flushed
    }
}

impl Told {
    async fn start(
        model: &str,
        settings: &ModelConfig,
        nats: &NatsConfigBuilder,
    ) -> Result<Self, StartError> {
        let component = component(settings).map_err(|error| StartError::Model {
            model: model.to_owned(),
            error,
        })?;
        let config = config_of(nats, model).map_err(crate::config::ConfigError::from)?;
        let kv = KvMetrics::start(component);
        let publisher = kv.publisher();
        let nats = NatsPublisher::start(config, &publisher, None).await;
        let nats = nats.map_err(|error| StartError::Nats {
            model: model.to_owned(),
            error,
        })?;
        let scrapers = settings.engines.iter().map(|engine| {
            let reports = EngineReports::new(&publisher, engine.id);
            let scraper = Scraper::start(settings.scraper_of(engine), reports);
            scraper.map_err(|error| StartError::Scraper {
                model: model.to_owned(),
                error,
            })
        });
        Ok(Self {
            scrapers: scrapers.collect::<Result<_, _>>()?,
            model: model.to_owned(),
            kv,
            nats,
        })
    }
}
