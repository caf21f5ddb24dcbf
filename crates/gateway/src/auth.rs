//! Who may do what.

use actix_web::{HttpRequest, http::header};

use crate::{config::Secrets, openai::ApiError};

/// Whether the request bears one of the tokens, or needs none.
///
/// # Errors
///
/// [`ApiError::Unauthorized`].
pub(crate) fn authorize(request: &HttpRequest, tokens: &Secrets) -> Result<(), ApiError> {
    if tokens.is_empty() {
        return Ok(());
    }
    let sent = request.headers().get(header::AUTHORIZATION);
    let token = sent.and_then(|value| bearer(value.as_bytes()));
    // One that is missing takes as long as one that is wrong.
    if tokens.contain(token.unwrap_or_default()) && token.is_some() {
        return Ok(());
    }
    metrics::counter!("kv_gateway_unauthorized_total").increment(1);
    Err(ApiError::Unauthorized)
}

/// The scheme is written in any case (RFC 9110, 11.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    fn may(sent: Option<&str>, tokens: &[&str]) -> bool {
        let mut request = TestRequest::default();
        if let Some(sent) = sent {
            request = request.insert_header((header::AUTHORIZATION, sent));
        }
        let tokens = tokens.iter().copied().collect();
        authorize(&request.to_http_request(), &tokens).is_ok()
    }

    #[test]
    fn any_of_the_tokens_will_do_and_nothing_else() {
        assert!(may(None, &[]));
        assert!(may(Some("Bearer b"), &["a", "b"]));
        assert!(may(Some("bearer  b "), &["a", "b"]));
        for sent in [
            "Bearer c",
            "Bearer",
            "Bearer ",
            "Basic b",
            "b",
            "Bearer bb",
            "Bearer a,b",
            "",
        ] {
            assert!(!may(Some(sent), &["a", "b"]), "{sent}");
        }
        assert!(!may(None, &["a"]));
    }
}
