//! What is so, by what was done: kept without asking anybody.

use std::{
    collections::BTreeMap,
    time::{Duration, UNIX_EPOCH},
};

use actix_kv_metrics::{ForwardPassMetrics, Loads, WorkerRank, actix::clock};

/// What is so of one worker by one publisher.
#[derive(Debug, Clone)]
pub struct Claim {
    /// Lives in the order in which they began.
    life: u64,
    /// The life was drawn at this time or later, in the unit of lives.
    drawn: u64,
    pub metrics: Option<ForwardPassMetrics>,
    /// Of the first and the last report that may stand under one stamp.
    reported_at: Option<(clock::Instant, clock::Instant)>,
}

/// The living workers of both publishers.
#[derive(Debug, Default)]
pub struct Truth {
    claims: [BTreeMap<WorkerRank, Claim>; 2],
    /// The present incarnations were drawn at these times or later.
    incarnations: [u64; 2],
    lives: u64,
    /// Who owns a worker whatever the lives are, since the other has been silent for long.
    settled: BTreeMap<WorkerRank, usize>,
}

impl Truth {
    pub fn begin_publisher(&mut self, publisher: usize) {
        self.claims[publisher].clear();
        self.incarnations[publisher] = micros();
    }

    pub fn end_publisher(&mut self, publisher: usize) -> Vec<WorkerRank> {
        let workers = std::mem::take(&mut self.claims[publisher]);
        workers.into_keys().collect()
    }

    /// A life begins. To be told before it is so.
    pub fn begin_life(&mut self, publisher: usize, worker: WorkerRank) {
        self.lives += 1;
        let claim = Claim {
            life: self.lives,
            drawn: micros(),
            metrics: None,
            reported_at: None,
        };
        self.claims[publisher].insert(worker, claim);
    }

    /// A report, or a life that begins with one. To be told before it is so. `told`: the publisher has a router to tell it to.
    pub fn report(
        &mut self,
        publisher: usize,
        worker: WorkerRank,
        metrics: ForwardPassMetrics,
        told: bool,
    ) {
        if !self.claims[publisher].contains_key(&worker) {
            self.begin_life(publisher, worker);
        }
        if let Some(claim) = self.claims[publisher].get_mut(&worker) {
            claim.metrics = Some(metrics);
            let now = clock::Instant::now();
            let lag = now.checked_sub(STAMP_LAG).unwrap_or(now);
            let first = claim.reported_at.map(|(first, _)| first).filter(|_| !told);
            claim.reported_at = Some((first.unwrap_or(lag).min(lag), now));
        }
    }

    pub fn leave(&mut self, publisher: usize, worker: WorkerRank) {
        self.claims[publisher].remove(&worker);
    }

    pub fn claim(&self, publisher: usize, worker: WorkerRank) -> Option<&Claim> {
        self.claims[publisher].get(&worker)
    }

    /// Workers of this publisher.
    pub fn workers(&self, publisher: usize) -> Vec<WorkerRank> {
        self.claims[publisher].keys().copied().collect()
    }

    /// Workers that both publishers speak of.
    pub fn contested(&self) -> Vec<WorkerRank> {
        let [one, other] = &self.claims;
        let both = one.keys().filter(|worker| other.contains_key(worker));
        both.copied().collect()
    }

    /// The other claimant has been silent for long, and this one has reported since.
    pub fn settle(&mut self, worker: WorkerRank, publisher: usize) {
        self.settled.insert(worker, publisher);
    }

    /// Who owns a worker since then.
    pub fn settled(&self, worker: WorkerRank) -> usize {
        self.settled[&worker]
    }

    pub fn claims_of(&self, publisher: usize) -> BTreeMap<WorkerRank, Claim> {
        self.claims[publisher].clone()
    }

    pub fn restore(&mut self, publisher: usize, claims: BTreeMap<WorkerRank, Claim>) {
        self.claims[publisher] = claims;
    }

    /// Of two publishers that speak of a worker the one with the later life owns it.
    fn owners(&self) -> BTreeMap<WorkerRank, (usize, &Claim)> {
        let mut owners = BTreeMap::new();
        for (publisher, claims) in self.claims.iter().enumerate() {
            for (worker, claim) in claims {
                let (owner, present) = *owners.entry(*worker).or_insert((publisher, claim));
                let takes = match self.settled.get(worker) {
                    Some(settled) => *settled == publisher,
                    None => claim.life > present.life,
                };
                if takes && owner != publisher {
                    owners.insert(*worker, (publisher, claim));
                }
            }
        }
        owners
    }

    /// What of these loads is not so.
    pub fn errors_in(&self, loads: &Loads) -> Vec<String> {
        let (now, latest) = (clock::Instant::now(), micros() + 1_000_000);
        let owners = self.owners();
        let mut errors = Vec::new();
        for load in loads.workers() {
            let worker = load.worker;
            let Some((owner, claim)) = owners.get(&worker) else {
                errors.push(format!("{worker} is gone: {load:?}"));
                continue;
            };
            let reported = claim
                .reported_at
                .map(|(first, last)| (now - first, now - last));
            let exact = match (reported, load.reported) {
                (Some((oldest, newest)), Some(has)) => (newest..=oldest + TICK).contains(&has),
                (is, has) => is.is_none() && has.is_none(),
            };
            let publisher = load.publisher;
            let is_so = publisher.id == id_of(*owner)
                && (self.incarnations[*owner]..latest).contains(&publisher.incarnation)
                && (claim.drawn..latest).contains(&load.life)
                && load.metrics == claim.metrics
                && exact;
            if !is_so {
                let incarnation = self.incarnations[*owner];
                errors.push(format!(
                    "{worker} is {owner}'s, of incarnation {incarnation}, reported {reported:?} ago, {claim:?}: {load:?}"
                ));
            }
        }
        for (worker, (owner, claim)) in owners {
            if loads.get(worker).is_none() {
                errors.push(format!("{worker} of {owner} is missing: {claim:?}"));
            }
        }
        errors
    }
}

/// Configured ids of the publishers.
pub fn id_of(publisher: usize) -> u64 {
    publisher as u64 + 1
}

/// Lives and incarnations are drawn as microseconds of Unix time, or one more than the last.
fn micros() -> u64 {
    UNIX_EPOCH.elapsed().unwrap().as_micros() as u64
}

/// A report that joins one that waits for the publisher keeps its stamp, for this long at most.
const STAMP_LAG: Duration = Duration::from_millis(10);
const TICK: Duration = Duration::from_millis(1);
