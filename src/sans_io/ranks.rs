//! Which ranks a worker has.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::slots::{Chain, Key, Links, Renumbering};
use crate::metrics::{WorkerId, WorkerRank};

/// The slots of each worker's ranks, but for rank 0: most workers have no other, and that one is found by its name.
#[derive(Debug)]
pub(super) struct OtherRanks<K> {
    chains: HashMap<WorkerId, Chain<K>, RandomState>,
    links: Links<K>,
}

impl<K> Default for OtherRanks<K>
where
    Links<K>: Default,
{
    fn default() -> Self {
        Self {
            chains: HashMap::default(),
            links: Links::default(),
        }
    }
}

impl<K: Key> OtherRanks<K> {
    /// A worker that is not in has the slot.
    pub(super) fn insert(&mut self, slot: K, worker: WorkerRank) {
        if worker.rank() > 0 {
            let chain = self.chains.entry(worker.worker()).or_insert(Chain::EMPTY);
            self.links.push_back(chain, slot);
        }
    }

    /// The worker, which was in the slot, is gone.
    pub(super) fn remove(&mut self, slot: K, worker: WorkerRank) {
        let id = worker.worker();
        if worker.rank() > 0
            && let Some(chain) = self.chains.get_mut(&id)
        {
            self.links.remove(chain, slot);
            if chain.is_empty() {
                self.chains.remove(&id);
            }
        }
    }

    /// Those of a worker, in the order in which they came.
    pub(super) fn of(&self, id: WorkerId) -> impl Iterator<Item = K> {
        let first = self.chains.get(&id).and_then(|chain| chain.front());
        std::iter::successors(first, |slot| self.links.next(*slot))
    }

    /// The slots have new numbers.
    pub(super) fn renumber(&mut self, renumbering: &Renumbering<K>) {
        self.links.renumber(renumbering);
        for chain in self.chains.values_mut() {
            chain.renumber(renumbering);
        }
        self.chains.shrink_to(2 * self.chains.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sans_io::slots::RowSlot;

    #[test]
    fn the_ranks_of_a_worker_are_those_that_came_and_did_not_leave() {
        let mut ranks = OtherRanks::default();
        let all = [(7, 0), (7, 1), (8, 3), (7, 5), (7, 2)];
        let all = all.map(|(id, rank)| WorkerRank::new(id, rank));
        for (slot, worker) in all.iter().enumerate() {
            ranks.insert(RowSlot::new(slot as u32), *worker);
        }
        let of = |ranks: &OtherRanks<_>, id: u64| -> Vec<u32> {
            ranks.of(id.into()).map(RowSlot::number).collect()
        };
        assert_eq!(of(&ranks, 7), [1, 3, 4]);
        ranks.remove(RowSlot::new(3), all[3]);
        ranks.remove(RowSlot::new(0), all[0]);
        assert_eq!((of(&ranks, 7), of(&ranks, 8)), (vec![1, 4], vec![2]));
        ranks.remove(RowSlot::new(2), all[2]);
        assert_eq!(of(&ranks, 8), [0; 0]);
        assert_eq!(ranks.chains.len(), 1);
    }
}
