//! Addresses of servers, without what must not be in them.

use percent_encoding::percent_decode_str;
use url::Url;

use super::{Credentials, NatsConfigError, Secret};

/// Takes user and password, or a token, out of the addresses: the client ignores them there.
///
/// Errors name the place of an address, never the address, which may hold a password.
pub(super) fn clean(
    urls: &[Secret],
) -> Result<(Vec<String>, Option<Credentials>), NatsConfigError> {
    let mut cleaned = Vec::with_capacity(urls.len());
    let mut found = None;
    for (place, url) in urls.iter().enumerate() {
        let refused = |reason: &str| NatsConfigError {
            key: format!("urls[{place}]"),
            reason: reason.to_owned(),
        };
        let (url, credentials) = split(url.expose()).map_err(refused)?;
        if let Some(credentials) = credentials {
            if found.as_ref().is_some_and(|other| *other != credentials) {
                return Err(refused("logs in as somebody else than the ones before it"));
            }
            found = Some(credentials);
        }
        cleaned.push(url);
    }
    Ok((cleaned, found))
}

fn split(text: &str) -> Result<(String, Option<Credentials>), &'static str> {
    let with_scheme = if text.contains("://") {
        text.to_owned()
    } else {
        format!("nats://{text}")
    };
    let mut url = Url::parse(&with_scheme).map_err(|_| "is no URL")?;
    if !["nats", "tls"].contains(&url.scheme()) {
        return Err("must begin with nats:// or tls://");
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err("names no host");
    }
    if !["", "/"].contains(&url.path()) || url.query().is_some() || url.fragment().is_some() {
        return Err("must end with the host and the port");
    }
    let user = decoded(url.username())?;
    let password = url.password().map(decoded).transpose()?;
    let credentials = match (user, password) {
        (user, Some(password)) if !user.is_empty() => Some(Credentials::UserPassword {
            user,
            password: password.into(),
        }),
        (_, Some(_)) => return Err("has a password, but no user"),
        (token, None) if !token.is_empty() => Some(Credentials::Token(token.into())),
        _ => None,
    };
    // Neither fails where there is a host.
    let removed = url.set_password(None).and_then(|()| url.set_username(""));
    removed.map_err(|()| "names no host")?;
    Ok((url.as_str().trim_end_matches('/').to_owned(), credentials))
}

fn decoded(text: &str) -> Result<String, &'static str> {
    let text = percent_decode_str(text).decode_utf8();
    let text = text.map_err(|_| "has a user or password that is no UTF-8")?;
    Ok(text.into_owned())
}
