//! When a worker has to be looked at again.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::{
    moment::Moment,
    slots::{BySlot, RowSlot},
};

/// The next deadline of each row, at most one a row that counts.
///
/// Deadlines mostly move later, and then nothing is done: when the earlier moment has come, whoever asks finds out that it
/// has moved, and sets it again. So it costs constant time to say that a worker has reported.
#[derive(Debug)]
pub(crate) struct Deadlines {
    heap: BinaryHeap<Reverse<(Moment, RowSlot)>>,
    /// The entry of each row that counts; others of it are left over.
    set: BySlot<RowSlot, Option<Moment>>,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            heap: BinaryHeap::new(),
            set: BySlot::new(None),
        }
    }
}

impl Deadlines {
    /// The row is to be looked at when `at` has come, or before.
    #[inline]
    pub(crate) fn set(&mut self, row: RowSlot, at: Moment) {
        if self.set[row].is_none_or(|set| at < set) {
            self.set[row] = Some(at);
            self.heap.push(Reverse((at, row)));
        }
    }

    /// The row is empty.
    #[inline]
    pub(crate) fn forget(&mut self, row: RowSlot) {
        if self.set[row].is_some() {
            self.set[row] = None;
        }
    }

    /// Whether one may have come.
    #[inline]
    pub(crate) fn has_come(&self, now: Moment) -> bool {
        let first = self.heap.peek();
        first.is_some_and(|Reverse((at, _))| *at <= now)
    }

    /// The first, or a moment before it.
    pub(crate) fn first(&self) -> Option<Moment> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// The next row to be looked at by now, and the moment at which it was to be.
    #[inline]
    pub(crate) fn pop(&mut self, now: Moment) -> Option<(RowSlot, Moment)> {
        while let Some(Reverse((at, row))) = self.heap.peek().copied()
            && at <= now
        {
            self.heap.pop();
            if self.set[row] == Some(at) {
                self.set[row] = None;
                return Some((row, at));
            }
        }
        None
    }

    /// The worker moved to another row.
    pub(crate) fn move_row(&mut self, from: RowSlot, to: RowSlot) {
        if let Some(at) = self.set[from] {
            self.set[from] = None;
            self.set[to] = None;
            self.set(to, at);
        }
    }

    /// Entries, those that are left over too.
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// There are no rows from this number on; what is left over goes.
    pub(crate) fn shrink(&mut self, rows: u32) {
        self.set.truncate(rows);
        let set = &mut self.set;
        // What is left over of a row may have the same moment as what counts: one of them is enough.
        self.heap
            .retain(|Reverse((at, row))| set[*row].take_if(|set| set == at).is_some());
        for Reverse((at, row)) in &self.heap {
            set[*row] = Some(*at);
        }
        self.heap.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sans_io::slots::Key;

    fn row(number: u32) -> RowSlot {
        RowSlot::new(number)
    }

    #[test]
    fn the_earliest_deadline_of_a_row_counts_once() {
        let start = Moment::from(actix::clock::Instant::now().into_std());
        let at = |ms| start.checked_add(Duration::from_millis(ms)).unwrap();
        let mut deadlines = Deadlines::default();
        deadlines.set(row(0), at(5));
        deadlines.set(row(0), at(9));
        deadlines.set(row(1), at(4));
        deadlines.set(row(0), at(3));
        deadlines.set(row(2), at(2));
        deadlines.forget(row(2));
        assert_eq!(deadlines.pop(at(2)), None);
        assert_eq!(deadlines.pop(at(9)), Some((row(0), at(3))));
        assert_eq!(deadlines.pop(at(9)), Some((row(1), at(4))));
        assert_eq!(deadlines.pop(at(9)), None);
    }

    #[test]
    fn a_row_that_moved_keeps_its_deadline_and_nothing_is_left_over() {
        let start = Moment::from(actix::clock::Instant::now().into_std());
        let mut deadlines = Deadlines::default();
        for n in 0..10 {
            deadlines.set(row(n), start);
        }
        for n in 1..9 {
            deadlines.forget(row(n));
        }
        deadlines.move_row(row(9), row(1));
        deadlines.shrink(2);
        assert_eq!(deadlines.len(), 2);
        assert_eq!(deadlines.pop(start), Some((row(0), start)));
        assert_eq!(deadlines.pop(start), Some((row(1), start)));
        assert_eq!(deadlines.pop(start), None);
    }
}
