//! The files that people start from.

use kv_gateway::config::{Config, EngineConfig, ModelConfig};

#[test]
fn the_example_of_the_settings_shows_every_default() {
    let text = include_str!("../../deploy/kv-gateway.toml");
    let shown = Config::from_toml(text, |_| None).unwrap();
    let engines = [(1, "http://10.0.0.7:8000"), (2, "http://10.0.0.8:8000")];
    let engines = engines
        .map(|(id, url)| EngineConfig::new(actix_kv_metrics::WorkerId(id), url.parse().unwrap()));
    let mut model = ModelConfig::new(engines.to_vec());
    model.scrape.leave_after = Some(3 * model.scrape.every);
    let mut default = Config::default();
    default.models.insert("tiny".to_owned(), model);
    assert_eq!(format!("{shown:#?}"), format!("{default:#?}"));
}
