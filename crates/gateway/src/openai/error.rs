use std::{borrow::Cow, time::Duration};

use actix_kv_metrics::SelectError;
use actix_web::{
    HttpResponse, ResponseError,
    http::{StatusCode, header},
};
use serde::Serialize;
use thiserror::Error;

/// A request that no engine answers, told to the client in OpenAI's form.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum ApiError {
    /// 400: the body is not what this path takes.
    #[error("{0}")]
    BadRequest(Cow<'static, str>),
    /// 400: no engine could hold its prompt, however idle.
    #[error("the prompt is longer than any engine can hold")]
    TooLong,
    /// 401: a token is needed, and none of those accepted was sent.
    #[error("a bearer token is missing or wrong")]
    Unauthorized,
    /// 404: no such model here.
    #[error("the model `{0}` does not exist")]
    UnknownModel(String),
    /// 404: no such path, or no such worker.
    #[error("{0}")]
    NotFound(Cow<'static, str>),
    /// 405: not this method.
    #[error("this path takes another method")]
    MethodNotAllowed,
    /// 408: the client took too long to send it.
    #[error("the request did not arrive within {0:?}")]
    Slow(Duration),
    /// 409: agents tell the load of this model's engines.
    #[error("agents tell the load of this engine")]
    ToldByAgents,
    /// 413: over the limit, in bytes.
    #[error("the body is longer than {0} bytes")]
    TooLarge(usize),
    /// 429: every engine was full for as long as it may wait, or as many requests as may do so wait already.
    #[error("all engines are busy")]
    Busy,
    /// 429: as many requests as may are under way.
    #[error("too many requests at one time")]
    TooMany,
    /// 503: the bodies of other requests take all the memory they may.
    #[error("too many large requests at one time")]
    NoMemory,
    /// 503: nobody to ask.
    #[error("no engine is available")]
    NoEngine,
    /// 503: the gateway ends.
    #[error("the gateway is shutting down")]
    ShuttingDown,
    /// 503: those that were tried did not take it.
    #[error("no engine took the request; tried: {tried}")]
    NotTaken {
        /// How many.
        tried: usize,
    },
    /// 504: the last that was tried did not begin to answer in time.
    #[error("no engine began to answer within {0:?}")]
    NoFirstToken(Duration),
}

impl From<SelectError> for ApiError {
    fn from(error: SelectError) -> Self {
        match error {
            SelectError::AllSaturated => Self::Busy,
            SelectError::TooLarge => Self::TooLong,
            SelectError::ShuttingDown => Self::ShuttingDown,
            _ => Self::NoEngine,
        }
    }
}

impl ApiError {
    /// The value of `error.type`, and of `error.code`.
    fn kind(&self) -> (&'static str, &'static str) {
        const INVALID: &str = "invalid_request_error";
        const OVERLOADED: &str = "rate_limit_error";
        const UNAVAILABLE: &str = "service_unavailable_error";
        match self {
            Self::BadRequest(_) => (INVALID, "bad_request"),
            Self::TooLong => (INVALID, "context_length_exceeded"),
            Self::Unauthorized => ("authentication_error", "invalid_api_key"),
            Self::UnknownModel(_) => (INVALID, "model_not_found"),
            Self::NotFound(_) => (INVALID, "not_found"),
            Self::MethodNotAllowed => (INVALID, "method_not_allowed"),
            Self::ToldByAgents => (INVALID, "told_by_agents"),
            Self::Slow(_) => (INVALID, "request_timeout"),
            Self::TooLarge(_) => (INVALID, "request_too_large"),
            Self::Busy => (OVERLOADED, "engines_busy"),
            Self::TooMany => (OVERLOADED, "too_many_requests"),
            Self::NoMemory => (UNAVAILABLE, "too_many_bodies"),
            Self::NoEngine => (UNAVAILABLE, "no_engine"),
            Self::ShuttingDown => (UNAVAILABLE, "shutting_down"),
            Self::NotTaken { .. } => (UNAVAILABLE, "not_taken"),
            Self::NoFirstToken(_) => ("timeout_error", "no_first_token"),
        }
    }

    /// `error.code`, under which it is counted.
    pub(crate) fn code(&self) -> &'static str {
        self.kind().1
    }
}

impl ResponseError for ApiError {
    fn status_code(&self) -> StatusCode {
        match self {
            Self::BadRequest(_) | Self::TooLong => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::UnknownModel(_) | Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::ToldByAgents => StatusCode::CONFLICT,
            Self::Slow(_) => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Busy | Self::TooMany => StatusCode::TOO_MANY_REQUESTS,
            Self::NoMemory | Self::NoEngine | Self::ShuttingDown | Self::NotTaken { .. } => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::NoFirstToken(_) => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    fn error_response(&self) -> HttpResponse {
        let status = self.status_code();
        let mut response = HttpResponse::build(status);
        if status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE {
            response.insert_header((header::RETRY_AFTER, RETRY_AFTER));
        }
        if status == StatusCode::UNAUTHORIZED {
            response.insert_header((header::WWW_AUTHENTICATE, "Bearer"));
        }
        if matches!(self, Self::Slow(_) | Self::TooLarge(_) | Self::ShuttingDown) {
            // What else it sends is not read.
            response.force_close();
        }
        let (kind, code) = self.kind();
        response.json(body(&self.to_string(), kind, code))
    }
}

/// An error in OpenAI's form.
fn body<'a>(message: &'a str, kind: &'a str, code: &'a str) -> impl Serialize {
    #[derive(Serialize)]
    struct Body<'a> {
        error: Told<'a>,
    }
    #[derive(Serialize)]
    struct Told<'a> {
        message: &'a str,
        r#type: &'a str,
        param: Option<()>,
        code: &'a str,
    }
    Body {
        error: Told {
            message,
            r#type: kind,
            param: None,
            code,
        },
    }
}

/// The event that tells a client that its stream broke off, in the form in which vLLM tells of its own errors.
pub(crate) fn broken_off(message: &str) -> String {
    let event = body(message, "service_unavailable_error", "broken_off");
    let event = serde_json::to_string(&event).unwrap_or_default();
    format!("data: {event}\n\n")
}

/// Seconds. A place is free again after the requests of some seconds.
pub(crate) const RETRY_AFTER: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_event_of_a_broken_stream_is_json_in_openais_form() {
        let event = broken_off("engine 7: \"gone\"");
        let json = event.strip_prefix("data: ").unwrap();
        let json: serde_json::Value = serde_json::from_str(json.trim_end()).unwrap();
        assert_eq!(
            json,
            serde_json::json!({"error": {
                "message": "engine 7: \"gone\"",
                "type": "service_unavailable_error",
                "param": null,
                "code": "broken_off",
            }})
        );
    }
}
