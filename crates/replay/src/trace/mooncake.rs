//! Mooncake's traces: a JSON object a line, with the hash ids of the prompt's blocks.
//!
//! `{"timestamp": 27000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2, …]}`, the timestamp in
//! milliseconds from the start, lengths in tokens. Blank lines are skipped.

use std::{io::BufRead, time::Duration};

use serde::Deserialize;

use super::{
    HASH_TOKENS, Request, Unsorted,
    error::{Location, Reason},
};

#[derive(Debug, Deserialize)]
struct Row {
    timestamp: u64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

/// Leaves `location` at the line in question if it fails.
pub(super) fn read(
    mut file: impl BufRead,
    into: &mut Unsorted,
    location: &mut Location,
) -> Result<(), Reason> {
    let mut line = Vec::new();
    loop {
        line.clear();
        location.line += 1;
        if file.read_until(b'\n', &mut line)? == 0 {
            location.line = 0;
            return Ok(());
        }
        let text = std::str::from_utf8(&line).map_err(|_| Reason::NotText)?;
        if !text.trim().is_empty() {
            into.push(request(text.trim())?)?;
        }
    }
}

fn request(line: &str) -> Result<Request, Reason> {
    let row: Row = serde_json::from_str(line).map_err(|error| Reason::Json(in_line(&error)))?;
    for (field, tokens) in [
        ("input_length", row.input_length),
        ("output_length", row.output_length),
    ] {
        if tokens == 0 {
            return Err(Reason::NoTokens(field));
        }
    }
    let expected = row.input_length.div_ceil(HASH_TOKENS);
    if row.hash_ids.len() != expected as usize {
        return Err(Reason::HashIds {
            found: row.hash_ids.len(),
            tokens: row.input_length,
            expected,
        });
    }
    Ok(Request {
        arrival: Duration::from_millis(row.timestamp),
        input_tokens: row.input_length,
        output_tokens: row.output_length,
        hash_ids: row.hash_ids,
    })
}

/// The parser saw one line only: what it says about line 1 would mislead.
fn in_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line ") {
        Some((reason, _)) => format!("{reason} at column {}", error.column()),
        None => text,
    }
}
