//! Errors as answers.

use actix_web::{HttpResponse, http::StatusCode};
use serde::Serialize;
use serde_json::json;

/// Why there is no answer.
#[derive(Debug)]
pub(super) struct Refusal {
    status: u16,
    told: String,
}

impl Refusal {
    pub(super) fn new(status: u16, told: impl Into<String>) -> Self {
        let told = told.into();
        Self { status, told }
    }

    /// In OpenAI's form, of vLLM's types.
    pub(super) fn response(&self) -> HttpResponse {
        #[derive(Serialize)]
        struct Told<'a> {
            message: &'a str,
            r#type: &'static str,
            param: Option<()>,
            code: u16,
        }
        let status = StatusCode::from_u16(self.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let error = Told {
            message: &self.told,
            r#type: match status.as_u16() {
                404 => "NotFoundError",
                400..500 => "BadRequestError",
                _ => "InternalServerError",
            },
            param: None,
            code: status.as_u16(),
        };
        HttpResponse::build(status).json(json!({"error": error}))
    }
}
