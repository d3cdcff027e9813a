//! How fast prompts are computed, learned from finished steps: what fits into a step of a given length depends on model and device.

/// Steps with fewer prompt tokens say more about decodes than about prompts.
const TELLING: u32 = 256;
/// Chunks are multiples of this, which products of matrices compute best.
const GRAIN: u32 = 256;
/// What a step counts, one step later.
const FADE: f64 = 0.75;

/// Prompt tokens of the newest steps and the time that they took, older ones counting less. They are added up before one is divided by
/// the other: the end of a step that is noticed late lengthens this step and shortens the next, and the mean of both quotients would flatter.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    tokens: f64,
    us: f64,
}

impl Pace {
    /// A step computed this many prompt tokens, beside decodes or not, and took this long.
    pub fn learn(&mut self, prompt_tokens: u32, took_us: u32) {
        if prompt_tokens < TELLING || took_us == 0 {
            return;
        }
        self.tokens = FADE * self.tokens + f64::from(prompt_tokens);
        self.us = FADE * self.us + f64::from(took_us);
    }

    /// Prompt tokens that a step of this length is expected to have time for.
    pub fn tokens_within(self, us: u32) -> u32 {
        if self.us == 0.0 { 0 } else { (self.tokens / self.us * f64::from(us)) as u32 / GRAIN * GRAIN }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_what_steps_take() {
        let mut pace = Pace::default();
        assert_eq!(pace.tokens_within(u32::MAX), 0);
        pace.learn(8192, 200_000);
        assert_eq!(pace.tokens_within(100_000), 4096);
        for _ in 0..50 {
            pace.learn(1024, 100_000);
        }
        assert_eq!(pace.tokens_within(110_000), 1024);
    }

    #[test]
    fn an_end_that_is_noticed_late_changes_nothing() {
        let mut pace = Pace::default();
        for step in 0..60 {
            pace.learn(4096, if step % 2 == 0 { 190_000 } else { 10_000 });
        }
        let tokens = pace.tokens_within(100_000);
        assert!((3000..5500).contains(&tokens), "{tokens}");
    }

    #[test]
    fn small_steps_and_unmeasured_ones_say_nothing() {
        let mut pace = Pace::default();
        pace.learn(255, 10);
        pace.learn(4000, 0);
        assert_eq!(pace.tokens_within(1_000_000), 0);
    }
}
