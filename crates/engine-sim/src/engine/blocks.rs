//! The KV blocks of one engine and the prefix cache that lives in them.
//!
//! Blocks are counted, not numbered: nobody asks which block holds what. A block is free, held by one sequence
//! (private), or part of a cached prefix. Cached blocks come and go by hash id, `blocks_per_id` at a time; those
//! nobody references stay until their room is wanted, the least recently released first.

use std::collections::HashMap;

#[derive(Debug)]
pub(super) struct Blocks {
    total: u32,
    blocks_per_id: u32,
    free: u32,
    entries: Vec<Entry>,
    vacant: Vec<u32>,
    by_id: HashMap<u64, u32>,
    /// Cached ids without references: a list through `entries`, next victim at its head.
    head: u32,
    tail: u32,
    unreferenced: u32,
}

/// What a sequence got when it was admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grant {
    /// Leading hash ids found in the cache, now referenced.
    pub(super) cached_ids: u32,
    /// Blocks of its own.
    pub(super) private: u32,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    id: u64,
    references: u32,
    previous: u32,
    next: u32,
}

/// No entry: the ends of the list.
const NONE: u32 = u32::MAX;

impl Blocks {
    pub(super) fn new(total: u32, blocks_per_id: u32) -> Self {
        Self {
            total,
            blocks_per_id,
            free: total,
            entries: Vec::new(),
            vacant: Vec::new(),
            by_id: HashMap::new(),
            head: NONE,
            tail: NONE,
            unreferenced: 0,
        }
    }

    pub(super) fn total(&self) -> u32 {
        self.total
    }

    pub(super) fn blocks_per_id(&self) -> u32 {
        self.blocks_per_id
    }

    /// Blocks that somebody references.
    pub(super) fn active(&self) -> u32 {
        self.total - self.free - self.unreferenced * self.blocks_per_id
    }

    /// How many of the leading `ids` are cached.
    pub(super) fn cached_prefix(&self, ids: &[u64]) -> u32 {
        let cached = ids.iter().take_while(|id| self.by_id.contains_key(id));
        cached.count() as u32
    }

    /// Room for `blocks` blocks, the leading cached ones of `ids` among them, if no more than `limit` are then active.
    pub(super) fn admit(&mut self, ids: &[u64], blocks: u32, limit: u32) -> Option<Grant> {
        let (mut cached_ids, mut wakes) = (0, 0);
        for id in ids {
            let Some(&slot) = self.by_id.get(id) else {
                break;
            };
            cached_ids += 1;
            wakes += u32::from(self.entries[slot as usize].references == 0);
        }
        let private = blocks - cached_ids * self.blocks_per_id;
        if self.active() + wakes * self.blocks_per_id + private > limit {
            return None;
        }
        for id in &ids[..cached_ids as usize] {
            self.reference(self.by_id[id]);
        }
        self.make_room(private);
        self.free -= private;
        Some(Grant {
            cached_ids,
            private,
        })
    }

    /// One more private block, at the expense of the cache if need be.
    pub(super) fn take_one(&mut self) -> bool {
        if self.active() == self.total {
            return false;
        }
        self.make_room(1);
        self.free -= 1;
        true
    }

    /// A sequence has computed what `id` stands for, in private blocks: they become the cached ones. If the id is cached
    /// already, by a sequence that was faster, the sequence goes on with those and its own become free.
    pub(super) fn share(&mut self, id: u64) {
        if let Some(&slot) = self.by_id.get(&id) {
            self.reference(slot);
            self.free += self.blocks_per_id;
            return;
        }
        let entry = Entry {
            id,
            references: 1,
            previous: NONE,
            next: NONE,
        };
        let slot = match self.vacant.pop() {
            Some(slot) => {
                self.entries[slot as usize] = entry;
                slot
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.by_id.insert(id, slot);
    }

    /// A sequence leaves. The end of its prefix is released first, so that it is evicted before what leads to it.
    pub(super) fn release(&mut self, shared_ids: &[u64], private: u32) {
        self.free += private;
        for id in shared_ids.iter().rev() {
            let slot = self.by_id[id];
            let entry = &mut self.entries[slot as usize];
            entry.references -= 1;
            if entry.references == 0 {
                self.append(slot);
            }
        }
    }

    fn reference(&mut self, slot: u32) {
        if self.entries[slot as usize].references == 0 {
            self.unlink(slot);
        }
        self.entries[slot as usize].references += 1;
    }

    fn make_room(&mut self, blocks: u32) {
        while self.free < blocks {
            let victim = self.head;
            self.unlink(victim);
            self.by_id.remove(&self.entries[victim as usize].id);
            self.vacant.push(victim);
            self.free += self.blocks_per_id;
        }
    }

    fn append(&mut self, slot: u32) {
        self.entries[slot as usize].previous = self.tail;
        self.entries[slot as usize].next = NONE;
        match self.tail {
            NONE => self.head = slot,
            tail => self.entries[tail as usize].next = slot,
        }
        self.tail = slot;
        self.unreferenced += 1;
    }

    fn unlink(&mut self, slot: u32) {
        let Entry { previous, next, .. } = self.entries[slot as usize];
        match previous {
            NONE => self.head = next,
            previous => self.entries[previous as usize].next = next,
        }
        match next {
            NONE => self.tail = previous,
            next => self.entries[next as usize].previous = previous,
        }
        self.unreferenced -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10 blocks, 2 to an id; `ids` computed and released again.
    fn with_cached(ids: &[u64]) -> Blocks {
        let mut blocks = Blocks::new(10, 2);
        let private = 2 * ids.len() as u32;
        assert_eq!(
            blocks.admit(ids, private, 10),
            Some(Grant {
                cached_ids: 0,
                private
            })
        );
        ids.iter().for_each(|id| blocks.share(*id));
        blocks.release(ids, 0);
        blocks
    }

    #[test]
    fn only_referenced_blocks_are_active() {
        let mut blocks = with_cached(&[1, 2]);
        assert_eq!((blocks.active(), blocks.free), (0, 6));
        assert_eq!(
            blocks.admit(&[1, 2, 3], 7, 10),
            Some(Grant {
                cached_ids: 2,
                private: 3
            })
        );
        assert_eq!((blocks.active(), blocks.free), (7, 3));
        blocks.release(&[1, 2], 3);
        assert_eq!((blocks.active(), blocks.free), (0, 6));
    }

    #[test]
    fn cached_blocks_that_wake_up_count_against_the_limit() {
        let mut blocks = with_cached(&[1, 2]);
        assert_eq!(blocks.admit(&[1, 2], 5, 4), None);
        assert_eq!(blocks.active(), 0);
        assert!(blocks.admit(&[1, 2], 5, 5).is_some());
        assert_eq!(blocks.admit(&[1, 2], 5, 5), None, "one more private block");
        assert_eq!(
            blocks.admit(&[1, 2], 5, 6),
            Some(Grant {
                cached_ids: 2,
                private: 1
            })
        );
    }

    #[test]
    fn the_end_of_the_oldest_prefix_is_evicted_first() {
        let mut blocks = with_cached(&[1, 2, 3]);
        blocks.admit(&[9], 3, 10).unwrap();
        blocks.share(9);
        blocks.release(&[9], 1);
        assert_eq!(blocks.free, 2);
        assert!((0..3).all(|_| blocks.take_one()));
        assert_eq!(blocks.cached_prefix(&[1, 2, 3]), 2);
        assert!((0..4).all(|_| blocks.take_one()));
        assert_eq!(
            (blocks.cached_prefix(&[1]), blocks.cached_prefix(&[9])),
            (0, 1)
        );
        assert!((0..3).all(|_| blocks.take_one()));
        assert!(!blocks.take_one());
        assert_eq!((blocks.active(), blocks.cached_prefix(&[9])), (10, 0));
    }

    #[test]
    fn a_referenced_prefix_is_never_evicted() {
        let mut blocks = with_cached(&[1, 2]);
        blocks.admit(&[1], 2, 10).unwrap();
        assert!((0..8).all(|_| blocks.take_one()));
        assert!(!blocks.take_one());
        assert_eq!(blocks.cached_prefix(&[1, 2]), 1);
    }

    #[test]
    fn the_same_prefix_computed_twice_is_kept_once() {
        let mut blocks = Blocks::new(10, 2);
        blocks.admit(&[1], 3, 10).unwrap();
        blocks.admit(&[1], 3, 10).unwrap();
        blocks.share(1);
        assert_eq!(blocks.active(), 6);
        blocks.share(1);
        assert_eq!(blocks.active(), 4);
        blocks.release(&[1], 1);
        assert_eq!(blocks.active(), 3);
        blocks.release(&[1], 1);
        assert_eq!((blocks.active(), blocks.free), (0, 8));
    }

    #[test]
    fn a_prefix_computed_again_is_referenced_again() {
        let mut blocks = Blocks::new(10, 2);
        blocks.admit(&[1], 2, 10).unwrap();
        blocks.admit(&[1], 2, 10).unwrap();
        blocks.share(1);
        blocks.release(&[1], 0);
        assert_eq!((blocks.active(), blocks.free), (2, 6));
        blocks.share(1);
        assert_eq!((blocks.active(), blocks.free), (2, 8));
        assert!((0..8).all(|_| blocks.take_one()));
        assert_eq!((blocks.take_one(), blocks.cached_prefix(&[1])), (false, 1));
    }

    #[test]
    fn a_used_prefix_outlives_one_released_before_it() {
        let mut blocks = with_cached(&[1]);
        blocks.admit(&[2], 2, 10).unwrap();
        blocks.share(2);
        blocks.release(&[2], 0);
        blocks.admit(&[1], 2, 10).unwrap();
        blocks.release(&[1], 0);
        assert!((0..7).all(|_| blocks.take_one()));
        assert_eq!(
            (blocks.cached_prefix(&[1]), blocks.cached_prefix(&[2])),
            (1, 0)
        );
    }
}
