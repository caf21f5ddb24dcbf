//! Workers in the order of their cost.
//!
//! Costs are numbered here: see [`Ties`](super::ties::Ties).

use super::{
    slots::{BySlot, RowSlot, room_for},
    tournament::Tournament,
};

/// What a cost is made of: costs of one order are compared with each other only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The worker's load and backlog are known: both, and reservations.
    Known,
    /// Its load is known, but not its backlog: load and reservations.
    NoBacklog,
    /// It is not: reservations alone.
    Unknown,
    /// It is not, and it was full when it was known last: reservations alone.
    Last,
}

/// Rows by place: the first of an order at once, however many there are.
#[derive(Debug)]
pub(super) struct CostIndex {
    orders: [Ordered; 4],
    seats: BySlot<RowSlot, Seat>,
}

/// Rows of one order, with their places. Few or many, they are kept alike: a tournament of few is a scan.
#[derive(Debug, Default)]
struct Ordered {
    rows: Vec<RowSlot>,
    places: Tournament,
}

/// Where a row stands: in which order, and where in it.
#[derive(Debug, Clone, Copy)]
struct Seat {
    position: u32,
    order: Option<Order>,
}

impl Seat {
    const NONE: Self = Self {
        position: 0,
        order: None,
    };
}

impl Default for CostIndex {
    fn default() -> Self {
        Self {
            orders: Default::default(),
            seats: BySlot::new(Seat::NONE),
        }
    }
}

impl CostIndex {
    /// Puts `row` at `place` in `order`, wherever it was before.
    #[inline]
    pub(super) fn insert(&mut self, row: RowSlot, order: Order, place: u64) {
        let mut seat = self.seats[row];
        if seat.order != Some(order) {
            self.remove(row);
            seat = self.join(row, order);
        }
        let places = &mut self.orders[order as usize].places;
        places.set(seat.position as usize, place);
    }

    fn join(&mut self, row: RowSlot, order: Order) -> Seat {
        let rows = &mut self.orders[order as usize].rows;
        let seat = Seat {
            position: rows.len() as u32,
            order: Some(order),
        };
        room_for(rows, 1);
        rows.push(row);
        self.seats[row] = seat;
        seat
    }

    /// Takes `row` out, if it is in.
    pub(super) fn remove(&mut self, row: RowSlot) {
        let seat = self.seats[row];
        let Some(order) = seat.order else {
            return;
        };
        self.seats[row] = Seat::NONE;
        let Ordered { rows, places } = &mut self.orders[order as usize];
        let (position, last) = (seat.position as usize, rows.len() - 1);
        rows.swap_remove(position);
        let place_of_last = places.place(last);
        places.remove(last);
        if let (Some(moved), Some(place)) = (rows.get(position), place_of_last) {
            places.set(position, place);
            self.seats[*moved] = seat;
        }
    }

    /// The worker moved to another row.
    pub(super) fn move_row(&mut self, from: RowSlot, to: RowSlot) {
        let seat = self.seats[from];
        if let Some(order) = seat.order {
            self.seats.move_value(from, to);
            self.orders[order as usize].rows[seat.position as usize] = to;
        }
    }

    /// There are no rows from this number on.
    pub(super) fn shrink(&mut self, rows: u32) {
        self.seats.truncate(rows);
        for ordered in &mut self.orders {
            ordered.rows.shrink_to_fit();
            ordered.places.shrink(ordered.rows.len());
        }
    }

    /// The lowest place of the order.
    #[inline]
    pub(super) fn lowest(&self, order: Order) -> Option<u64> {
        self.orders[order as usize].places.lowest()
    }

    /// How many rows are in so many places of the order, from the lowest one on, which is `first`.
    #[inline]
    pub(super) fn within(&self, order: Order, first: u64, places: usize) -> u32 {
        self.orders[order as usize].places.within(first, places)
    }

    /// The `n`-th row, from 0, of those in so many places of the order, from the lowest one on, which is `first`.
    #[inline]
    pub(super) fn nth(&self, order: Order, first: u64, places: usize, n: u32) -> Option<RowSlot> {
        let ordered = &self.orders[order as usize];
        let position = ordered.places.nth(first, places, n);
        ordered.rows.get(position).copied()
    }

    /// The order in which `row` is, and its place there.
    #[inline]
    pub(super) fn place(&self, row: RowSlot) -> Option<(Order, u64)> {
        let seat = self.seats.at(row);
        let order = seat.order?;
        let places = &self.orders[order as usize].places;
        Some((order, places.place(seat.position as usize)?))
    }
}

#[cfg(test)]
mod tests {
    use super::{Order::*, *};
    use crate::sans_io::slots::Key;

    fn slot(number: u32) -> RowSlot {
        RowSlot::new(number)
    }

    fn near(index: &CostIndex, order: Order, places: usize) -> Vec<u32> {
        let Some(lowest) = index.lowest(order) else {
            return Vec::new();
        };
        let nth = |n| index.nth(order, lowest, places, n).unwrap().number();
        let mut rows: Vec<_> = (0..index.within(order, lowest, places)).map(nth).collect();
        rows.sort_unstable();
        rows
    }

    #[test]
    fn the_lowest_rows_come_first_through_moves_and_removals() {
        let mut index = CostIndex::default();
        assert_eq!(near(&index, Known, 5), [0; 0]);
        for (row, place) in [(0, 5), (1, 3), (2, 3), (3, 0), (4, 3)] {
            index.insert(slot(row), Known, place);
        }
        assert_eq!(near(&index, Known, 1), [3]);
        assert_eq!(near(&index, Known, 5), [1, 2, 3, 4]);
        index.insert(slot(3), Known, 9);
        assert_eq!(near(&index, Known, 1), [1, 2, 4]);
        assert_eq!(near(&index, Known, 3), [0, 1, 2, 4]);
        index.remove(slot(1));
        assert_eq!(near(&index, Known, 2), [2, 4]);
        assert_eq!(index.place(slot(2)), Some((Known, 3)));
        assert_eq!(index.place(slot(0)), Some((Known, 5)));
        assert_eq!((index.place(slot(1)), index.place(slot(77))), (None, None));
        index.insert(slot(4), Known, 4);
        index.remove(slot(2));
        index.remove(slot(2));
        assert_eq!(near(&index, Known, 1), [4]);
    }

    #[test]
    fn the_orders_are_apart() {
        let mut index = CostIndex::default();
        index.insert(slot(0), Unknown, 1);
        assert_eq!(near(&index, Known, 5), [0; 0]);
        index.insert(slot(1), Known, 2);
        index.insert(slot(2), Known, 3);
        assert_eq!(near(&index, Unknown, 5), [0]);
        index.insert(slot(1), Unknown, 1);
        index.insert(slot(3), Last, 0);
        assert_eq!(near(&index, Last, 5), [3]);
        index.move_row(slot(1), slot(9));
        index.move_row(slot(1), slot(9));
        assert_eq!(near(&index, Unknown, 1), [0, 9]);
        index.move_row(slot(9), slot(1));
        assert_eq!(near(&index, Unknown, 1), [0, 1]);
        assert_eq!(near(&index, Known, 5), [2]);
        assert_eq!(index.place(slot(1)), Some((Unknown, 1)));
    }
}
