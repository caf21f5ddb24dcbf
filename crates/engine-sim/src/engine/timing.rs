//! How long an engine's pass takes: the polynomials of Dynamo's simulated engine.

use std::time::Duration;

/// Coefficients in milliseconds, the highest power first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// Over uncached prompt tokens.
    pub prefill: [f64; 3],
    /// Over the share of the blocks that is active, 0 to 1.
    pub decode: [f64; 3],
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            prefill: [4.209_989e-7, 0.015_183_44, 16.501_42],
            decode: [-25.74, 54.01, 5.74],
        }
    }
}

/// The prefill work of one pass.
///
/// A prompt that fits one pass takes the polynomial's time. One cut into chunks pays the quadratic part for each chunk as
/// the piece of the parabola it covers, and each pass pays the constant once, however many prompts share it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct PrefillWork {
    tokens: u32,
    squares: f64,
}

impl PrefillWork {
    /// `tokens` more of a prompt of which `done` uncached ones are behind it.
    pub(super) fn add(&mut self, done: u32, tokens: u32) {
        let (done, chunk) = (f64::from(done), f64::from(tokens));
        self.tokens += tokens;
        self.squares += chunk * (2.0 * done + chunk);
    }
}

impl Timing {
    /// An engine that takes `factor` times as long for everything.
    pub fn slower(self, factor: f64) -> Self {
        Self {
            prefill: self.prefill.map(|coefficient| coefficient * factor),
            decode: self.decode.map(|coefficient| coefficient * factor),
        }
    }

    /// The time of a pass: its prefill, if it has any, then a token for each sequence that decodes, if one does.
    pub(super) fn pass(&self, prefill: PrefillWork, decodes: bool, usage: f64) -> Duration {
        let mut milliseconds = 0.0;
        if prefill.tokens > 0 {
            let [square, linear, constant] = self.prefill;
            milliseconds +=
                square * prefill.squares + linear * f64::from(prefill.tokens) + constant;
        }
        if decodes {
            let [square, linear, constant] = self.decode;
            milliseconds += (square * usage + linear) * usage + constant;
        }
        Duration::from_secs_f64(milliseconds / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefill(chunks: &[(u32, u32)]) -> PrefillWork {
        let mut work = PrefillWork::default();
        chunks
            .iter()
            .for_each(|&(done, tokens)| work.add(done, tokens));
        work
    }

    #[test]
    fn decode_follows_the_polynomial() {
        let timing = Timing::default();
        let at = |usage| timing.pass(PrefillWork::default(), true, usage);
        assert_eq!(at(0.0), Duration::from_micros(5_740));
        assert_eq!(at(0.5), Duration::from_micros(26_310));
        assert_eq!(at(1.0), Duration::from_micros(34_010));
    }

    #[test]
    fn prefill_follows_the_polynomial_and_adds_to_decode() {
        let timing = Timing::default();
        // 0.4209989 + 15.18344 + 16.50142 ms
        assert_eq!(
            timing.pass(prefill(&[(0, 1_000)]), false, 0.5),
            Duration::from_nanos(32_105_859)
        );
        assert_eq!(
            timing.pass(prefill(&[(0, 1_000)]), true, 0.5),
            Duration::from_nanos(32_105_859 + 26_310_000)
        );
    }

    #[test]
    fn a_slower_engine_takes_longer_for_everything() {
        let slow = Timing::default().slower(2.0);
        let pass = |timing: &Timing| timing.pass(prefill(&[(0, 1_000)]), true, 0.5);
        assert_eq!(pass(&slow), 2 * pass(&Timing::default()));
    }

    #[test]
    fn chunks_cost_the_whole_prompt_and_a_constant_each() {
        let timing = Timing::default();
        let whole = timing.pass(prefill(&[(0, 3_000)]), false, 0.0);
        let chunks =
            [(0, 1_000), (1_000, 2_000)].map(|chunk| timing.pass(prefill(&[chunk]), false, 0.0));
        let extra = chunks[0] + chunks[1] - whole;
        assert_eq!(extra.as_micros(), 16_501);
    }

    #[test]
    fn prompts_of_one_pass_share_the_constant_but_not_the_square() {
        let timing = Timing::default();
        let both = timing.pass(prefill(&[(0, 1_000), (0, 1_000)]), false, 0.0);
        // 2 × 0.4209989 + 2 × 15.18344 + 16.50142 ms
        assert_eq!(both, Duration::from_nanos(47_710_298));
    }
}
