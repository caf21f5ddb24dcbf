//! When which value of a worker was there: written by each end, put together by the parent.

use std::{
    collections::HashMap,
    fs, io,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// A worker has a value, at a publisher or in a router's table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    pub(crate) worker: u32,
    pub(crate) value: u32,
    /// Since 1970, in nanoseconds: all ends run on one machine.
    at: u64,
}

impl Event {
    pub(crate) fn now(worker: u32, value: u32) -> Self {
        Self {
            worker,
            value,
            at: nanos(SystemTime::now()),
        }
    }
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn write(events: &[Event], to: &Path) -> io::Result<()> {
    let bytes = events.iter().flat_map(|event| {
        let key = [event.worker.to_le_bytes(), event.value.to_le_bytes()].concat();
        [key, event.at.to_le_bytes().to_vec()].concat()
    });
    fs::write(to, bytes.collect::<Vec<u8>>())
}

pub(crate) fn read(from: &Path) -> io::Result<Vec<Event>> {
    let bytes = fs::read(from)?;
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .rfold(0, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let event = |bytes: &[u8]| Event {
        worker: number(&bytes[..4]) as u32,
        value: number(&bytes[4..8]) as u32,
        at: number(&bytes[8..]),
    };
    Ok(bytes.chunks_exact(16).map(event).collect())
}

/// How long each change took until the table had it or a newer one of its worker, sorted; and how many never were there.
pub(crate) fn delays(changes: &[Event], arrivals: &[Event]) -> (Vec<Duration>, usize) {
    let mut waiting: HashMap<u32, Vec<Event>> = HashMap::new();
    for change in changes.iter().rev() {
        waiting.entry(change.worker).or_default().push(*change);
    }
    let mut delays = Vec::with_capacity(changes.len());
    for arrival in arrivals {
        let Some(waiting) = waiting.get_mut(&arrival.worker) else {
            continue;
        };
        while let Some(change) = waiting.pop_if(|change| change.value <= arrival.value) {
            delays.push(Duration::from_nanos(arrival.at.saturating_sub(change.at)));
        }
    }
    delays.sort_unstable();
    (delays, waiting.values().map(Vec::len).sum())
}

/// How long after `since` the last worker has this value; `None`: some never have it.
pub(crate) fn all_have(
    arrivals: &[Event],
    value: u32,
    workers: usize,
    since: SystemTime,
) -> Option<Duration> {
    let mut first = HashMap::new();
    for arrival in arrivals.iter().filter(|arrival| arrival.value == value) {
        first.entry(arrival.worker).or_insert(arrival.at);
    }
    let last = first.values().max().filter(|_| first.len() == workers)?;
    Some(Duration::from_nanos(last.saturating_sub(nanos(since))))
}
