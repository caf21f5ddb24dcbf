//! Who may connect, and what they may say.

use actix_kv_metrics::PublisherConfig;
use actix_kv_metrics_nats::{Credentials, NatsConfig, NatsConfigBuilder, Tls};

use crate::{
    fleet::{AT_ALL, Inlet, Outlet, SOON, in_system, ms},
    server::Server,
};

/// A load reaches a router; both log in alike.
fn works(server: &Server, with: impl Fn(NatsConfigBuilder) -> NatsConfigBuilder) {
    in_system(async {
        let config = || with(server.config()).build().unwrap();
        let inlet = Inlet::start(config()).await;
        let outlet = Outlet::start(config()).await;
        outlet.report(1, 5).await;
        inlet.becomes(vec![(1, 5)], AT_ALL).await;
        assert!(outlet.flushed(SOON).await);
    });
}

#[test]
fn with_user_and_password_also_in_the_address() {
    let server = Server::start_with(r#"authorization: { user: "kv", password: "s3cret" }"#);
    works(&server, |config| {
        config.credentials(Credentials::UserPassword {
            user: "kv".to_owned(),
            password: "s3cret".into(),
        })
    });
    let inside = server.url().replace("//", "//kv:s3cret@");
    works(&server, |config| config.urls([inside.as_str()]));
}

#[test]
fn with_a_token() {
    let server = Server::start_with(r#"authorization: { token: "s3cret" }"#);
    works(&server, |config| {
        config.credentials(Credentials::Token("s3cret".into()))
    });
}

#[test]
fn with_an_nkey() {
    let key = nkeys::KeyPair::new_user();
    let server = Server::start_with(&format!(
        "authorization: {{ users: [ {{ nkey: {} }} ] }}",
        key.public_key()
    ));
    works(&server, |config| {
        let seed = key.seed().unwrap();
        config.credentials(Credentials::NkeySeed(seed.as_str().into()))
    });
}

#[test]
fn with_tls_and_a_certificate_of_ones_own() {
    let server = Server::configured("");
    let folder = server.folder().to_owned();
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority_certificate = authority.self_signed(&authority_key).unwrap();
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let path = |name: &str| folder.join(name);
    std::fs::write(path("ca.pem"), authority_certificate.pem()).unwrap();
    for name in ["server", "client"] {
        let key = rcgen::KeyPair::generate().unwrap();
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let certificate = rcgen::CertificateParams::new(names).unwrap();
        let certificate = certificate.signed_by(&key, &issuer).unwrap();
        std::fs::write(path(&format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }
    server.configure(&format!(
        "tls: {{ cert_file: {:?}, key_file: {:?}, ca_file: {:?}, verify: true }}",
        path("server.pem"),
        path("server.key"),
        path("ca.pem")
    ));
    let mut server = server;
    server.up();
    works(&server, |config| {
        config.tls(Tls {
            require: true,
            ca: Some(path("ca.pem")),
            cert: Some(path("client.pem")),
            key: Some(path("client.key")),
        })
    });
}

const ONE_USER: &str = r#"authorization: { user: "kv", password: "right" }"#;

fn login(server: &Server, password: &str) -> NatsConfig {
    let config = server.config().credentials(Credentials::UserPassword {
        user: "kv".to_owned(),
        password: password.into(),
    });
    config.build().unwrap()
}

#[test]
fn a_login_refused_and_then_allowed_loses_nothing() {
    let mut server = Server::start_with(&ONE_USER.replace("right", "other"));
    in_system(async {
        let inlet = Inlet::start(login(&server, "right")).await;
        let outlet = Outlet::start(login(&server, "right")).await;
        outlet.report(1, 5).await;
        assert!(!outlet.flushed(ms(300)).await);
        assert_eq!(inlet.table().await, []);
        server.kill();
        server.configure(ONE_USER);
        server.up();
        inlet.becomes(vec![(1, 5)], SOON).await;
        assert!(outlet.flushed(SOON).await);
    });
}

/// A user who may not publish, or hear, what matches `denied`.
fn denying(publish: &str, subscribe: &str) -> String {
    format!(
        r#"authorization: {{ users: [
            {{ user: "kv", password: "right", permissions: {{
                publish: {{ deny: [{publish}] }}, subscribe: {{ deny: [{subscribe}] }} }} }}
            {{ user: "router", password: "router" }} ] }}"#
    )
}

fn router_login(server: &Server) -> NatsConfig {
    let config = server.config().credentials(Credentials::UserPassword {
        user: "router".to_owned(),
        password: "router".into(),
    });
    config.build().unwrap()
}

/// Whatever of a publisher's subjects is denied, it never takes a snapshot for arrived; once allowed, all is right.
fn a_refusal_is_never_taken_for_an_arrival(publish: &str, subscribe: &str) {
    let server = Server::start_with(&denying(publish, subscribe));
    in_system(async {
        let inlet = Inlet::start(router_login(&server)).await;
        let seven = || PublisherConfig::builder().id(7).build().unwrap();
        let outlet = Outlet::start_as(seven(), login(&server, "right")).await;
        outlet.report(1, 5).await;
        assert!(!outlet.flushed(ms(500)).await, "{publish} {subscribe}");
        let refused = outlet.stats().await.snapshots.refused;
        assert!(refused > 0, "{:?}", outlet.stats().await);
        server.configure(&denying("", ""));
        server.reload();
        outlet.report(1, 6).await;
        inlet.becomes(vec![(1, 6)], AT_ALL).await;
        assert!(outlet.flushed(AT_ALL).await);
        let doomed = Outlet::start_as(
            PublisherConfig::builder().id(8).build().unwrap(),
            login(&server, "right"),
        )
        .await;
        doomed.report(2, 5).await;
        assert!(doomed.flushed(AT_ALL).await);
    });
}

#[test]
fn a_refused_snapshot_is_never_taken_for_arrived() {
    a_refusal_is_never_taken_for_an_arrival(r#""kv.pub.7.snapshot""#, "");
}

#[test]
fn a_refused_marker_is_never_taken_for_arrived() {
    a_refusal_is_never_taken_for_an_arrival(r#""kv.pub.7.mark""#, "");
}

#[test]
fn a_marker_that_may_not_be_heard_is_never_taken_for_arrived() {
    a_refusal_is_never_taken_for_an_arrival("", r#""kv.pub.7.mark""#);
}

#[test]
fn a_permission_taken_away_later_is_noticed_and_shutdown_says_so() {
    let server = Server::start_with(&denying("", ""));
    in_system(async {
        let inlet = Inlet::start(router_login(&server)).await;
        let config = PublisherConfig::builder().id(7).build().unwrap();
        let outlet = Outlet::start_as(config, login(&server, "right")).await;
        outlet.report(1, 5).await;
        inlet.becomes(vec![(1, 5)], AT_ALL).await;
        assert!(outlet.flushed(SOON).await);
        server.configure(&denying(r#""kv.pub.7.snapshot""#, ""));
        server.reload();
        // Servers read their settings when they get to it.
        let until = std::time::Instant::now() + AT_ALL;
        let mut value = 10;
        while outlet.stats().await.snapshots.refused == 0 {
            assert!(std::time::Instant::now() < until);
            value += 1;
            outlet.report(1, value).await;
            actix::clock::sleep(ms(5)).await;
        }
        outlet.report(1, 1_000).await;
        assert!(!outlet.shut(ms(500)).await);
        assert_ne!(inlet.table().await, [(1, 1_000)]);
    });
}
