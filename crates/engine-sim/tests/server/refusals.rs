//! What is refused.

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
