//! When the snapshots of this process were built.
//!
//! What a router infers goes by when a worker reported, and a snapshot says that relative to when it was built. A snapshot
//! is a plain value with no room for an [`Instant`], which means nothing outside its process; inside it, the publisher
//! notes here when it built which, so that a router that was kept from its mailbox, or a bridge that held the snapshot back,
//! makes no report look younger than it is.

use std::{
    collections::{HashMap, VecDeque},
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use foldhash::fast::RandomState;

use crate::snapshot::PublisherId;

type Recent = VecDeque<(u64, Instant)>;

static BUILT: LazyLock<Mutex<HashMap<PublisherId, Recent, RandomState>>> =
    LazyLock::new(Mutex::default);

fn lock() -> MutexGuard<'static, HashMap<PublisherId, Recent, RandomState>> {
    // Whole at every moment.
    BUILT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A publisher of this process built a snapshot; its sequences grow.
pub(crate) fn note(publisher: PublisherId, sequence: u64, at: Instant) {
    let mut built = lock();
    let recent = built.entry(publisher).or_default();
    if recent.len() == REMEMBERED {
        recent.pop_front();
    }
    recent.push_back((sequence, at));
}

/// When the snapshot was built, at the latest; `None`: not in this process.
pub(crate) fn at(publisher: PublisherId, sequence: u64) -> Option<Instant> {
    let built = lock();
    let recent = built.get(&publisher)?;
    let place = recent.partition_point(|(known, _)| *known < sequence);
    // What is older than all that is remembered was built before the first of those.
    recent.get(place).map(|(_, at)| *at)
}

/// A publisher of this process is gone.
pub(crate) fn forget(publisher: PublisherId) {
    lock().remove(&publisher);
}

/// More than a publisher of many routers builds while one snapshot is under way between actors.
const REMEMBERED: usize = 64;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_snapshot_is_as_old_as_its_building_and_an_old_one_at_least_as_old_as_what_is_remembered() {
        let start = actix::clock::Instant::now().into_std();
        let second = |n: u64| start + Duration::from_secs(n);
        let publisher = PublisherId::new(u64::MAX, 1);
        assert_eq!(at(publisher, 1), None);
        for sequence in 1..=100 {
            note(publisher, sequence, second(sequence));
        }
        assert_eq!(at(publisher, 100), Some(second(100)));
        assert_eq!(at(publisher, 37), Some(second(37)));
        assert_eq!(at(publisher, 5), Some(second(37)));
        assert_eq!(at(publisher, 101), None);
        forget(publisher);
        assert_eq!(at(publisher, 100), None);
    }
}
