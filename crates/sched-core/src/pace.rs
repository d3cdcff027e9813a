//! How fast prompts are computed, learned from finished steps: what fits into a step of a given length depends on model and device.

/// Steps with fewer prompt tokens say more about decodes than about prompts.
const TELLING: u32 = 256;
/// Chunks are multiples of this, which products of matrices compute best.
const GRAIN: u32 = 256;
/// How much the newest step counts.
const NEWEST: f64 = 0.25;

/// Prompt tokens that a microsecond computes; 0: not known yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    tokens_per_us: f64,
}

impl Pace {
    /// A step computed this many prompt tokens, beside decodes or not, and took this long.
    pub fn learn(&mut self, prompt_tokens: u32, took_us: u32) {
        if prompt_tokens < TELLING || took_us == 0 {
            return;
        }
        let newest = f64::from(prompt_tokens) / f64::from(took_us);
        let known = if self.tokens_per_us > 0.0 { self.tokens_per_us } else { newest };
        self.tokens_per_us = known + NEWEST * (newest - known);
    }

    /// Prompt tokens that a step of this length is expected to have time for.
    pub fn tokens_within(self, us: u32) -> u32 {
        (self.tokens_per_us * f64::from(us)) as u32 / GRAIN * GRAIN
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
    fn small_steps_and_unmeasured_ones_say_nothing() {
        let mut pace = Pace::default();
        pace.learn(255, 10);
        pace.learn(4000, 0);
        assert_eq!(pace.tokens_within(1_000_000), 0);
    }
}
