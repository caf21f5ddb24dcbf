//! Slots: small numbers for what lives, given out again when it is gone; and lists over them.
//!
//! A [`Slab`] gives slots out, a [`BySlot`] keeps more about the same ones elsewhere. [`Chain`]s are doubly linked lists
//! over slots: push at the end, remove anywhere, both in constant time. Everything that waits in this crate waits for the
//! same time as its neighbours (one `debounce`, one `reservation_ttl`), so the order of arrival *is* the order of the
//! deadlines, and a list replaces a heap.

use std::{
    fmt::Debug,
    marker::PhantomData,
    ops::{Index, IndexMut},
};

/// A kind of slot. Slots of one slab are no slots of another.
pub trait Key: Copy + Eq + Debug {
    /// The slot of this number.
    fn new(number: u32) -> Self;

    /// Its number.
    fn number(self) -> u32;
}

/// Makes a newtype of `u32` a kind of slot.
macro_rules! key {
    ($name:ident) => {
        impl crate::sans_io::slots::Key for $name {
            #[inline]
            fn new(number: u32) -> Self {
                Self(number)
            }

            #[inline]
            fn number(self) -> u32 {
                self.0
            }
        }
    };
}
pub(super) use key;

/// Place of a worker in a load table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RowSlot(u32);
key!(RowSlot);

#[inline]
fn place<K: Key>(key: K) -> usize {
    key.number() as usize
}

/// Gives slots out and keeps a value in each.
#[derive(Debug)]
pub(crate) struct Slab<K, T> {
    entries: Vec<Option<T>>,
    free: Vec<K>,
}

impl<K, T> Default for Slab<K, T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<K: Key, T> Slab<K, T> {
    /// Keeps the value in a slot that is free.
    pub(crate) fn insert(&mut self, value: T) -> K {
        if let Some(key) = self.pop_free() {
            self.entries[place(key)] = Some(value);
            return key;
        }
        room_for(&mut self.entries, 1);
        self.entries.push(Some(value));
        K::new(self.entries.len() as u32 - 1)
    }

    /// Takes the value out; its slot is free.
    pub(crate) fn remove(&mut self, key: K) -> Option<T> {
        let value = self.entries.get_mut(place(key))?.take()?;
        self.free.push(key);
        Some(value)
    }

    /// Once all slots are free gives their memory back, but for a little.
    #[inline]
    pub(crate) fn give_back_if_free(&mut self) {
        if self.free.len() == self.entries.len() && self.free.capacity() > KEPT {
            self.entries = Vec::new();
            self.free = Vec::new();
        }
    }

    #[inline]
    pub(crate) fn get(&self, key: K) -> Option<&T> {
        self.entries.get(place(key))?.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut T> {
        self.entries.get_mut(place(key))?.as_mut()
    }

    /// All values, by slot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        self.iter_from(0)
    }

    /// The values in slots of this number and greater ones.
    pub(crate) fn iter_from(&self, number: u32) -> impl Iterator<Item = (K, &T)> {
        let entries = self.entries.iter().enumerate().skip(number as usize);
        entries.filter_map(|(number, entry)| Some((K::new(number as u32), entry.as_ref()?)))
    }

    /// Gives up the free slots, if they are by far the most: what remains is numbered anew, in the same order. Costs time by
    /// the slots there were, of which most must have become free since the last time.
    pub(crate) fn compact(&mut self) -> Option<Renumbering<K>> {
        let living = self.entries.len() - self.free.len();
        if self.entries.len() <= SLOTS_A_LIVING * living + FEW_SLOTS {
            return None;
        }
        let mut next = 0..;
        let numbers = self.entries.iter().map(|entry| {
            let number = entry.as_ref().and_then(|_| next.next());
            number.unwrap_or(NIL)
        });
        let renumbering = Renumbering {
            numbers: numbers.collect(),
            key: PhantomData,
        };
        self.entries.retain(Option::is_some);
        self.entries.shrink_to_fit();
        self.free = Vec::new();
        Some(renumbering)
    }

    /// How many slots there are, free ones too: every slot's number is below.
    pub(crate) fn slots(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Drops the free slots at the end, then moves the value in the last slot to a free one before it. From where to
    /// where; `None`: there is no free slot.
    pub(crate) fn move_last(&mut self) -> Option<(K, K)> {
        while let Some(None) = self.entries.last() {
            self.entries.pop();
        }
        let to = self.pop_free()?;
        self.entries[place(to)] = self.entries.pop()?;
        Some((K::new(self.entries.len() as u32), to))
    }

    /// Gives back the memory of slots that were dropped.
    pub(crate) fn shrink(&mut self) {
        let slots = self.slots();
        self.free.retain(|key| key.number() < slots);
        self.free.shrink_to_fit();
        self.entries.shrink_to_fit();
    }

    /// A slot that is free: what was dropped at the end is none.
    fn pop_free(&mut self) -> Option<K> {
        let slots = self.entries.len();
        std::iter::from_fn(|| self.free.pop()).find(|key| place(*key) < slots)
    }
}

/// The new numbers of slots, in the order of the old ones.
#[derive(Debug)]
pub struct Renumbering<K> {
    numbers: Vec<u32>,
    key: PhantomData<K>,
}

impl<K: Key> Renumbering<K> {
    /// The new slot of what lives; `None`: it was free.
    pub(crate) fn slot(&self, old: K) -> Option<K> {
        let number = *self.numbers.get(place(old))?;
        (number != NIL).then(|| K::new(number))
    }

    /// How many slots below this number are left: where those from it on begin now.
    pub(crate) fn below(&self, old: u32) -> u32 {
        let below = self.numbers.iter().take(old as usize);
        below.filter(|number| **number != NIL).count() as u32
    }

    fn number(&self, old: u32) -> u32 {
        self.numbers.get(old as usize).copied().unwrap_or(NIL)
    }
}

/// More slots than this for each that is in use are given up.
const SLOTS_A_LIVING: usize = 4;
/// So few take next to no room.
const FEW_SLOTS: usize = 64;
/// Free slots that are kept for what comes: what one snapshot carries mostly fits.
const KEPT: usize = 1_024;

/// A value for each slot of somebody else's slab: reading where nothing was written gives `empty`, writing makes room.
#[derive(Debug)]
pub(crate) struct BySlot<K, T> {
    values: Vec<T>,
    empty: T,
    key: PhantomData<K>,
}

impl<K: Key, T: Copy> BySlot<K, T> {
    pub(crate) fn new(empty: T) -> Self {
        Self {
            values: Vec::new(),
            empty,
            key: PhantomData,
        }
    }

    /// The value of a slot, where it is.
    #[inline]
    pub(crate) fn at(&self, key: K) -> &T {
        self.values.get(place(key)).unwrap_or(&self.empty)
    }

    /// The value of this slot is empty.
    #[inline]
    pub(crate) fn clear_at(&mut self, key: K) {
        if let Some(value) = self.values.get_mut(place(key)) {
            *value = self.empty;
        }
    }

    /// Every value is empty.
    pub(crate) fn clear(&mut self) {
        self.values.clear();
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (K, &mut T)> {
        let values = self.values.iter_mut().enumerate();
        values.map(|(number, value)| (K::new(number as u32), value))
    }

    /// The value of a slot that was moved goes with it.
    pub(crate) fn move_value(&mut self, from: K, to: K) {
        let empty = self.empty;
        let value = std::mem::replace(&mut self[from], empty);
        self[to] = value;
    }

    /// Forgets the values of slots from this number on, and gives their memory back.
    pub(crate) fn truncate(&mut self, slots: u32) {
        self.values.truncate(slots as usize);
        self.values.shrink_to_fit();
    }

    /// The slots have new numbers; what was kept for free ones goes.
    pub(crate) fn renumber(&mut self, renumbering: &Renumbering<K>) {
        let mut kept = 0;
        for old in 0..self.values.len() {
            if renumbering.number(old as u32) != NIL {
                self.values[kept] = self.values[old];
                kept += 1;
            }
        }
        self.values.truncate(kept);
        self.values.shrink_to_fit();
    }

    #[cold]
    fn make_room(&mut self, key: K) -> &mut T {
        let more = place(key) + 1 - self.values.len();
        room_for(&mut self.values, more);
        self.values.resize(place(key) + 1, self.empty);
        &mut self.values[place(key)]
    }
}

impl<K: Key, T: Copy> Index<K> for BySlot<K, T> {
    type Output = T;

    #[inline]
    fn index(&self, key: K) -> &T {
        self.values.get(place(key)).unwrap_or(&self.empty)
    }
}

impl<K: Key, T: Copy> IndexMut<K> for BySlot<K, T> {
    #[inline]
    fn index_mut(&mut self, key: K) -> &mut T {
        if place(key) < self.values.len() {
            &mut self.values[place(key)]
        } else {
            self.make_room(key)
        }
    }
}

/// Makes room for as many more, and for an eighth of what there is: doubling would leave a third of it empty on average.
#[inline]
pub(super) fn room_for<T>(values: &mut Vec<T>, more: usize) {
    if values.capacity() - values.len() < more {
        values.reserve_exact(more + values.len() / 8);
    }
}

/// No slot.
const NIL: u32 = u32::MAX;

/// The two ends of one list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chain<K> {
    front: u32,
    back: u32,
    key: PhantomData<K>,
}

impl<K: Key> Chain<K> {
    pub(crate) const EMPTY: Self = Self {
        front: NIL,
        back: NIL,
        key: PhantomData,
    };

    #[inline]
    pub(crate) fn front(self) -> Option<K> {
        (self.front != NIL).then(|| K::new(self.front))
    }

    #[inline]
    pub(crate) fn back(self) -> Option<K> {
        (self.back != NIL).then(|| K::new(self.back))
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.front == NIL
    }
}

impl<K: Key> Chain<K> {
    /// The slots have new numbers.
    pub(crate) fn renumber(&mut self, renumbering: &Renumbering<K>) {
        for end in [&mut self.front, &mut self.back] {
            if *end != NIL {
                *end = renumbering.number(*end);
            }
        }
    }
}

/// The neighbours of every slot; one `Links` serves several [`Chain`]s as long as a slot is in at most one of them.
#[derive(Debug)]
pub(crate) struct Links<K>(BySlot<K, Neighbours>);

#[derive(Debug, Clone, Copy)]
struct Neighbours {
    previous: u32,
    next: u32,
}

const UNLINKED: Neighbours = Neighbours {
    previous: NIL,
    next: NIL,
};

impl<K: Key> Default for Links<K> {
    fn default() -> Self {
        Self(BySlot::new(UNLINKED))
    }
}

impl<K: Key> Links<K> {
    /// Appends `slot`, which must not be in any chain of these links.
    #[inline]
    pub(crate) fn push_back(&mut self, chain: &mut Chain<K>, slot: K) {
        self.0[slot] = Neighbours {
            previous: chain.back,
            next: NIL,
        };
        if chain.back == NIL {
            chain.front = slot.number();
        } else {
            self.0[K::new(chain.back)].next = slot.number();
        }
        chain.back = slot.number();
    }

    /// Inserts `slot`, which must not be in any chain of these links, behind `previous` or at the front.
    pub(crate) fn insert_behind(&mut self, chain: &mut Chain<K>, previous: Option<K>, slot: K) {
        let Some(previous) = previous else {
            self.push_front(chain, slot);
            return;
        };
        let next = self.0[previous].next;
        if next == NIL {
            self.push_back(chain, slot);
            return;
        }
        self.0[slot] = Neighbours {
            previous: previous.number(),
            next,
        };
        self.0[previous].next = slot.number();
        self.0[K::new(next)].previous = slot.number();
    }

    /// The slot before this one in its chain.
    #[inline]
    pub(crate) fn previous(&self, slot: K) -> Option<K> {
        let previous = self.0[slot].previous;
        (previous != NIL).then(|| K::new(previous))
    }

    /// The slot behind this one in its chain.
    #[inline]
    pub(crate) fn next(&self, slot: K) -> Option<K> {
        let next = self.0[slot].next;
        (next != NIL).then(|| K::new(next))
    }

    /// Puts `slot`, which must not be in any chain of these links, before all others.
    pub(crate) fn push_front(&mut self, chain: &mut Chain<K>, slot: K) {
        self.0[slot] = Neighbours {
            previous: NIL,
            next: chain.front,
        };
        if chain.front == NIL {
            chain.back = slot.number();
        } else {
            self.0[K::new(chain.front)].previous = slot.number();
        }
        chain.front = slot.number();
    }

    /// Takes `slot` out of `chain`, which must hold it.
    #[inline]
    pub(crate) fn remove(&mut self, chain: &mut Chain<K>, slot: K) {
        let Neighbours { previous, next } = std::mem::replace(&mut self.0[slot], UNLINKED);
        if previous == NIL {
            chain.front = next;
        } else {
            self.0[K::new(previous)].next = next;
        }
        if next == NIL {
            chain.back = previous;
        } else {
            self.0[K::new(next)].previous = previous;
        }
    }

    /// The slots have new numbers.
    pub(crate) fn renumber(&mut self, renumbering: &Renumbering<K>) {
        self.0.renumber(renumbering);
        for (_, neighbours) in self.0.iter_mut() {
            for neighbour in [&mut neighbours.previous, &mut neighbours.next] {
                if *neighbour != NIL {
                    *neighbour = renumbering.number(*neighbour);
                }
            }
        }
    }

    /// Moves `slot` to the end of `chain`, which must hold it.
    #[inline]
    pub(crate) fn move_to_back(&mut self, chain: &mut Chain<K>, slot: K) {
        if chain.back != slot.number() {
            self.remove(chain, slot);
            self.push_back(chain, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Slot(u32);
    key!(Slot);

    fn slots(links: &Links<Slot>, chain: Chain<Slot>) -> Vec<u32> {
        let mut next = chain.front().map_or(NIL, Slot::number);
        std::iter::from_fn(|| {
            let slot = (next != NIL).then_some(next)?;
            next = links.0[Slot(slot)].next;
            Some(slot)
        })
        .collect()
    }

    #[test]
    fn a_chain_keeps_the_order_of_arrival_through_removals_at_both_ends_and_in_the_middle() {
        let (mut links, mut chain) = (Links::default(), Chain::EMPTY);
        for slot in [4, 0, 7, 2, 9] {
            links.push_back(&mut chain, Slot(slot));
        }
        links.remove(&mut chain, Slot(7));
        links.remove(&mut chain, Slot(4));
        links.remove(&mut chain, Slot(9));
        assert_eq!(slots(&links, chain), [0, 2]);
        links.move_to_back(&mut chain, Slot(0));
        links.move_to_back(&mut chain, Slot(0));
        links.push_back(&mut chain, Slot(7));
        assert_eq!(slots(&links, chain), [2, 0, 7]);
        for slot in [2, 0, 7] {
            links.remove(&mut chain, Slot(slot));
        }
        assert!(chain.is_empty());
        assert_eq!(slots(&links, chain), [0; 0]);
    }

    #[test]
    fn a_slot_is_inserted_behind_any_other() {
        let (mut links, mut chain) = (Links::default(), Chain::EMPTY);
        links.insert_behind(&mut chain, None, Slot(5));
        links.insert_behind(&mut chain, None, Slot(1));
        links.insert_behind(&mut chain, Some(Slot(5)), Slot(9));
        links.insert_behind(&mut chain, Some(Slot(1)), Slot(3));
        assert_eq!(slots(&links, chain), [1, 3, 5, 9]);
        assert_eq!(chain.back(), Some(Slot(9)));
        assert_eq!(links.previous(Slot(5)), Some(Slot(3)));
        assert_eq!(links.next(Slot(3)), Some(Slot(5)));
        assert_eq!((links.previous(Slot(1)), links.next(Slot(9))), (None, None));
        links.remove(&mut chain, Slot(3));
        assert_eq!(slots(&links, chain), [1, 5, 9]);
    }

    #[test]
    fn what_lives_moves_to_the_front_and_the_rest_is_given_back() {
        let mut slab: Slab<Slot, u32> = Slab::default();
        let mut kept = BySlot::new(0);
        for n in 0..100 {
            let slot = slab.insert(n);
            kept[slot] = n;
        }
        for n in 0..97 {
            slab.remove(Slot(n));
        }
        slab.remove(Slot(98));
        while let Some((from, to)) = slab.move_last() {
            kept.move_value(from, to);
        }
        slab.shrink();
        kept.truncate(slab.slots());
        assert_eq!(slab.slots(), 2);
        let mut values: Vec<_> = slab.iter().map(|(slot, n)| (kept[slot], *n)).collect();
        values.sort_unstable();
        assert_eq!(values, [(97, 97), (99, 99)]);
        assert_eq!(kept[Slot(50)], 0);
        assert_eq!(slab.insert(7), Slot(2));
    }

    #[test]
    fn two_chains_share_links() {
        let mut links = Links::default();
        let (mut one, mut two) = (Chain::EMPTY, Chain::EMPTY);
        links.push_back(&mut one, Slot(0));
        links.push_back(&mut two, Slot(1));
        links.push_back(&mut one, Slot(2));
        links.remove(&mut one, Slot(0));
        links.push_back(&mut two, Slot(0));
        assert_eq!(
            (slots(&links, one), slots(&links, two)),
            (vec![2], vec![1, 0])
        );
    }

    #[test]
    fn slots_are_given_out_again_and_what_is_kept_by_them_reads_as_empty_until_it_is_written() {
        let mut slab: Slab<Slot, &str> = Slab::default();
        let (a, b) = (slab.insert("a"), slab.insert("b"));
        assert_eq!(slab.remove(a), Some("a"));
        assert_eq!(slab.remove(a), None);
        assert_eq!(slab.insert("c"), a);
        assert_eq!(slab.iter().collect::<Vec<_>>(), [(a, &"c"), (b, &"b")]);
        assert_eq!((slab.get(Slot(7)), slab.slots()), (None, 2));

        let mut kept: BySlot<Slot, u32> = BySlot::new(5);
        assert_eq!(kept[Slot(3)], 5);
        kept[Slot(1)] += 1;
        assert_eq!((kept[Slot(0)], kept[Slot(1)], kept[Slot(2)]), (5, 6, 5));
    }

    #[test]
    fn when_most_slots_are_free_the_others_are_numbered_anew_with_all_that_is_kept_by_them() {
        let mut slab: Slab<Slot, u32> = Slab::default();
        let mut kept: BySlot<Slot, u32> = BySlot::new(0);
        let (mut links, mut chain) = (Links::default(), Chain::EMPTY);
        for number in 0..1_000 {
            let slot = slab.insert(number);
            kept[slot] = number;
            links.push_back(&mut chain, slot);
        }
        let living = [999, 3, 500];
        for number in 0..1_000 {
            if !living.contains(&number) {
                slab.remove(Slot(number));
                links.remove(&mut chain, Slot(number));
            }
        }
        for number in living {
            links.move_to_back(&mut chain, Slot(number));
        }
        let renumbering = slab.compact().unwrap();
        kept.renumber(&renumbering);
        links.renumber(&renumbering);
        chain.renumber(&renumbering);
        assert_eq!(
            slab.iter().map(|(_, n)| *n).collect::<Vec<_>>(),
            [3, 500, 999]
        );
        assert_eq!(slots(&links, chain), [2, 0, 1]);
        assert_eq!([0, 1, 2, 3].map(|slot| kept[Slot(slot)]), [3, 500, 999, 0]);
        assert_eq!(renumbering.slot(Slot(500)), Some(Slot(1)));
        assert_eq!(renumbering.slot(Slot(501)), None);
        assert!(slab.compact().is_none());
        assert_eq!((slab.insert(7), slab.slots()), (Slot(3), 4));
    }
}
