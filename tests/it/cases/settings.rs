//! Kinds "configuration" and "JSON": what is refused, with which words, and what survives.

use std::time::Duration;

use crate::support::{publishers::*, *};
use actix_kv_metrics::{
    Backoff, Coalescing, KvMetricsConfig, LoadSnapshot, MetricsChanged, PublisherConfig,
    RouterConfig,
    wire::{LoadEvent, WireError},
};

// Configuration.

/// Cases 16, 153 and 154: what a builder refuses, JSON refuses, with the same words; what it takes, JSON gives back.
#[test]
fn case_153_every_path_to_a_setting_checks_it_alike() {
    fn zero(field: &str) -> String {
        format!(r#"{{"{field}":{{"secs":0,"nanos":0}}}}"#)
    }
    let built = unpaced().max_delay(Duration::ZERO).build();
    let read = serde_json::from_str::<Coalescing>(&zero("max_delay"));
    let (built, read) = (built.unwrap_err().to_string(), read.unwrap_err());
    assert!(read.to_string().starts_with(&built), "{read} {built}");
    assert_eq!(
        built,
        "max_delay is 0ns, but must be at least debounce (1ms)"
    );

    for share in [0.0, -1.0, 1.1, 1e300] {
        let built = unpaced().saturation(share).build();
        let built = built.unwrap_err().to_string();
        let json = format!(r#"{{"saturation":{share:?}}}"#);
        let read = serde_json::from_str::<Coalescing>(&json).unwrap_err();
        assert!(read.to_string().starts_with(&built), "{read}");
        let router = RouterConfig::builder().saturation(share).build();
        assert_eq!(router.unwrap_err().to_string(), built);
        let read = serde_json::from_str::<RouterConfig>(&json).unwrap_err();
        assert!(read.to_string().starts_with(&built), "{read}");
        let system = KvMetricsConfig::default().saturation(share);
        assert_eq!(system.unwrap_err().to_string(), built);
        let nested = format!(r#"{{"coalescing":{json}}}"#);
        let read = serde_json::from_str::<PublisherConfig>(&nested).unwrap_err();
        assert!(read.to_string().starts_with(&built), "{read}");
    }
    for share in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0] {
        assert!(unpaced().saturation(share).build().is_err());
        assert!(RouterConfig::builder().saturation(share).build().is_err());
        assert!(KvMetricsConfig::default().saturation(share).is_err());
        if share != 0.0 {
            assert!(unpaced().significance(share).build().is_err());
            let weight = RouterConfig::builder().overlap_weight(share);
            assert!(weight.build().is_err());
            let weight = RouterConfig::builder().waiting_weight(share);
            assert!(weight.build().is_err());
        }
    }
    for json in [
        r#"{"debounce":-1}"#,
        r#"{"debounce":{"secs":-1,"nanos":0}}"#,
        r#"{"debounce":{"secs":18446744073709551615,"nanos":4000000000}}"#,
        r#"{"debounce_ms":5}"#,
        r#"{"saturation":"0.9"}"#,
        r#"{"backoff":{"initial":{"secs":0,"nanos":1}}}"#,
    ] {
        let read = serde_json::from_str::<Coalescing>(json);
        assert!(read.is_err(), "{json}: {read:?}");
        let nested = format!(r#"{{"coalescing":{json}}}"#);
        assert!(serde_json::from_str::<PublisherConfig>(&nested).is_err());
    }
    for (initial, max) in [(0, 5), (5, 4), (1, 3_600_001)] {
        let built = Backoff::new(ms(initial), ms(max)).unwrap_err().to_string();
        let as_json = |n: u64| {
            format!(
                r#"{{"secs":{},"nanos":{}}}"#,
                n / 1_000,
                n % 1_000 * 1_000_000
            )
        };
        let json = format!(
            r#"{{"initial":{},"max":{}}}"#,
            as_json(initial),
            as_json(max)
        );
        let read = serde_json::from_str::<Backoff>(&json).unwrap_err();
        assert!(read.to_string().starts_with(&built), "{read}");
    }
}

#[test]
fn case_153_what_is_legal_at_its_ends_survives_json() {
    let ends = [
        unpaced().debounce(Duration::MAX),
        unpaced()
            .debounce(Duration::ZERO)
            .max_delay(Duration::ZERO)
            .minor_delay(Duration::ZERO),
        unpaced()
            .debounce(Duration::from_nanos(1))
            .min_gap(Duration::MAX)
            .leading(true)
            .saturation(f64::MIN_POSITIVE)
            .significance(1.0),
    ];
    for builder in ends {
        let built = builder.build().unwrap();
        let config = PublisherConfig::builder()
            .coalescing(built)
            .id(u64::MAX)
            .build()
            .unwrap();
        let json = serde_json::to_string(&config).unwrap();
        let read: PublisherConfig = serde_json::from_str(&json).unwrap();
        assert_eq!(read, config);
    }
}

/// Case 155: a window below a millisecond is one timer tick, not nothing; it coalesces what comes in one turn.
#[test]
fn case_155_a_window_below_a_millisecond_is_a_tick() {
    virtual_time(async {
        let settings = unpaced()
            .debounce(Duration::from_micros(200))
            .build()
            .unwrap();
        assert_eq!(settings.debounce(), Duration::from_micros(200));
        let publisher = publisher(settings);
        let log = attach(&publisher).await;
        report(&publisher, 1, 0).await;
        settle().await;
        log.take();
        for value in 1..=100 {
            report(&publisher, 1, value).await;
        }
        sleep(ms(100)).await;
        assert_eq!(log.take(), [delta(1, &[(1, 100)])]);
    });
}

// JSON.

/// Cases 146, 147 and 151, through to the actor: six messages, two of them good; whoever reads them goes on.
#[test]
fn case_146_bad_messages_between_good_ones_are_counted_and_change_nothing() {
    virtual_time(async {
        let publisher = publisher(windows(1, 10));
        let log = attach(&publisher).await;
        let event = |active| {
            let event = LoadEvent::new(w(7), load(active));
            event.to_json().unwrap()
        };
        let deep = vec![b'['; 1 << 20];
        let infinite = String::from_utf8(event(5)).unwrap();
        let usage = r#""gpu_cache_usage_perc":"#;
        let infinite = infinite.replace(&format!("{usage}0.0"), &format!("{usage}1e39"));
        assert!(infinite.contains("1e39"));
        let negative = String::from_utf8(event(5)).unwrap();
        let negative = negative.replace(r#""kv_active_blocks":5"#, r#""kv_active_blocks":-5"#);
        let messages: [&[u8]; 9] = [
            &event(3),
            b"{",
            b"",
            &deep,
            b"\xff\xfe\xfd",
            infinite.as_bytes(),
            negative.as_bytes(),
            br#"{"worker_id":7,"worker_id":8,"data":null}"#,
            &event(4),
        ];
        let (mut taken, mut bad) = (0, 0);
        for message in messages {
            match LoadEvent::from_json(message) {
                Ok(event) => {
                    publisher
                        .send(MetricsChanged::from(event))
                        .await
                        .unwrap()
                        .unwrap();
                    taken += 1;
                }
                Err(WireError::Json(_)) => bad += 1,
                Err(WireError::Metrics { worker, .. }) => {
                    assert_eq!(worker, w(7));
                    bad += 1;
                }
                Err(other) => panic!("{other}"),
            }
            assert!(LoadSnapshot::from_json(message).is_err());
        }
        assert_eq!((taken, bad), (2, 7));
        sleep(ms(20)).await;
        assert_eq!(log.active(7), Some(4));
    });
}
