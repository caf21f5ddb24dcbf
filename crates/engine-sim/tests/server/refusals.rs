//! What is refused.

use std::{io, net::SocketAddr};

use kv_engine_sim::{SimConfig, SimServer};
use serde_json::json;

use crate::client::{complete, server};

#[actix_web::test]
async fn what_is_no_request_is_refused() {
    let server = server(|_| {});
    for (body, error) in [
        (
            json!({"prompt": "a", "model": "other"}),
            "The model `other` does not exist.",
        ),
        (
            json!({"model": "sim"}),
            "either prompt or messages must be there",
        ),
        (json!({"prompt": []}), "there is no prompt"),
        (
            json!({"prompt": "a", "max_tokens": 0}),
            "max_tokens must be at least 1",
        ),
        (
            json!({"prompt": "a", "max_tokens": 100_000}),
            "The prompt is longer than the engine can hold.",
        ),
    ] {
        assert_eq!(complete(&server, &body).await["error"]["message"], error);
    }
    assert_eq!(server.stats().begun, 0);
}

#[actix_web::test]
async fn an_engine_that_cannot_be_is_an_error_and_no_panic() {
    let changes: [fn(&mut SimConfig); 8] = [
        |config| config.speed = 0.0,
        |config| config.speed = -1.0,
        |config| config.speed = f64::NAN,
        |config| config.speed = f64::INFINITY,
        |config| config.engine.total_blocks = 0,
        |config| config.engine.max_sequences = 0,
        |config| config.engine.max_batched_tokens = 0,
        |config| config.engine.block_tokens = 48,
    ];
    for change in changes {
        let mut config = SimConfig::default();
        change(&mut config);
        let refused = SimServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), config).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{refused}");
    }
}
