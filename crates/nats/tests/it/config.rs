//! Settings are read, checked once, and shown without their secrets.

use std::time::Duration;

use actix_kv_metrics_nats::{
    Credentials, Limits, NatsConfig, NatsConfigBuilder, Secret, Tls, wire::Form,
};

use crate::support::ms;

const SEED: &str = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";

fn toml(text: &str) -> Result<NatsConfig, String> {
    toml::from_str(text).map_err(|error: toml::de::Error| error.message().to_owned())
}

#[track_caller]
fn refused(text: &str, reason: &str) {
    assert_eq!(toml(text).unwrap_err(), reason, "{text}");
}

#[test]
fn the_defaults_are_a_server_on_this_machine() {
    let config = NatsConfig::default();
    assert_eq!(toml("").unwrap(), config);
    assert_eq!(config.urls(), ["nats://127.0.0.1:4222"]);
    assert_eq!((config.name(), config.credentials()), (None, None));
    assert_eq!(*config.tls(), Tls::default());
    assert_eq!(config.subjects().prefix(), "kv");
    assert_eq!(config.form(), Form::MessagePack);
    assert_eq!(config.publisher_lease(), ms(10_000));
    assert_eq!(config.ping_interval(), ms(2_000));
    assert_eq!(config.reconnect_delay(), ms(50));
    assert_eq!(*config.limits(), Limits::default());
}

#[test]
fn every_key_is_read() {
    let config = toml(
        r#"
        urls = ["nats://a.example", "tls://b.example:4443", "c"]
        name = "router 1"
        credentials = { user = "kv", password = "s3cret" }
        tls = { require = true, ca = "/ca.pem", cert = "/cert.pem", key = "/key.pem" }
        prefix = "prod.kv"
        form = "json"
        publisher_lease = "5s"
        ping_interval = "500ms"
        reconnect_delay = "20ms"
        [limits]
        message_bytes = 1
        parts = 2
        snapshot_bytes = 3
        workers_per_publisher = 4
        publishers = 5
        workers = 6
        ahead = "1h"
        "#,
    );
    let built = NatsConfig::builder()
        .urls(["nats://a.example", "tls://b.example:4443", "c"])
        .name("router 1")
        .credentials(Credentials::UserPassword {
            user: "kv".into(),
            password: "s3cret".into(),
        })
        .tls(Tls {
            require: true,
            ca: Some("/ca.pem".into()),
            cert: Some("/cert.pem".into()),
            key: Some("/key.pem".into()),
        })
        .prefix("prod.kv")
        .form(Form::Json)
        .publisher_lease(ms(5_000))
        .ping_interval(ms(500))
        .reconnect_delay(ms(20))
        .limits(Limits {
            message_bytes: 1,
            parts: 2,
            snapshot_bytes: 3,
            workers_per_publisher: 4,
            publishers: 5,
            workers: 6,
            ahead: ms(3_600_000),
        })
        .build();
    assert_eq!(config.unwrap(), built.unwrap());
}

#[test]
fn credentials_are_one_of_four() {
    let of = |text: &str| {
        let config = toml(&format!("credentials = {text}"));
        config.map(|config| config.credentials().cloned().unwrap())
    };
    let password = |user: &str, password: &str| Credentials::UserPassword {
        user: user.into(),
        password: password.into(),
    };
    assert_eq!(
        of(r#"{ user = "u", password = "" }"#),
        Ok(password("u", ""))
    );
    assert_eq!(of(r#"{ token = "t" }"#), Ok(Credentials::Token("t".into())));
    let seed = format!("{{ nkey_seed = {SEED:?} }}");
    assert_eq!(of(&seed), Ok(Credentials::NkeySeed(SEED.into())));
    let file = Credentials::File("/kv.creds".into());
    assert_eq!(of(r#"{ file = "/kv.creds" }"#), Ok(file));
    let one = "credentials must be either user and password, or token, or nkey_seed, or file";
    for text in [
        "{}",
        r#"{ user = "u" }"#,
        r#"{ password = "p" }"#,
        r#"{ token = "t", file = "f" }"#,
        r#"{ user = "u", password = "p", token = "t" }"#,
    ] {
        assert_eq!(of(text).unwrap_err(), one, "{text}");
    }
    for (text, reason) in [
        (
            r#"{ user = "", password = "p" }"#,
            "credentials.user must not be empty",
        ),
        (r#"{ token = "" }"#, "credentials.token must not be empty"),
        (r#"{ file = "" }"#, "credentials.file must not be empty"),
        (
            r#"{ nkey_seed = "SUshort" }"#,
            "credentials.nkey_seed must be the seed of a user: SU and 56 more characters A-Z and 2-7",
        ),
        (
            r#"{ passwort = "p" }"#,
            "unknown field `passwort`, expected one of `user`, `password`, `token`, `nkey_seed`, `file`",
        ),
    ] {
        assert_eq!(of(text).unwrap_err(), reason, "{text}");
    }
    // By the builder, too.
    let empty = NatsConfig::builder().credentials(Credentials::Token("".into()));
    assert_eq!(
        empty.build().unwrap_err().to_string(),
        "credentials.token must not be empty"
    );
}

#[test]
fn user_and_password_are_taken_out_of_addresses() {
    let of = |urls: &[&str]| {
        let config = NatsConfig::builder().urls(urls.iter().copied()).build();
        config.map(|config| (config.urls().to_vec(), config.credentials().cloned()))
    };
    let login = Credentials::UserPassword {
        user: "kv@prod".into(),
        password: "p:ss/ä".into(),
    };
    let (urls, credentials) =
        of(&["nats://kv%40prod:p%3Ass%2F%C3%A4@a.example:4333/", "b"]).unwrap();
    assert_eq!(urls, ["nats://a.example:4333", "nats://b"]);
    assert_eq!(credentials, Some(login));
    let (urls, credentials) = of(&["s3cret@a", "tls://s3cret@[::1]:4222"]).unwrap();
    assert_eq!(urls, ["nats://a", "tls://[::1]:4222"]);
    assert_eq!(credentials, Some(Credentials::Token("s3cret".into())));
    let (urls, credentials) = of(&["localhost:4222"]).unwrap();
    assert_eq!(
        (urls.as_slice(), credentials),
        (&["nats://localhost:4222".to_owned()][..], None)
    );
    for (urls, reason) in [
        (&[][..], "urls must name a server"),
        (&["a", ""], "urls[1] names no host"),
        (&["http://a"], "urls[0] must begin with nats:// or tls://"),
        (&["ws://a"], "urls[0] must begin with nats:// or tls://"),
        (&["nats://"], "urls[0] names no host"),
        (&["nats://:s3cret@a"], "urls[0] has a password, but no user"),
        (&["nats://a:b:c"], "urls[0] is no URL"),
        (&["nats://u:s3cret@a:99999"], "urls[0] is no URL"),
        (
            &["nats://a/kv"],
            "urls[0] must end with the host and the port",
        ),
        (
            &["nats://a?x=1"],
            "urls[0] must end with the host and the port",
        ),
        (
            &["nats://%ff@a"],
            "urls[0] has a user or password that is no UTF-8",
        ),
        (
            &["u:p@a", "u:q@b"],
            "urls[1] logs in as somebody else than the ones before it",
        ),
    ] {
        assert_eq!(of(urls).unwrap_err().to_string(), reason);
    }
    refused(
        r#"urls = ["u:p@a"]
        credentials = { token = "t" }"#,
        "credentials must not be set if urls hold some",
    );
}

#[test]
fn a_key_that_is_wrong_is_named() {
    refused(
        "url = []",
        "unknown field `url`, expected one of `urls`, `name`, `credentials`, `tls`, `prefix`, `form`, `publisher_lease`, `ping_interval`, `reconnect_delay`, `limits`",
    );
    for (text, reason) in [
        (
            r#"prefix = "a b""#,
            r#"prefix cannot be taken: "a b" is no prefix: it takes tokens of A-Z, a-z, 0-9, _ and -, with a dot between two, and at most 256 bytes"#,
        ),
        (
            r#"publisher_lease = "99ms""#,
            "publisher_lease is 99ms, but must be at least 100ms",
        ),
        (
            r#"publisher_lease = "0s""#,
            "publisher_lease is 0ns, but must be at least 100ms",
        ),
        (
            r#"publisher_lease = "5""#,
            r#""5" is no duration: time unit needed, for example 5sec or 5ms"#,
        ),
        (
            r#"ping_interval = "2001ms""#,
            "ping_interval is 2.001s, but must be above 0 and at most a fifth of publisher_lease (2s)",
        ),
        (
            r#"ping_interval = "0s""#,
            "ping_interval is 0ns, but must be above 0 and at most a fifth of publisher_lease (2s)",
        ),
        (
            r#"reconnect_delay = "0s""#,
            "reconnect_delay is 0ns, but must be 1ms to 100ms",
        ),
        (
            r#"reconnect_delay = "101ms""#,
            "reconnect_delay is 101ms, but must be 1ms to 100ms",
        ),
        (
            r#"tls = { cert = "/c" }"#,
            "tls.key must be set with tls.cert, or neither of them",
        ),
        (
            r#"tls = { key = "/k" }"#,
            "tls.key must be set with tls.cert, or neither of them",
        ),
        (
            r#"tls = { required = true }"#,
            "unknown field `required`, expected one of `require`, `ca`, `cert`, `key`",
        ),
        (
            r#"form = "xml""#,
            "unknown variant `xml`, expected `messagepack` or `json`",
        ),
        (
            "limits = { part = 1 }",
            "unknown field `part`, expected one of `message_bytes`, `parts`, `snapshot_bytes`, `workers_per_publisher`, `publishers`, `workers`, `ahead`",
        ),
    ] {
        refused(text, reason);
    }
    for key in [
        "message_bytes",
        "parts",
        "snapshot_bytes",
        "workers_per_publisher",
        "publishers",
        "workers",
    ] {
        let text = format!("limits = {{ {key} = 0 }}");
        refused(&text, &format!("limits.{key} is 0, but must be 1 or more"));
    }
}

#[test]
fn durations_are_written_as_everywhere() {
    let config = toml(r#"publisher_lease = "never""#).unwrap();
    assert_eq!(config.publisher_lease(), Duration::MAX);
    assert_eq!(config.ping_interval(), ms(60_000));
    let parts: NatsConfig = serde_json::from_str(
        r#"{"publisher_lease":{"secs":1,"nanos":5},"limits":{"ahead":"never"}}"#,
    )
    .unwrap();
    assert_eq!(parts.publisher_lease(), Duration::new(1, 5));
    assert_eq!(parts.limits().ahead, Duration::MAX);
}

#[test]
fn no_secret_is_shown() {
    let secret = "s3cret";
    let builder = NatsConfig::builder().urls([format!("nats://kv:{secret}@a")]);
    let token = NatsConfig::builder().credentials(Credentials::Token(secret.into()));
    let shown = format!(
        "{builder:?} {:?} {:?} {token:?} {:?}",
        builder.clone().build().unwrap(),
        NatsConfigBuilder::default(),
        Secret::from(secret),
    );
    assert!(!shown.contains(secret), "{shown}");
    assert!(shown.contains("Secret(***)"));
    assert_eq!(Secret::from(secret).expose(), secret);
    // A number is none, and not shown as such.
    for value in ["12345", "1.2345", "true", "-12345"] {
        let json = format!(r#"{{"credentials":{{"token":{value}}}}}"#);
        let error = serde_json::from_str::<NatsConfig>(&json).unwrap_err();
        let error = error.to_string();
        assert!(
            error.starts_with("a secret must be a text, in quotes"),
            "{error}"
        );
    }
}
