//! Azure's LLM inference traces: CSV with a header, no prefix information.
//!
//! `2023-11-16 18:17:03.9799600,4808,10` under `TIMESTAMP,ContextTokens,GeneratedTokens`; times have no zone. Line ends
//! may be CRLF, and the last line may have none.

use std::{io::BufRead, time::Duration};

use csv::StringRecord;
use jiff::civil::DateTime;

use super::{
    Request, Unsorted,
    error::{Location, Reason},
};

pub(super) const TIME_COLUMN: &str = "TIMESTAMP";
const INPUT_COLUMN: &str = "ContextTokens";
const OUTPUT_COLUMN: &str = "GeneratedTokens";

/// Leaves `location` at the line in question if it fails.
pub(super) fn read(
    mut file: impl BufRead,
    into: &mut Unsorted,
    location: &mut Location,
) -> Result<(), Reason> {
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .from_reader(text.as_slice());
    let mut offset = 0;
    let mut read_all = || -> Result<(), Reason> {
        let columns = Columns::find(reader.headers()?)?;
        let mut record = StringRecord::new();
        loop {
            offset = reader.position().byte() as usize;
            if !reader.read_record(&mut record)? {
                return Ok(());
            }
            into.push(columns.request(&record)?)?;
        }
    };
    read_all().inspect_err(|_| location.line = line_of(&text, offset))
}

/// Where in a record the columns are.
#[derive(Debug)]
struct Columns {
    time: usize,
    input: usize,
    output: usize,
}

impl Columns {
    fn find(header: &StringRecord) -> Result<Self, Reason> {
        let find = |name| {
            header
                .iter()
                .position(|column| column == name)
                .ok_or(Reason::NoColumn(name))
        };
        Ok(Self {
            time: find(TIME_COLUMN)?,
            input: find(INPUT_COLUMN)?,
            output: find(OUTPUT_COLUMN)?,
        })
    }

    fn request(&self, record: &StringRecord) -> Result<Request, Reason> {
        Ok(Request {
            arrival: time(TIME_COLUMN, &record[self.time])?,
            input_tokens: tokens(INPUT_COLUMN, &record[self.input])?,
            output_tokens: tokens(OUTPUT_COLUMN, &record[self.output])?,
            hash_ids: Vec::new(),
        })
    }
}

/// Since the beginning of the calendar: the trace has no start of its own.
fn time(field: &'static str, text: &str) -> Result<Duration, Reason> {
    match text.parse::<DateTime>() {
        Ok(time) => Ok(time.duration_since(DateTime::MIN).unsigned_abs()),
        Err(_) => Err(Reason::Value {
            field,
            value: text.to_owned(),
            expected: "a time like 2023-11-16 18:17:03.9799600",
        }),
    }
}

fn tokens(field: &'static str, text: &str) -> Result<u32, Reason> {
    match text.parse() {
        Ok(0) => Err(Reason::NoTokens(field)),
        Ok(tokens) => Ok(tokens),
        Err(_) => Err(Reason::Value {
            field,
            value: text.to_owned(),
            expected: "a number of tokens",
        }),
    }
}

/// The line of the record that starts at `offset`, or after the line ends there: the reader leaves half of a CRLF and
/// blank lines to the next record, and counts lines accordingly.
fn line_of(text: &[u8], offset: usize) -> u64 {
    let (before, after) = text.split_at(offset);
    let skipped = after
        .iter()
        .take_while(|byte| matches!(byte, b'\r' | b'\n'));
    let line_ends = before.iter().chain(skipped).filter(|byte| **byte == b'\n');
    1 + line_ends.count() as u64
}

impl From<csv::Error> for Reason {
    fn from(error: csv::Error) -> Self {
        match error.into_kind() {
            csv::ErrorKind::Io(error) => Self::Io(error),
            csv::ErrorKind::Utf8 { .. } => Self::NotText,
            csv::ErrorKind::UnequalLengths {
                expected_len, len, ..
            } => Self::Fields {
                found: len,
                expected: expected_len,
            },
            other => Self::Csv(format!("{other:?}")),
        }
    }
}
