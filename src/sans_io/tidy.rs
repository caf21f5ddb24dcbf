//! Memory and time follow the workers that live, not those that ever lived.

use std::sync::Arc;

use super::table::LoadTable;

impl LoadTable {
    /// After a mass departure moves the workers that live together, some of them a call, and gives the rest back.
    pub(super) fn tidy(&mut self) {
        let (rows, living) = (self.rows.slots() as usize, self.roster.len());
        if self.deadlines.len() > LOOSE * living + FEW {
            self.deadlines.shrink(self.rows.slots());
        }
        self.tidying |= rows > LOOSE * living + FEW;
        if !self.tidying || Arc::strong_count(&self.walks) > 1 {
            return;
        }
        for _ in 0..MOVES_A_CALL {
            let Some((from, to)) = self.rows.move_last() else {
                break;
            };
            self.reservations.move_row(from, to);
            self.pricing.move_row(from, to);
            self.cooling.move_row(from, to);
            self.deadlines.move_row(from, to);
            self.roster.move_row(from, to);
        }
        if self.rows.slots() as usize <= TIGHT * living + FEW {
            self.tidying = false;
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        self.rows.shrink();
        let rows = self.rows.slots();
        self.reservations.shrink(rows);
        self.pricing.shrink(rows);
        self.cooling.shrink();
        self.deadlines.shrink(rows);
        self.publishers.shrink();
        self.roster.shrink(rows);
    }
}

/// From this many rows a living worker on they are moved together,
const LOOSE: usize = 4;
/// to this many: far enough below that the next departures cost nothing.
const TIGHT: usize = 2;
/// Rows that are not worth the work.
const FEW: usize = 64;
/// Some 0.3 ms of work.
const MOVES_A_CALL: usize = 1024;
