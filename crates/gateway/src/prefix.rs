//! What of a prompt an engine probably has cached, from what was sent there: an approximate prefix index.
//!
//! A prompt is cut into chunks, and each chunk named by a hash of itself and the chunks before it, so that one name stands for a
//! whole prefix. The index remembers which worker was sent which chunk last. It is wrong where an engine has evicted what it was
//! sent, which costs a worse choice and nothing else.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash, Hasher},
    sync::{Arc, RwLock},
    time::{Duration, Instant},
};

use actix_kv_metrics::{WorkerId, WorkerRank};
use foldhash::quality::RandomState;
use moka::sync::Cache;
use smallvec::SmallVec;

use crate::{config::PrefixConfig, openai::Prompt};

/// Who was sent which chunk.
#[derive(Debug)]
pub(crate) struct PrefixIndex {
    chunks: Cache<u64, Holders, RandomState>,
    /// How often each worker has left: what was sent to it before counts no more.
    left: RwLock<HashMap<WorkerId, u32>>,
    expires_after: Duration,
    began: Instant,
}

/// They are read far more often than they change.
type Holders = Arc<[Holder]>;

/// Who was sent which of a request's chunks, as far as is known.
#[derive(Debug)]
pub(crate) struct Known<'a> {
    chains: &'a Chains,
    /// Of all chains, one after the other.
    holders: Vec<Option<Holders>>,
}

/// A worker that was sent a chunk.
#[derive(Debug, Clone, Copy)]
struct Holder {
    worker: WorkerRank,
    /// How often it had left before.
    left: u32,
    /// Seconds since the index began.
    sent: u32,
}

/// The names of a request's prefixes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chains {
    /// What the request asks to compute.
    pub(crate) tokens: u64,
    /// Those of each prompt.
    chains: SmallVec<[Vec<u64>; 1]>,
}

/// Cuts prompts into chunks. Its names differ from one process to the next, so that nobody can make them collide.
#[derive(Debug)]
pub(crate) struct Chunker {
    hasher: RandomState,
    chunk_tokens: usize,
    bytes_per_token: usize,
}

impl Chunker {
    pub(crate) fn new(config: &PrefixConfig) -> Self {
        Self {
            hasher: RandomState::default(),
            chunk_tokens: config.chunk_tokens.get() as usize,
            bytes_per_token: config.bytes_per_token.get() as usize,
        }
    }

    /// `before`: what must be the same for anything to be shared. What does not fill a chunk counts as tokens only.
    pub(crate) fn chains(&self, before: (&str, &str), prompts: &[Prompt<'_>]) -> Chains {
        let bytes = self.bytes_per_token;
        let mut tokens = before.0.len().div_ceil(bytes);
        let chains = prompts.iter().map(|prompt| match prompt {
            Prompt::Text(text) => {
                tokens += text.len().div_ceil(bytes);
                let chunks = text
                    .as_bytes()
                    .chunks_exact(self.chunk_tokens.saturating_mul(bytes));
                self.chain((before, "text"), chunks)
            }
            Prompt::Tokens(ids) => {
                tokens += ids.len();
                self.chain((before, "tokens"), ids.chunks_exact(self.chunk_tokens))
            }
        });
        let chains = chains.collect();
        Chains {
            tokens: tokens as u64,
            chains,
        }
    }

    fn chain<C: Hash>(&self, before: impl Hash, chunks: impl Iterator<Item = C>) -> Vec<u64> {
        let mut name = self.hasher.build_hasher();
        before.hash(&mut name);
        let names = chunks.map(|chunk| {
            chunk.hash(&mut name);
            name.finish()
        });
        names.collect()
    }
}

impl PrefixIndex {
    pub(crate) fn new(config: &PrefixConfig, now: Instant) -> Self {
        let chunks = Cache::builder()
            .max_capacity(config.chunks)
            .time_to_live(config.expires_after)
            .build_with_hasher(RandomState::default());
        Self {
            chunks,
            left: RwLock::default(),
            expires_after: config.expires_after,
            began: now,
        }
    }

    /// What is known of a request's chunks.
    pub(crate) fn known<'a>(&self, chains: &'a Chains) -> Known<'a> {
        let names = chains.chains.iter().flatten();
        Known {
            chains,
            holders: names.map(|name| self.chunks.get(name)).collect(),
        }
    }

    /// How many chunks, from the first on, each worker has of all that is named; of several prompts the sum.
    pub(crate) fn overlaps(&self, known: &Known<'_>, now: Instant) -> Vec<(WorkerRank, u32)> {
        let mut overlaps: Vec<(WorkerRank, u32)> = Vec::new();
        let mut rest = known.holders.as_slice();
        for chain in &known.chains.chains {
            let (of_chain, others) = rest.split_at(chain.len());
            rest = others;
            for (worker, chunks) in self.overlaps_of(of_chain, now) {
                match overlaps.iter_mut().find(|(known, _)| *known == worker) {
                    Some((_, sum)) => *sum += chunks,
                    None => overlaps.push((worker, chunks)),
                }
            }
        }
        overlaps
    }

    fn overlaps_of(&self, chain: &[Option<Holders>], now: Instant) -> Vec<(WorkerRank, u32)> {
        let Some(Some(first)) = chain.first() else {
            return Vec::new();
        };
        let left = self
            .left
            .read()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let counts = |holder: &Holder| {
            let left = left.get(&holder.worker.worker()).copied().unwrap_or(0);
            holder.left == left && !self.is_over(holder, now)
        };
        let held = first.iter().filter(|holder| counts(holder));
        // Those who had every chunk so far stand in front.
        let mut overlaps: Vec<_> = held.map(|holder| (holder.worker, 1)).collect();
        let mut held = overlaps.len();
        for holders in &chain[1..] {
            let Some(holders) = holders.as_ref().filter(|_| held > 0) else {
                break;
            };
            let mut at = 0;
            while at < held {
                let has = |holder: &Holder| holder.worker == overlaps[at].0 && counts(holder);
                if holders.iter().any(has) {
                    overlaps[at].1 += 1;
                    at += 1;
                } else {
                    held -= 1;
                    overlaps.swap(at, held);
                }
            }
        }
        overlaps
    }

    /// The worker is sent all that is named. What was noted of it just before is not noted again: an entry may count for a sixteenth
    /// less than it should, and one that all requests share is not written by each.
    pub(crate) fn note(&self, known: &Known<'_>, worker: WorkerRank, now: Instant) {
        let left = self
            .left
            .read()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let left = left.get(&worker.worker()).copied().unwrap_or(0);
        let sent = self.seconds(now);
        let is_fresh = |holders: &Holders| {
            let mut of_worker = holders.iter().filter(|holder| holder.worker == worker);
            of_worker.any(|holder| {
                holder.left == left && sent.saturating_sub(holder.sent) <= self.is_fresh_for()
            })
        };
        let noted = Holder { worker, left, sent };
        let names = known.chains.chains.iter().flatten();
        for (name, holders) in names.zip(&known.holders) {
            if holders.as_ref().is_some_and(is_fresh) {
                continue;
            }
            self.chunks.entry(*name).and_upsert_with(|known| {
                let known = known.map(moka::Entry::into_value);
                let others = known.iter().flat_map(|known| known.iter().copied());
                let mut holders: SmallVec<[Holder; MOST_HOLDERS]> = others
                    .filter(|holder| holder.worker != worker && !self.is_over(holder, now))
                    .collect();
                // The one that was sent it longest ago goes.
                if holders.len() == MOST_HOLDERS {
                    let oldest = (0..MOST_HOLDERS).min_by_key(|&at| holders[at].sent);
                    oldest.map(|at| holders.swap_remove(at));
                }
                holders.push(noted);
                Arc::from(holders.as_slice())
            });
        }
    }

    /// The worker left, and what it had cached with it.
    pub(crate) fn forget(&self, worker: WorkerId) {
        let mut left = self
            .left
            .write()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let left = left.entry(worker).or_default();
        *left = left.wrapping_add(1);
    }

    /// Chunks that are remembered, about.
    pub(crate) fn len(&self) -> u64 {
        self.chunks.entry_count()
    }

    fn seconds(&self, now: Instant) -> u32 {
        let since = now.saturating_duration_since(self.began).as_secs();
        u32::try_from(since).unwrap_or(u32::MAX)
    }

    /// In seconds.
    fn is_fresh_for(&self) -> u32 {
        u32::try_from(self.expires_after.as_secs() / 16).unwrap_or(u32::MAX)
    }

    fn is_over(&self, holder: &Holder, now: Instant) -> bool {
        let since = self.seconds(now).saturating_sub(holder.sent);
        u64::from(since) >= self.expires_after.as_secs().max(1)
    }
}

/// Workers that are remembered for one chunk: a prefix that all share needs no more, and each takes 24 bytes.
const MOST_HOLDERS: usize = 32;

#[cfg(test)]
mod tests;
