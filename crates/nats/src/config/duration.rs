//! Durations as people write them: `"20ms"`, `"1m 30s"`, `"never"`; `{secs, nanos}` as well, as everywhere in the component.
//!
//! `#[serde(deserialize_with = "duration::read")]` for a [`Duration`], `read_optional` for one that may be missing.

use std::{fmt, time::Duration};

use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};

pub(super) fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    from.deserialize_any(TextOrParts)
}

/// What is there is a duration: a key that is missing is its default, and is not read at all.
pub(super) fn read_optional<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Duration>, D::Error> {
    read(from).map(Some)
}

struct TextOrParts;

impl<'de> Visitor<'de> for TextOrParts {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(r#"a duration such as "20ms""#)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
        if text == "never" {
            return Ok(Duration::MAX);
        }
        humantime::parse_duration(text)
            .map_err(|error| E::custom(format_args!("{text:?} is no duration: {error}")))
    }

    fn visit_map<A: MapAccess<'de>>(self, parts: A) -> Result<Duration, A::Error> {
        Duration::deserialize(MapAccessDeserializer::new(parts))
    }
}
