//! One worker in a load table: whom the table believes about it, and who else speaks of it.

use std::ops::{Deref, DerefMut};

use super::{moment::Moment, packed::Packed, pricing::Known};
use crate::snapshot::PublisherId;

/// One worker rank.
#[derive(Debug)]
pub(super) struct Row {
    /// What its owner says of it.
    pub(super) claim: Claim,
    /// What other publishers say of it; mostly nobody does.
    pub(super) others: Others,
    /// Number of the newest ticket of this router that the worker has echoed.
    pub(super) echoed: u64,
    /// Since when it has had reservations.
    pub(super) busy_since: Option<Moment>,
    pub(super) stale: Option<Stale>,
}

/// Claims beside the owner's: one word where there is none.
#[derive(Debug, Default)]
pub(super) struct Others(Option<Box<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    claims: Vec<Claim>,
}

/// What one publisher says of a worker.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    pub(super) owner: PublisherId,
    pub(super) life: u64,
    pub(super) metrics: Option<Packed>,
    /// When these metrics arrived first, or else the claim.
    pub(super) arrived_at: Moment,
    /// When the worker last reported, as far as that is known; else when this life was first told of.
    pub(super) heard_at: Moment,
    /// It has reported.
    pub(super) reported: bool,
    /// Number of the newest ticket of this router echoed through this publisher in this life.
    pub(super) echoed: u64,
    /// Among what it echoes is a ticket that was never issued: it can't be gone by.
    pub(super) misled: bool,
    /// The last snapshot that named it.
    pub(super) named_in: u64,
    /// It owned the worker and fell silent: it comes back with a report only.
    pub(super) ousted: bool,
    /// The worker is to get no more requests.
    pub(super) draining: bool,
}

/// A worker with reservations that has been silent for too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stale {
    /// It is charged the average.
    Average,
    /// It was full: it is the last choice.
    WasFull,
}

impl Row {
    pub(super) fn new(claim: Claim) -> Self {
        Self {
            claim,
            others: Others::default(),
            echoed: 0,
            busy_since: None,
            stale: None,
        }
    }

    /// What of its load can be gone by.
    #[inline]
    pub(super) fn known(&self) -> Known<'_> {
        let metrics = self.claim.metrics.as_ref();
        let capacity = || metrics.map_or(0, |metrics| metrics.figures().kv_total_blocks);
        match (self.stale, metrics) {
            (None, Some(metrics)) => Known::Load(metrics),
            (Some(Stale::WasFull), _) => Known::WasFull {
                capacity: capacity(),
            },
            _ => Known::Nothing {
                capacity: capacity(),
            },
        }
    }

    /// Since when it has been silent while it had reservations.
    #[inline]
    pub(super) fn silent_since(&self) -> Option<Moment> {
        let busy_since = self.busy_since?;
        let reported_at = self.claim.reported_at();
        Some(reported_at.map_or(busy_since, |at| at.max(busy_since)))
    }

    /// Since when its owner has been silent, if another claimant has reported since.
    #[inline]
    pub(super) fn challenged_since(&self) -> Option<Moment> {
        self.challenger().map(|_| self.owner_heard_at())
    }

    /// The claimant with the highest life of those that reported since its owner did.
    #[inline]
    pub(super) fn challenger(&self) -> Option<usize> {
        if self.others.is_empty() {
            return None;
        }
        let heard_at = self.owner_heard_at();
        let others = self.others.iter().enumerate();
        let since = others.filter(|(_, claim)| claim.reported && claim.heard_at > heard_at);
        let best = since.max_by_key(|(_, claim)| (claim.life, claim.heard_at, claim.owner));
        best.map(|(place, _)| place)
    }

    /// The claimant that succeeds an owner who lets go: the one with the highest life, one that was ousted only if there is
    /// no other.
    pub(super) fn successor(&self) -> Option<usize> {
        let others = self.others.iter().enumerate();
        let best = others.max_by_key(|(_, claim)| {
            let stands = !claim.ousted;
            (stands, claim.life, claim.arrived_at, claim.owner)
        });
        best.map(|(place, _)| place)
    }

    /// What this publisher said of it while it was kept out.
    pub(super) fn other(&mut self, publisher: u64) -> Option<&mut Claim> {
        let mut others = self.others.iter_mut();
        others.find(|claim| claim.owner.id == publisher)
    }

    /// When it reported last, or else its owner began to speak of this life: never when it became the owner, or each of many
    /// who fell silent together would keep the worker for another `stale_after`.
    fn owner_heard_at(&self) -> Moment {
        self.claim.heard_at
    }
}

impl Deref for Others {
    type Target = [Claim];

    #[inline]
    fn deref(&self) -> &[Claim] {
        self.0.as_ref().map_or(&[], |kept| &kept.claims)
    }
}

impl DerefMut for Others {
    fn deref_mut(&mut self) -> &mut [Claim] {
        self.0.as_mut().map_or(&mut [], |kept| &mut kept.claims)
    }
}

impl Others {
    pub(super) fn push(&mut self, claim: Claim) {
        self.0.get_or_insert_default().claims.push(claim);
    }

    /// Takes the claim in this place out, which must be there.
    pub(super) fn swap_remove(&mut self, place: usize) -> Option<Claim> {
        let kept = self.0.as_mut()?;
        let claim = kept.claims.swap_remove(place);
        self.give_back();
        Some(claim)
    }

    pub(super) fn retain(&mut self, stays: impl FnMut(&Claim) -> bool) {
        if let Some(kept) = &mut self.0 {
            kept.claims.retain(stays);
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        self.0.take_if(|kept| kept.claims.is_empty());
    }
}

impl Claim {
    /// When the worker last reported, as far as that is known.
    #[inline]
    pub(super) fn reported_at(&self) -> Option<Moment> {
        self.reported.then_some(self.heard_at)
    }

    /// Takes over what the same publisher says now of the same life. An old report does not make it older again.
    pub(super) fn update(&mut self, said: Self) {
        self.owner = said.owner;
        self.named_in = said.named_in;
        if said.reported_at() > self.reported_at() {
            self.ousted = false;
            self.heard_at = said.heard_at;
            self.reported = true;
        }
        self.echoed = self.echoed.max(said.echoed);
        self.misled = said.misled;
        self.draining = said.draining;
        if said.metrics.is_some() && said.metrics != self.metrics {
            self.metrics = said.metrics;
            self.arrived_at = said.arrived_at;
        }
    }
}
