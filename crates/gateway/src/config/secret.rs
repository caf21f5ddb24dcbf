use std::fmt;

use serde::Deserialize;
use subtle::{Choice, ConstantTimeEq};

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
pub struct Secret(String);

/// A secret as it may stand in a file. None of the messages of its errors has a value in it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    One(String),
    Many(Vec<String>),
}

impl TryFrom<Written> for Secret {
    type Error = &'static str;

    fn try_from(written: Written) -> Result<Self, &'static str> {
        match written {
            Written::One(text) if is_token(&text) => Ok(Self(text)),
            _ => Err("a secret must be one string of visible ASCII"),
        }
    }
}

impl TryFrom<Written> for Secrets {
    type Error = &'static str;

    fn try_from(written: Written) -> Result<Self, &'static str> {
        let tokens = match written {
            Written::One(token) => vec![token],
            Written::Many(tokens) => tokens,
        };
        if !tokens.iter().all(|token| is_token(token)) {
            return Err("tokens must be strings of visible ASCII");
        }
        Ok(tokens.into_iter().collect())
    }
}

/// Whether a header can carry it.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

impl Secret {
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Tokens, of which any will do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
pub struct Secrets(Vec<Secret>);

impl Secrets {
    pub(crate) fn of_list(commas: &str) -> Self {
        let tokens = commas.split(',').map(str::trim);
        let tokens = tokens.filter(|token| !token.is_empty());
        Self(tokens.map(|token| Secret(token.to_owned())).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it is one of these. How long that takes tells of the lengths, and of nothing else.
    pub(crate) fn contain(&self, token: &[u8]) -> bool {
        let any = self.0.iter().fold(Choice::from(0), |any, secret| {
            any | secret.0.as_bytes().ct_eq(token)
        });
        any.into()
    }
}

impl<S: Into<String>> FromIterator<S> for Secrets {
    fn from_iter<I: IntoIterator<Item = S>>(tokens: I) -> Self {
        Self(
            tokens
                .into_iter()
                .map(|token| Secret(token.into()))
                .collect(),
        )
    }
}
