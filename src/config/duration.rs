//! Durations as people write them: `"20ms"`, `"1m 30s"`, `"never"`. What is written reads back exactly; `{secs, nanos}`,
//! as serde writes a duration, is read too.
//!
//! `#[serde(with = "duration")]` for a [`Duration`], `#[serde(with = "duration::optional")]` for one that may be missing.

use std::{fmt, time::Duration};

use serde::{
    Deserialize, Deserializer, Serializer,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};

pub(crate) fn serialize<S: Serializer>(of: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    if *of == Duration::MAX {
        serializer.serialize_str(NEVER)
    } else {
        serializer.collect_str(&humantime::format_duration(*of))
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(text: D) -> Result<Duration, D::Error> {
    text.deserialize_any(TextOrParts)
}

struct TextOrParts;

impl<'de> Visitor<'de> for TextOrParts {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(r#"a duration such as "20ms", or {secs, nanos}"#)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
        if text == NEVER {
            return Ok(Duration::MAX);
        }
        humantime::parse_duration(text)
            .map_err(|error| E::custom(format_args!("{text:?} is no duration: {error}")))
    }

    fn visit_map<A: MapAccess<'de>>(self, parts: A) -> Result<Duration, A::Error> {
        Duration::deserialize(MapAccessDeserializer::new(parts))
    }
}

pub(crate) mod optional {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        of: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match of {
            Some(duration) => super::serialize(duration, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        text: D,
    ) -> Result<Option<Duration>, D::Error> {
        #[derive(Deserialize)]
        struct Present(#[serde(with = "super")] Duration);

        let present = Option::<Present>::deserialize(text)?;
        Ok(present.map(|Present(duration)| duration))
    }
}

/// `Duration::MAX`; its own text would be "584542046090years 7months …".
const NEVER: &str = "never";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde::{Deserialize, Serialize};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Text(#[serde(with = "super")] Duration);

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Optional(#[serde(with = "super::optional")] Option<Duration>);

    fn read(json: &str) -> Result<Duration, String> {
        let read = serde_json::from_str::<Text>(json);
        read.map(|text| text.0).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_written_is_short_and_reads_back_exactly() {
        for (duration, text) in [
            (Duration::ZERO, "0s"),
            (Duration::from_nanos(1), "1ns"),
            (Duration::from_micros(2_500), "2ms 500us"),
            (Duration::from_millis(20), "20ms"),
            (Duration::from_secs(90), "1m 30s"),
            (Duration::MAX, "never"),
        ] {
            let written = serde_json::to_string(&Text(duration)).unwrap();
            assert_eq!(written, format!("{text:?}"));
            assert_eq!(read(&written), Ok(duration));
        }
        let almost = Duration::MAX - Duration::from_nanos(1);
        for _ in 0..10_000 {
            let drawn = Duration::new(fastrand::u64(..) >> fastrand::u32(..64), 0)
                + Duration::from_nanos(fastrand::u64(..1_000_000_000));
            for duration in [almost, drawn] {
                let written = serde_json::to_string(&Text(duration)).unwrap();
                assert_eq!(read(&written), Ok(duration), "{written}");
            }
        }
    }

    #[test]
    fn what_people_and_serde_write_is_read() {
        for (json, duration) in [
            (r#""1.5s""#, Duration::from_millis(1_500)),
            (r#""20 µs""#, Duration::from_micros(20)),
            (r#""1h30m""#, Duration::from_secs(5_400)),
            (r#"{"secs":1,"nanos":5}"#, Duration::new(1, 5)),
        ] {
            assert_eq!(read(json), Ok(duration));
        }
        for json in ["null", r#""20ms""#, r#"{"secs":1,"nanos":5}"#] {
            let read: Optional = serde_json::from_str(json).unwrap();
            assert_eq!(read.0.is_none(), json == "null");
            let written = serde_json::to_string(&read).unwrap();
            assert_eq!(serde_json::from_str::<Optional>(&written).unwrap(), read);
        }
    }

    #[test]
    fn anything_else_is_refused_with_a_reason() {
        for (json, reason) in [
            (
                r#""20 parsecs""#,
                r#""20 parsecs" is no duration: unknown time unit"#,
            ),
            (r#""""#, r#""" is no duration: value was empty"#),
            (r#""20""#, r#""20" is no duration: time unit needed"#),
            (r#""-1s""#, r#""-1s" is no duration: expected number"#),
            (r#""600000000000y""#, r#""600000000000y" is no duration: "#),
            (
                "20",
                r#"invalid type: integer `20`, expected a duration such as "20ms""#,
            ),
            ("null", "invalid type: null"),
            (r#"{"secs":1}"#, "missing field `nanos`"),
            (
                r#"{"secs":18446744073709551615,"nanos":4000000000}"#,
                "overflow deserializing Duration",
            ),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.starts_with(reason), "{json}: {error}");
        }
    }
}
