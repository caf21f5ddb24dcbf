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
pub(super) struct Lowest {
    pub(super) place: u64,
    /// How many have this place, how many have this or the next, and so on.
    up_to: [u32; NEAR],
}

/// How many places from the lowest on are looked at.
pub(super) const NEAR: usize = 5;

impl Lowest {
    const NOBODY: Self = Self {
        place: NEVER,
        up_to: [0; NEAR],
    };

    /// How many are in the first so many places, from the lowest on.
    #[inline]
    pub(super) fn within(&self, places: usize) -> u32 {
        places.checked_sub(1).map_or(0, |last| self.up_to[last])
    }

    /// How many of these are in so many places from `first` on, which is not above the lowest of these.
    #[inline]
    fn within_from(&self, first: u64, places: usize) -> u32 {
        let skipped = self.place - first;
        if skipped < places as u64 {
            self.up_to[places - 1 - skipped as usize]
        } else {
            0
        }
    }

    /// A position has another place than before. Whether somebody is left in the lowest; else it must be found anew.
    #[inline]
    fn change(&mut self, was: u64, is: u64) -> bool {
        if was != NEVER {
            self.count(was, |up_to| *up_to -= 1);
        }
        if is < self.place {
            let by = self.place - is;
            for at in (0..NEAR).rev() {
                let before = (at as u64).checked_sub(by);
                self.up_to[at] = before.map_or(0, |before| self.up_to[before as usize]);
            }
            self.place = is;
        }
        if is != NEVER {
            self.count(is, |up_to| *up_to += 1);
        }
        self.up_to[0] > 0
    }

    #[inline]
    fn count(&mut self, place: u64, count: impl Fn(&mut u32)) {
        let from = place - self.place;
        for (at, up_to) in self.up_to.iter_mut().enumerate() {
            if at as u64 >= from {
                count(up_to);
            }
        }
    }

    /// Whether the place is not among those that are counted, and does not come to be.
    #[inline]
    fn is_below(&self, place: u64) -> bool {
        place.saturating_sub(self.place) >= NEAR as u64
    }
}

impl Tournament {
    /// The lowest of all; `None`: there is none.
    #[inline]
    pub(super) fn lowest(&self) -> Option<Lowest> {
        if self.places.is_empty() {
            return None;
        }
        let lowest = self.play(self.rounds.len(), 0);
        (lowest.place != NEVER).then_some(lowest)
    }

    /// The place of a position; `None`: it has none.
    #[inline]
    pub(super) fn place(&self, position: usize) -> Option<u64> {
        let place = self.places.get(position).copied()?;
        (place != NEVER).then_some(place)
    }

    /// The `n`-th position, from 0, of those in so many places from the lowest one on, which is `first`; `n` is less than how
    /// many there are.
    #[inline]
    pub(super) fn nth(&self, first: u64, places: usize, mut n: u32) -> usize {
        let mut round = self.rounds.len();
        let mut block = 0;
        loop {
            let mut at = block * BLOCK;
            let last = at + BLOCK - 1;
            let Some(before) = round.checked_sub(1) else {
                while at < last {
                    let near = self.places[at] - first < places as u64;
                    if near && n == 0 {
                        break;
                    }
                    n -= u32::from(near);
                    at += 1;
                }
                return at;
            };
            while at < last {
                let count = self.rounds[before][at].within_from(first, places);
                if n < count {
                    break;
                }
                n -= count;
                at += 1;
            }
            (round, block) = (before, at);
        }
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
        let mut lowest = Lowest::NOBODY;
        let Some(before) = round.checked_sub(1) else {
            let places: &[u64; BLOCK] = self.places[first..].first_chunk().unwrap_or(&NOBODY);
            lowest.place = places.iter().copied().fold(NEVER, u64::min);
            for place in places.iter().filter(|place| **place != NEVER) {
                lowest.count(*place, |up_to| *up_to += 1);
            }
            return lowest;
        };
        let block = &self.rounds[before][first..first + BLOCK];
        lowest.place = block.iter().map(|of| of.place).fold(NEVER, u64::min);
        for of in block {
            if !lowest.is_below(of.place) {
                for at in 0..NEAR {
                    lowest.up_to[at] += of.within_from(lowest.place, at + 1);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn compare(tournament: &Tournament, places: &[Option<u64>]) {
        let first = places.iter().flatten().copied().min();
        let is = tournament.lowest();
        assert_eq!(is.map(|is| is.place), first);
        let (Some(first), Some(is)) = (first, is) else {
            return;
        };
        for near in 0..=NEAR {
            let have = (0..places.len())
                .filter(|at| places[*at].is_some_and(|place| place - first < near as u64));
            let have: Vec<_> = have.collect();
            assert_eq!(is.within(near), have.len() as u32);
            let nth = |n| tournament.nth(first, near, n);
            assert_eq!((0..is.within(near)).map(nth).collect::<Vec<_>>(), have);
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
