//! Load told over NATS: agents beside the engines publish it, gateways hear it.

mod agent;

use actix::Addr;
use actix_kv_metrics_nats::{NatsConfig, NatsConfigBuilder, NatsConfigError, NatsSubscriber};

pub use self::agent::Agent;
use crate::{fleet::Model, gateway::StartError};

/// A model's own settings: its subjects begin with the common prefix and its name.
pub(crate) fn config_of(
    nats: &NatsConfigBuilder,
    model: &str,
) -> Result<NatsConfig, NatsConfigError> {
    let common = nats.clone().build()?;
    let prefix = format!("{}.{}", common.subjects().prefix(), token(model));
    nats.clone().prefix(prefix).build()
}

/// Tells a model's router what agents say of the model's engines. Of other engines nothing is taken: a request could not be sent there.
pub(crate) async fn subscribe(
    nats: &NatsConfigBuilder,
    model: &Model,
) -> Result<Addr<NatsSubscriber>, StartError> {
    let config = config_of(nats, &model.name).map_err(crate::config::ConfigError::from)?;
    let engines: Vec<_> = model.engines.keys().copied().collect();
    let subscriber = NatsSubscriber::of_system(config, model.kv.clone())
        // They are sorted.
        .may_speak(move |_, rank| engines.binary_search(&rank.worker()).is_ok())
        .start();
    subscriber.await.map_err(|error| StartError::Nats {
        model: model.name.clone(),
        error,
    })
}

/// A name as a token of a subject: letters, digits and `-` stand for themselves, any other byte is `_` and two hexadecimal digits.
fn token(name: &str) -> String {
    let mut token = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'-' {
            token.push(char::from(byte));
        } else {
            token.push_str(&format!("_{byte:02X}"));
        }
    }
    token
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_models_become_tokens_that_differ() {
        assert_eq!(token("meta-llama/Llama-3.1"), "meta-llama_2FLlama-3_2E1");
        assert_eq!(token("a_2F"), "a_5F2F");
        let config = config_of(&NatsConfig::builder().prefix("prod.kv"), "a b").unwrap();
        assert_eq!(config.subjects().prefix(), "prod.kv.a_20b");
        let wrong = config_of(&NatsConfig::builder().prefix("a b"), "m").unwrap_err();
        assert_eq!(wrong.key, "prefix");
    }
}
