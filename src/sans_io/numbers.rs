//! What is kept by numbers that grow by one.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;

use super::slots::Key;

/// Slots by numbers, which are given out in order, from 1.
///
/// Most of what is outstanding was numbered lately, so it stands in a window, by its distance from the window's first
/// number. What outlives the many that came after it goes into a map: the window is as long as what is outstanding, some
/// times over, and not as what was ever numbered.
#[derive(Debug)]
pub(super) struct Numbers<K> {
    /// The last number given out.
    last: u64,
    /// The slots of the last numbers; [`GONE`] where there is none any more.
    window: VecDeque<u32>,
    older: HashMap<u64, K, RandomState>,
    len: usize,
}

impl<K> Default for Numbers<K> {
    fn default() -> Self {
        Self {
            last: 0,
            window: VecDeque::new(),
            older: HashMap::default(),
            len: 0,
        }
    }
}

impl<K: Key> Numbers<K> {
    /// How many have a slot.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The last number given out.
    #[inline]
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Gives the slot the next number.
    #[inline]
    pub(super) fn push(&mut self, slot: K) {
        self.last += 1;
        self.len += 1;
        self.window.push_back(slot.number());
        if self.window.len() > LOOSE * self.len + FEW {
            self.shorten();
        }
    }

    /// The slot of a number, if it has one still.
    #[inline]
    pub(super) fn get(&self, number: u64) -> Option<K> {
        match self.in_window(number) {
            Some(place) => {
                let slot = self.window[place];
                (slot != GONE).then(|| K::new(slot))
            }
            None => self.older.get(&number).copied(),
        }
    }

    /// The number has its slot no longer.
    #[inline]
    pub(super) fn remove(&mut self, number: u64) {
        let removed = match self.in_window(number) {
            Some(place) => std::mem::replace(&mut self.window[place], GONE) != GONE,
            None => self.older.remove(&number).is_some(),
        };
        self.len -= usize::from(removed);
        for _ in 0..STEPS {
            if self.window.front() != Some(&GONE) {
                break;
            }
            self.window.pop_front();
        }
    }

    /// Gives back what is not needed.
    pub(super) fn shrink(&mut self) {
        self.window.shrink_to(2 * self.window.len());
        self.older.shrink_to(2 * self.older.len());
    }

    #[inline]
    fn in_window(&self, number: u64) -> Option<usize> {
        let before_first = self.last - self.window.len() as u64;
        let place = number.checked_sub(before_first + 1)? as usize;
        (place < self.window.len()).then_some(place)
    }

    /// Takes a few numbers at most out of the window, which is more than come in at a time.
    fn shorten(&mut self) {
        for _ in 0..STEPS {
            let Some(first) = self.window.front().copied() else {
                return;
            };
            if first != GONE {
                if self.window.len() <= LOOSE * self.len + FEW {
                    return;
                }
                let number = self.last + 1 - self.window.len() as u64;
                self.older.insert(number, K::new(first));
            }
            self.window.pop_front();
        }
    }
}

/// No slot has this number.
const GONE: u32 = u32::MAX;
/// Four bytes each, where the map takes some twenty.
const LOOSE: usize = 4;
/// Numbers that are not worth the work: one page.
const FEW: usize = 1024;
/// Numbers taken out of the window when one comes or goes.
const STEPS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sans_io::slots::RowSlot;

    #[test]
    fn a_number_names_what_it_was_given_to_and_nothing_once_that_is_gone() {
        let mut rng = fastrand::Rng::with_seed(3);
        for stay in [0, 1, 10, 100] {
            let mut numbers = Numbers::default();
            let mut living = HashMap::new();
            let mut order = VecDeque::new();
            for number in 1..=20_000_u64 {
                let slot = RowSlot::new(rng.u32(..1_000));
                numbers.push(slot);
                living.insert(number, slot);
                // Some stay for ever, the others go in the order they came, or nearly.
                if rng.u32(..1_000) >= stay {
                    order.push_back(number);
                }
                while order.len() > 100 {
                    let gone = order.remove(rng.usize(..3)).unwrap();
                    numbers.remove(gone);
                    numbers.remove(gone);
                    living.remove(&gone);
                    assert_eq!(numbers.get(gone), None);
                }
                let any = rng.u64(..=number + 1);
                assert_eq!(numbers.get(any), living.get(&any).copied(), "{any}");
                assert_eq!((numbers.len(), numbers.last()), (living.len(), number));
            }
            assert!(numbers.window.len() <= LOOSE * living.len() + FEW + 1);
            for (number, slot) in living {
                assert_eq!(numbers.get(number), Some(slot));
                numbers.remove(number);
            }
            assert_eq!((numbers.len(), numbers.older.len()), (0, 0));
            assert_eq!((numbers.get(0), numbers.get(u64::MAX)), (None, None));
        }
    }
}
