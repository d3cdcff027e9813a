//! What steps take, as it was measured.

use proto::StepPlan;

/// What a step costs on one GPU.
pub struct Costs {
    /// Rows, and microseconds of all that depends on their number alone.
    rows: &'static [(u32, f64)],
    /// Microseconds for the choice of a token.
    choice_us: f64,
    /// Microseconds for each token that a decode attends to.
    decode_us: f64,
    /// Microseconds for each pair of a prompt's row and a token before it, while all multiprocessors have work.
    pair_us: f64,
    /// Rows of prompts whose attention keeps all multiprocessors busy once.
    wave: f64,
}

/// NVIDIA H200, bf16 (docs/kernel-benchmarks.md).
pub const LLAMA_8B: Costs = Costs {
    rows: &[
        (1, 4_100.0),
        (8, 4_250.0),
        (32, 4_700.0),
        (64, 5_000.0),
        (128, 5_500.0),
        (256, 7_250.0),
        (320, 8_700.0),
        (512, 11_500.0),
        (576, 13_200.0),
        (768, 16_900.0),
        (832, 19_500.0),
        (1_024, 21_200.0),
        (1_088, 24_000.0),
        (1_280, 27_000.0),
        (1_536, 32_000.0),
        (2_048, 40_900.0),
        (2_304, 46_600.0),
        (3_072, 62_800.0),
        (3_136, 66_500.0),
        (4_096, 84_000.0),
        (4_352, 91_000.0),
        (6_144, 128_500.0),
        (8_192, 173_400.0),
    ],
    choice_us: 3.1,
    decode_us: 0.0336,
    pair_us: 0.00081,
    wave: 528.0,
};
/// The same.
pub const QWEN3_06B: Costs = Costs {
    rows: &[
        (1, 840.0),
        (8, 930.0),
        (32, 1_250.0),
        (64, 1_330.0),
        (128, 1_560.0),
        (256, 1_760.0),
        (320, 2_030.0),
        (512, 2_210.0),
        (768, 2_630.0),
        (832, 3_040.0),
        (1_024, 2_960.0),
        (1_088, 3_250.0),
        (1_536, 3_740.0),
        (1_792, 4_340.0),
        (2_048, 4_650.0),
        (3_072, 6_560.0),
        (4_096, 8_200.0),
        (5_120, 10_450.0),
        (8_192, 15_670.0),
    ],
    choice_us: 1.0,
    decode_us: 0.0294,
    pair_us: 0.00041,
    wave: 1056.0,
};

impl Costs {
    fn of_rows(&self, rows: u32) -> f64 {
        let table = self.rows;
        let next = table.iter().position(|(known, _)| *known >= rows).unwrap_or(table.len() - 1).max(1);
        let ((x0, y0), (x1, y1)) = (table[next - 1], table[next]);
        (y0 + (y1 - y0) * (f64::from(rows) - f64::from(x0)) / (f64::from(x1) - f64::from(x0))).max(table[0].1)
    }

    /// Microseconds of a step.
    pub fn of(&self, plan: &StepPlan) -> f64 {
        let mut us = self.of_rows(plan.num_tokens.iter().sum());
        let (mut rows, mut attention) = (0.0, 0.0);
        for (start, tokens) in plan.start.iter().zip(&plan.num_tokens) {
            match tokens {
                1 => us += self.choice_us + self.decode_us * f64::from(start + 1),
                _ => {
                    rows += f64::from(*tokens);
                    attention += self.pair_us * f64::from(*tokens) * (f64::from(*start) + f64::from(*tokens) / 2.0);
                }
            }
        }
        // The last wave takes as long as the others, however few rows it has.
        let waves: f64 = rows / self.wave;
        us + if rows > 0.0 { attention * waves.ceil() / waves } else { 0.0 }
    }
}
