//! Slots by the names of the workers in them.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::slots::Key;
use crate::metrics::WorkerRank;

/// Finds the slot of a worker. The names themselves stand once, where the slots are: `name_of` tells that of a slot that is in.
#[derive(Debug)]
pub(super) struct Names<K> {
    slots: HashTable<K>,
    hasher: RandomState,
}

impl<K> Default for Names<K> {
    fn default() -> Self {
        Self {
            slots: HashTable::new(),
            hasher: RandomState::default(),
        }
    }
}

impl<K: Key> Names<K> {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The slot of a worker.
    #[inline]
    pub(super) fn find(&self, worker: WorkerRank, name_of: impl Fn(K) -> WorkerRank) -> Option<K> {
        let hash = self.hasher.hash_one(worker);
        let slot = self.slots.find(hash, |slot| name_of(*slot) == worker);
        slot.copied()
    }

    /// Takes in a slot whose worker is not in.
    pub(super) fn insert(&mut self, slot: K, name_of: impl Fn(K) -> WorkerRank) {
        let hasher = &self.hasher;
        let hash = |slot: &K| hasher.hash_one(name_of(*slot));
        self.slots.insert_unique(hash(&slot), slot, hash);
    }

    /// Takes out the slot of a worker.
    pub(super) fn remove(&mut self, slot: K, worker: WorkerRank) {
        let hash = self.hasher.hash_one(worker);
        if let Ok(entry) = self.slots.find_entry(hash, |other| *other == slot) {
            entry.remove();
        }
    }

    /// Gives back what is not needed.
    pub(super) fn shrink(&mut self, name_of: impl Fn(K) -> WorkerRank) {
        let hasher = &self.hasher;
        let hash = |slot: &K| hasher.hash_one(name_of(*slot));
        self.slots.shrink_to(2 * self.slots.len(), hash);
    }
}
