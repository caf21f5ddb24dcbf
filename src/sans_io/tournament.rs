//! The least of many costs, and any of those that are as low.

use super::slots::room_for;

/// A cost for each position, and soon: the least, how many positions have it, and the n-th of them.
///
/// It is played in rounds. The winner of each block of eight, with those that share its place, stands in the next round,
/// until a round is of one block: that one is played when the least is asked for. So eight costs are merely scanned, and
/// many take one more short scan for each round. Costs are finite and not negative, so their bits order like their values,
/// and bits are compared faster.
#[derive(Debug, Default)]
pub(super) struct Tournament {
    /// By position, filled up to whole blocks with those that never win.
    costs: Vec<u64>,
    /// The winners of the blocks of `costs`, the winners of the blocks of those, and so on; filled up likewise.
    rounds: Vec<Vec<Winners>>,
}

/// The winners of a block.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Winners {
    cost: u64,
    /// How many positions have it.
    equals: u32,
    /// In which places of the block they are.
    places: u8,
}

/// The least cost, and how many have it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Least {
    pub(super) cost: f64,
    pub(super) equals: u32,
    /// In which places of the last round.
    places: u8,
}

/// The cost of an entry of a round, and how many positions have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    cost: u64,
    equals: u32,
}

impl Entry {
    #[inline]
    fn of_position(cost: u64) -> Self {
        Self {
            cost,
            equals: u32::from(cost != NEVER),
        }
    }
}

impl Winners {
    const NOBODY: Self = Self {
        cost: NEVER,
        equals: 0,
        places: 0,
    };

    /// Takes note that the block has one of another cost now, which has so many equals. Whether that tells the winners.
    #[inline]
    fn change(&mut self, place: usize, was: Entry, is: Entry) -> bool {
        let bit = 1 << place;
        if was.cost == self.cost {
            self.equals -= was.equals;
            self.places &= !bit;
        }
        if is.cost < self.cost {
            (self.cost, self.equals, self.places) = (is.cost, is.equals, bit);
        } else if is.cost == self.cost && is.cost != NEVER {
            self.equals += is.equals;
            self.places |= bit;
        }
        self.places != 0
    }

    #[inline]
    fn entry(self) -> Entry {
        Entry {
            cost: self.cost,
            equals: self.equals,
        }
    }
}

impl Tournament {
    /// The least of all; `None`: there is none.
    #[inline]
    pub(super) fn least(&self) -> Option<Least> {
        let winners = if self.costs.is_empty() {
            return None;
        } else {
            self.play(self.rounds.len(), 0)
        };
        (winners.equals > 0).then(|| Least {
            cost: f64::from_bits(winners.cost),
            equals: winners.equals,
            places: winners.places,
        })
    }

    /// The cost at a position; `None`: it has none.
    #[inline]
    pub(super) fn cost(&self, position: usize) -> Option<f64> {
        let cost = self.costs.get(position).copied()?;
        (cost != NEVER).then(|| f64::from_bits(cost))
    }

    /// The `n`-th position, from 0, of those that have the least cost.
    #[inline]
    pub(super) fn nth(&self, least: Least, mut n: u32) -> usize {
        let (mut first, mut places) = (0, least.places);
        let mut round = self.rounds.len();
        loop {
            let mut at = first + places.trailing_zeros() as usize;
            while places & places.wrapping_sub(1) != 0 {
                // More than one place is left.
                let equals = match round.checked_sub(1) {
                    Some(before) => self.rounds[before][at].equals,
                    None => 1,
                };
                if n < equals {
                    break;
                }
                n -= equals;
                places &= places - 1;
                at = first + places.trailing_zeros() as usize;
            }
            if round == 0 {
                return at;
            }
            round -= 1;
            (first, places) = (at * BLOCK, self.rounds[round][at].places);
        }
    }

    /// Sets the cost at a position.
    #[inline]
    pub(super) fn set(&mut self, position: usize, cost: f64) {
        debug_assert!(cost.is_finite() && cost >= 0.0);
        while self.costs.len() <= position {
            self.add_block();
        }
        // Adding zero makes a negative zero positive.
        self.change(position, (cost + 0.0).to_bits());
    }

    /// Takes out what is at a position.
    pub(super) fn remove(&mut self, position: usize) {
        if position < self.costs.len() {
            self.change(position, NEVER);
        }
    }

    #[inline]
    fn change(&mut self, position: usize, cost: u64) {
        let before = std::mem::replace(&mut self.costs[position], cost);
        let (mut was, mut is) = (Entry::of_position(before), Entry::of_position(cost));
        let mut at = position;
        for round in 0..self.rounds.len() {
            if was == is {
                return;
            }
            let winners = &mut self.rounds[round][at / BLOCK];
            let former = winners.entry();
            if !winners.change(at % BLOCK, was, is) {
                let anew = self.play(round, at / BLOCK);
                self.rounds[round][at / BLOCK] = anew;
            }
            at /= BLOCK;
            (was, is) = (former, self.rounds[round][at].entry());
        }
    }

    /// There are no costs from this position on; gives their memory back.
    pub(super) fn shrink(&mut self, positions: usize) {
        let kept = positions.min(self.costs.len());
        let costs: Vec<_> = self.costs.drain(..kept).collect();
        *self = Self::default();
        for (position, cost) in costs.into_iter().enumerate() {
            if cost != NEVER {
                self.set(position, f64::from_bits(cost));
            }
        }
    }

    /// The winners of a block of what the round is played among.
    #[inline]
    fn play(&self, round: usize, block: usize) -> Winners {
        let first = block * BLOCK;
        match round.checked_sub(1) {
            None => {
                let costs = self.costs[first..].first_chunk().unwrap_or(&NOBODY);
                let (cost, places) = lowest(costs);
                Winners {
                    cost,
                    equals: places.count_ones(),
                    places,
                }
            }
            Some(before) => {
                let block = &self.rounds[before][first..first + BLOCK];
                let mut costs = NOBODY;
                for (cost, winners) in costs.iter_mut().zip(block) {
                    *cost = winners.cost;
                }
                let (cost, places) = lowest(&costs);
                let have = block.iter().filter(|winners| winners.cost == cost);
                Winners {
                    cost,
                    equals: have.map(|winners| winners.equals).sum(),
                    places,
                }
            }
        }
    }

    #[cold]
    fn add_block(&mut self) {
        fill(&mut self.costs, NEVER);
        let mut block = self.costs.len() / BLOCK - 1;
        let mut round = 0;
        while block > 0 {
            if round == self.rounds.len() {
                let first = self.play(round, 0);
                self.rounds.push(Vec::new());
                fill(&mut self.rounds[round], Winners::NOBODY);
                self.rounds[round][0] = first;
            }
            if self.rounds[round].len() == block {
                fill(&mut self.rounds[round], Winners::NOBODY);
            }
            block /= BLOCK;
            round += 1;
        }
    }
}

/// The least of a block, and who has it. Compared by fours, which depend on each other only at the end.
#[inline]
fn lowest(costs: &[u64; BLOCK]) -> (u64, u8) {
    let mut lanes = [NEVER; 4];
    for (at, cost) in costs.iter().enumerate() {
        lanes[at % 4] = lanes[at % 4].min(*cost);
    }
    let cost = lanes[0].min(lanes[1]).min(lanes[2].min(lanes[3]));
    let have = costs.iter().enumerate();
    let places = have.fold(0, |places, (at, other)| {
        places | u8::from(*other == cost) << at
    });
    (cost, if cost == NEVER { 0 } else { places })
}

/// Adds a block of these.
fn fill<T: Copy>(values: &mut Vec<T>, value: T) {
    let len = values.len() + BLOCK;
    room_for(values, BLOCK);
    values.resize(len, value);
}

/// What never wins: no cost has these bits.
const NEVER: u64 = u64::MAX;
/// One line of a cache; ten thousand costs take five rounds of so many.
const BLOCK: usize = 8;
const NOBODY: [u64; BLOCK] = [NEVER; BLOCK];

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn compare(tournament: &Tournament, costs: &[Option<f64>]) {
        let least = costs.iter().flatten().copied().min_by(f64::total_cmp);
        let have = (0..costs.len()).filter(|at| least.is_some() && costs[*at] == least);
        let have: Vec<_> = have.collect();
        let equals = have.len() as u32;
        let is = tournament.least();
        assert_eq!(
            is.map(|is| (is.cost, is.equals)),
            least.map(|cost| (cost, equals))
        );
        let nth = |n| tournament.nth(is.unwrap(), n);
        assert_eq!((0..equals).map(nth).collect::<Vec<_>>(), have);
    }

    #[test]
    fn the_least_is_found_through_all_changes_at_any_size() {
        for size in [1, 2, 7, 8, 9, 63, 64, 65, 512, 513, 5_000] {
            let mut rng = fastrand::Rng::with_seed(size as u64);
            let mut tournament = Tournament::default();
            compare(&tournament, &[]);
            let mut costs = vec![None; size];
            for step in 0..4_000 {
                let position = rng.usize(..size);
                // Few costs make many ties.
                let cost = f64::from(rng.u32(..if step < 2_000 { 3 } else { 100_000 }));
                costs[position] = (rng.u32(..8) > 0).then_some(cost);
                match costs[position] {
                    Some(cost) => tournament.set(position, cost),
                    None => tournament.remove(position),
                }
                assert_eq!(tournament.cost(position), costs[position]);
                if step % 8 == 0 || size < 100 {
                    compare(&tournament, &costs);
                }
            }
            for kept in [size / 2, 8, 0] {
                costs.truncate(kept);
                tournament.shrink(kept);
                compare(&tournament, &costs);
            }
        }
    }
}
