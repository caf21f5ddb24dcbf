//! Whatever a snapshot holds, its parts in any order are that snapshot again.

use std::time::{Duration, Instant};

use actix_kv_metrics::{
    ForwardPassMetrics, LoadSnapshot, PublisherId, SnapshotKind, SpecDecodeStats, Ticket,
    WorkerLoad, WorkerRank,
};
use actix_kv_metrics_nats::{
    Subject, Subjects,
    wire::{Assembler, Form, LONGEST_AGO, Part, encode},
};
use proptest::{collection::vec, option, prelude::*};

use crate::support::{no_limits, now};

fn numbers() -> impl Strategy<Value = u64> + Clone {
    prop_oneof![
        4 => 0..5_000_u64,
        1 => Just(u64::MAX),
        1 => Just((1 << 53) + 1),
        2 => any::<u64>(),
    ]
}

fn finite() -> impl Strategy<Value = f32> + Clone {
    any::<u32>().prop_map(|bits| {
        let drawn = f32::from_bits(bits);
        if drawn.is_finite() { drawn } else { 0.5 }
    })
}

fn metrics() -> impl Strategy<Value = ForwardPassMetrics> + Clone {
    let count = || option::of(any::<u32>());
    let speculative = (
        count(),
        count(),
        count(),
        count(),
        option::of(vec(any::<u32>(), 0..4)),
    );
    let speculative = speculative.prop_map(|stats| SpecDecodeStats {
        num_spec_tokens: stats.0,
        num_drafts: stats.1,
        num_draft_tokens: stats.2,
        num_accepted_tokens: stats.3,
        num_accepted_tokens_per_pos: stats.4,
    });
    let blocks = (numbers(), numbers(), numbers());
    let requests = (numbers(), numbers(), option::of(numbers()), count());
    let parts = (
        blocks,
        requests,
        finite(),
        finite(),
        option::of(speculative),
    );
    parts.prop_map(|(blocks, requests, usage, hit_rate, speculative)| {
        let mut metrics = ForwardPassMetrics::new(blocks.0, blocks.1, blocks.2)
            .with_request_active_slots(requests.0)
            .with_request_total_slots(requests.1)
            .with_gpu_cache_usage_perc(usage)
            .with_gpu_prefix_cache_hit_rate(hit_rate);
        metrics.worker_stats.num_prefill_blocks = requests.2;
        metrics.worker_stats.data_parallel_rank = requests.3;
        metrics.spec_decode_stats = speculative.map(Box::new);
        metrics
    })
}

fn ranks() -> impl Strategy<Value = WorkerRank> + Clone {
    (numbers(), any::<u32>()).prop_map(|(worker, rank)| WorkerRank::new(worker, rank))
}

fn snapshots() -> impl Strategy<Value = LoadSnapshot> {
    let kind = prop_oneof![
        Just(SnapshotKind::Full),
        Just(SnapshotKind::Closed),
        numbers().prop_map(|after| SnapshotKind::Delta { after }),
    ];
    let ticket = (numbers(), numbers()).prop_map(|(router, number)| Ticket { router, number });
    let ago = || (0..=LONGEST_AGO.as_micros() as u64).prop_map(Duration::from_micros);
    let past = (ago(), option::of(ago()));
    let load = (
        ranks(),
        numbers(),
        option::of(metrics()),
        vec(ticket, 0..3),
        past,
        any::<bool>(),
    );
    let load = load.prop_map(
        |(worker, life, metrics, admitted, past, draining)| WorkerLoad {
            worker,
            life,
            metrics,
            admitted,
            age: past.0,
            reported: past.1,
            draining,
        },
    );
    let publisher = (numbers(), numbers(), numbers());
    let parts = (publisher, kind, vec(ranks(), 0..20), vec(load, 0..20));
    parts.prop_map(|(publisher, kind, left, workers)| LoadSnapshot {
        publisher: PublisherId::new(publisher.0, publisher.1),
        sequence: publisher.2,
        kind,
        left,
        workers,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[allow(clippy::disallowed_methods)] // An epoch; no time passes.
    fn parts_in_any_order_are_the_snapshot_again(
        snapshot in snapshots(),
        as_json in any::<bool>(),
        room in 0..2_000_usize,
        seed in any::<u64>(),
    ) {
        // Of the longest entry drawn here and its head: 1,145 and 246.
        let (form, least) = if as_json { (Form::Json, 1_145) } else { (Form::MessagePack, 246) };
        let max_part = least + room;
        let mut messages = encode(&snapshot, Duration::ZERO, form, max_part).unwrap();
        fastrand::Rng::with_seed(seed).shuffle(&mut messages);
        let limits = no_limits();
        let mut assembler = Assembler::new(&limits);
        let mut read = None;
        for message in &messages {
            prop_assert!(message.len() <= max_part);
            prop_assert!(read.is_none());
            let part = Part::decode(message, snapshot.publisher.id, now(), &limits).unwrap();
            prop_assert_eq!(part.lost.count(), 0);
            read = assembler.handle_part(part, Instant::now()).unwrap().snapshot;
        }
        prop_assert_eq!(read, Some(snapshot));
    }

    #[test]
    fn what_is_no_message_is_refused(bytes in vec(any::<u8>(), 0..200)) {
        // Nothing but not panicking is asked of these.
        let _ = Part::decode(&bytes, 7, now(), &no_limits());
        let text = String::from_utf8_lossy(&bytes);
        let _ = Subjects::new("kv").unwrap().parse(&text);
    }

    #[test]
    fn a_subject_is_read_as_it_was_built(
        prefix in "[A-Za-z0-9_-]{1,9}(\\.[A-Za-z0-9_-]{1,9}){0,3}",
        publisher in any::<u64>(),
    ) {
        let subjects = Subjects::new(prefix).unwrap();
        for subject in [
            Subject::Snapshot(publisher),
            Subject::Mark(publisher),
            Subject::Alive(publisher),
            Subject::ResyncOf(publisher),
            Subject::Resync,
        ] {
            prop_assert_eq!(subjects.parse(&subjects.subject(subject)), Ok(subject));
        }
    }
}
