//! Reads ten million messages that were damaged, drawn at random, or both, and checks what must hold of each:
//!
//! - nothing panics, and reading takes no more memory than 60 bytes for each of the message, and 16 KiB;
//! - what was read, written again and read again, is the same.
//!
//! ```sh
//! cargo run --release -p actix-kv-metrics-nats --example fuzz_wire -- [INPUTS [SEED]]
//! ```
//!
//! It prints how many of them were whole, how many had a load left out, and how many are read as signs of life, too.

use std::{
    alloc::System,
    time::{Duration, Instant, UNIX_EPOCH},
};

use actix_kv_metrics::{
    ForwardPassMetrics, LoadSnapshot, PublisherId, SnapshotKind, Ticket, WorkerLoad, WorkerRank,
};
use actix_kv_metrics_nats::{
    Limits,
    dynamo::{self, ActiveLoad, DynamoLoad, Envelope},
    wire::{self, Alive, Assembler, Form, PART_BYTES, Part},
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>());
    let inputs = args.next().map_or(10_000_000, |arg| arg.expect("a number"));
    let seed = args.next().map_or(1, |arg| arg.expect("a number"));
    let mut random = fastrand::Rng::with_seed(seed);
    let (limits, now) = (Limits::default(), UNIX_EPOCH + Duration::from_secs(1 << 31));
    #[allow(clippy::disallowed_methods)] // An epoch; no time passes.
    let started = Instant::now();
    let mut assembler = Assembler::new(&limits);
    let mut of_dynamo = 0_u64;
    let (mut whole, mut in_part, mut alive, mut dearest) = (0_u64, 0_u64, 0_u64, 0.0_f64);
    for input in 0..inputs {
        if random.u8(..4) == 0 {
            of_dynamo += u64::from(read_of_dynamo(&dynamo_message(&mut random)));
            continue;
        }
        let form = [Form::MessagePack, Form::Json][usize::from(random.u8(..8) == 0)];
        let message = message(form, &mut random);
        let region = Region::new(HEAP);
        let part = Part::decode(&message, PUBLISHER, now, &limits);
        let change = region.change();
        let taken = change.bytes_allocated + change.bytes_reallocated.max(0).unsigned_abs();
        let bound = 16 * 1024 + 60 * message.len();
        assert!(
            taken <= bound,
            "seed {seed}, input {input}: {taken} B for {message:?}"
        );
        dearest = dearest.max(taken as f64 / (message.len() + 256) as f64);
        // In MessagePack a part begins like a sign of life: only the subject tells them apart.
        alive += u64::from(Alive::decode(&message, now, &limits).is_ok());
        let Ok(part) = part else { continue };
        whole += u64::from(part.lost.count() == 0);
        in_part += u64::from(part.lost.count() > 0);
        let read = snapshot(&part);
        let again = wire::encode(&read, Duration::ZERO, form, PART_BYTES)
            .expect("what was read is written");
        if let [again] = &again[..] {
            let again = Part::decode(again, PUBLISHER, now, &limits).expect("it is read");
            assert_eq!(snapshot(&again), read, "seed {seed}, input {input}");
        }
        let at = started + Duration::from_millis(input / 100);
        // Refused or not: nothing panics, and what it keeps is bounded.
        let _ = assembler.handle_part(part, at);
        let _ = assembler.handle_timeout(at);
        assert!(assembler.bytes() <= limits.snapshot_bytes);
    }
    println!(
        "{inputs} inputs: {whole} parts whole, {in_part} with a load left out, {of_dynamo} of Dynamo, the rest refused; \
         {alive} read as signs of life; at most {dearest:.0} bytes of memory a byte"
    );
}

const PUBLISHER: u64 = 7;

/// Whether it was read; then what is written of it is read as the same.
fn read_of_dynamo(message: &[u8]) -> bool {
    match dynamo::decode(message) {
        Ok(DynamoLoad::Active {
            load,
            envelope: Some(envelope),
        }) => {
            let again = dynamo::decode(&dynamo::encode_active(&load, &envelope));
            let envelope = Some(envelope);
            assert_eq!(again.ok(), Some(DynamoLoad::Active { load, envelope }));
            true
        }
        Ok(_) => true,
        Err(_) => false,
    }
}

/// One of Dynamo's, old or new, damaged in up to four places.
fn dynamo_message(random: &mut fastrand::Rng) -> Vec<u8> {
    let drawn = load(random);
    let message = match drawn.metrics {
        Some(metrics) => dynamo::encode_event(drawn.worker, &metrics),
        None => {
            let mut maybe = || random.bool().then(|| number(random));
            let load = ActiveLoad {
                worker: drawn.worker,
                active_decode_blocks: maybe(),
                active_prefill_tokens: maybe(),
                kv_used_blocks: maybe(),
            };
            let envelope = Envelope {
                publisher_id: drawn.life,
                sequence: 1,
                published_at: number(random),
            };
            dynamo::encode_active(&load, &envelope)
        }
    };
    damaged(message, random)
}

fn snapshot(part: &Part) -> LoadSnapshot {
    LoadSnapshot {
        publisher: part.publisher,
        sequence: part.sequence,
        kind: part.kind,
        left: part.left.clone(),
        workers: part.workers.clone(),
    }
}

/// One as publishers write it, damaged in up to four places; or bytes.
fn message(form: Form, random: &mut fastrand::Rng) -> Vec<u8> {
    if random.u8(..16) == 0 {
        let first = [1, b'{', random.u8(..)][random.usize(..3)];
        let rest = (0..random.usize(..64)).map(|_| random.u8(..));
        return std::iter::once(first).chain(rest).collect();
    }
    if random.u8(..32) == 0 {
        let alive = Alive {
            incarnation: random.u64(..1 << 50),
            sequence: number(random),
        };
        return damaged(alive.encode(form), random);
    }
    let kinds = [
        SnapshotKind::Full,
        SnapshotKind::Delta {
            after: number(random),
        },
        SnapshotKind::Closed,
    ];
    let drawn = LoadSnapshot {
        publisher: PublisherId::new(PUBLISHER, random.u64(..1 << 50)),
        sequence: number(random),
        kind: kinds[random.usize(..3)],
        left: (0..random.usize(..3)).map(|_| rank(random)).collect(),
        workers: (0..random.usize(..6)).map(|_| load(random)).collect(),
    };
    let most = [PART_BYTES, 200][usize::from(random.u8(..8) == 0)];
    let parts = wire::encode(&drawn, Duration::ZERO, form, most);
    let Ok(mut parts) = parts else {
        return Vec::new();
    };
    let part = parts.swap_remove(random.usize(..parts.len()));
    damaged(part, random)
}

fn damaged(mut message: Vec<u8>, random: &mut fastrand::Rng) -> Vec<u8> {
    for _ in 0..random.usize(..5) {
        if message.is_empty() {
            break;
        }
        let at = random.usize(..message.len());
        match random.u8(..5) {
            0 => message[at] = random.u8(..),
            1 => message[at] ^= 1 << random.u8(..8),
            2 => message.truncate(at),
            3 => message.insert(at, random.u8(..)),
            // A length or a number as great as can be.
            _ => message[at] = [0xdd, 0xdf, 0xc6, 0xdb, 0xcf, 0xff, b'9', b'['][random.usize(..8)],
        }
    }
    message
}

/// Small ones, those around the widths in which they are written, and any.
fn number(random: &mut fastrand::Rng) -> u64 {
    let width = random.u32(..=64);
    random.u64(..).checked_shr(width).unwrap_or(0)
}

fn rank(random: &mut fastrand::Rng) -> WorkerRank {
    WorkerRank::new(number(random), random.u32(..4))
}

fn load(random: &mut fastrand::Rng) -> WorkerLoad {
    let mut metrics = ForwardPassMetrics::new(number(random), number(random), number(random));
    if random.bool() {
        metrics = metrics.with_num_prefill_blocks(number(random));
    }
    let ticket = |random: &mut fastrand::Rng| Ticket {
        router: number(random),
        number: number(random),
    };
    WorkerLoad {
        worker: rank(random),
        life: random.u64(..1 << 50),
        metrics: random.bool().then_some(metrics),
        admitted: (0..random.usize(..3)).map(|_| ticket(random)).collect(),
        age: Duration::from_micros(random.u64(..1 << 40)),
        reported: random
            .bool()
            .then(|| Duration::from_micros(random.u64(..1 << 40))),
        draining: random.bool(),
    }
}
