//! Drawn settings: the builder and JSON say the same of them, and what was built survives JSON.

use std::{fmt::Debug, time::Duration};

use crate::support::fuzz::{fuzz, hostile_f64};
use actix_kv_metrics::{Backoff, Coalescing, ConfigError, PublisherConfig, RouterConfig};
use proptest::{option, prelude::*, test_runner::TestCaseResult};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

fn durations() -> impl Strategy<Value = Duration> + Clone {
    let near = |at: Duration| {
        let nanosecond = Duration::from_nanos(1);
        [
            at,
            at.saturating_sub(nanosecond),
            at.saturating_add(nanosecond),
        ]
    };
    let edges = [
        Duration::ZERO,
        Duration::from_millis(1),
        Duration::from_millis(10),
        Duration::from_secs(1),
        Duration::from_secs(3600),
        Duration::MAX,
    ];
    prop_oneof![
        4 => prop::sample::select(edges.map(near).concat()),
        2 => (0..2_000_u64).prop_map(Duration::from_millis),
        1 => (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(s, n)| Duration::new(s, n)),
    ]
}

/// JSON of the settings that are given; nothing for those left to their defaults.
fn object(fields: impl IntoIterator<Item = (&'static str, Option<Value>)>) -> Value {
    let given = fields
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(given.collect::<Map<_, _>>())
}

/// A float has no JSON form if it is not finite: then the way by JSON is not there.
fn float(value: f64) -> Value {
    json!(value)
}

/// Both ways give the same, or both refuse it.
fn same_verdict<T>(built: &Result<T, ConfigError>, by_json: &Value) -> TestCaseResult
where
    T: PartialEq + Debug + DeserializeOwned + Serialize,
{
    let text = by_json.to_string();
    match (built, serde_json::from_str::<T>(&text)) {
        (Ok(built), Ok(read)) => {
            prop_assert_eq!(&read, built);
            let written = serde_json::to_string(built).unwrap_or_default();
            let again = serde_json::from_str::<T>(&written).ok();
            prop_assert_eq!(again.as_ref(), Some(built), "written as {}", written);
        }
        (Err(refused), Err(error)) => {
            let (refused, error) = (refused.to_string(), error.to_string());
            prop_assert!(error.starts_with(&refused), "{} is not {}", error, refused);
        }
        (built, read) => prop_assert!(false, "built: {:?}, read {}: {:?}", built, text, read),
    }
    Ok(())
}

#[test]
fn windows_get_the_same_verdict_from_the_builder_and_from_json() {
    let delays = [
        option::of(durations()),
        option::of(durations()),
        option::of(durations()),
    ];
    let shares = (option::of(hostile_f64()), option::of(hostile_f64()));
    let drawn = (
        delays,
        option::of(durations()),
        option::of(any::<bool>()),
        shares,
    );
    fuzz(
        "windows",
        2_000,
        drawn,
        |(delays, min_gap, leading, shares)| {
            let [debounce, max_delay, minor_delay] = delays;
            let (saturation, significance) = shares;
            let mut builder = Coalescing::builder();
            if let Some(debounce) = debounce {
                builder = builder.debounce(debounce);
            }
            if let Some(max_delay) = max_delay {
                builder = builder.max_delay(max_delay);
            }
            if let Some(minor_delay) = minor_delay {
                builder = builder.minor_delay(minor_delay);
            }
            if let Some(min_gap) = min_gap {
                builder = builder.min_gap(min_gap);
            }
            if let Some(leading) = leading {
                builder = builder.leading(leading);
            }
            if let Some(saturation) = saturation {
                builder = builder.saturation(saturation);
            }
            if let Some(significance) = significance {
                builder = builder.significance(significance);
            }
            let built = builder.build();
            if let Ok(built) = &built {
                prop_assert!(built.debounce() <= built.max_delay());
                prop_assert!(built.max_delay() <= built.minor_delay());
                prop_assert!((0.0..=1.0).contains(&built.significance()));
                prop_assert!(
                    built
                        .saturation()
                        .is_none_or(|share| share > 0.0 && share <= 1.0)
                );
            }
            if [saturation, significance]
                .into_iter()
                .flatten()
                .any(|share| !share.is_finite())
            {
                prop_assert!(built.is_err());
                return Ok(());
            }
            let by_json = object([
                ("debounce", debounce.map(|d| json!(d))),
                ("max_delay", max_delay.map(|d| json!(d))),
                ("minor_delay", minor_delay.map(|d| json!(d))),
                ("min_gap", min_gap.map(|d| json!(d))),
                ("leading", leading.map(|l| json!(l))),
                ("saturation", saturation.map(float)),
                ("significance", significance.map(float)),
            ]);
            same_verdict(&built, &by_json)
        },
    );
}

#[test]
fn a_router_gets_the_same_verdict_from_the_builder_and_from_json() {
    let weight = || option::of(hostile_f64());
    let weights = (weight(), weight(), weight());
    let ages = [
        option::of(durations()),
        option::of(durations()),
        option::of(durations()),
    ];
    let drawn = (
        option::of(any::<u64>()),
        weights,
        option::of(hostile_f64()),
        ages,
    );
    fuzz(
        "routers",
        2_000,
        drawn,
        |(seed, weights, saturation, ages)| {
            let (overlap_weight, booked_weight, waiting_weight) = weights;
            let [settle, reservation_ttl, stale_after] = ages;
            let mut builder = RouterConfig::builder();
            if let Some(seed) = seed {
                builder = builder.seed(seed);
            }
            if let Some(weight) = overlap_weight {
                builder = builder.overlap_weight(weight);
            }
            if let Some(weight) = booked_weight {
                builder = builder.booked_weight(weight);
            }
            if let Some(weight) = waiting_weight {
                builder = builder.waiting_weight(weight);
            }
            if let Some(share) = saturation {
                builder = builder.saturation(share);
            }
            if let Some(age) = settle {
                builder = builder.settle(age);
            }
            if let Some(age) = reservation_ttl {
                builder = builder.reservation_ttl(age);
            }
            if let Some(age) = stale_after {
                builder = builder.stale_after(age);
            }
            let built = builder.build();
            if let Ok(built) = &built {
                prop_assert!((0.0..=1e9).contains(&built.overlap_weight()));
                prop_assert!((0.0..=1e9).contains(&built.booked_weight()));
                prop_assert!((0.0..=1e9).contains(&built.waiting_weight()));
                prop_assert!(
                    built
                        .saturation()
                        .is_none_or(|share| share > 0.0 && share <= 1.0)
                );
            }
            let floats = [overlap_weight, booked_weight, waiting_weight, saturation];
            if floats.into_iter().flatten().any(|float| !float.is_finite()) {
                prop_assert!(built.is_err());
                return Ok(());
            }
            let by_json = object([
                ("seed", seed.map(|seed| json!(seed))),
                ("overlap_weight", overlap_weight.map(float)),
                ("booked_weight", booked_weight.map(float)),
                ("waiting_weight", waiting_weight.map(float)),
                ("saturation", saturation.map(float)),
                ("settle", settle.map(|age| json!(age))),
                ("reservation_ttl", reservation_ttl.map(|age| json!(age))),
                ("stale_after", stale_after.map(|age| json!(age))),
            ]);
            same_verdict(&built, &by_json)
        },
    );
}

#[test]
fn a_publisher_gets_the_same_verdict_from_its_parts_and_from_json() {
    let drawn = (
        durations(),
        durations(),
        durations(),
        option::of(any::<u64>()),
        option::of(durations()),
    );
    fuzz(
        "publishers",
        2_000,
        drawn,
        |(initial, max, debounce, id, lease)| {
            let built = Backoff::new(initial, max).and_then(|backoff| {
                let coalescing = Coalescing::builder().debounce(debounce).build()?;
                let mut builder = PublisherConfig::builder()
                    .backoff(backoff)
                    .coalescing(coalescing);
                if let Some(id) = id {
                    builder = builder.id(id);
                }
                if let Some(lease) = lease {
                    builder = builder.lease(lease);
                }
                builder.build()
            });
            let by_json = object([
                ("backoff", Some(json!({ "initial": initial, "max": max }))),
                ("coalescing", Some(json!({ "debounce": debounce }))),
                ("id", id.map(|id| json!(id))),
                ("lease", lease.map(|lease| json!(lease))),
            ]);
            same_verdict(&built, &by_json)
        },
    );
}

/// serde_json reads floats to the last bit only if it is told to (its feature `float_roundtrip`): a saturation of
/// 0.013129287708438745 came back as …43, and a significance of 0.9999999999999999 as 1.
#[test]
fn settings_are_read_to_the_last_bit() {
    for share in [0.013129287708438745, 0.9999999999999999, f64::from_bits(1)] {
        let built = RouterConfig::builder().saturation(share).build().unwrap();
        let written = serde_json::to_string(&built).unwrap();
        let read: RouterConfig = serde_json::from_str(&written).unwrap();
        assert_eq!(read.saturation(), Some(share), "{written}");
    }
}

#[test]
fn any_text_is_read_as_settings_or_refused() {
    let words = [
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "null",
        "true",
        "1",
        "-1",
        "0.5",
        "1e308",
        "18446744073709551616",
        "\"debounce\"",
        "\"max_delay\"",
        "\"20ms\"",
        "\"never\"",
        "\"secs\"",
        "\"nanos\"",
        "\"saturation\"",
        "\"backoff\"",
        "\"coalescing\"",
        "\"policy\"",
        "\"least_cost\"",
        "\"initial\"",
        "\"max\"",
        "\"seed\"",
        "\"unknown\"",
    ];
    let word = prop::sample::select(words.to_vec());
    fuzz(
        "texts",
        3_000,
        prop::collection::vec(word, 0..24),
        |words| {
            let text = words.concat();
            if let Ok(built) = serde_json::from_str::<PublisherConfig>(&text) {
                let coalescing = built.coalescing();
                prop_assert!(coalescing.debounce() <= coalescing.max_delay());
            }
            if let Ok(built) = serde_json::from_str::<RouterConfig>(&text) {
                prop_assert!(built.overlap_weight().is_finite());
            }
            Ok(())
        },
    );
}
