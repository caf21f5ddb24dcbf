//! The command itself.

use std::{io::Write, process::Command};

use nix::sys::signal::Signal;

use crate::{
    client::{get, post, send},
    process::{PROGRAM, Process},
    site::until,
};

#[actix_web::test]
async fn the_demo_answers_without_a_file() {
    let mut demo = Process::start(&["--demo", "--listen", "127.0.0.1:0"]);
    let ready = async || send(demo.address, &get("/ready")).await.json()["engines"]["demo"] == 8;
    until(ready).await;
    let ask = post("/v1/completions", r#"{"prompt": "hi", "max_tokens": 2}"#);
    let answer = send(demo.address, &ask).await;
    assert_eq!(answer.json()["usage"]["completion_tokens"], 2);
    let page = send(demo.address, &get("/metrics")).await;
    for series in [
        "kv_gateway_requests_total{outcome=\"answered\"} 1",
        "kv_gateway_attempts_total{model=\"demo\",outcome=\"answered\"} 1",
        "kv_gateway_first_byte_seconds_count{model=\"demo\"} 1",
    ] {
        assert!(page.body.contains(series), "{series} in {}", page.body);
    }
    demo.signal(Signal::SIGTERM);
    let (status, said) = demo.ended().await;
    assert_eq!((status.code(), said.as_str()), (Some(0), ""));
}

#[test]
fn a_file_that_is_wrong_is_told_by_its_keys_and_ends_it() {
    let mut settings = tempfile::NamedTempFile::new().unwrap();
    let text =
        "lisen = 1\n[models.m]\nengines = [{ id = 1, url = \"http://h\", key = \"s3cret\" }]\n";
    settings.write_all(text.as_bytes()).unwrap();
    let run = |arguments: &[&str]| {
        let told = Command::new(PROGRAM).args(arguments).output().unwrap();
        let said = String::from_utf8(told.stderr).unwrap();
        (told.status.code(), said)
    };
    let path = settings.path().to_str().unwrap();
    for arguments in [vec!["--config", path, "--check"], vec!["--config", path]] {
        let (code, said) = run(&arguments);
        assert_eq!(code, Some(1), "{said}");
        let wrong = format!("kv-gateway: {path}: unknown keys: lisen, models.m.engines.0.key\n");
        assert_eq!(said, wrong);
    }
    let (code, said) = run(&["--config", "/nowhere"]);
    assert_eq!(code, Some(1));
    assert!(said.starts_with("kv-gateway: /nowhere: "), "{said}");
    assert_eq!(run(&[]).0, Some(1));
    assert_eq!(run(&["--no-such"]).0, Some(2));
}
