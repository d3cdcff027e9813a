//! How fast prompts are computed, learned from finished steps: what fits into a step of a given length depends on model
//! and device.

use crate::PrefillBudget;

/// Steps with fewer prompt tokens say more about decodes than about prompts.
const TELLING: u32 = 256;
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

    /// Prompt tokens for a step with this many tokens of decodes.
    pub fn tokens_with(self, decodes: u32, budget: PrefillBudget) -> u32 {
        let share = decodes.saturating_mul(budget.tokens_per_decode);
        let few = decodes <= budget.few_decodes;
        let target_us = if few { budget.few_decodes_target_us } else { budget.target_us };
        let within_target = self.tokens_within(target_us).min(budget.target_tokens);
        let slow = self.tokens_within(budget.slow_max_us).min(budget.target_tokens);
        let tokens = within_target.max(share).min(self.tokens_within(budget.max_us).max(slow));
        let rows = tokens.saturating_add(decodes);
        let (small, large) = (budget.row_multiple.max(1), budget.large_row_multiple.max(1));
        let multiple = if rows < large.saturating_mul(2) { small } else { large };
        (rows / multiple * multiple).saturating_sub(decodes).max(budget.min_tokens)
    }

    /// Prompt tokens that a step of this length is expected to have time for.
    fn tokens_within(self, us: u32) -> u32 {
        if self.us == 0.0 { 0 } else { (self.tokens / self.us * f64::from(us)) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a GPU with 132 multiprocessors and a model with 32 heads.
    const ROWS: PrefillBudget = PrefillBudget {
        row_multiple: 256,
        large_row_multiple: 1024,
        min_tokens: 0,
        target_us: 0,
        few_decodes: 0,
        few_decodes_target_us: 0,
        target_tokens: 0,
        tokens_per_decode: 0,
        max_us: 0,
        slow_max_us: 0,
    };

    #[test]
    fn follows_what_steps_take() {
        let mut rate = PrefillRate::default();
        assert_eq!(rate.tokens_within(u32::MAX), 0);
        rate.learn(8192, 200_000);
        assert_eq!(rate.tokens_within(100_000), 4096);
        for _ in 0..50 {
            rate.learn(1024, 100_000);
        }
        assert_eq!(rate.tokens_within(110_000), 1126);
    }

    #[test]
    fn decodes_make_room_between_a_short_step_and_a_long_one() {
        let budget = PrefillBudget {
            min_tokens: 300,
            target_us: 25_000,
            target_tokens: 2000,
            tokens_per_decode: 32,
            max_us: 150_000,
            ..ROWS
        };
        let mut rate = PrefillRate::default();
        assert_eq!(rate.tokens_with(64, budget), 300, "nothing is known yet");
        rate.learn(4000, 100_000);
        // 1,000 tokens are a short step, 6,000 a long one.
        assert_eq!(
            [1, 64, 128, 250].map(|decodes| rate.tokens_with(decodes, budget) + decodes),
            [768, 2048, 4096, 6144]
        );
        let longer = PrefillBudget { max_us: 180_000, ..budget };
        assert_eq!(rate.tokens_with(250, longer) + 250, 7168, "not 7,424");
        assert_eq!(rate.tokens_with(100, PrefillBudget { target_us: 1, tokens_per_decode: 0, ..budget }), 300);
    }

    #[test]
    fn rows_are_multiples_that_suit_the_device() {
        let mut rate = PrefillRate::default();
        rate.learn(4000, 100_000);
        let budget = PrefillBudget { target_us: 75_100, target_tokens: 9000, max_us: 150_000, ..ROWS };
        let rows = |row_multiple, large_row_multiple| {
            rate.tokens_with(4, PrefillBudget { row_multiple, large_row_multiple, ..budget }) + 4
        };
        assert_eq!([rows(256, 1024), rows(256, 2048), rows(16, 16), rows(0, 0)], [2048, 2816, 3008, 3008]);
    }

    #[test]
    fn very_few_decodes_may_wait_longer() {
        let budget = PrefillBudget {
            target_us: 100_000,
            few_decodes: 12,
            few_decodes_target_us: 125_000,
            target_tokens: 6144,
            max_us: 150_000,
            ..ROWS
        };
        let mut rate = PrefillRate::default();
        rate.learn(4096, 90_000);
        assert_eq!([1, 12, 13].map(|decodes| rate.tokens_with(decodes, budget) + decodes), [5120, 5120, 4096]);
    }

    #[test]
    fn a_fast_model_fills_no_long_step_beside_few_decodes() {
        let budget = PrefillBudget {
            min_tokens: 300,
            target_us: 100_000,
            target_tokens: 6144,
            tokens_per_decode: 48,
            max_us: 150_000,
            ..ROWS
        };
        let mut rate = PrefillRate::default();
        rate.learn(8192, 16_000);
        assert_eq!([16, 64, 250].map(|decodes| rate.tokens_with(decodes, budget) + decodes), [6144, 6144, 11_264]);
    }

    #[test]
    fn a_slow_model_has_longer_steps_beside_many_decodes_alone() {
        let budget = PrefillBudget {
            target_us: 100_000,
            target_tokens: 6144,
            tokens_per_decode: 48,
            max_us: 150_000,
            slow_max_us: 300_000,
            ..ROWS
        };
        let rows = |tokens, budget| {
            let mut rate = PrefillRate::default();
            rate.learn(tokens, 100_000);
            [16, 64, 256].map(|decodes| rate.tokens_with(decodes, budget) + decodes)
        };
        assert_eq!(rows(1720, budget), [1536, 3072, 5120]);
        assert_eq!(rows(1720, PrefillBudget { slow_max_us: 0, ..budget }), [1536, 2048, 2048]);
        // One that has as many tokens within the shorter time is not slow.
        assert_eq!(rows(4500, budget), rows(4500, PrefillBudget { slow_max_us: 0, ..budget }));
    }

    #[test]
    fn an_end_that_is_noticed_late_changes_nothing() {
        let mut rate = PrefillRate::default();
        for step in 0..60 {
            rate.learn(4096, if step % 2 == 0 { 190_000 } else { 10_000 });
        }
        let tokens = rate.tokens_within(100_000);
        assert!((3000..5500).contains(&tokens), "{tokens}");
    }

    #[test]
    fn small_steps_and_unmeasured_ones_say_nothing() {
        let mut rate = PrefillRate::default();
        rate.learn(255, 10);
        rate.learn(4000, 0);
        assert_eq!(rate.tokens_within(1_000_000), 0);
    }
}
