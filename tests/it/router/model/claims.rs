//! What the model knows of one worker: everything that each publisher says of it, and whom it goes by.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use actix_kv_metrics::{ForwardPassMetrics, PublisherId};

/// One worker rank.
#[derive(Debug)]
pub(super) struct Worker {
    /// What it goes by.
    pub(super) claim: Claim,
    /// The newest of what each publisher says of it that does not own it. Of a former life also its owner.
    pub(super) kept_out: BTreeMap<u64, Claim>,
    /// Number of the newest ticket that it has echoed.
    pub(super) echoed: u64,
    /// Since when it has had reservations.
    pub(super) busy_since: Option<Instant>,
    /// It is stale; whether it was saturated when it became so.
    pub(super) stale: Option<bool>,
    /// It did not take a request, and has not taken one since.
    pub(super) cooling: Option<Cooling>,
}

/// A worker that did not take a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cooling {
    /// How many requests had been placed when it began: what comes of them says nothing.
    pub(super) after: u64,
    pub(super) length: Duration,
    pub(super) until: Instant,
    /// That moment was noticed.
    pub(super) over: bool,
}

/// What one publisher says of a worker.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    pub(super) publisher: PublisherId,
    pub(super) life: u64,
    pub(super) metrics: Option<ForwardPassMetrics>,
    /// When the metrics arrived, or else the claim.
    pub(super) arrived_at: Instant,
    /// When this life was first told of.
    pub(super) told_at: Instant,
    /// When the worker reported last.
    pub(super) reported_at: Option<Instant>,
    /// Number of the newest ticket echoed.
    pub(super) echoed: u64,
    /// It echoes a ticket that was never issued, which may hide others: its echoes are not gone by.
    pub(super) misled: bool,
    /// It was the owner's, who fell silent: it counts for nothing before its next report.
    pub(super) ousted: bool,
    /// Number of the last snapshot that spoke of it.
    pub(super) told_in: u64,
    /// It is to get no more requests.
    pub(super) draining: bool,
}

/// What became of a worker by a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The worker's life goes on.
    LivesOn,
    /// It is another life of the same owner.
    LivesAnew,
    /// Another claim is gone by.
    ChangesHands,
    /// It was about a claim that is not gone by.
    KeptOut,
}

impl Claim {
    /// The same publisher says more of the same life.
    fn join(&mut self, newer: Self) {
        self.publisher = newer.publisher;
        self.told_in = newer.told_in;
        if newer.reported_at > self.reported_at {
            self.reported_at = newer.reported_at;
            self.ousted = false;
        }
        if newer.metrics.is_some() && newer.metrics != self.metrics {
            self.metrics = newer.metrics;
            self.arrived_at = newer.arrived_at;
        }
        self.echoed = self.echoed.max(newer.echoed);
        self.misled = newer.misled;
        self.draining = newer.draining;
    }

    /// Since when it has been silent.
    fn silent_since(&self) -> Instant {
        self.reported_at.unwrap_or(self.told_at)
    }
}

impl Worker {
    pub(super) fn new(claim: Claim) -> Self {
        Self {
            echoed: claim.echoed,
            claim,
            kept_out: BTreeMap::new(),
            busy_since: None,
            stale: None,
            cooling: None,
        }
    }

    /// What is known of its load.
    pub(super) fn known(&self) -> Option<&ForwardPassMetrics> {
        let metrics = self.claim.metrics.as_ref();
        metrics.filter(|_| self.stale.is_none())
    }

    /// Blocks it has; 0: unknown. That does not become stale.
    pub(super) fn capacity(&self) -> u64 {
        let metrics = self.claim.metrics.as_ref();
        metrics.map_or(0, |metrics| metrics.kv_stats.kv_total_blocks)
    }

    /// All claims.
    pub(super) fn claims(&self) -> impl Iterator<Item = &Claim> {
        std::iter::once(&self.claim).chain(self.kept_out.values())
    }

    /// A publisher says something of it. `anew`: whatever it has said before is void.
    pub(super) fn hear(&mut self, said: Claim, anew: bool, stale_after: Duration) -> Outcome {
        let id = said.publisher.id;
        let own = id == self.claim.publisher.id;
        if own {
            self.claim.told_in = said.told_in;
        }
        let kept = self.kept_out.get(&id).filter(|kept| kept.life == said.life);
        if own && said.life == self.claim.life {
            self.claim.join(said);
            self.echoed = self.echoed.max(self.claim.echoed);
            return Outcome::LivesOn;
        }
        if own && anew {
            self.kept_out.remove(&id);
            self.begin(said);
            self.yield_to_higher();
            return Outcome::LivesAnew;
        }
        let reports = kept.is_none_or(|kept| said.reported_at > kept.reported_at);
        if said.life < self.claim.life || !reports {
            let kept = self.kept_out.get(&id);
            let silent = kept.filter(|kept| kept.told_in != said.told_in);
            let silent = silent.is_some_and(|kept| {
                let silence = said
                    .arrived_at
                    .saturating_duration_since(kept.silent_since());
                silence >= stale_after
            });
            self.keep_out(said, anew || silent);
            return Outcome::KeptOut;
        }
        let returns = kept.is_some();
        self.kept_out.remove(&id);
        if own && !returns {
            self.begin(said);
            return Outcome::LivesAnew;
        }
        let former = self.go_by(said);
        if !own {
            self.keep_out(former, false);
        }
        Outcome::ChangesHands
    }

    /// Another life of the same owner.
    fn begin(&mut self, said: Claim) {
        self.echoed = said.echoed;
        self.stale = None;
        self.cooling = None;
        self.claim = said;
    }

    /// The higher life owns the worker, also when the owner's has become lower.
    fn yield_to_higher(&mut self) {
        if let Some(higher) = self.successor()
            && self.kept_out[&higher].life > self.claim.life
            && !self.kept_out[&higher].ousted
        {
            let higher = self.kept_out.remove(&higher).unwrap();
            let former = self.go_by(higher);
            self.keep_out(former, false);
        }
    }

    fn keep_out(&mut self, said: Claim, anew: bool) {
        let id = said.publisher.id;
        match self.kept_out.get_mut(&id) {
            Some(kept) if kept.life == said.life => kept.join(said),
            Some(kept) if kept.life > said.life && kept.publisher == said.publisher && !anew => {
                kept.told_in = said.told_in;
            }
            _ => {
                self.kept_out.insert(id, said);
            }
        }
    }

    fn go_by(&mut self, claim: Claim) -> Claim {
        self.echoed = self.echoed.max(claim.echoed);
        std::mem::replace(&mut self.claim, claim)
    }

    /// Who takes the worker if its owner lets go.
    fn successor(&self) -> Option<u64> {
        let best = self.kept_out.iter().max_by_key(|(_, claim)| {
            let stands = !claim.ousted;
            (stands, claim.life, claim.arrived_at, claim.publisher)
        });
        best.map(|(id, _)| *id)
    }

    /// Claims that fit are made no longer. What becomes of it; `None`: it is gone.
    pub(super) fn lose(&mut self, fits: impl Fn(&Claim) -> bool) -> Option<Outcome> {
        self.kept_out.retain(|_, claim| !fits(claim));
        if !fits(&self.claim) {
            return Some(Outcome::KeptOut);
        }
        let next = self.successor()?;
        let next = self.kept_out.remove(&next).unwrap();
        self.go_by(next);
        Some(Outcome::ChangesHands)
    }

    /// Takes it from an owner who has been silent for too long, if another claim has had a report since. Whether it did.
    pub(super) fn oust(&mut self, stale_after: Duration, now: Instant) -> bool {
        let silent_since = self.claim.silent_since();
        let overdue = now.saturating_duration_since(silent_since) >= stale_after;
        let since = |claim: &Claim| claim.reported_at > Some(silent_since);
        let challengers = self.kept_out.iter().filter(|(_, claim)| since(claim));
        let highest =
            challengers.max_by_key(|(_, claim)| (claim.life, claim.reported_at, claim.publisher));
        let Some(next) = highest.map(|(id, _)| *id).filter(|_| overdue) else {
            return false;
        };
        let mut next = self.kept_out.remove(&next).unwrap();
        next.ousted = false;
        let mut former = self.go_by(next);
        former.ousted = true;
        // What the same publisher has said of the worker as well is kept instead.
        self.kept_out.entry(former.publisher.id).or_insert(former);
        true
    }

    /// Whether it has been silent for too long while it had reservations.
    pub(super) fn is_silent(&self, stale_after: Duration, now: Instant) -> bool {
        let since = self.silent_since();
        since.is_some_and(|since| now.saturating_duration_since(since) >= stale_after)
    }

    /// Since when it has been silent while it had reservations.
    fn silent_since(&self) -> Option<Instant> {
        let busy_since = self.busy_since?;
        self.claim.reported_at.max(Some(busy_since))
    }

    /// Since when something has been silent that is to end it.
    pub(super) fn silences(&self) -> impl Iterator<Item = Instant> {
        let owner = self.claim.silent_since();
        let challenged = (self.kept_out.values()).any(|claim| claim.reported_at > Some(owner));
        let worker = self.silent_since().filter(|_| self.stale.is_none());
        worker.into_iter().chain(challenged.then_some(owner))
    }
}
