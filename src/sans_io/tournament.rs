//! The lowest of many places, and any of those near it.

use super::slots::room_for;

/// A place for each position, and soon: the lowest, how many positions have it or one of the [`NEAR`] places from there on,
/// and the n-th of them.
///
/// It is played in rounds. The lowest places of each block of eight stand in the next round, until a round is of one block:
/// that one is played when the lowest are asked for. So eight places are merely scanned, and many take one more short scan
/// for each round.
#[derive(Debug, Default)]
pub(super) struct Tournament {
    /// By position, filled up to whole blocks with those that never win.
    places: Vec<u64>,
    /// The lowest of the blocks of `places`, the lowest of the blocks of those, and so on; filled up likewise.
    rounds: Vec<Vec<Lowest>>,
}

/// The lowest place of some positions, and how many are near it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lowest {
    place: u64,
    /// How many are in none of the places from it on, in the first of them, in the first two, and so on.
    up_to: [u32; NEAR + 1],
}

/// Who is in some places from the lowest one on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Near {
    first: u64,
    places: u32,
    /// How many they are.
    pub(super) count: u32,
    /// Which, if there is one block of positions.
    positions: u32,
}

impl Near {
    /// Nobody.
    pub(super) const NOBODY: Self = Self {
        first: 0,
        places: 0,
        count: 0,
        positions: 0,
    };

    /// Whether the place, which is not below the lowest, is one of these.
    #[inline]
    pub(super) fn contains(&self, place: u64) -> bool {
        place - self.first < u64::from(self.places)
    }
}

/// How many places from the lowest on are looked at.
pub(super) const NEAR: usize = 5;

impl Lowest {
    const NOBODY: Self = Self {
        place: NEVER,
        up_to: [0; NEAR + 1],
    };

    /// How many of these are in so many places from `first` on, which is not above the lowest of these.
    #[inline]
    fn within(&self, first: u64, places: usize) -> u32 {
        let skipped = self.place - first;
        let counted = (places as u64).saturating_sub(skipped) as usize;
        self.up_to[counted.min(NEAR)]
    }

    /// A position has another place than before. Whether somebody is left in the lowest; else it must be found anew.
    #[inline]
    fn change(&mut self, was: u64, is: u64) -> bool {
        if is < self.place {
            self.count(was, NEVER);
            let by = self.place - is;
            let up_to = self.up_to;
            for (at, shifted) in self.up_to.iter_mut().enumerate() {
                *shifted = up_to[(at as u64).saturating_sub(by) as usize];
            }
            self.place = is;
            self.count(NEVER, is);
        } else {
            self.count(was, is);
        }
        self.up_to[1] > 0
    }

    /// One less in the one place, and one more in the other; neither is lower than the lowest.
    #[inline]
    fn count(&mut self, less: u64, more: u64) {
        let from = |place: u64| {
            let above = place.wrapping_sub(self.place).min(NEAR as u64) as u32;
            if place == NEVER { NEAR as u32 } else { above }
        };
        let (less, more) = (from(less), from(more));
        for (at, up_to) in (0..).zip(&mut self.up_to) {
            *up_to = *up_to + u32::from(at > more) - u32::from(at > less);
        }
    }

    /// Whether the place is not among those that are counted, and does not come to be.
    #[inline]
    fn is_below(&self, place: u64) -> bool {
        place.saturating_sub(self.place) >= NEAR as u64
    }
}

impl Tournament {
    /// The lowest place of all; `None`: there is none.
    #[inline]
    pub(super) fn lowest(&self) -> Option<u64> {
        if self.places.is_empty() {
            return None;
        }
        let lowest = match self.last_round() {
            Among::Positions(places) => lowest_of(places),
            Among::Blocks(blocks) => lowest_of_blocks(blocks),
        };
        (lowest != NEVER).then_some(lowest)
    }

    /// Those in so many places from the lowest one on, which is `first`.
    #[inline]
    pub(super) fn near(&self, first: u64, places: usize) -> Near {
        let (count, positions) = match self.last_round() {
            Among::Positions(block) => {
                let positions = near(block, first, places);
                (positions.count_ones(), positions)
            }
            Among::Blocks(blocks) => {
                let within = blocks.iter().map(|of| of.within(first, places));
                (within.sum(), 0)
            }
        };
        Near {
            first,
            places: places as u32,
            count,
            positions,
        }
    }

    /// What the last round is played among.
    #[inline]
    fn last_round(&self) -> Among<'_> {
        match self.rounds.last() {
            None => Among::Positions(self.places.first_chunk().unwrap_or(&NOBODY)),
            Some(blocks) => Among::Blocks(blocks.first_chunk().unwrap_or(&NO_BLOCKS)),
        }
    }

    /// The place of a position; `None`: it has none.
    #[inline]
    pub(super) fn place(&self, position: usize) -> Option<u64> {
        let place = self.places.get(position).copied()?;
        (place != NEVER).then_some(place)
    }

    /// The `n`-th position of those near the lowest, from 0; `n` is less than how many there are.
    #[inline]
    pub(super) fn nth(&self, of: &Near, mut n: u32) -> usize {
        if self.rounds.is_empty() {
            return nth_of(of.positions, n);
        }
        let (first, places) = (of.first, of.places as usize);
        let mut block = 0;
        for round in self.rounds.iter().rev() {
            // Which of them is chance: no branch could be foretold.
            let (mut at, mut before, mut sum) = (0, 0, 0);
            for of in &round[block * BLOCK..][..BLOCK - 1] {
                sum += of.within(first, places);
                let passed = sum <= n;
                at += usize::from(passed);
                before = if passed { sum } else { before };
            }
            n -= before;
            block = block * BLOCK + at;
        }
        let of_block = self.places[block * BLOCK..].first_chunk();
        let positions = near(of_block.unwrap_or(&NOBODY), first, places);
        block * BLOCK + nth_of(positions, n)
    }

    /// Gives a position this place.
    #[inline]
    pub(super) fn set(&mut self, position: usize, place: u64) {
        while self.places.len() <= position {
            self.add_block();
        }
        self.change(position, place);
    }

    /// Takes out what is at a position.
    pub(super) fn remove(&mut self, position: usize) {
        if position < self.places.len() {
            self.change(position, NEVER);
        }
    }

    #[inline]
    fn change(&mut self, position: usize, is: u64) {
        let was = std::mem::replace(&mut self.places[position], is);
        if was == is {
            return;
        }
        let mut at = position;
        for round in 0..self.rounds.len() {
            at /= BLOCK;
            let lowest = &mut self.rounds[round][at];
            if lowest.is_below(was) && lowest.is_below(is) {
                // Then it is below what the later rounds count, too.
                return;
            }
            if !lowest.change(was, is) {
                let anew = self.play(round, at);
                self.rounds[round][at] = anew;
            }
        }
    }

    /// There are no positions from this one on; gives their memory back.
    pub(super) fn shrink(&mut self, positions: usize) {
        let kept = positions.min(self.places.len());
        let places: Vec<_> = self.places.drain(..kept).collect();
        *self = Self::default();
        for (position, place) in places.into_iter().enumerate() {
            if place != NEVER {
                self.set(position, place);
            }
        }
    }

    /// The lowest of a block of what the round is played among.
    #[inline]
    fn play(&self, round: usize, block: usize) -> Lowest {
        let first = block * BLOCK;
        let Some(before) = round.checked_sub(1) else {
            return play(self.places[first..].first_chunk().unwrap_or(&NOBODY));
        };
        let blocks = self.rounds[before][first..].first_chunk();
        let blocks = blocks.unwrap_or(&NO_BLOCKS);
        let mut lowest = Lowest {
            place: lowest_of_blocks(blocks),
            ..Lowest::NOBODY
        };
        for of in blocks {
            if !lowest.is_below(of.place) {
                for (places, up_to) in lowest.up_to.iter_mut().enumerate() {
                    *up_to += of.within(lowest.place, places);
                }
            }
        }
        lowest
    }

    #[cold]
    fn add_block(&mut self) {
        fill(&mut self.places, NEVER);
        let mut block = self.places.len() / BLOCK - 1;
        let mut round = 0;
        while block > 0 {
            if round == self.rounds.len() {
                let first = self.play(round, 0);
                self.rounds.push(Vec::new());
                fill(&mut self.rounds[round], Lowest::NOBODY);
                self.rounds[round][0] = first;
            }
            if self.rounds[round].len() == block {
                fill(&mut self.rounds[round], Lowest::NOBODY);
            }
            block /= BLOCK;
            round += 1;
        }
    }
}

/// What a round is played among.
enum Among<'a> {
    Positions(&'a [u64; BLOCK]),
    Blocks(&'a [Lowest; BLOCK]),
}

/// The lowest of a block of positions.
#[inline]
fn play(places: &[u64; BLOCK]) -> Lowest {
    let lowest = lowest_of(places);
    // A byte counts the positions that are so far above the lowest; multiplied so, each becomes the sum of those up to it.
    let mut counts = 0_u64;
    for place in places {
        let above = (place - lowest).min(NEAR as u64);
        counts += 1 << (8 * above);
    }
    let sums = counts.wrapping_mul(0x0101_0101_0101_0101);
    let mut up_to = [0; NEAR + 1];
    if lowest != NEVER {
        for (at, up_to) in up_to[1..].iter_mut().enumerate() {
            *up_to = (sums >> (8 * at)) as u32 & 0xff;
        }
    }
    Lowest {
        place: lowest,
        up_to,
    }
}

/// Compared by fours, which depend on each other only at the end.
#[inline]
fn lowest_of(places: &[u64; BLOCK]) -> u64 {
    let mut lanes = [NEVER; 4];
    for (at, place) in places.iter().enumerate() {
        lanes[at % 4] = lanes[at % 4].min(*place);
    }
    lanes[0].min(lanes[1]).min(lanes[2].min(lanes[3]))
}

#[inline]
fn lowest_of_blocks(blocks: &[Lowest; BLOCK]) -> u64 {
    lowest_of(&blocks.map(|of| of.place))
}

/// Which positions of a block are in so many places from `first` on.
#[inline]
fn near(block: &[u64; BLOCK], first: u64, places: usize) -> u32 {
    let mut near = 0;
    for (at, place) in block.iter().enumerate() {
        near |= u32::from(place - first < places as u64) << at;
    }
    near
}

/// The `n`-th of these positions, from 0.
#[inline]
fn nth_of(mut positions: u32, n: u32) -> usize {
    for _ in 0..n {
        positions &= positions.wrapping_sub(1);
    }
    (positions.trailing_zeros() as usize).min(BLOCK - 1)
}

/// Adds a block of these.
fn fill<T: Copy>(values: &mut Vec<T>, value: T) {
    let len = values.len() + BLOCK;
    room_for(values, BLOCK);
    values.resize(len, value);
}

/// What never wins: no place is this.
const NEVER: u64 = u64::MAX;
/// One line of a cache; ten thousand places take five rounds of so many.
const BLOCK: usize = 8;
const NOBODY: [u64; BLOCK] = [NEVER; BLOCK];
const NO_BLOCKS: [Lowest; BLOCK] = [Lowest::NOBODY; BLOCK];

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn compare(tournament: &Tournament, places: &[Option<u64>]) {
        let first = places.iter().flatten().copied().min();
        assert_eq!(tournament.lowest(), first);
        let Some(first) = first else {
            return;
        };
        for near in 0..=NEAR {
            let have = (0..places.len())
                .filter(|at| places[*at].is_some_and(|place| place - first < near as u64));
            let have: Vec<_> = have.collect();
            let of = tournament.near(first, near);
            assert_eq!(of.count, have.len() as u32);
            let nth = |n| tournament.nth(&of, n);
            assert_eq!((0..of.count).map(nth).collect::<Vec<_>>(), have);
        }
    }

    #[test]
    fn the_lowest_are_found_through_all_changes_at_any_size() {
        for size in [1, 2, 7, 8, 9, 63, 64, 65, 512, 513, 5_000] {
            let mut rng = fastrand::Rng::with_seed(size as u64);
            let mut tournament = Tournament::default();
            compare(&tournament, &[]);
            let mut places = vec![None; size];
            for step in 0..4_000 {
                let position = rng.usize(..size);
                // Few places make many equals; far apart they make many that are the lowest alone.
                let place = rng.u64(..[3, 12, 100_000, u64::MAX][step / 1_000]);
                places[position] = (rng.u32(..8) > 0).then_some(place);
                match places[position] {
                    Some(place) => tournament.set(position, place),
                    None => tournament.remove(position),
                }
                assert_eq!(tournament.place(position), places[position]);
                if step % 8 == 0 && size < 1_000 || size < 70 || step % 200 == 0 {
                    compare(&tournament, &places);
                }
            }
            for kept in [size / 2, 8, 0] {
                places.truncate(kept);
                tournament.shrink(kept);
                compare(&tournament, &places);
            }
        }
    }
}
