use std::time::Duration;

use super::*;

const SMALL: &str = r#"
client_tokens = ["of-the-file"]

[models.tiny]
engines = [{ id = 1, url = "http://127.0.0.1:8101" }, { id = 2, url = "http://[::1]:8102/v", kind = "sglang" }]
"#;

fn read(text: &str) -> Result<Config, String> {
    Config::from_toml(text, |_| None).map_err(|error| error.to_string())
}

#[test]
fn a_model_and_its_engines_are_all_that_must_be_said() {
    let config = read(SMALL).unwrap();
    let model = &config.models["tiny"];
    assert_eq!(model.block_tokens.get(), 16);
    assert_eq!(model.scrape.every, Duration::from_millis(500));
    assert_eq!(model.engines[0].page_url(), "http://127.0.0.1:8101/metrics");
    let path = model.engines[1].url_of("/v1/completions");
    assert_eq!(path, "http://[::1]:8102/v/v1/completions");
}

#[test]
fn every_key_that_nothing_reads_is_named() {
    let text = format!(
        "lisen = 1\n{SMALL}prefx = 1\n[models.tiny.scrape]\nevry = \"1s\"\n[limits]\nbodies = 1\n"
    );
    let error = read(&text).unwrap_err();
    assert_eq!(
        error,
        "unknown keys: limits.bodies, lisen, models.tiny.prefx, models.tiny.scrape.evry"
    );
}

#[test]
fn what_is_wrong_is_named_with_its_line_and_never_with_a_secret() {
    for (text, error) in [
        (
            "\nlisten = \"here\"",
            "line 2: invalid socket address syntax",
        ),
        (
            "client_tokens = { a = \"s3cret\" }",
            "line 1: data did not match any variant of untagged enum Written",
        ),
        (
            "client_tokens = [\"s3 cret\"]",
            "line 1: tokens must be strings of visible ASCII",
        ),
        (
            "\n\nx = s3cret",
            "line 3: string values must be quoted, expected literal string",
        ),
        ("", "models is 0, but must be at least 1"),
        (
            "[limits]\nattempts = 0",
            "limits.attempts is 0, but must be 1 to 100",
        ),
    ] {
        let text = if text.starts_with("[limits]") {
            format!("{SMALL}{text}")
        } else {
            text.to_owned()
        };
        assert_eq!(read(&text).unwrap_err(), error, "{text}");
    }
}

#[test]
fn settings_of_engines_are_checked() {
    let engines = |engines: &str| read(&format!("[models.m]\nengines = [{engines}]")).unwrap_err();
    assert_eq!(engines(""), "models.m.engines is 0, but must be at least 1");
    assert_eq!(
        engines(r#"{ id = 1, url = "https://there" }"#),
        "models.m.engines.url is https://there/, but must be http://host[:port]"
    );
    assert_eq!(
        engines(r#"{ id = 1, url = "http://me:s3cret@there" }"#),
        "models.m.engines.url is one with a user, but must be without user and password: use api_key"
    );
    assert_eq!(
        engines(r#"{ id = 1, url = "http://a" }, { id = 1, url = "http://b" }"#),
        "models.m.engines.id is 1, but must be of one engine only"
    );
}

#[test]
fn an_engine_is_given_up_after_two_readings_at_the_soonest() {
    let leave_after = |after: &str| {
        read(&format!(
            "{SMALL}scrape = {{ every = \"250ms\", leave_after = \"{after}\" }}"
        ))
        .err()
    };
    let error = |value| {
        let bound = "must be 2 × scrape.every to 1 day";
        Some(format!(
            "models.tiny.scrape.leave_after is {value}, but {bound}"
        ))
    };
    assert_eq!(leave_after("499ms"), error("499ms"));
    assert_eq!(leave_after("500ms"), None);
    assert_eq!(leave_after("1day"), None);
    assert_eq!(leave_after("25h"), error("90000s"));
}

#[test]
fn secrets_of_the_environment_replace_those_of_the_file_and_are_never_shown() {
    let variable = |name: &str| match name {
        "KV_GATEWAY_CLIENT_TOKENS" => Some("a, b,".to_owned()),
        "KV_GATEWAY_ENGINE_KEY" => Some("key".to_owned()),
        _ => None,
    };
    let config = Config::from_toml(SMALL, variable).unwrap();
    assert_eq!(config.client_tokens, ["a", "b"].into_iter().collect());
    let engine = &config.models["tiny"].engines[1];
    assert_eq!(engine.api_key.as_ref().unwrap().expose(), "key");
    let shown = format!("{config:?}");
    assert!(
        !shown.contains("of-the-file") && !shown.contains("key\""),
        "{shown}"
    );
}
