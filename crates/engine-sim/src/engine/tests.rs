use super::*;
use crate::request::HASH_TOKENS;

const MILLISECOND: Duration = Duration::from_millis(1);

/// 20 blocks of 64 tokens, no watermark; prefill takes 1 ms a token, decoding 1 ms a pass.
fn small() -> EngineConfig {
    EngineConfig {
        total_blocks: 20,
        watermark: 0.0,
        timing: Timing {
            prefill: [0.0, 1.0, 0.0],
            decode: [0.0, 0.0, 1.0],
        },
        ..EngineConfig::default()
    }
}

fn request(input_tokens: u32, output_tokens: u32, hash_ids: &[u64]) -> Arc<Request> {
    Arc::new(Request {
        arrival: Duration::ZERO,
        input_tokens,
        output_tokens,
        hash_ids: hash_ids.to_vec(),
    })
}

fn ticket(number: u64) -> Ticket {
    Ticket { router: 1, number }
}

/// An engine with the requests in its queue, numbered from 0, tickets from 100.
fn engine(config: EngineConfig, requests: &[Arc<Request>]) -> Engine {
    let mut engine = Engine::new(config);
    for (number, request) in requests.iter().enumerate() {
        let job = Job {
            number,
            request: request.clone(),
            ticket: ticket(100 + number as u64),
        };
        engine.enqueue(job, Duration::ZERO).unwrap();
    }
    engine
}

/// Request 1, of ticket 7.
fn second_job(request: Arc<Request>) -> Job {
    Job {
        number: 1,
        request,
        ticket: ticket(7),
    }
}

/// One pass after the other until nothing is left.
fn run(engine: &mut Engine) -> Vec<Event> {
    run_from(engine, Duration::ZERO)
}

fn run_from(engine: &mut Engine, mut now: Duration) -> Vec<Event> {
    let mut log = Vec::new();
    while let Some(pass) = engine.start_pass(now) {
        assert!(engine.totals().passes < 100_000, "it gets nowhere");
        now = pass.ends_at;
        log.extend(engine.finish_pass());
    }
    assert!(engine.is_empty(), "it leaves requests waiting");
    log
}

fn pass(engine: &mut Engine, now: Duration) -> (Duration, Load) {
    let ends_at = engine.start_pass(now).unwrap().ends_at;
    let load = engine.load();
    engine.finish_pass();
    (ends_at, load)
}

fn at(milliseconds: u32, number: usize, what: Progress) -> Event {
    Event {
        number,
        at: milliseconds * MILLISECOND,
        what,
    }
}

use Progress::{Admitted, Finished, FirstToken, Preempted};

#[test]
fn a_request_is_prefilled_and_then_yields_a_token_a_pass() {
    let mut engine = engine(small(), &[request(100, 3, &[])]);
    let expected = [
        at(0, 0, Admitted),
        at(100, 0, FirstToken),
        at(102, 0, Finished),
    ];
    assert_eq!(run(&mut engine), expected);
    assert!(engine.is_empty());
    assert_eq!(engine.load().active_blocks, 0);
    let Totals {
        passes, finished, ..
    } = engine.totals();
    assert_eq!((passes, finished), (3, 1));
}

#[test]
fn active_blocks_grow_with_each_block_of_tokens() {
    let mut engine = engine(small(), &[request(63, 67, &[])]);
    let mut seen = Vec::new();
    let mut now = Duration::ZERO;
    while !engine.is_empty() {
        let (ends_at, load) = pass(&mut engine, now);
        now = ends_at;
        seen.push(load.active_blocks);
    }
    // 63 tokens are prefilled, the 64th still fits; the 65th to 128th take a second block, the 129th a third.
    let expected = [vec![1; 2], vec![2; 64], vec![3; 1]].concat();
    assert_eq!(seen, expected);
}

#[test]
fn a_long_prompt_is_computed_in_chunks() {
    let config = EngineConfig {
        max_batched_tokens: 100,
        ..small()
    };
    let mut engine = engine(config, &[request(250, 1, &[]), request(30, 1, &[])]);
    let expected = [
        at(0, 0, Admitted),
        at(200, 1, Admitted),
        at(280, 0, FirstToken),
        at(280, 0, Finished),
        at(280, 1, FirstToken),
        at(280, 1, Finished),
    ];
    assert_eq!(run(&mut engine), expected);
}

#[test]
fn chunks_take_the_time_of_the_whole_prompt() {
    let timing = Timing {
        prefill: [1.0, 0.0, 0.0],
        decode: [0.0; 3],
    };
    let config = EngineConfig {
        max_batched_tokens: 100,
        timing,
        ..small()
    };
    let mut engine = engine(config, &[request(250, 1, &[])]);
    assert_eq!(run(&mut engine)[2], at(62_500, 0, Finished));
}

#[test]
fn a_decoding_sequence_takes_its_token_from_the_batch_before_prompts_do() {
    let config = EngineConfig {
        max_batched_tokens: 100,
        ..small()
    };
    let mut engine = engine(config, &[request(100, 3, &[]), request(100, 1, &[])]);
    let expected = [
        at(0, 0, Admitted),
        at(100, 0, FirstToken),
        at(100, 1, Admitted),
        // 99 tokens of the prompt and a decode in the second pass; the last one and a decode in the third.
        at(202, 0, Finished),
        at(202, 1, FirstToken),
        at(202, 1, Finished),
    ];
    assert_eq!(run(&mut engine), expected);
}

#[test]
fn the_head_of_the_line_blocks_those_behind_it() {
    let requests = [
        request(15 * 64, 2, &[]),
        request(6 * 64, 1, &[]),
        request(64, 1, &[]),
    ];
    let mut engine = engine(small(), &requests);
    let (_, load) = pass(&mut engine, Duration::ZERO);
    assert_eq!((load.active_blocks, load.running, load.waiting), (15, 1, 2));
    assert_eq!(engine.admitted().tickets(), [ticket(100)]);
    let (_, load) = pass(&mut engine, Duration::ZERO);
    assert_eq!((load.active_blocks, load.running, load.waiting), (16, 1, 2));
    let (_, load) = pass(&mut engine, Duration::ZERO);
    assert_eq!((load.active_blocks, load.running, load.waiting), (7, 2, 0));
    assert_eq!(engine.admitted().tickets(), [ticket(102)]);
}

#[test]
fn no_more_sequences_run_than_allowed() {
    let config = EngineConfig {
        max_sequences: 2,
        ..small()
    };
    let mut engine = engine(
        config,
        &[request(1, 1, &[]), request(1, 2, &[]), request(1, 1, &[])],
    );
    let loads = [(); 2].map(|()| pass(&mut engine, Duration::ZERO).1);
    assert_eq!(
        loads.map(|load| (load.running, load.waiting)),
        [(2, 1), (2, 0)]
    );
}

#[test]
fn admission_leaves_the_watermark_free() {
    let config = EngineConfig {
        watermark: 0.1,
        ..small()
    };
    let mut engine = engine(config, &[request(9 * 64, 5, &[]), request(9 * 64, 5, &[])]);
    let (_, load) = pass(&mut engine, Duration::ZERO);
    assert_eq!((load.active_blocks, load.waiting), (18, 0));
    let too_long = Job {
        number: 2,
        request: request(18 * 64, 2, &[]),
        ticket: ticket(0),
    };
    assert_eq!(engine.enqueue(too_long, Duration::ZERO), Err(TooLong));
    let fits = Job {
        number: 3,
        request: request(18 * 64, 1, &[]),
        ticket: ticket(0),
    };
    assert_eq!(engine.enqueue(fits, Duration::ZERO), Ok(()));
    assert_eq!(engine.totals().refused, 1);
}

#[test]
fn a_cached_prefix_is_not_computed_again() {
    let first = request(1_100, 1, &[1, 2, 3]);
    let second = request(1_030, 1, &[1, 2, 4]);
    let mut engine = engine(small(), std::slice::from_ref(&first));
    assert_eq!(engine.overlap(&second), 0);
    let (ends_at, load) = pass(&mut engine, Duration::ZERO);
    assert_eq!((ends_at, load.active_blocks), (1_100 * MILLISECOND, 18));
    assert_eq!(engine.load().active_blocks, 0);
    assert_eq!(engine.overlap(&second), 16);
    assert_eq!(
        engine.overlap(&first),
        16,
        "the partial last block is not shared"
    );

    engine.enqueue(second_job(second), ends_at).unwrap();
    let (ends_at, load) = pass(&mut engine, ends_at);
    assert_eq!((ends_at, load.active_blocks), (1_106 * MILLISECOND, 17));
    assert_eq!(engine.load().prefix_hit_rate, 1_024.0 / 2_130.0);
}

#[test]
fn a_prompt_cached_to_its_end_still_computes_its_last_token() {
    let both = [request(512, 2, &[1]), request(512, 2, &[1])];
    let mut engine = engine(small(), &both[..1]);
    run(&mut engine);
    let job = second_job(both[1].clone());
    engine.enqueue(job, Duration::ZERO).unwrap();
    let expected = [at(0, 1, Admitted), at(1, 1, FirstToken), at(2, 1, Finished)];
    assert_eq!(run(&mut engine), expected);
}

#[test]
fn a_prefix_is_shared_as_soon_as_it_is_computed() {
    let config = EngineConfig {
        max_batched_tokens: 512,
        ..small()
    };
    let mut engine = engine(config, &[request(1_024, 2, &[1, 2])]);
    let probe = request(1_024, 1, &[1, 2]);
    pass(&mut engine, Duration::ZERO);
    assert_eq!(engine.overlap(&probe), 8);
    pass(&mut engine, Duration::ZERO);
    assert_eq!(engine.overlap(&probe), 16);
}

#[test]
fn the_oldest_is_preempted_to_the_front_and_keeps_its_tokens() {
    // 10 blocks each; the first needs its 11th for its second token, the other two tokens later.
    let requests = [
        request(640, 4, &[]),
        request(638, 5, &[]),
        request(64, 1, &[]),
    ];
    let mut engine = engine(small(), &requests);
    let expected = [
        at(0, 0, Admitted),
        at(0, 1, Admitted),
        at(1_278, 0, FirstToken),
        at(1_278, 1, FirstToken),
        at(1_278, 0, Preempted),
        // The second goes on alone: token 2 to 5 in 4 passes. Then the first computes its 641 tokens again.
        at(1_282, 1, Finished),
        at(1_282, 2, Admitted),
        at(1_282 + 705, 2, FirstToken),
        at(1_282 + 705, 2, Finished),
        at(1_282 + 705 + 2, 0, Finished),
    ];
    assert_eq!(run(&mut engine), expected);
    let Totals {
        preemptions,
        finished,
        prompt_tokens,
        ..
    } = engine.totals();
    assert_eq!(
        (preemptions, finished, prompt_tokens),
        (1, 3, 640 + 638 + 64)
    );
}

#[test]
fn the_newest_is_preempted_where_that_is_the_rule() {
    let config = EngineConfig {
        preempts: Preempts::Newest,
        ..small()
    };
    let requests = [request(640, 4, &[]), request(638, 5, &[])];
    // The first goes on alone; then the second computes its 639 tokens again, which yields its second.
    let expected = [
        at(1_278, 1, Preempted),
        at(1_281, 0, Finished),
        at(1_281 + 639 + 3, 1, Finished),
    ];
    assert_eq!(run(&mut engine(config, &requests))[4..], expected);
}

#[test]
fn requests_that_never_fit_together_all_finish() {
    let requests: Vec<_> = (0..8)
        .map(|n| request(350 + 30 * n, 700, &[u64::from(n), 100 + u64::from(n)]))
        .collect();
    let mut engine = engine(
        EngineConfig {
            max_batched_tokens: 200,
            ..small()
        },
        &requests,
    );
    let log = run(&mut engine);
    let finished = log.iter().filter(|event| event.what == Finished).count();
    assert_eq!(
        (finished, engine.is_empty(), engine.load().active_blocks),
        (8, true, 0)
    );
    assert_eq!(engine.totals().preemptions, 7);
}

#[test]
fn a_pass_does_not_start_before_its_newest_request() {
    let mut engine = engine(small(), &[]);
    let job = Job {
        number: 0,
        request: request(10, 1, &[]),
        ticket: ticket(0),
    };
    engine.enqueue(job, 5 * MILLISECOND).unwrap();
    let pass = engine.start_pass(4 * MILLISECOND).unwrap();
    assert_eq!(
        (pass.starts_at, pass.ends_at),
        (5 * MILLISECOND, 15 * MILLISECOND)
    );
}

#[test]
fn the_newest_admitted_ticket_never_goes_back() {
    let mut engine = Engine::new(EngineConfig {
        max_sequences: 1,
        ..small()
    });
    for number in [9, 4] {
        let job = Job {
            number: 0,
            request: request(1, 1, &[]),
            ticket: ticket(number),
        };
        engine.enqueue(job, Duration::ZERO).unwrap();
        pass(&mut engine, Duration::ZERO);
        assert_eq!(engine.admitted().tickets(), [ticket(9)]);
    }
}

#[test]
fn every_router_is_echoed_its_own_newest_ticket() {
    let mut engine = Engine::new(small());
    for (router, number) in [(7, 1), (3, 1), (7, 2)] {
        let job = Job {
            number: 0,
            request: request(1, 1, &[]),
            ticket: Ticket { router, number },
        };
        engine.enqueue(job, Duration::ZERO).unwrap();
    }
    pass(&mut engine, Duration::ZERO);
    let newest = [(3, 1), (7, 2)].map(|(router, number)| Ticket { router, number });
    assert_eq!(engine.admitted().tickets(), newest);
    assert_eq!(engine.answered().tickets(), newest);
}

#[test]
fn backlog_is_what_is_not_computed_and_not_cached() {
    let config = EngineConfig {
        total_blocks: 100,
        max_batched_tokens: 512,
        reports_backlog: true,
        ..small()
    };
    // The second waits for nothing, but shares its first 512 tokens with the first, which are cached after a pass.
    let requests = [request(1_000, 1, &[1, 2]), request(700, 1, &[1, 3])];
    let mut engine = engine(config, &requests);
    assert_eq!(engine.load().prefill_blocks, Some(27), "1,700 tokens");
    engine.start_pass(Duration::ZERO).unwrap();
    assert_eq!(
        engine.load().prefill_blocks,
        Some(27),
        "nothing is computed yet"
    );
    engine.finish_pass();
    assert_eq!(engine.load().prefill_blocks, Some(11), "488 and 188 tokens");
    engine.config.reports_backlog = false;
    assert_eq!(engine.load().prefill_blocks, None, "unknown, not 0");
}

/// Whatever comes, blocks are conserved and everybody gets all tokens.
#[test]
fn random_loads_are_served_to_the_end() {
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let config = EngineConfig {
            total_blocks: rng.u32(20..60),
            max_sequences: rng.usize(1..12),
            max_batched_tokens: rng.u32(8..1_000),
            watermark: rng.f64() * 0.2,
            preempts: [Preempts::Oldest, Preempts::Newest][rng.usize(..2)],
            ..small()
        };
        let mut engine = engine(config, &[]);
        let (mut now, mut arrived, mut log) = (Duration::ZERO, 0, Vec::new());
        for _ in 0..60 {
            let input = rng.u32(1..1_600);
            let family = rng.u64(0..4);
            let hash_ids: Vec<u64> = (0..input.div_ceil(HASH_TOKENS))
                .map(|n| family * 10 + u64::from(n))
                .collect();
            let request = request(input, rng.u32(1..300), &hash_ids);
            arrived += usize::from(
                engine
                    .enqueue(
                        Job {
                            number: 0,
                            request,
                            ticket: ticket(0),
                        },
                        now,
                    )
                    .is_ok(),
            );
            for _ in 0..rng.u32(0..40) {
                let Some(pass) = engine.start_pass(now) else {
                    break;
                };
                now = pass.ends_at;
                log.extend(engine.finish_pass());
                assert_eq!(
                    engine.blocks.active(),
                    blocks_in_use(&engine),
                    "seed {seed}"
                );
            }
        }
        log.extend(run_from(&mut engine, now));
        let count = |what| log.iter().filter(|event| event.what == what).count();
        assert_eq!(
            [count(Admitted), count(FirstToken), count(Finished)],
            [arrived; 3],
            "seed {seed}"
        );
        assert_eq!(engine.load().active_blocks, 0);
    }
}

/// Counted anew from what the running sequences hold.
fn blocks_in_use(engine: &Engine) -> u32 {
    let shared: std::collections::HashSet<u64> = engine
        .running
        .iter()
        .flat_map(Sequence::shared_ids)
        .copied()
        .collect();
    let private: u32 = engine.running.iter().map(Sequence::private_blocks).sum();
    private + shared.len() as u32 * engine.blocks.blocks_per_id()
}

#[test]
fn a_request_that_is_aborted_gives_back_its_blocks_wherever_it_is() {
    let config = EngineConfig {
        max_sequences: 1,
        ..small()
    };
    let mut engine = engine(config, &[request(600, 5, &[1]), request(64, 1, &[])]);
    engine.start_pass(Duration::ZERO).unwrap();
    assert_eq!((engine.active_blocks(), engine.waiting()), (10, 1));
    assert!(engine.abort(1));
    assert_eq!(engine.waiting(), 0);
    // In the middle of a pass.
    assert!(engine.abort(0));
    assert!(!engine.abort(0));
    assert_eq!(engine.active_blocks(), 0);
    assert_eq!(
        engine.finish_pass(),
        [at(0, 0, Progress::Admitted)],
        "no token is out"
    );
    assert!(engine.is_empty());
}

#[test]
fn those_that_run_tell_what_is_out_and_what_was_cached() {
    let mut engine = engine(small(), &[request(600, 3, &[1])]);
    run(&mut engine);
    engine
        .enqueue(second_job(request(600, 3, &[1])), Duration::ZERO)
        .unwrap();
    engine.start_pass(Duration::ZERO).unwrap();
    engine.finish_pass();
    let running: Vec<_> = engine.running().collect();
    let expected = Running {
        number: 1,
        generated: 1,
        cached_tokens: 512,
    };
    assert_eq!(running, [expected]);
}

/// In the queue, in the middle of a prompt or of an answer, during a pass or between two.
#[test]
fn requests_that_leave_at_random_leave_nothing_behind() {
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let config = EngineConfig {
            total_blocks: rng.u32(30..60),
            max_sequences: rng.usize(1..12),
            max_batched_tokens: rng.u32(8..1_000),
            preempts: [Preempts::Oldest, Preempts::Newest][rng.usize(..2)],
            ..small()
        };
        let mut engine = engine(config, &[]);
        let (mut now, mut aborted, mut log) = (Duration::ZERO, 0, Vec::new());
        for number in 0..60 {
            let family = rng.u64(0..4);
            let request = request(rng.u32(1..1_600), rng.u32(1..300), &[family, 10 + family]);
            let ticket = ticket(0);
            let job = Job {
                number,
                request,
                ticket,
            };
            engine.enqueue(job, now).unwrap();
            for _ in 0..rng.u32(0..40) {
                aborted += usize::from(engine.abort(rng.usize(..=number)));
                let Some(pass) = engine.start_pass(now) else {
                    break;
                };
                aborted += usize::from(rng.bool() && engine.abort(rng.usize(..=number)));
                now = pass.ends_at;
                log.extend(engine.finish_pass());
                let in_use = blocks_in_use(&engine);
                assert_eq!(engine.blocks.active(), in_use, "seed {seed}");
            }
        }
        log.extend(run_from(&mut engine, now));
        let finished = log.iter().filter(|event| event.what == Finished).count();
        assert!(aborted > 0);
        assert_eq!(finished + aborted, 60, "seed {seed}");
        assert_eq!(engine.load().active_blocks, 0);
    }
}
