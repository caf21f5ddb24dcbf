//! Doubly linked lists over small integer slots: push at the end, remove anywhere, both in constant time.
//!
//! Everything that waits in this crate waits for the same time as its neighbours (one `debounce`, one
//! `reservation_ttl`), so the order of arrival *is* the order of the deadlines, and a list replaces a heap.

/// No slot.
const NIL: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Neighbours {
    previous: u32,
    next: u32,
}

const UNLINKED: Neighbours = Neighbours {
    previous: NIL,
    next: NIL,
};

/// The two ends of one list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chain {
    front: u32,
    back: u32,
}

impl Chain {
    pub(crate) const EMPTY: Self = Self {
        front: NIL,
        back: NIL,
    };

    #[inline]
    pub(crate) fn front(self) -> Option<u32> {
        (self.front != NIL).then_some(self.front)
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.front == NIL
    }
}

/// The neighbours of every slot; one `Links` serves several [`Chain`]s as long as a slot is in at most one of them.
#[derive(Debug, Default)]
pub(crate) struct Links(Vec<Neighbours>);

impl Links {
    /// Appends `slot`, which must not be in any chain of these links.
    #[inline]
    pub(crate) fn push_back(&mut self, chain: &mut Chain, slot: u32) {
        let index = slot as usize;
        if index >= self.0.len() {
            self.0.resize(index + 1, UNLINKED);
        }
        self.0[index] = Neighbours {
            previous: chain.back,
            next: NIL,
        };
        if chain.back == NIL {
            chain.front = slot;
        } else {
            self.0[chain.back as usize].next = slot;
        }
        chain.back = slot;
    }

    /// Takes `slot` out of `chain`, which must hold it.
    #[inline]
    pub(crate) fn remove(&mut self, chain: &mut Chain, slot: u32) {
        let link = std::mem::replace(&mut self.0[slot as usize], UNLINKED);
        if link.previous == NIL {
            chain.front = link.next;
        } else {
            self.0[link.previous as usize].next = link.next;
        }
        if link.next == NIL {
            chain.back = link.previous;
        } else {
            self.0[link.next as usize].previous = link.previous;
        }
    }

    /// The slot behind `slot` in its chain.
    #[inline]
    pub(crate) fn next(&self, slot: u32) -> Option<u32> {
        let next = self.0[slot as usize].next;
        (next != NIL).then_some(next)
    }

    /// Moves `slot` to the end of `chain`, which must hold it.
    #[inline]
    pub(crate) fn move_to_back(&mut self, chain: &mut Chain, slot: u32) {
        if chain.back != slot {
            self.remove(chain, slot);
            self.push_back(chain, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(links: &Links, chain: Chain) -> Vec<u32> {
        std::iter::successors(chain.front(), |slot| links.next(*slot)).collect()
    }

    #[test]
    fn a_chain_keeps_the_order_of_arrival_through_removals_at_both_ends_and_in_the_middle() {
        let (mut links, mut chain) = (Links::default(), Chain::EMPTY);
        for slot in [4, 0, 7, 2, 9] {
            links.push_back(&mut chain, slot);
        }
        links.remove(&mut chain, 7);
        links.remove(&mut chain, 4);
        links.remove(&mut chain, 9);
        assert_eq!(slots(&links, chain), [0, 2]);
        links.move_to_back(&mut chain, 0);
        links.move_to_back(&mut chain, 0);
        links.push_back(&mut chain, 7);
        assert_eq!(slots(&links, chain), [2, 0, 7]);
        for slot in [2, 0, 7] {
            links.remove(&mut chain, slot);
        }
        assert!(chain.is_empty());
        assert_eq!(slots(&links, chain), [0; 0]);
    }

    #[test]
    fn two_chains_share_links() {
        let mut links = Links::default();
        let (mut one, mut two) = (Chain::EMPTY, Chain::EMPTY);
        links.push_back(&mut one, 0);
        links.push_back(&mut two, 1);
        links.push_back(&mut one, 2);
        links.remove(&mut one, 0);
        links.push_back(&mut two, 0);
        assert_eq!(
            (slots(&links, one), slots(&links, two)),
            (vec![2], vec![1, 0])
        );
    }
}
