//! When a worker is full: by its capacity, or else by the average one.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::RandomState;

use super::{
    index::Holds,
    slots::{Key, RowSlot},
};

/// The threshold, and what the workers of known capacity have on average: the others are taken to have as much.
///
/// Those others are kept in the order of the blocks in use or booked on them, so that a change of the average costs no more
/// than the workers that become full by it, or cease to be.
#[derive(Debug)]
pub(super) struct Capacities {
    /// Share of the capacity from which on a worker is full.
    saturation: Option<f64>,
    /// Workers of known capacity,
    count: u64,
    /// and what they have together.
    sum: u128,
    /// Count and sum for which `full_from` was found.
    found_for: (u64, u128),
    /// Blocks from which on a worker of unknown capacity is full.
    full_from: Option<u64>,
    /// Blocks on each worker of unknown capacity, if there are any,
    used: HashMap<RowSlot, u64, RandomState>,
    by_use: BTreeSet<(u64, RowSlot)>,
}

impl Capacities {
    pub(super) fn new(saturation: Option<f64>) -> Self {
        Self {
            saturation,
            count: 0,
            sum: 0,
            found_for: (0, 0),
            full_from: None,
            used: HashMap::default(),
            by_use: BTreeSet::new(),
        }
    }

    /// Most blocks of one request that a worker of this capacity holds; 0: it is unknown.
    #[inline]
    pub(super) fn holds(&self, capacity: u64) -> Holds {
        match (capacity, self.saturation) {
            (0, _) => Holds::ANY_REQUEST,
            (capacity, None) => Holds(u32::try_from(capacity).unwrap_or(u32::MAX)),
            // What is too large for the type becomes the largest.
            (capacity, Some(share)) => Holds((share * capacity as f64) as u32),
        }
    }

    /// A worker of this capacity is there; 0: it is unknown.
    #[inline]
    pub(super) fn add(&mut self, capacity: u64) {
        if self.saturation.is_some() {
            self.count += u64::from(capacity > 0);
            self.sum += u128::from(capacity);
        }
    }

    /// One that was there before is not.
    #[inline]
    pub(super) fn take(&mut self, capacity: u64) {
        if self.saturation.is_some() {
            self.count -= u64::from(capacity > 0);
            self.sum -= u128::from(capacity);
        }
    }

    /// Whether a worker of this capacity is full with so many blocks in use or booked. `used` is called if that matters.
    #[inline]
    pub(super) fn is_full(
        &mut self,
        row: RowSlot,
        capacity: u64,
        used: impl FnOnce() -> u64,
    ) -> bool {
        let Some(share) = self.saturation else {
            return false;
        };
        if capacity > 0 {
            self.forget(row);
            return used() as f64 >= share * capacity as f64;
        }
        let used = used();
        self.note(row, used);
        self.full_from.is_some_and(|full_from| used >= full_from)
    }

    /// So many blocks are on a worker of unknown capacity.
    fn note(&mut self, row: RowSlot, used: u64) {
        if self.used.get(&row).copied().unwrap_or(0) != used {
            self.forget(row);
            if used > 0 {
                self.used.insert(row, used);
                self.by_use.insert((used, row));
            }
        }
    }

    /// The worker is gone, or its capacity is known.
    #[inline]
    pub(super) fn forget(&mut self, row: RowSlot) {
        if !self.used.is_empty()
            && let Some(used) = self.used.remove(&row)
        {
            self.by_use.remove(&(used, row));
        }
    }

    /// The worker moved to another row.
    pub(super) fn move_row(&mut self, from: RowSlot, to: RowSlot) {
        if let Some(used) = self.used.remove(&from) {
            self.by_use.remove(&(used, from));
            self.note(to, used);
        }
    }

    /// Gives back what is not needed.
    pub(super) fn shrink(&mut self) {
        self.used.shrink_to(2 * self.used.len());
    }

    /// Whether the average may be another than it was.
    #[inline]
    pub(super) fn have_changed(&self) -> bool {
        self.saturation.is_some() && self.found_for != (self.count, self.sum)
    }

    /// Workers of unknown capacity that have become full, or are so no longer, because the average is another. They are told
    /// once.
    pub(super) fn take_misjudged(&mut self) -> Vec<RowSlot> {
        self.found_for = (self.count, self.sum);
        let average = self.sum as f64 / self.count.max(1) as f64;
        let known = self.saturation.filter(|_| self.count > 0);
        let full_from = known.map(|share| (share * average).ceil() as u64);
        let before = std::mem::replace(&mut self.full_from, full_from);
        let first = |from: Option<u64>| match from {
            Some(from) => (from, RowSlot::new(0)),
            None => (u64::MAX, RowSlot::new(u32::MAX)),
        };
        let (one, other) = (first(before), first(full_from));
        let misjudged = self.by_use.range(one.min(other)..one.max(other));
        misjudged.map(|(_, row)| *row).collect()
    }
}
