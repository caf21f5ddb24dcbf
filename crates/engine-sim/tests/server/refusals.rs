//! What is refused.

use std::{io, net::SocketAddr};

use kv_engine_sim::{SimConfig, SimServer};
use serde_json::{Value, json};

use crate::client::{body_of, post, post_text, send, server};

#[actix_web::test]
async fn what_is_no_request_is_refused_in_openais_form_and_counted() {
    for instant in [false, true] {
        let server = server(|config| config.instant = instant);
        let long = "The prompt is longer than the engine can hold.";
        let cases = [
            (
                json!({"prompt": "a", "model": "other"}),
                404,
                "The model `other` does not exist.",
            ),
            (
                json!({"model": "sim"}),
                400,
                "either prompt or messages must be there",
            ),
            (json!({"prompt": []}), 400, "there is no prompt"),
            (
                json!({"prompt": "a", "max_tokens": 0}),
                400,
                "max_tokens must be at least 1",
            ),
            (json!({"prompt": "a", "max_tokens": 100_000}), 400, long),
            (json!({"prompt": "a", "max_tokens": u32::MAX}), 400, long),
            (json!({"prompt": "a".repeat(80_000)}), 400, long),
            // None of its prompts gets to the engine.
            (json!({"prompt": ["a", "a".repeat(80_000)]}), 400, long),
        ];
        let count = cases.len() as u64;
        for (body, status, message) in cases {
            let answer = send(server.address(), &post("/v1/completions", "", &body)).await;
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")),
                "{answer}"
            );
            let kind = if status == 404 {
                "NotFoundError"
            } else {
                "BadRequestError"
            };
            let error = json!({"message": message, "type": kind, "param": null, "code": status});
            assert_eq!(body_of(&answer), json!({"error": error}).to_string());
        }
        assert_eq!((server.stats().begun, server.stats().refused), (0, count));
    }
}

#[actix_web::test]
async fn a_body_that_is_malformed_or_too_large_is_refused_and_counted() {
    let server = server(|_| {});
    let malformed = [
        "",
        "{",
        "[]",
        "{\"prompt\": 7}",
        "{\"prompt\": [\"a\", 1]}",
        "\u{1}",
    ];
    for body in malformed {
        let request = post_text("/v1/completions", "", body);
        let answer = send(server.address(), &request).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{body}: {answer}");
        let error: Value = serde_json::from_str(body_of(&answer)).unwrap();
        assert_eq!(error["error"]["code"], 400);
    }
    let large = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: sim\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        1_u64 << 30
    );
    let answer = send(server.address(), &large).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert_eq!(server.stats().refused, malformed.len() as u64 + 1);
    let nowhere = send(server.address(), &post("/v2/completions", "", &json!({}))).await;
    assert!(nowhere.starts_with("HTTP/1.1 404 "), "{nowhere}");
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
