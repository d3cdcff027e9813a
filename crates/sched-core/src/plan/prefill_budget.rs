//! How fast prompts are computed, learned from finished steps: what fits into a step of a given length depends on model
//! and device.

use crate::PrefillBudget;

/// Steps with fewer prompt tokens say more about decodes than about prompts.
const TELLING: u32 = 256;
/// Steps have multiples of so many rows, decodes among them, which products of matrices compute best.
const GRAIN: u32 = 256;
/// The same from twice as many rows on. Attention of a chunk is cut into tiles, and its last round of tiles takes as
/// long as the others, however few are left for it: on a GPU with 132 multiprocessors and 32 query heads a round is 528
/// rows.
const COARSE: u32 = 1024;
/// What a step counts, one step later.
const FADE: f64 = 0.75;

/// Prompt tokens of the newest steps and the time that they took, older ones counting less. They are added up before
/// one is divided by the other: the end of a step that is noticed late lengthens this step and shortens the next, and
/// the mean of both quotients would flatter.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PrefillRate {
    tokens: f64,
    us: f64,
}

impl PrefillRate {
    /// A step computed this many prompt tokens, beside decodes or not, and took this long.
    pub fn learn(&mut self, prompt_tokens: u32, took_us: u32) {
        if prompt_tokens < TELLING || took_us == 0 {
            return;
        }
        self.tokens = FADE * self.tokens + f64::from(prompt_tokens);
        self.us = FADE * self.us + f64::from(took_us);
    }

    /// Prompt tokens for a step beside so many decodes.
    pub fn tokens_with(self, decodes: u32, pacing: PrefillBudget) -> u32 {
        let share = decodes.saturating_mul(pacing.tokens_per_decode);
        let target_us = if decodes <= pacing.few_decodes { pacing.few_decodes_target_us } else { pacing.target_us };
        let short = self.tokens_within(target_us).min(pacing.target_tokens);
        let tokens = short.max(share).min(self.tokens_within(pacing.max_us));
        let rows = tokens.saturating_add(decodes);
        let grain = if rows < 2 * COARSE { GRAIN } else { COARSE };
        let rows = rows / grain * grain;
        rows.saturating_sub(decodes).max(pacing.min_tokens)
    }

    /// Prompt tokens that a step of this length is expected to have time for.
    fn tokens_within(self, us: u32) -> u32 {
        if self.us == 0.0 { 0 } else { (self.tokens / self.us * f64::from(us)) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_what_steps_take() {
        let mut pace = PrefillRate::default();
        assert_eq!(pace.tokens_within(u32::MAX), 0);
        pace.learn(8192, 200_000);
        assert_eq!(pace.tokens_within(100_000), 4096);
        for _ in 0..50 {
            pace.learn(1024, 100_000);
        }
        assert_eq!(pace.tokens_within(110_000), 1126);
    }

    #[test]
    fn decodes_make_room_between_a_short_step_and_a_long_one() {
        let pacing = PrefillBudget {
            min_tokens: 300,
            target_us: 25_000,
            target_tokens: 2000,
            tokens_per_decode: 32,
            max_us: 150_000,
            ..PrefillBudget::default()
        };
        let mut pace = PrefillRate::default();
        assert_eq!(pace.tokens_with(64, pacing), 300, "nothing is known yet");
        pace.learn(4000, 100_000);
        // 1,000 tokens are a short step, 6,000 a long one.
        assert_eq!(
            [1, 64, 128, 250].map(|decodes| pace.tokens_with(decodes, pacing) + decodes),
            [768, 2048, 4096, 6144]
        );
        let longer = PrefillBudget { max_us: 180_000, ..pacing };
        assert_eq!(pace.tokens_with(250, longer) + 250, 7168, "not 7,424");
        assert_eq!(pace.tokens_with(100, PrefillBudget { target_us: 1, tokens_per_decode: 0, ..pacing }), 300);
    }

    #[test]
    fn very_few_decodes_may_wait_longer() {
        let pacing = PrefillBudget {
            target_us: 100_000,
            few_decodes: 12,
            few_decodes_target_us: 125_000,
            target_tokens: 6144,
            max_us: 150_000,
            ..PrefillBudget::default()
        };
        let mut pace = PrefillRate::default();
        pace.learn(4096, 90_000);
        assert_eq!([1, 12, 13].map(|decodes| pace.tokens_with(decodes, pacing) + decodes), [5120, 5120, 4096]);
    }

    #[test]
    fn a_fast_model_fills_no_long_step_beside_few_decodes() {
        let pacing = PrefillBudget {
            min_tokens: 300,
            target_us: 100_000,
            target_tokens: 6144,
            tokens_per_decode: 48,
            max_us: 150_000,
            ..PrefillBudget::default()
        };
        let mut pace = PrefillRate::default();
        pace.learn(8192, 16_000);
        assert_eq!([16, 64, 250].map(|decodes| pace.tokens_with(decodes, pacing) + decodes), [6144, 6144, 11_264]);
    }

    #[test]
    fn an_end_that_is_noticed_late_changes_nothing() {
        let mut pace = PrefillRate::default();
        for step in 0..60 {
            pace.learn(4096, if step % 2 == 0 { 190_000 } else { 10_000 });
        }
        let tokens = pace.tokens_within(100_000);
        assert!((3000..5500).contains(&tokens), "{tokens}");
    }

    #[test]
    fn small_steps_and_unmeasured_ones_say_nothing() {
        let mut pace = PrefillRate::default();
        pace.learn(255, 10);
        pace.learn(4000, 0);
        assert_eq!(pace.tokens_within(1_000_000), 0);
    }
}
