//! Workers in the order of their cost.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::slots::{BySlot, RowSlot};

/// What a cost is made of: costs of one order are compared with each other only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// The worker's load is known: load and reservations.
    Known,
    /// It is not: reservations alone.
    Unknown,
    /// It is not, and it was full when it was known last: reservations alone.
    Last,
}

/// Rows by cost: the cheapest ones of an order at once, all of them, however many there are.
#[derive(Debug)]
pub(crate) struct CostIndex {
    orders: [Buckets; 3],
    places: BySlot<RowSlot, Place>,
}

/// Rows of one order. Costs are finite and not negative, so their bits order like their values.
type Buckets = BTreeMap<u64, SmallVec<[RowSlot; 4]>>;

/// Where a row stands: in which bucket of which order, and where in it.
#[derive(Debug, Clone, Copy)]
struct Place {
    cost: u64,
    order: Order,
    position: u32,
}

impl Place {
    const NOWHERE: Self = Self {
        cost: 0,
        order: Order::Known,
        position: u32::MAX,
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
    pub(crate) fn insert(&mut self, row: RowSlot, order: Order, cost: f64) {
        debug_assert!(cost.is_finite() && cost >= 0.0);
        // Adding zero makes a negative zero positive.
        let cost = (cost + 0.0).to_bits();
        let place = self.places[row];
        if place.position != u32::MAX {
            if (place.order, place.cost) == (order, cost) {
                return;
            }
            self.remove(row);
        }
        let bucket = self.orders[order as usize].entry(cost).or_default();
        self.places[row] = Place {
            cost,
            order,
            position: bucket.len() as u32,
        };
        bucket.push(row);
    }

    /// Takes `row` out, if it is in.
    pub(crate) fn remove(&mut self, row: RowSlot) {
        let place = self.places[row];
        if place.position == u32::MAX {
            return;
        }
        self.places[row] = Place::NOWHERE;
        let buckets = &mut self.orders[place.order as usize];
        let Some(bucket) = buckets.get_mut(&place.cost) else {
            return;
        };
        bucket.swap_remove(place.position as usize);
        if let Some(moved) = bucket.get(place.position as usize) {
            self.places[*moved] = place;
        }
        if bucket.is_empty() {
            buckets.remove(&place.cost);
        }
    }

    /// The worker moved to another row.
    pub(crate) fn move_row(&mut self, from: RowSlot, to: RowSlot) {
        let place = self.places[from];
        if place.position == u32::MAX {
            return;
        }
        self.places.move_value(from, to);
        let buckets = &mut self.orders[place.order as usize];
        if let Some(bucket) = buckets.get_mut(&place.cost) {
            bucket[place.position as usize] = to;
        }
    }

    /// There are no rows from this number on.
    pub(crate) fn shrink(&mut self, rows: u32) {
        self.places.truncate(rows);
    }

    /// All rows that have the lowest cost of the order.
    #[inline]
    pub(crate) fn lowest(&self, order: Order) -> Option<&[RowSlot]> {
        let (_, rows) = self.orders[order as usize].first_key_value()?;
        Some(rows)
    }

    /// Whether `row` is among the rows at the lowest cost of its order.
    #[inline]
    pub(crate) fn is_lowest(&self, row: RowSlot) -> bool {
        let place = self.places[row];
        let lowest = self.lowest(place.order);
        lowest.is_some_and(|rows| rows.get(place.position as usize) == Some(&row))
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
        let rows = index.lowest(order)?;
        Some(rows.iter().map(|row| row.number()).collect())
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
        assert_eq!(lowest(&index, Known), Some(vec![4, 2]));
        assert!(
            index.is_lowest(slot(2)) && !index.is_lowest(slot(1)) && !index.is_lowest(slot(77))
        );
        assert!(!index.is_lowest(slot(0)));
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
        assert!(index.is_lowest(slot(0)) && index.is_lowest(slot(1)) && !index.is_lowest(slot(2)));
        index.insert(slot(1), Unknown, 1.0);
        index.insert(slot(3), Last, 0.0);
        assert_eq!(lowest(&index, Last), Some(vec![3]));
        index.move_row(slot(1), slot(9));
        index.move_row(slot(1), slot(9));
        assert_eq!(lowest(&index, Unknown), Some(vec![0, 9]));
        index.move_row(slot(9), slot(1));
        assert_eq!(lowest(&index, Unknown), Some(vec![0, 1]));
        assert_eq!(lowest(&index, Known), Some(vec![2]));
    }
}
