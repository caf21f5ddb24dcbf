//! Request traces: where they come from and what may be done to their arrival times.

mod azure;
mod error;
mod mooncake;
mod synthetic;

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
    sync::Arc,
    time::Duration,
};

pub(crate) use error::TraceError;
use error::{Location, Reason};
pub(crate) use kv_engine_sim::{HASH_TOKENS, Request};

/// Arrivals further apart are taken for a mistake: no trace is that long, and timers do not reach much further.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Of UTF-8: some editors and spreadsheets write it.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// RFC 1952, section 2.3.1.
const GZIP_MAGIC: &[u8] = b"\x1f\x8b";

/// Requests in the order of arrival; at least one.
#[derive(Debug, Clone)]
pub(crate) struct Trace {
    /// Says what was replayed: the file, or the seed.
    pub(crate) name: String,
    pub(crate) requests: Vec<Arc<Request>>,
}

impl Trace {
    /// Reads a Mooncake JSONL or an Azure CSV file. The first line tells which it is; if it looks like neither, the
    /// extension tells which of them the error is about.
    ///
    /// Requests out of order are sorted by arrival; those of one instant keep the order of the file. Arrivals are counted
    /// from the earliest.
    ///
    /// # Errors
    ///
    /// If the file can't be read, a line is not a request, or there is none.
    pub(crate) fn read(path: &Path) -> Result<Self, TraceError> {
        match File::open(path) {
            Ok(file) => Self::parse(path, BufReader::new(file)),
            Err(error) => Err(TraceError::new(Location::new(path), error.into())),
        }
    }

    fn parse(path: &Path, file: impl BufRead) -> Result<Self, TraceError> {
        let mut location = Location::new(path);
        match read_requests(file, &mut location) {
            Ok(requests) => Ok(Self {
                name: path.display().to_string(),
                requests,
            }),
            Err(reason) => Err(TraceError::new(location, reason)),
        }
    }

    /// The built-in trace: conversations that grow turn by turn, over shared system prompts, in calm and in bursts.
    pub(crate) fn synthetic(seed: u64) -> Self {
        let unsorted = Unsorted {
            requests: synthetic::conversations(seed),
            ..Unsorted::default()
        };
        Self {
            name: format!("built-in, seed {seed}"),
            requests: unsorted.into_order(),
        }
    }

    /// Spreads each pulse of equal arrivals evenly over the time to the next one; the last pulse, which has none, over as
    /// much time as the one before it had.
    pub(crate) fn spread(&mut self) {
        let stamps: Vec<Duration> = self
            .requests
            .iter()
            .map(|request| request.arrival)
            .collect();
        let mut gap = Duration::ZERO;
        let mut start = 0;
        for pulse in stamps.chunk_by(|a, b| a == b) {
            let end = start + pulse.len();
            gap = stamps.get(end).map_or(gap, |next| *next - pulse[0]);
            for (position, request) in self.requests[start..end].iter_mut().enumerate() {
                let share = position as f64 / pulse.len() as f64;
                Arc::make_mut(request).arrival = pulse[0] + gap.mul_f64(share);
            }
            start = end;
        }
    }

    /// Divides all arrivals by `factor`: above one the load is heavier, below it is lighter.
    ///
    /// # Errors
    ///
    /// If the factor is not a positive number, or so small that the trace gets longer than a year.
    pub(crate) fn scale_rate(&mut self, factor: f64) -> Result<(), ScaleError> {
        if !(factor.is_finite() && factor > 0.0) {
            return Err(ScaleError::NotPositive(factor));
        }
        let last = self.duration().as_secs_f64() / factor;
        if last > LONGEST.as_secs_f64() {
            return Err(ScaleError::TooLong(factor));
        }
        for request in &mut self.requests {
            let request = Arc::make_mut(request);
            request.arrival = Duration::from_secs_f64(request.arrival.as_secs_f64() / factor);
        }
        Ok(())
    }

    /// Its name without folders.
    pub(crate) fn file(&self) -> &str {
        self.name.rsplit(['/', '\\']).next().unwrap_or(&self.name)
    }

    /// The time of the last arrival.
    pub(crate) fn duration(&self) -> Duration {
        self.requests
            .last()
            .map_or(Duration::ZERO, |request| request.arrival)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub(crate) enum ScaleError {
    #[error("rate scale {0} is not a positive number")]
    NotPositive(f64),
    #[error("rate scale {0} makes the trace longer than a year")]
    TooLong(f64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Mooncake,
    Azure,
}

impl Format {
    fn of(path: &Path, start: &[u8]) -> Self {
        let start = start.trim_ascii_start();
        let is_csv = path
            .extension()
            .is_some_and(|extension| extension.eq_ignore_ascii_case("csv"));
        if start.starts_with(b"{") {
            Self::Mooncake
        } else if is_csv || start.starts_with(azure::TIME_COLUMN.as_bytes()) {
            Self::Azure
        } else {
            Self::Mooncake
        }
    }
}

fn read_requests(
    mut file: impl BufRead,
    location: &mut Location,
) -> Result<Vec<Arc<Request>>, Reason> {
    let mut read = Unsorted::default();
    let start = file.fill_buf()?;
    for (mark, reason) in [
        (BYTE_ORDER_MARK, Reason::ByteOrderMark),
        (GZIP_MAGIC, Reason::Gzip),
    ] {
        if start.starts_with(mark) {
            location.line = 1;
            return Err(reason);
        }
    }
    match Format::of(location.file(), start) {
        Format::Mooncake => mooncake::read(file, &mut read, location)?,
        Format::Azure => azure::read(file, &mut read, location)?,
    }
    if read.requests.is_empty() {
        return Err(Reason::Empty);
    }
    Ok(read.into_order())
}

/// Requests as a file tells them: arrivals count from anywhere, in any order.
#[derive(Debug, Default)]
struct Unsorted {
    requests: Vec<Request>,
    earliest: Duration,
    latest: Duration,
}

impl Unsorted {
    /// Takes a request, unless it is further than [`LONGEST`] from one before it.
    fn push(&mut self, request: Request) -> Result<(), Reason> {
        if self.requests.is_empty() {
            (self.earliest, self.latest) = (request.arrival, request.arrival);
        }
        self.earliest = self.earliest.min(request.arrival);
        self.latest = self.latest.max(request.arrival);
        if self.latest - self.earliest > LONGEST {
            return Err(Reason::TooLong);
        }
        self.requests.push(request);
        Ok(())
    }

    fn into_order(mut self) -> Vec<Arc<Request>> {
        self.requests.sort_by_key(|request| request.arrival);
        let count_from_earliest = |mut request: Request| {
            request.arrival -= self.earliest;
            Arc::new(request)
        };
        self.requests.into_iter().map(count_from_earliest).collect()
    }
}

#[cfg(test)]
mod tests;
