//! Settings: one TOML file, checked once, before anything starts.

mod error;
mod limits;
mod model;
mod secret;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use serde::Deserialize;

pub use self::{
    error::ConfigError,
    limits::{Limits, Timeouts},
    model::{EngineConfig, ModelConfig, Policy, PrefixConfig, ScrapeConfig},
    secret::{Secret, Secrets},
};

/// Everything a gateway is told before it starts.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Config {
    /// Where it listens; port 0 takes any that is free.
    pub listen: SocketAddr,
    /// Threads that serve connections. One is enough for more requests than most engines take; with several, each choice is a question
    /// to another thread.
    pub threads: usize,
    /// Who may send requests: everybody if it is empty. Or of the variable `KV_GATEWAY_CLIENT_TOKENS`, separated by commas.
    pub client_tokens: Secrets,
    /// Who may look at and change the workers: everybody if it is empty. Or of the variable `KV_GATEWAY_OPERATOR_TOKENS`.
    pub operator_tokens: Secrets,
    /// What a request may take.
    pub limits: Limits,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// Where engines' load is told. `None`: this gateway reads their pages itself.
    #[cfg(feature = "nats")]
    pub nats: Option<actix_kv_metrics_nats::NatsConfigBuilder>,
    /// The models, each with engines of its own, by the name that requests ask for.
    pub models: BTreeMap<String, ModelConfig>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            threads: 1,
            client_tokens: Secrets::default(),
            operator_tokens: Secrets::default(),
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            #[cfg(feature = "nats")]
            nats: None,
            models: BTreeMap::new(),
        }
    }
}

impl Config {
    /// Reads a file's text. Secrets of the environment replace those of the file: `variable` looks one up.
    ///
    /// # Errors
    ///
    /// The first value that can't be read, with its place; or all keys that nothing reads; or the first setting out of bounds.
    pub fn from_toml(
        text: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let mut unknown = Vec::new();
        let read = toml::Deserializer::parse(text)
            .and_then(|file| serde_ignored::deserialize(file, |key| unknown.push(key.to_string())));
        let mut config: Self = read.map_err(|error| ConfigError::toml(&error, text))?;
        if !unknown.is_empty() {
            return Err(ConfigError::UnknownKeys(unknown));
        }
        config.take_secrets(variable);
        config.check()?;
        Ok(config)
    }

    fn take_secrets(&mut self, variable: impl Fn(&str) -> Option<String>) {
        if let Some(tokens) = variable("KV_GATEWAY_CLIENT_TOKENS") {
            self.client_tokens = Secrets::of_list(&tokens);
        }
        if let Some(tokens) = variable("KV_GATEWAY_OPERATOR_TOKENS") {
            self.operator_tokens = Secrets::of_list(&tokens);
        }
        #[cfg(feature = "nats")]
        if let Some(url) = variable("KV_GATEWAY_NATS_URL") {
            self.nats = Some(self.nats.take().unwrap_or_default().urls([url]));
        }
        if let Some(key) = variable("KV_GATEWAY_ENGINE_KEY") {
            let engines = self
                .models
                .values_mut()
                .flat_map(|model| &mut model.engines);
            engines.for_each(|engine| engine.api_key = Some(Secret::from(key.clone())));
        }
    }

    /// Who tells the engines' load.
    pub(crate) fn told_by(&self) -> ToldBy {
        #[cfg(feature = "nats")]
        if self.nats.is_some() {
            return ToldBy::Agents;
        }
        ToldBy::Pages
    }

    /// Whether a gateway can start with it.
    ///
    /// # Errors
    ///
    /// The first setting out of bounds, by its key.
    pub fn check(&self) -> Result<(), ConfigError> {
        let at_least_one = |key: &str, value: usize| {
            (value > 0)
                .then_some(())
                .ok_or_else(|| ConfigError::out_of_bounds(key, value, "at least 1"))
        };
        at_least_one("threads", self.threads)?;
        at_least_one("models", self.models.len())?;
        self.limits.check()?;
        self.timeouts.check()?;
        let mut ids = BTreeSet::new();
        for (name, model) in &self.models {
            model.check(name)?;
            if self.told_by() == ToldBy::Agents && model.policy == Policy::RoundRobin {
                let key = format!("models.{name}.policy");
                return Err(ConfigError::out_of_bounds(
                    key,
                    "round-robin",
                    "load with [nats]",
                ));
            }
            #[cfg(feature = "nats")]
            if let Some(nats) = &self.nats {
                crate::nats::config_of(nats, name)?;
            }
            for engine in &model.engines {
                if !ids.insert(engine.id) {
                    let key = format!("models.{name}.engines.id");
                    return Err(ConfigError::out_of_bounds(
                        key,
                        engine.id,
                        "of one engine only",
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Who tells the engines' load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToldBy {
    /// Their own pages, read here.
    Pages,
    /// Agents beside them, over NATS.
    #[cfg_attr(not(feature = "nats"), allow(dead_code))]
    Agents,
}

#[cfg(test)]
mod tests;
