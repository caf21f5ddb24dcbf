//! Which worker is in which row.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::{
    names::Names,
    slots::{BySlot, RowSlot},
};
use crate::metrics::{WorkerId, WorkerRank};

/// The workers of a load table by name and by row.
///
/// The names stand by row, and once. Most workers have one rank, 0,
/// which is found like any; the others of a worker are listed.
#[derive(Debug)]
pub(super) struct Roster {
    workers: BySlot<RowSlot, WorkerRank>,
    rows: Names<RowSlot>,
    other_ranks: HashMap<WorkerId, SmallVec<[RowSlot; 2]>, RandomState>,
}

impl Default for Roster {
    fn default() -> Self {
        Self {
            workers: BySlot::new(WorkerRank::default()),
            rows: Names::default(),
            other_ranks: HashMap::default(),
        }
    }
}

impl Roster {
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The row of a worker.
    #[inline]
    pub(super) fn row(&self, worker: WorkerRank) -> Option<RowSlot> {
        self.rows.find(worker, |row| *self.workers.at(row))
    }

    /// The worker in a row.
    #[inline]
    pub(super) fn worker(&self, row: RowSlot) -> WorkerRank {
        *self.workers.at(row)
    }

    /// The rows of all ranks of a worker.
    pub(super) fn ranks(&self, id: WorkerId) -> SmallVec<[RowSlot; 2]> {
        let mut rows = self.other_ranks.get(&id).cloned().unwrap_or_default();
        rows.extend(self.row(WorkerRank::from(id)));
        rows
    }

    /// A worker that is not in has the row.
    pub(super) fn insert(&mut self, worker: WorkerRank, row: RowSlot) {
        self.workers[row] = worker;
        self.rows.insert(row, |row| *self.workers.at(row));
        if worker.rank() > 0 {
            let ranks = self.other_ranks.entry(worker.worker()).or_default();
            ranks.push(row);
        }
    }

    /// The worker in the row is gone.
    pub(super) fn remove(&mut self, row: RowSlot) {
        let worker = self.worker(row);
        self.rows.remove(row, worker);
        let id = worker.worker();
        if worker.rank() > 0
            && let Some(ranks) = self.other_ranks.get_mut(&id)
        {
            ranks.retain(|rank| *rank != row);
            if ranks.is_empty() {
                self.other_ranks.remove(&id);
            }
        }
    }

    /// The worker moved to another row.
    pub(super) fn move_row(&mut self, from: RowSlot, to: RowSlot) {
        let worker = self.worker(from);
        self.remove(from);
        self.insert(worker, to);
    }

    /// There are no rows from this number on; gives back what is not needed.
    pub(super) fn shrink(&mut self, rows: u32) {
        self.workers.truncate(rows);
        self.rows.shrink(|row| *self.workers.at(row));
        self.other_ranks.shrink_to(2 * self.other_ranks.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sans_io::slots::Key;

    fn numbers(mut rows: SmallVec<[RowSlot; 2]>) -> Vec<u32> {
        rows.sort_unstable();
        rows.iter().map(|row| row.number()).collect()
    }

    #[test]
    fn workers_are_found_by_name_and_by_row_through_moves_and_removals() {
        let mut roster = Roster::default();
        let rank = |rank| WorkerRank::new(7, rank);
        for (row, of) in [(0, rank(0)), (1, rank(1)), (2, rank(5)), (3, 8.into())] {
            roster.insert(of, RowSlot::new(row));
        }
        assert_eq!(numbers(roster.ranks(7.into())), [0, 1, 2]);
        assert_eq!(numbers(roster.ranks(8.into())), [3]);
        assert_eq!(numbers(roster.ranks(9.into())), [0; 0]);
        roster.remove(RowSlot::new(0));
        roster.move_row(RowSlot::new(2), RowSlot::new(0));
        assert_eq!(roster.worker(RowSlot::new(0)), rank(5));
        assert_eq!(roster.row(rank(5)), Some(RowSlot::new(0)));
        assert_eq!((roster.row(rank(0)), roster.len()), (None, 3));
        assert_eq!(numbers(roster.ranks(7.into())), [0, 1]);
        roster.remove(RowSlot::new(1));
        roster.remove(RowSlot::new(0));
        assert_eq!(numbers(roster.ranks(7.into())), [0; 0]);
        assert!(roster.other_ranks.is_empty());
        roster.shrink(4);
        assert_eq!(roster.row(8.into()), Some(RowSlot::new(3)));
    }
}
