//! The least of many costs, and any of those that are as low.

use super::slots::room_for;

/// A cost for each position, and at once: the least, how many positions have it, and the n-th of them.
///
/// It is played in rounds. The winner of each block of 16, and how many share its place, stands in the next round; the last
/// round is of one block. So few costs are scanned, and many take one short scan a round. Costs are finite or [`NEVER`].
#[derive(Debug, Default)]
pub(super) struct Tournament {
    /// By position, filled up to whole blocks with those that never win.
    costs: Vec<f64>,
    /// The winners of the blocks of `costs`, the winners of the blocks of those, and so on; filled up likewise.
    rounds: Vec<Round>,
}

/// The winners of blocks.
#[derive(Debug)]
struct Round {
    least: Vec<f64>,
    /// How many positions have it.
    equals: Vec<u32>,
}

/// The least cost, and how many have it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Least {
    pub(super) cost: f64,
    pub(super) equals: u32,
}

impl Least {
    const NOBODY: Self = Self {
        cost: NEVER,
        equals: 0,
    };

    #[inline]
    fn one(cost: f64) -> Self {
        Self {
            cost,
            equals: u32::from(cost < NEVER),
        }
    }
}

impl Tournament {
    /// The least of all; it is [`NEVER`] if there is none.
    #[inline]
    pub(super) fn least(&self) -> Least {
        self.rounds.last().map_or(Least::NOBODY, |last| last.at(0))
    }

    /// The cost at a position that was set.
    #[inline]
    pub(super) fn cost(&self, position: usize) -> f64 {
        self.costs.get(position).copied().unwrap_or(NEVER)
    }

    /// The `n`-th position, from 0, of those that have the least cost.
    #[inline]
    pub(super) fn nth(&self, mut n: u32) -> usize {
        let least = self.least().cost;
        let mut block = 0;
        for round in self.rounds.iter().rev().skip(1) {
            let first = block * BLOCK;
            block = first;
            for (at, equals) in round.equals[first..first + BLOCK].iter().enumerate() {
                if round.least[first + at] == least {
                    if n < *equals {
                        block = first + at;
                        break;
                    }
                    n -= equals;
                }
            }
        }
        let first = block * BLOCK;
        let mut have = bits(&self.costs[first..first + BLOCK], least);
        for _ in 0..n {
            have &= have.wrapping_sub(1);
        }
        first + have.trailing_zeros() as usize
    }

    /// Sets the cost at a position; [`NEVER`] takes it out.
    #[inline]
    pub(super) fn set(&mut self, position: usize, cost: f64) {
        while self.costs.len() <= position {
            if cost == NEVER {
                return;
            }
            self.add_block();
        }
        let before = std::mem::replace(&mut self.costs[position], cost);
        let (mut was, mut is) = (Least::one(before), Least::one(cost));
        let mut at = position;
        for round in 0..self.rounds.len() {
            if was == is {
                return;
            }
            at /= BLOCK;
            let of_block = self.rounds[round].at(at);
            let mut now = of_block;
            if was.cost == now.cost {
                now.equals -= was.equals;
            }
            if is.cost < now.cost {
                now = is;
            } else if is.cost == now.cost {
                now.equals += is.equals;
            } else if now.equals == 0 {
                now = self.play(round, at);
            }
            self.rounds[round].set(at, now);
            (was, is) = (of_block, now);
        }
    }

    /// There are no costs from this position on; gives their memory back.
    pub(super) fn shrink(&mut self, positions: usize) {
        let kept = positions.min(self.costs.len());
        let costs: Vec<_> = self.costs.drain(..kept).collect();
        *self = Self::default();
        for (position, cost) in costs.into_iter().enumerate() {
            self.set(position, cost);
        }
    }

    /// The winner of a block of what the round is played among.
    fn play(&self, round: usize, block: usize) -> Least {
        let entries = block * BLOCK..(block + 1) * BLOCK;
        match round.checked_sub(1) {
            None => {
                let costs = &self.costs[entries];
                let cost = least_of(costs);
                if cost == NEVER {
                    return Least::NOBODY;
                }
                let equals = bits(costs, cost).count_ones();
                Least { cost, equals }
            }
            Some(before) => {
                let before = &self.rounds[before];
                let costs = &before.least[entries.clone()];
                let cost = least_of(costs);
                let pairs = costs.iter().zip(&before.equals[entries]);
                let equals = pairs.map(|(other, equals)| if *other == cost { *equals } else { 0 });
                Least {
                    cost,
                    equals: equals.sum(),
                }
            }
        }
    }

    #[cold]
    fn add_block(&mut self) {
        fill(&mut self.costs, NEVER);
        let mut block = self.costs.len() / BLOCK - 1;
        for round in 0.. {
            if round == self.rounds.len() {
                let mut on_top = Round::empty();
                on_top.set(0, self.play(round, 0));
                self.rounds.push(on_top);
            }
            let round = &mut self.rounds[round];
            if round.least.len() == block {
                round.add_block();
            }
            if block == 0 {
                return;
            }
            block /= BLOCK;
        }
    }
}

impl Round {
    fn empty() -> Self {
        let (least, equals) = (Vec::new(), Vec::new());
        let mut round = Self { least, equals };
        round.add_block();
        round
    }

    fn add_block(&mut self) {
        fill(&mut self.least, NEVER);
        fill(&mut self.equals, 0);
    }

    #[inline]
    fn at(&self, block: usize) -> Least {
        Least {
            cost: self.least[block],
            equals: self.equals[block],
        }
    }

    #[inline]
    fn set(&mut self, block: usize, least: Least) {
        self.least[block] = least.cost;
        self.equals[block] = least.equals;
    }
}

/// The least of a block: four at a time, which depend on each other only at the end.
#[inline]
fn least_of(costs: &[f64]) -> f64 {
    let lower = |a: f64, b: f64| if b < a { b } else { a };
    let mut lanes = [NEVER; 4];
    for four in costs.chunks_exact(4) {
        for (lane, cost) in lanes.iter_mut().zip(four) {
            *lane = lower(*lane, *cost);
        }
    }
    lower(lower(lanes[0], lanes[1]), lower(lanes[2], lanes[3]))
}

/// Which of a block have this cost.
#[inline]
fn bits(costs: &[f64], cost: f64) -> u32 {
    let bits = costs.iter().enumerate();
    bits.fold(0, |bits, (at, other)| {
        bits | u32::from(*other == cost) << at
    })
}

/// Adds a block of these.
fn fill<T: Copy>(values: &mut Vec<T>, value: T) {
    let len = values.len() + BLOCK;
    room_for(values, BLOCK);
    values.resize(len, value);
}

/// What never wins.
pub(super) const NEVER: f64 = f64::INFINITY;
/// Two lines of a cache; ten thousand costs take four rounds of so many.
const BLOCK: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// The naive one.
    fn winners(costs: &[f64]) -> (f64, Vec<usize>) {
        let least = costs.iter().copied().fold(NEVER, f64::min);
        let have = (0..costs.len()).filter(|at| costs[*at] == least && least < NEVER);
        (least, have.collect())
    }

    #[track_caller]
    fn compare(tournament: &Tournament, costs: &[f64]) {
        let (cost, have) = winners(costs);
        let equals = have.len() as u32;
        assert_eq!(tournament.least(), Least { cost, equals });
        let nth: Vec<_> = (0..equals).map(|n| tournament.nth(n)).collect();
        assert_eq!(nth, have);
    }

    #[test]
    fn the_least_is_found_through_all_changes_at_any_size() {
        for size in [1, 2, 15, 16, 17, 255, 256, 257, 5_000] {
            let mut rng = fastrand::Rng::with_seed(size as u64);
            let mut tournament = Tournament::default();
            compare(&tournament, &[]);
            let mut costs = vec![NEVER; size];
            for step in 0..4_000 {
                let position = rng.usize(..size);
                // Few costs make many ties.
                let cost = match rng.u32(..8) {
                    0 => NEVER,
                    _ => f64::from(rng.u32(..if step < 2_000 { 3 } else { 100_000 })),
                };
                costs[position] = cost;
                tournament.set(position, cost);
                if step % 8 == 0 || size < 100 {
                    compare(&tournament, &costs);
                }
            }
            for kept in [size / 2, 16, 0] {
                costs.truncate(kept);
                tournament.shrink(kept);
                compare(&tournament, &costs);
            }
        }
    }
}
