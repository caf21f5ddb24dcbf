//! What is drawn for the table.

use std::{sync::Arc, time::Duration};

use actix_kv_metrics::{Candidates, ForwardPassMetrics, RouterConfig, WorkerId, WorkerRank};
use proptest::{
    collection::vec,
    option,
    prelude::*,
    sample::{Index, select},
};

use super::{hostile_f32, hostile_u64};

#[derive(Debug, Clone)]
pub enum Step {
    Snapshot(Drawn),
    Select(Request),
    Release(Index),
    ReleaseUnknown(u64, u64),
    Later(Duration),
    /// The clock that the caller reads goes back.
    Earlier(Duration),
}

#[derive(Debug, Clone)]
pub struct Drawn {
    pub publisher: u64,
    pub incarnation: u64,
    pub order: Order,
    pub kind: Kind,
    pub left: Vec<WorkerRank>,
    pub loads: Vec<(WorkerRank, u64, Option<ForwardPassMetrics>, Option<Echo>)>,
    /// How many workers at a time, with a request in between; otherwise at once.
    pub piece: Option<usize>,
}

/// How the sequence follows the last one of this publisher.
#[derive(Debug, Clone, Copy)]
pub enum Order {
    Next,
    Again,
    Skipping(u64),
    Any(u64),
}

#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Full,
    /// After the last one that was sent.
    Delta,
    DeltaAfter(u64),
    Closed,
}

/// A ticket that a worker says it has admitted.
#[derive(Debug, Clone)]
pub enum Echo {
    Issued(Index),
    Unknown(u64),
    OfAnotherRouter(u64),
}

#[derive(Debug, Clone)]
pub struct Request {
    pub blocks: u32,
    pub overlaps: Vec<(WorkerRank, u32)>,
    pub candidates: Candidates,
}

pub fn ranks() -> impl Strategy<Value = WorkerRank> + Clone {
    let worker = prop_oneof![9 => 0..6_u64, 1 => Just(u64::MAX)];
    let rank = prop_oneof![9 => 0..2_u32, 1 => Just(u32::MAX)];
    (worker, rank).prop_map(|(worker, rank)| WorkerRank::new(worker, rank))
}

pub fn metrics() -> impl Strategy<Value = ForwardPassMetrics> + Clone {
    let drawn = (hostile_u64(), hostile_u64(), hostile_u64(), hostile_f32());
    drawn.prop_map(|(active, total, waiting, share)| {
        ForwardPassMetrics::new(active, total, waiting).with_gpu_cache_usage_perc(share)
    })
}

pub fn snapshots() -> impl Strategy<Value = Drawn> + Clone {
    let order = prop_oneof![
        8 => Just(Order::Next),
        1 => Just(Order::Again),
        1 => (2..5_u64).prop_map(Order::Skipping),
        1 => hostile_u64().prop_map(Order::Any),
    ];
    let kind = prop_oneof![
        3 => Just(Kind::Full),
        6 => Just(Kind::Delta),
        1 => hostile_u64().prop_map(Kind::DeltaAfter),
        1 => Just(Kind::Closed),
    ];
    let incarnation = prop_oneof![9 => 0..3_u64, 1 => hostile_u64()];
    let echo = prop_oneof![
        4 => any::<Index>().prop_map(Echo::Issued),
        1 => hostile_u64().prop_map(Echo::Unknown),
        1 => hostile_u64().prop_map(Echo::OfAnotherRouter),
    ];
    let life = prop_oneof![9 => 0..4_u64, 1 => hostile_u64()];
    let load = (
        ranks(),
        life,
        option::of(metrics()),
        option::weighted(0.2, echo),
    );
    let parts = (
        (0..3_u64, incarnation, order, kind),
        vec(ranks(), 0..3),
        vec(load, 0..6),
        option::weighted(0.3, 0..3_usize),
    );
    parts.prop_map(
        |((publisher, incarnation, order, kind), left, loads, piece)| Drawn {
            publisher,
            incarnation,
            order,
            kind,
            left,
            loads,
            piece,
        },
    )
}

pub fn requests() -> impl Strategy<Value = Request> + Clone {
    let blocks = || prop_oneof![8 => 0..200_u32, 1 => Just(u32::MAX)];
    let candidates = prop_oneof![
        6 => Just(Candidates::Any),
        1 => ranks().prop_map(|rank| Candidates::Worker(rank.worker())),
        1 => ranks().prop_map(Candidates::Rank),
        2 => vec(ranks(), 0..5).prop_map(|ranks| Candidates::Among(Arc::from(ranks))),
    ];
    (blocks(), vec((ranks(), blocks()), 0..4), candidates).prop_map(
        |(blocks, overlaps, candidates)| Request {
            blocks,
            overlaps,
            candidates,
        },
    )
}

pub fn pauses() -> impl Strategy<Value = Duration> + Clone {
    prop_oneof![
        8 => (0..200_u64).prop_map(Duration::from_millis),
        2 => (0..60_u64).prop_map(Duration::from_secs),
        1 => Just(Duration::from_secs(50 * 365 * 24 * 3600)),
    ]
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> + Clone {
    let step = prop_oneof![
        5 => snapshots().prop_map(Step::Snapshot),
        6 => requests().prop_map(Step::Select),
        3 => any::<Index>().prop_map(Step::Release),
        1 => (hostile_u64(), hostile_u64()).prop_map(|(r, n)| Step::ReleaseUnknown(r, n)),
        3 => pauses().prop_map(Step::Later),
        1 => (0..5_000_u64).prop_map(|ms| Step::Earlier(Duration::from_millis(ms))),
    ];
    vec(step, 0..40)
}

pub fn configs() -> impl Strategy<Value = RouterConfig> + Clone {
    let weight = || select(vec![0.0, f64::from_bits(1), 0.5, 1.0, 64.0, 1e9]);
    let saturation = select(vec![None, Some(f64::from_bits(1)), Some(0.5), Some(1.0)]);
    let age = || {
        select(vec![
            Duration::ZERO,
            Duration::from_millis(50),
            Duration::from_secs(5),
            Duration::MAX,
        ])
    };
    let weights = (weight(), weight(), weight());
    (weights, saturation, age(), age(), age(), any::<u64>()).prop_map(
        |((overlap, booked, waiting), saturation, settle, ttl, stale_after, seed)| {
            let mut builder = RouterConfig::builder()
                .seed(seed)
                .overlap_weight(overlap)
                .booked_weight(booked)
                .waiting_weight(waiting)
                .settle(settle)
                .reservation_ttl(ttl)
                .stale_after(stale_after);
            if let Some(share) = saturation {
                builder = builder.saturation(share);
            }
            builder.build().expect("its parts are within their bounds")
        },
    )
}

impl Request {
    pub fn allows(&self, worker: WorkerRank) -> bool {
        match &self.candidates {
            Candidates::Any => true,
            Candidates::Worker(id) => worker.worker() == WorkerId(id.0),
            Candidates::Rank(rank) => worker == *rank,
            Candidates::Among(ranks) => ranks.contains(&worker),
        }
    }

    pub fn overlap(&self, worker: WorkerRank) -> u32 {
        let of_worker = self.overlaps.iter().filter(|(w, _)| *w == worker);
        of_worker.map(|(_, blocks)| *blocks).max().unwrap_or(0)
    }
}
