//! Who may be served at which moment, and who is before whom, written from the guarantees alone. Which of several workers a
//! request gets is the router's choice; that it might have it is not.

use std::collections::BTreeMap;

use actix_kv_metrics::{Candidates, SelectError, Selection, Ticket, WorkerRank};

pub type Key = (u64, u32);

#[derive(Debug, Clone)]
pub struct Row {
    pub active: u64,
    pub total: u64,
    pub draining: bool,
    pub reported_at: u64,
    pub cooling: Option<Cooling>,
}

#[derive(Debug, Clone)]
pub struct Cooling {
    pub until: u64,
    pub step: u64,
}

#[derive(Debug)]
pub struct Booked {
    pub worker: Key,
    pub blocks: u64,
    pub at: u64,
    pub since_report: bool,
    /// Made after the cooling began.
    pub tries: bool,
    pub detached: Option<u64>,
    pub selection: Option<Selection>,
    pub ticket: Ticket,
}

#[derive(Debug, Clone)]
pub struct Asked {
    pub blocks: u64,
    pub among: Candidates,
    pub except: Vec<WorkerRank>,
    pub until: u64,
}

#[derive(Debug, Default)]
pub struct Model {
    pub rows: BTreeMap<Key, Row>,
    pub booked: Vec<Booked>,
    pub queue: Vec<(u32, Asked)>,
}

pub const SHARE: f64 = 0.5;
pub const TTL: u64 = 300;
pub const SETTLE: u64 = 50;

pub fn key(rank: WorkerRank) -> Key {
    (rank.worker().0, rank.rank())
}

impl Model {
    /// All that ends by itself up to this moment.
    pub fn advance(&mut self, now: u64) {
        let expired = |booked: &Booked| booked.detached.is_some_and(|at| at + TTL <= now);
        self.booked.retain(|booked| !expired(booked));
    }

    pub fn ends_well(&mut self, booked: &Booked) {
        let Some(row) = self.rows.get_mut(&booked.worker) else {
            return;
        };
        if booked.tries {
            row.cooling = None;
            for other in &mut self.booked {
                if other.worker == booked.worker {
                    other.tries = false;
                }
            }
        }
    }

    fn limit(row: &Row) -> f64 {
        SHARE * row.total as f64
    }

    fn full(&self, key: Key, row: &Row) -> bool {
        let sum = |since| {
            self.booked
                .iter()
                .filter(|booked| booked.worker == key && booked.since_report == since)
                .map(|booked| booked.blocks)
                .sum::<u64>()
        };
        (row.active.max(sum(false)) + sum(true)) as f64 >= Self::limit(row)
    }

    fn cools(&self, key: Key, row: &Row, now: u64) -> bool {
        let Some(cooling) = &row.cooling else {
            return false;
        };
        now < cooling.until
            || self
                .booked
                .iter()
                .any(|booked| booked.worker == key && booked.tries)
    }

    /// Who would take this request now.
    pub fn takers(&self, asked: &Asked, now: u64) -> Result<Vec<Key>, SelectError> {
        let of = |key: &Key| WorkerRank::new(key.0, key.1);
        let named = matches!(asked.among, Candidates::Rank(_) | Candidates::Worker(_));
        if self.rows.is_empty() && !named {
            return Err(SelectError::NoWorkers);
        }
        let allowed = |key: &Key| match &asked.among {
            Candidates::Any => true,
            Candidates::Worker(worker) => worker.0 == key.0,
            Candidates::Rank(rank) => *rank == of(key),
            Candidates::Among(ranks) => ranks.contains(&of(key)),
        };
        let rows: Vec<_> = self.rows.iter().filter(|(key, _)| allowed(key)).collect();
        if rows.is_empty() {
            return Err(match named {
                true => SelectError::UnknownWorker,
                false => SelectError::NoneAllowed,
            });
        }
        let rows: Vec<_> = rows
            .into_iter()
            .filter(|(key, _)| !asked.except.contains(&of(key)))
            .collect();
        if rows.is_empty() {
            return Err(SelectError::NoneAllowed);
        }
        let rows: Vec<_> = rows
            .into_iter()
            .filter(|(_, row)| asked.blocks as f64 <= Self::limit(row))
            .collect();
        if rows.is_empty() {
            return Err(SelectError::TooLarge);
        }
        let mut takers = Vec::new();
        let mut cooling = Vec::new();
        let mut merely_full = false;
        for (key, row) in rows {
            let drains = row.draining && !named;
            let cools = self.cools(*key, row, now) && !named;
            let full = self.full(*key, row);
            match (drains, cools, full) {
                (false, false, false) => takers.push(*key),
                (false, true, false) => cooling.push(*key),
                (false, false, true) => merely_full = true,
                _ => {}
            }
        }
        if takers.is_empty() && !merely_full {
            takers = cooling;
        }
        Ok(takers)
    }
}
