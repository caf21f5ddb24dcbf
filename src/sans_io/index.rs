//! Workers in the order of their cost.

use std::collections::BTreeMap;

use smallvec::SmallVec;

/// What a cost is made of: costs of one order are compared with each other only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Order {
    /// The worker's load is known: load and bookings.
    Known,
    /// It is not: bookings alone.
    Unknown,
}

/// Rows by cost: the cheapest ones of an order at once, all of them, however many there are.
#[derive(Debug, Default)]
pub(crate) struct CostIndex {
    buckets: BTreeMap<Key, SmallVec<[u32; 4]>>,
    places: Vec<Place>,
}

/// Costs are finite and not negative, so their bits order like their values, and the sign bit can tell the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key(u64);

impl Key {
    fn new(order: Order, cost: f64) -> Self {
        // Adding zero makes a negative zero positive.
        let bits = (cost + 0.0).to_bits();
        match order {
            Order::Known => Self(bits),
            Order::Unknown => Self(bits | SIGN),
        }
    }

    fn order(self) -> Order {
        if self.0 & SIGN == 0 {
            Order::Known
        } else {
            Order::Unknown
        }
    }
}

/// Where a row stands: in which bucket, and where in it.
#[derive(Debug, Clone, Copy)]
struct Place {
    key: Key,
    position: u32,
}

impl Place {
    const NOWHERE: Self = Self {
        key: Key(0),
        position: u32::MAX,
    };
}

impl CostIndex {
    /// Puts `row` at `cost` in `order`, wherever it was before.
    pub(crate) fn insert(&mut self, row: u32, order: Order, cost: f64) {
        debug_assert!(cost.is_finite() && cost >= 0.0);
        let key = Key::new(order, cost);
        let index = row as usize;
        if self.places.len() <= index {
            self.places.resize(index + 1, Place::NOWHERE);
        }
        let place = self.places[index];
        if place.position != u32::MAX {
            if place.key == key {
                return;
            }
            self.remove(row);
        }
        let bucket = self.buckets.entry(key).or_default();
        self.places[index] = Place {
            key,
            position: bucket.len() as u32,
        };
        bucket.push(row);
    }

    /// Takes `row` out, if it is in.
    pub(crate) fn remove(&mut self, row: u32) {
        let Some(place) = self.places.get_mut(row as usize) else {
            return;
        };
        let place = std::mem::replace(place, Place::NOWHERE);
        let Some(bucket) = self.buckets.get_mut(&place.key) else {
            return;
        };
        if bucket.get(place.position as usize) != Some(&row) {
            return;
        }
        bucket.swap_remove(place.position as usize);
        if let Some(moved) = bucket.get(place.position as usize) {
            self.places[*moved as usize] = place;
        }
        if bucket.is_empty() {
            self.buckets.remove(&place.key);
        }
    }

    /// All rows that have the lowest cost of the order.
    #[inline]
    pub(crate) fn lowest(&self, order: Order) -> Option<&[u32]> {
        let (key, rows) = self.buckets.range(Key::new(order, 0.0)..).next()?;
        (key.order() == order).then_some(rows)
    }

    /// Whether `row` is among the rows at the lowest cost of its order.
    #[inline]
    pub(crate) fn is_lowest(&self, row: u32) -> bool {
        let Some(place) = self.places.get(row as usize) else {
            return false;
        };
        let lowest = self.lowest(place.key.order());
        lowest.is_some_and(|rows| rows.get(place.position as usize) == Some(&row))
    }
}

/// The sign bit of a float.
const SIGN: u64 = 1 << 63;

#[cfg(test)]
mod tests {
    use super::{Order::*, *};

    #[test]
    fn the_cheapest_rows_come_first_through_moves_and_removals() {
        let mut index = CostIndex::default();
        assert_eq!(index.lowest(Known), None);
        for (row, cost) in [(0, 5.0), (1, 3.0), (2, 3.0), (3, 0.5), (4, 3.0)] {
            index.insert(row, Known, cost);
        }
        index.insert(3, Known, 9.0);
        assert_eq!(index.lowest(Known), Some(&[1, 2, 4][..]));
        index.remove(1);
        assert_eq!(index.lowest(Known), Some(&[4, 2][..]));
        assert!(index.is_lowest(2) && !index.is_lowest(1) && !index.is_lowest(77));
        assert!(!index.is_lowest(0));
        index.insert(4, Known, 4.0);
        index.remove(2);
        index.remove(2);
        assert_eq!(index.lowest(Known), Some(&[4][..]));
        index.insert(0, Known, -0.0);
        index.insert(4, Known, 0.0);
        assert_eq!(index.lowest(Known), Some(&[0, 4][..]));
    }

    #[test]
    fn the_orders_are_apart() {
        let mut index = CostIndex::default();
        index.insert(0, Unknown, 1.0);
        assert_eq!(index.lowest(Known), None);
        index.insert(1, Known, 2.0);
        index.insert(2, Known, 3.0);
        assert_eq!(index.lowest(Unknown), Some(&[0][..]));
        assert!(index.is_lowest(0) && index.is_lowest(1) && !index.is_lowest(2));
        index.insert(1, Unknown, 1.0);
        assert_eq!(index.lowest(Unknown), Some(&[0, 1][..]));
        assert_eq!(index.lowest(Known), Some(&[2][..]));
    }
}
