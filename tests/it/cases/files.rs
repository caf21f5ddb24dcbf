//! Kind "settings from a file": what is read, what is written, and what is refused with which words.

use std::{fmt::Debug, time::Duration};

use crate::support::*;
use actix_kv_metrics::{
    Backoff, Coalescing, KvMetrics, KvMetricsConfig, PublisherConfig, RouterConfig, SelectError,
    SelectWorker,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

fn as_json<T: Serialize>(of: &T) -> Value {
    serde_json::to_value(of).unwrap()
}

/// What is written reads back, as JSON and as TOML, and no duration is written in any other way.
#[track_caller]
fn survives<T: Serialize + DeserializeOwned + Debug>(config: &T) {
    let json = serde_json::to_string_pretty(config).unwrap();
    let toml = toml::to_string(config).unwrap();
    for written in [&json, &toml] {
        assert!(!written.contains("secs"), "{written}");
    }
    let read: T = serde_json::from_str(&json).unwrap();
    assert_eq!(as_json(&read), as_json(config), "{json}");
    let read: T = toml::from_str(&toml).unwrap();
    assert_eq!(as_json(&read), as_json(config), "{toml}");
}

#[test]
fn case_188_durations_are_read_as_text_and_in_parts_and_what_is_written_reads_back() {
    let expected = Coalescing::builder()
        .debounce(ms(10))
        .max_delay(Duration::from_micros(20_500))
        .minor_delay(Duration::MAX)
        .build()
        .unwrap();
    for toml in [
        "debounce = '10ms'\nmax_delay = '20.5ms'\nminor_delay = 'never'",
        "debounce = '10000us'\nmax_delay = '20ms 500us'\nminor_delay = 'never'",
        "debounce = { secs = 0, nanos = 10000000 }\nmax_delay = { secs = 0, nanos = 20500000 }\nminor_delay = 'never'",
    ] {
        let read: Coalescing = toml::from_str(toml).unwrap();
        assert_eq!(read, expected, "{toml}");
    }
    let json = r#"{"debounce":"10ms","max_delay":{"secs":0,"nanos":20500000},"minor_delay":{"secs":18446744073709551615,"nanos":999999999}}"#;
    assert_eq!(serde_json::from_str::<Coalescing>(json).unwrap(), expected);
    assert_eq!(as_json(&expected)["max_delay"], "20ms 500us");

    let odd = Duration::new(3, 1_002_003);
    let windows = unpaced()
        .debounce(Duration::from_nanos(1))
        .min_gap(odd)
        .urgent_gap(odd);
    let windows = windows.saturation(0.9).build().unwrap();
    let backoff = Backoff::new(ms(1), odd).unwrap();
    let publisher = PublisherConfig::builder()
        .coalescing(windows)
        .backoff(backoff)
        .id(7);
    let publisher = publisher.build().unwrap();
    let router = RouterConfig::builder()
        .seed(7)
        .saturation(0.5)
        .settle(odd)
        .reservation_ttl(Duration::MAX)
        .stale_after(Duration::MAX - Duration::from_nanos(1))
        .build()
        .unwrap();
    survives(&Coalescing::default());
    survives(&windows);
    survives(&Backoff::default());
    survives(&backoff);
    survives(&PublisherConfig::default());
    survives(&publisher);
    survives(&RouterConfig::default());
    survives(&router);
    let whole = KvMetricsConfig::default();
    survives(&whole);
    let whole = whole.publisher(publisher).router(router).restart(backoff);
    survives(&whole.saturation(0.75).unwrap());
}

#[test]
fn case_188_one_table_sets_everything() {
    let toml = r#"
        saturation = 0.9
        restart = { initial = "20ms", max = "2s" }

        [publisher]
        id = 7
        lease = "90s"
        backoff = { initial = "5ms", max = "50ms" }

        [publisher.coalescing]
        debounce = "2ms"
        max_delay = "20ms"
        minor_delay = "2s"
        min_gap = "15ms"
        urgent_gap = "3ms"
        leading = true
        saturation = 0.8
        significance = 0.01
        prefill_significance = 12

        [router]
        seed = 9
        overlap_weight = 41.0
        prefill_weight = 21.0
        booked_weight = 11.0
        waiting_weight = 251.0
        capacity_weight = 16385.0
        block_tokens = 16
        tie_width = 201.0
        saturation = 0.7
        settle = "60ms"
        reservation_ttl = "1m"
        stale_after = "6s"
        max_waiting = 10
        max_publishers = 100
        max_workers = 1000
    "#;
    let windows = Coalescing::builder()
        .debounce(ms(2))
        .max_delay(ms(20))
        .minor_delay(ms(2_000))
        .min_gap(ms(15))
        .urgent_gap(ms(3))
        .leading(true)
        .saturation(0.8)
        .significance(0.01)
        .prefill_significance(12)
        .build()
        .unwrap();
    let publisher = PublisherConfig::builder()
        .id(7)
        .lease(ms(90_000))
        .coalescing(windows)
        .backoff(Backoff::new(ms(5), ms(50)).unwrap())
        .build()
        .unwrap();
    let router = RouterConfig::builder()
        .seed(9)
        .overlap_weight(41.0)
        .prefill_weight(21.0)
        .booked_weight(11.0)
        .waiting_weight(251.0)
        .capacity_weight(16_385.0)
        .block_tokens(16)
        .tie_width(201.0)
        .saturation(0.7)
        .settle(ms(60))
        .reservation_ttl(ms(60_000))
        .stale_after(ms(6_000))
        .max_waiting(10)
        .max_publishers(100)
        .max_workers(1_000)
        .build()
        .unwrap();
    let built = KvMetricsConfig::default()
        .publisher(publisher)
        .router(router)
        .restart(Backoff::new(ms(20), ms(2_000)).unwrap())
        .saturation(0.9)
        .unwrap();
    let read: KvMetricsConfig = toml::from_str(toml).unwrap();
    assert_eq!(as_json(&read), as_json(&built));
    // The table above names every setting there is: nothing of what is written has its default.
    let defaults = as_json(&KvMetricsConfig::default());
    fn differs(path: &str, built: &Value, default: &Value) {
        match (built, default) {
            (Value::Object(built), Value::Object(default)) => {
                for (name, value) in built {
                    differs(&format!("{path}.{name}"), value, &default[name]);
                }
            }
            _ => assert_ne!(built, default, "{path} is not in the table"),
        }
    }
    differs("", &as_json(&built), &defaults);

    virtual_time(async {
        let kv = KvMetrics::start(read);
        let reporter = kv.reporter(1);
        reporter.report(load(900)).unwrap();
        let chosen = kv.select(SelectWorker::blocks(1)).await;
        assert_eq!(chosen.unwrap_err(), SelectError::AllSaturated);
    });
}

#[test]
fn case_188_what_is_missing_has_its_default() {
    for toml in ["", "[publisher]", "[publisher.coalescing]\n[router]"] {
        let read: KvMetricsConfig = toml::from_str(toml).unwrap();
        assert_eq!(as_json(&read), as_json(&KvMetricsConfig::default()));
    }
    let pauses = |toml: &str| as_json(&toml::from_str::<Backoff>(toml).unwrap());
    assert_eq!(pauses(""), as_json(&Backoff::default()));
    let patient = Backoff::new(ms(5_000), ms(5_000)).unwrap();
    assert_eq!(pauses("initial = '5s'"), as_json(&patient));
    let quick = Backoff::new(ms(10), ms(500)).unwrap();
    assert_eq!(pauses("max = '500ms'"), as_json(&quick));
}

#[test]
fn case_188_what_is_wrong_is_refused_by_name() {
    for (toml, reason) in [
        // A typo.
        ("satuartion = 0.9", "unknown field `satuartion`"),
        ("[publisher]\nidd = 7", "unknown field `idd`"),
        (
            "[publisher.coalescing]\ndebounce_ms = 5",
            "unknown field `debounce_ms`",
        ),
        ("[publisher.backoff]\nmin = '1s'", "unknown field `min`"),
        ("[router]\nstale = '5s'", "unknown field `stale`"),
        ("[restart]\nmaximum = '1s'", "unknown field `maximum`"),
        // Out of its bounds, alone or together with others.
        ("saturation = 1.5", "saturation is 1.5, but must be"),
        (
            "[publisher.coalescing]\nmax_delay = '0s'",
            "max_delay is 0ns, but must be at least debounce (1ms)",
        ),
        (
            "[publisher.backoff]\nmax = 'never'",
            "backoff.max is 18446744073709551615.999999999s, but must be at most 1h",
        ),
        (
            "[restart]\ninitial = '0s'",
            "backoff.initial is 0ns, but must be at least 1ms",
        ),
        (
            "[router]\nblock_tokens = 0",
            "block_tokens is 0, but must be 1 or more",
        ),
        (
            "[router]\nstale_after = '1s'",
            "stale_after is 1s, but must be more than minor_delay + min_gap (1.01s)",
        ),
        // No duration.
        (
            "[router]\nsettle = '20 parsecs'",
            r#""20 parsecs" is no duration: unknown time unit"#,
        ),
        (
            "[publisher.coalescing]\nmin_gap = 20",
            r#"invalid type: integer `20`, expected a duration such as "20ms""#,
        ),
    ] {
        let error = toml::from_str::<KvMetricsConfig>(toml).unwrap_err();
        assert!(error.message().starts_with(reason), "{toml}: {error}");
        // It shows the line.
        let line = toml.lines().last().unwrap();
        let table = toml.lines().next().unwrap();
        let shown = error.to_string();
        let is_whole = reason.starts_with("stale_after") || reason.starts_with("saturation");
        assert!(
            shown.contains(line) || shown.contains(table) || is_whole,
            "{shown}"
        );
    }
}
