//! How one proves to a server who one is, and it to us.

use std::path::PathBuf;

use serde::Deserialize;

use super::{NatsConfigError, Secret, check};

/// How to log in. As settings, one of these tables:
///
/// ```toml
/// credentials = { user = "router", password = "…" }
/// # credentials = { token = "…" }
/// # credentials = { nkey_seed = "SU…" }
/// # credentials = { file = "/etc/kv/router.creds" }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "ReadCredentials")]
#[non_exhaustive]
pub enum Credentials {
    /// A user and a password.
    UserPassword {
        /// The user.
        user: String,
        /// The password.
        password: Secret,
    },
    /// A token.
    Token(Secret),
    /// The seed of a user's NKey, which begins with `SU`.
    NkeySeed(Secret),
    /// A file with a JWT and a seed, as `nsc` writes it.
    File(PathBuf),
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ReadCredentials {
    user: Option<String>,
    password: Option<Secret>,
    token: Option<Secret>,
    nkey_seed: Option<Secret>,
    file: Option<PathBuf>,
}

impl TryFrom<ReadCredentials> for Credentials {
    type Error = NatsConfigError;

    fn try_from(read: ReadCredentials) -> Result<Self, NatsConfigError> {
        let credentials = match read {
            ReadCredentials {
                user: Some(user),
                password: Some(password),
                token: None,
                nkey_seed: None,
                file: None,
            } => Self::UserPassword { user, password },
            ReadCredentials {
                user: None,
                password: None,
                token: Some(token),
                nkey_seed: None,
                file: None,
            } => Self::Token(token),
            ReadCredentials {
                user: None,
                password: None,
                token: None,
                nkey_seed: Some(seed),
                file: None,
            } => Self::NkeySeed(seed),
            ReadCredentials {
                user: None,
                password: None,
                token: None,
                nkey_seed: None,
                file: Some(file),
            } => Self::File(file),
            _ => {
                return Err(NatsConfigError {
                    key: "credentials".to_owned(),
                    reason: "must be either user and password, or token, or nkey_seed, or file"
                        .to_owned(),
                });
            }
        };
        credentials.check()?;
        Ok(credentials)
    }
}

impl Credentials {
    pub(super) fn check(&self) -> Result<(), NatsConfigError> {
        match self {
            Self::UserPassword { user, .. } => check(!user.is_empty(), "credentials.user", || {
                "must not be empty".to_owned()
            }),
            Self::Token(token) => check(!token.expose().is_empty(), "credentials.token", || {
                "must not be empty".to_owned()
            }),
            Self::NkeySeed(seed) => {
                let seed = seed.expose();
                let is_seed = seed.len() == SEED && seed.starts_with("SU") && is_base32(seed);
                check(is_seed, "credentials.nkey_seed", || {
                    format!(
                        "must be the seed of a user: SU and {} more characters A-Z and 2-7",
                        SEED - 2
                    )
                })
            }
            Self::File(file) => check(!file.as_os_str().is_empty(), "credentials.file", || {
                "must not be empty".to_owned()
            }),
        }
    }
}

fn is_base32(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_uppercase() || (b'2'..=b'7').contains(&byte);
    text.bytes().all(is_digit)
}

/// Of any seed: two bytes that say whose, 32 of the key, two of a checksum, in base 32.
const SEED: usize = 58;

/// TLS towards the servers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// Whether a connection without it is refused. Servers that ask for it get it in any case.
    pub require: bool,
    /// Certificates of the authorities that are trusted, in PEM. Default: the system's.
    pub ca: Option<PathBuf>,
    /// Own certificate, in PEM, for servers that ask for one; with `key`.
    pub cert: Option<PathBuf>,
    /// Key of `cert`, in PEM.
    pub key: Option<PathBuf>,
}

impl Tls {
    pub(super) fn check(&self) -> Result<(), NatsConfigError> {
        let both = || "must be set with tls.cert, or neither of them".to_owned();
        check(self.cert.is_some() == self.key.is_some(), "tls.key", both)
    }
}
