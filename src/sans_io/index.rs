//! Workers in the order of their cost.

use super::{
    slots::{BySlot, RowSlot, room_for},
    tournament::{Least, Tournament},
};

/// What a cost is made of: costs of one order are compared with each other only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The worker's load is known: load and reservations.
    Known,
    /// It is not: reservations alone.
    Unknown,
    /// It is not, and it was full when it was known last: reservations alone.
    Last,
}

/// Rows by cost: the cheapest of an order at once, however many there are.
#[derive(Debug)]
pub(super) struct CostIndex {
    orders: [Ordered; 3],
    places: BySlot<RowSlot, Place>,
}

/// Rows of one order, with their costs. Few or many, they are kept alike: a tournament of few is a scan.
#[derive(Debug, Default)]
struct Ordered {
    rows: Vec<RowSlot>,
    costs: Tournament,
}

/// Where a row stands: in which order, and where in it.
#[derive(Debug, Clone, Copy)]
struct Place {
    position: u32,
    order: Option<Order>,
}

impl Place {
    const NOWHERE: Self = Self {
        position: 0,
        order: None,
    };
}

impl Default for CostIndex {
    fn default() -> Self {
        Self {
            orders: Default::default(),
            places: BySlot::new(Place::NOWHERE),
        }
    }
}

impl CostIndex {
    /// Puts `row` at `cost` in `order`, wherever it was before.
    #[inline]
    pub(super) fn insert(&mut self, row: RowSlot, order: Order, cost: f64) {
        let mut place = self.places[row];
        if place.order != Some(order) {
            self.remove(row);
            place = self.join(row, order);
        }
        let costs = &mut self.orders[order as usize].costs;
        costs.set(place.position as usize, cost);
    }

    fn join(&mut self, row: RowSlot, order: Order) -> Place {
        let rows = &mut self.orders[order as usize].rows;
        let place = Place {
            position: rows.len() as u32,
            order: Some(order),
        };
        room_for(rows, 1);
        rows.push(row);
        self.places[row] = place;
        place
    }

    /// Takes `row` out, if it is in.
    pub(super) fn remove(&mut self, row: RowSlot) {
        let place = self.places[row];
        let Some(order) = place.order else {
            return;
        };
        self.places[row] = Place::NOWHERE;
        let Ordered { rows, costs } = &mut self.orders[order as usize];
        let (position, last) = (place.position as usize, rows.len() - 1);
        rows.swap_remove(position);
        let cost_of_last = costs.cost(last);
        costs.remove(last);
        if let (Some(moved), Some(cost)) = (rows.get(position), cost_of_last) {
            costs.set(position, cost);
            self.places[*moved] = place;
        }
    }

    /// The worker moved to another row.
    pub(super) fn move_row(&mut self, from: RowSlot, to: RowSlot) {
        let place = self.places[from];
        if let Some(order) = place.order {
            self.places.move_value(from, to);
            self.orders[order as usize].rows[place.position as usize] = to;
        }
    }

    /// There are no rows from this number on.
    pub(super) fn shrink(&mut self, rows: u32) {
        self.places.truncate(rows);
        for ordered in &mut self.orders {
            ordered.rows.shrink_to_fit();
            ordered.costs.shrink(ordered.rows.len());
        }
    }

    /// The lowest cost of the order, and how many have it.
    #[inline]
    pub(super) fn least(&self, order: Order) -> Option<Least> {
        self.orders[order as usize].costs.least()
    }

    /// The `n`-th row, from 0, of those that have the lowest cost of the order, which is that.
    #[inline]
    pub(super) fn nth_least(&self, order: Order, least: Least, n: u32) -> Option<RowSlot> {
        let ordered = &self.orders[order as usize];
        ordered.rows.get(ordered.costs.nth(least, n)).copied()
    }

    /// The order in which `row` is, and its cost there.
    #[inline]
    pub(super) fn cost(&self, row: RowSlot) -> Option<(Order, f64)> {
        let place = self.places.at(row);
        let order = place.order?;
        let costs = &self.orders[order as usize].costs;
        Some((order, costs.cost(place.position as usize)?))
    }
}

#[cfg(test)]
mod tests {
    use super::{Order::*, *};
    use crate::sans_io::slots::Key;

    fn slot(number: u32) -> RowSlot {
        RowSlot::new(number)
    }

    fn lowest(index: &CostIndex, order: Order) -> Option<Vec<u32>> {
        let least = index.least(order)?;
        let rows = (0..least.equals).map(|n| index.nth_least(order, least, n).unwrap().number());
        let mut rows: Vec<_> = rows.collect();
        rows.sort_unstable();
        Some(rows)
    }

    #[test]
    fn the_cheapest_rows_come_first_through_moves_and_removals() {
        let mut index = CostIndex::default();
        assert_eq!(lowest(&index, Known), None);
        for (row, cost) in [(0, 5.0), (1, 3.0), (2, 3.0), (3, 0.5), (4, 3.0)] {
            index.insert(slot(row), Known, cost);
        }
        index.insert(slot(3), Known, 9.0);
        assert_eq!(lowest(&index, Known), Some(vec![1, 2, 4]));
        index.remove(slot(1));
        assert_eq!(lowest(&index, Known), Some(vec![2, 4]));
        assert_eq!(index.cost(slot(2)), Some((Known, 3.0)));
        assert_eq!(index.cost(slot(0)), Some((Known, 5.0)));
        assert_eq!((index.cost(slot(1)), index.cost(slot(77))), (None, None));
        index.insert(slot(4), Known, 4.0);
        index.remove(slot(2));
        index.remove(slot(2));
        assert_eq!(lowest(&index, Known), Some(vec![4]));
        index.insert(slot(0), Known, -0.0);
        index.insert(slot(4), Known, 0.0);
        assert_eq!(lowest(&index, Known), Some(vec![0, 4]));
    }

    #[test]
    fn the_orders_are_apart() {
        let mut index = CostIndex::default();
        index.insert(slot(0), Unknown, 1.0);
        assert_eq!(lowest(&index, Known), None);
        index.insert(slot(1), Known, 2.0);
        index.insert(slot(2), Known, 3.0);
        assert_eq!(lowest(&index, Unknown), Some(vec![0]));
        index.insert(slot(1), Unknown, 1.0);
        index.insert(slot(3), Last, 0.0);
        assert_eq!(lowest(&index, Last), Some(vec![3]));
        index.move_row(slot(1), slot(9));
        index.move_row(slot(1), slot(9));
        assert_eq!(lowest(&index, Unknown), Some(vec![0, 9]));
        index.move_row(slot(9), slot(1));
        assert_eq!(lowest(&index, Unknown), Some(vec![0, 1]));
        assert_eq!(lowest(&index, Known), Some(vec![2]));
        assert_eq!(index.cost(slot(1)), Some((Unknown, 1.0)));
    }
}
