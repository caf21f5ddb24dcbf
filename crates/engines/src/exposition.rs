//! Prometheus' text format, as far as an engine's page needs it.
//!
//! Crates that parse it build every sample of a page, with its labels, before one can be looked at, and fail on one bad line that
//! nobody asked for, or pass over all of them in silence. A page has thousands of lines, of which a dozen are read: here the others are
//! stepped over, nothing is allocated, and a bad line among those that are read is an error with its number.

use std::{borrow::Cow, iter};

/// A line that has the name of a wanted series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sample<'a> {
    /// From 1 on.
    pub(crate) line: usize,
    pub(crate) name: &'a str,
    pub(crate) labels: Labels<'a>,
    pub(crate) value: f64,
}

/// What stands between the braces, which is known to be well formed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Labels<'a>(&'a str);

/// A line that has the name of a wanted series, and is not one of its samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadLine<'a> {
    pub(crate) line: usize,
    pub(crate) name: &'a str,
}

/// The samples of the series that are wanted, in the order of the page.
pub(crate) fn samples<'a>(
    page: &'a str,
    wanted: impl Fn(&str) -> bool,
) -> impl Iterator<Item = Result<Sample<'a>, BadLine<'a>>> {
    let lines = page.lines().enumerate();
    lines.filter_map(move |(number, line)| {
        let text = line.trim_ascii_start();
        let name = &text[..text.find(['{', ' ', '\t']).unwrap_or(text.len())];
        if name.is_empty() || name.starts_with('#') || !wanted(name) {
            return None;
        }
        let line = number + 1;
        let sample = sample(&text[name.len()..]).map(|(labels, value)| Sample {
            line,
            name,
            labels,
            value,
        });
        Some(sample.ok_or(BadLine { line, name }))
    })
}

/// Labels, value, and perhaps a time stamp.
fn sample(rest: &str) -> Option<(Labels<'_>, f64)> {
    let rest = rest.trim_ascii();
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inside) => {
            let end = end_of_labels(inside)?;
            (&inside[..end], &inside[end + 1..])
        }
        None => ("", rest),
    };
    let mut words = rest.split_ascii_whitespace();
    let value = words.next()?.parse().ok()?;
    let is_time = |word: &str| word.parse::<f64>().is_ok();
    (words.next().is_none_or(is_time) && words.next().is_none()).then_some((Labels(labels), value))
}

/// Where the closing brace stands, if labels stand before it.
fn end_of_labels(inside: &str) -> Option<usize> {
    let mut rest = inside;
    loop {
        match label(rest) {
            Some((_, _, after)) => rest = after,
            None => {
                return rest
                    .trim_ascii_start()
                    .starts_with('}')
                    .then(|| inside.len() - rest.trim_ascii_start().len());
            }
        }
    }
}

/// The first label: its name, its value with what is escaped in it, and what follows after the comma.
fn label(text: &str) -> Option<(&str, &str, &str)> {
    let (name, rest) = text.split_once('=')?;
    let name = name.trim_ascii();
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if name.is_empty() || !name.bytes().all(is_name) {
        return None;
    }
    let quoted = rest.trim_ascii_start().strip_prefix('"')?;
    let mut escaped = false;
    let end = quoted.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })?;
    let after = quoted[end + 1..].trim_ascii_start();
    let after = match after.strip_prefix(',') {
        Some(next) => next,
        None if after.starts_with('}') || after.is_empty() => after,
        None => return None,
    };
    Some((name, &quoted[..end], after))
}

impl<'a> Labels<'a> {
    /// The value of a label; `None` also where it is empty, which is the same (Prometheus' data model).
    pub(crate) fn value(self, wanted: &str) -> Option<Cow<'a, str>> {
        let mut rest = self.0;
        let mut labels = iter::from_fn(|| {
            let (name, value, after) = label(rest)?;
            rest = after;
            Some((name, value))
        });
        let (_, value) = labels.find(|(name, _)| *name == wanted)?;
        (!value.is_empty()).then(|| unescaped(value))
    }
}

fn unescaped(value: &str) -> Cow<'_, str> {
    if !value.contains('\\') {
        return Cow::Borrowed(value);
    }
    let mut plain = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some('n') => plain.push('\n'),
                Some(other) => plain.push(other),
                None => {}
            },
            other => plain.push(other),
        }
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Option<(Option<Cow<'_, str>>, f64)> {
        let sample = samples(line, |name| name == "a:b").next()?.ok()?;
        Some((sample.labels.value("l"), sample.value))
    }

    #[test]
    fn a_sample_is_read_however_it_is_written() {
        let with = |label: &'static str, value| Some((Some(Cow::Borrowed(label)), value));
        for (line, expected) in [
            ("a:b 7", Some((None, 7.0))),
            ("a:b{} 1.5e+06", Some((None, 1.5e6))),
            ("  a:b {l=\"x\"}\t-3 1395066363000 ", with("x", -3.0)),
            (
                "a:b{k=\"}\\\", l=\",l=\"x\",}+Inf",
                with("x", f64::INFINITY),
            ),
            ("a:b{ l = \"x y\" , k=\"\" } 1", with("x y", 1.0)),
            ("a:b{k=\"\",l=\"\"} 1\r", Some((None, 1.0))),
            ("a:b{l=\"a\\\\b\\nc\\\"\"} 1", with("a\\b\nc\"", 1.0)),
        ] {
            assert_eq!(read(line), expected, "{line}");
        }
    }

    #[test]
    fn what_is_not_wanted_is_not_looked_at() {
        let page = "# HELP a:b x\na:b_by_reason{ 1\nc{\"\n\n}{\na:bc 1\na:b 2";
        let found: Vec<_> = samples(page, |name| name == "a:b").collect();
        assert_eq!(
            found,
            [Ok(Sample {
                line: 7,
                name: "a:b",
                labels: Labels(""),
                value: 2.0
            })]
        );
    }

    #[test]
    fn a_wanted_line_that_is_no_sample_is_told_of() {
        for line in [
            "a:b",
            "a:b x",
            "a:b{",
            "a:b{l} 1",
            "a:b{l=\"x} 1",
            "a:b{l=\"x\" k=\"y\"} 1",
            "a:b{l=x} 1",
            "a:b{l=\"x\"}",
            "a:b 1 2 3",
            "a:b 1 x",
        ] {
            let bad = samples(line, |name| name == "a:b").next();
            let bad_line = BadLine {
                line: 1,
                name: "a:b",
            };
            assert_eq!(bad, Some(Err(bad_line)), "{line}");
        }
    }
}
