//! The built-in trace: people who talk to a few applications.
//!
//! An application has a system prompt, which all its conversations share. A conversation has some turns; the prompt of
//! each is all that was said before and something new. Conversations begin at random, a few a second most of the time and
//! two hundred a second in a short burst at the end of each period.

use std::time::Duration;

use fastrand::Rng;

use super::{HASH_TOKENS, Request};

/// Conversations: about 4 turns each, so some 4,000 requests.
const CONVERSATIONS: usize = 1_000;
/// Tokens of the system prompts, the popular application first.
const SYSTEM_PROMPTS: [u32; 6] = [1_536, 4_096, 1_000, 6_144, 512, 2_500];
const TURNS: std::ops::RangeInclusive<u32> = 1..=7;
/// Mean tokens of a question, attachments included; the distribution is exponential.
const QUESTION_TOKENS: f64 = 2_500.0;
const ANSWER_TOKENS: f64 = 220.0;
const MAX_TOKENS: f64 = 20_000.0;
/// Mean seconds from the beginning of one conversation to that of the next.
const CALM_GAP: f64 = 0.25;
const BURST_GAP: f64 = 0.005;
/// Seconds; what is left of a period after the calm is a burst.
const PERIOD: f64 = 30.0;
const CALM: f64 = 28.0;
/// Mean seconds from an answer to the next question. The answer itself is taken to come at this many tokens a second.
const THINKING: f64 = 15.0;
const TOKENS_PER_SECOND: f64 = 30.0;

pub(super) fn conversations(seed: u64) -> Vec<Request> {
    let mut rng = Rng::with_seed(seed);
    let mut ids = Ids::default();
    let systems = SYSTEM_PROMPTS.map(|tokens| SystemPrompt {
        tokens,
        ids: ids.take(tokens / HASH_TOKENS),
    });
    let mut requests = Vec::new();
    let mut begin = 0.0;
    for _ in 0..CONVERSATIONS {
        let gap = if begin % PERIOD < CALM {
            CALM_GAP
        } else {
            BURST_GAP
        };
        begin += exponential(&mut rng, gap);
        // The smaller of two draws: the first applications are used most.
        let application = rng.usize(..systems.len()).min(rng.usize(..systems.len()));
        converse(
            &systems[application],
            begin,
            &mut rng,
            &mut ids,
            &mut requests,
        );
    }
    requests
}

#[derive(Debug)]
struct SystemPrompt {
    tokens: u32,
    ids: Vec<u64>,
}

/// Hash ids nobody has yet.
#[derive(Debug, Default)]
struct Ids {
    next: u64,
}

impl Ids {
    fn take(&mut self, count: u32) -> Vec<u64> {
        let first = self.next;
        self.next += u64::from(count);
        (first..self.next).collect()
    }
}

fn converse(
    system: &SystemPrompt,
    begin: f64,
    rng: &mut Rng,
    ids: &mut Ids,
    requests: &mut Vec<Request>,
) {
    let mut arrival = begin;
    let mut history = system.tokens;
    let mut known = system.ids.clone();
    for _ in 0..rng.u32(TURNS) {
        let input_tokens = history + tokens(rng, QUESTION_TOKENS);
        let output_tokens = tokens(rng, ANSWER_TOKENS);
        known.extend(ids.take(input_tokens / HASH_TOKENS - known.len() as u32));
        let mut hash_ids = known.clone();
        hash_ids.extend(ids.take(u32::from(!input_tokens.is_multiple_of(HASH_TOKENS))));
        requests.push(Request {
            arrival: Duration::from_secs_f64(arrival),
            input_tokens,
            output_tokens,
            hash_ids,
        });
        history = input_tokens + output_tokens;
        arrival += f64::from(output_tokens) / TOKENS_PER_SECOND + exponential(rng, THINKING);
    }
}

fn tokens(rng: &mut Rng, mean: f64) -> u32 {
    exponential(rng, mean).clamp(1.0, MAX_TOKENS) as u32
}

fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    // 1 − [0, 1) is never zero.
    -(1.0 - rng.f64()).ln() * mean
}
