//! Workers in the order of their cost.

use std::collections::BTreeMap;

/// Rows by cost: the cheapest ones at once, all of them, however many there are.
#[derive(Debug, Default)]
pub(crate) struct CostIndex {
    /// Costs are finite and not negative, so their bits order like their values.
    buckets: BTreeMap<u64, Vec<u32>>,
    places: Vec<Option<Place>>,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    key: u64,
    position: u32,
}

impl CostIndex {
    /// Puts `row` at `cost`, wherever it was before.
    pub(crate) fn insert(&mut self, row: u32, cost: f64) {
        debug_assert!(cost.is_finite() && cost >= 0.0);
        let key = (cost + 0.0).to_bits();
        let index = row as usize;
        if self.places.len() <= index {
            self.places.resize(index + 1, None);
        }
        match self.places[index] {
            Some(place) if place.key == key => return,
            Some(_) => self.remove(row),
            None => {}
        }
        let bucket = self.buckets.entry(key).or_default();
        self.places[index] = Some(Place {
            key,
            position: bucket.len() as u32,
        });
        bucket.push(row);
    }

    /// Takes `row` out, if it is in.
    pub(crate) fn remove(&mut self, row: u32) {
        let place = self.places.get_mut(row as usize).and_then(Option::take);
        let Some(place) = place else {
            return;
        };
        let Some(bucket) = self.buckets.get_mut(&place.key) else {
            return;
        };
        bucket.swap_remove(place.position as usize);
        if let Some(moved) = bucket.get(place.position as usize) {
            self.places[*moved as usize] = Some(place);
        }
        if bucket.is_empty() {
            self.buckets.remove(&place.key);
        }
    }

    /// The lowest cost and all rows that have it.
    pub(crate) fn lowest(&self) -> Option<(f64, &[u32])> {
        let (key, rows) = self.buckets.first_key_value()?;
        Some((f64::from_bits(*key), rows))
    }

    /// Whether `row` is among the rows at `cost`.
    pub(crate) fn is_at(&self, row: u32, cost: f64) -> bool {
        self.places
            .get(row as usize)
            .is_some_and(|place| place.is_some_and(|place| f64::from_bits(place.key) == cost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheapest_rows_come_first_through_moves_and_removals() {
        let mut index = CostIndex::default();
        assert_eq!(index.lowest(), None);
        for (row, cost) in [(0, 5.0), (1, 3.0), (2, 3.0), (3, 0.5), (4, 3.0)] {
            index.insert(row, cost);
        }
        index.insert(3, 9.0);
        assert_eq!(index.lowest(), Some((3.0, &[1, 2, 4][..])));
        index.remove(1);
        assert_eq!(index.lowest(), Some((3.0, &[4, 2][..])));
        assert!(index.is_at(2, 3.0) && !index.is_at(1, 3.0) && !index.is_at(77, 3.0));
        index.insert(4, 4.0);
        index.remove(2);
        index.remove(2);
        assert_eq!(index.lowest(), Some((4.0, &[4][..])));
        index.insert(0, -0.0);
        index.insert(4, 0.0);
        assert_eq!(index.lowest(), Some((0.0, &[0, 4][..])));
    }
}
