//! Which costs are as good as equal.

use super::tournament::NEAR;

/// Puts costs into buckets of a quarter of the width of a tie, numbered in their order, and says which of them are equals.
///
/// A bucket stands for the lowest cost in it. Those that begin less than five buckets above the lowest one hold every cost
/// within the width of a tie of the lowest, and none more than a bucket above that.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ties {
    /// Width of a bucket; 0: each cost has its own, and only equal costs are equals.
    bucket: f64,
    /// Buckets in 1.
    per_one: f64,
}

impl Ties {
    pub(super) fn new(tie_width: f64) -> Self {
        let bucket = tie_width / (NEAR - 1) as f64;
        let bucket = if bucket < LEAST { 0.0 } else { bucket };
        Self {
            bucket,
            per_one: 1.0 / bucket,
        }
    }

    /// The bucket of a cost, which is finite and not negative.
    #[inline]
    pub(super) fn place(self, cost: f64) -> u64 {
        debug_assert!(cost.is_finite() && cost >= 0.0);
        if self.bucket == 0.0 {
            // Bits of such floats are ordered like their values. Adding zero makes a negative zero positive.
            return (cost + 0.0).to_bits();
        }
        let number = cost * self.per_one;
        if number < EXACT {
            // Signed it is one conversion.
            number as i64 as u64
        } else {
            // So large a float is whole.
            EXACT as u64 + (number.to_bits() - EXACT.to_bits())
        }
    }

    /// The lowest cost in a bucket.
    #[inline]
    pub(super) fn cost(self, place: u64) -> f64 {
        if self.bucket == 0.0 {
            f64::from_bits(place)
        } else if place < EXACT as u64 {
            place as f64 * self.bucket
        } else {
            f64::from_bits(EXACT.to_bits() + (place - EXACT as u64)) * self.bucket
        }
    }

    /// How far above the lowest cost the buckets of its equals begin, at most.
    #[inline]
    pub(super) fn reach(self) -> f64 {
        self.bucket * NEAR as f64
    }

    /// Whether a bucket that begins so much above the lowest cost holds its equals.
    #[inline]
    pub(super) fn is_near(self, above: f64) -> bool {
        // By a bucket of no width everything is infinitely many above.
        above <= 0.0 || above * self.per_one < NEAR as f64
    }

    /// How many buckets, from one on that is so much above the lowest, hold its equals.
    #[inline]
    pub(super) fn near(self, above: f64) -> usize {
        if above <= 0.0 {
            return if self.bucket == 0.0 { 1 } else { NEAR };
        }
        if self.is_near(above) {
            NEAR - (above * self.per_one) as i64 as usize
        } else {
            0
        }
    }
}

/// Narrower buckets are none: their numbers could be infinite.
const LEAST: f64 = 1e-9;
/// 2^53: below, floats hold every whole number.
const EXACT: f64 = 9_007_199_254_740_992.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_what_is_within_a_tie_and_little_more() {
        let ties = Ties::new(200.0);
        let places = [0.0, 49.9, 50.0, 249.9, 250.0].map(|cost| ties.place(cost));
        assert_eq!(places, [0, 0, 1, 4, 5]);
        assert_eq!(ties.cost(4), 200.0);
        let near = [0.0, 49.9, 50.0, 200.0, 249.9, 250.0, 1e30].map(|above| ties.near(above));
        assert_eq!(near, [5, 5, 4, 1, 1, 0, 0]);
    }

    #[test]
    fn costs_of_any_size_keep_their_order() {
        for width in [0.0, 1e-300, 1e-6, 1.0, 200.0, 1e9] {
            let ties = Ties::new(width);
            let mut before = ties.place(0.0);
            assert_eq!(ties.place(-0.0), before);
            for exponent in -20..110 {
                let cost = 2_f64.powi(exponent) * 1.25;
                let place = ties.place(cost);
                assert!((before..u64::MAX).contains(&place));
                assert!(ties.cost(place) <= cost * (1.0 + 1e-15));
                assert!(ties.cost(place) + ties.bucket >= cost * (1.0 - 1e-15));
                before = place;
            }
        }
    }

    #[test]
    fn without_width_only_equals_are_equal() {
        let ties = Ties::new(0.0);
        assert_eq!([0.0, 1e-300, 5.0].map(|above| ties.near(above)), [1, 0, 0]);
        assert_eq!(ties.cost(ties.place(12.5)), 12.5);
    }
}
