//! The gated delta rule of linear attention, prompts in chunks and row by row: two backends in turn.

use kernels::ops::*;
use kernels_cuda::{CudaOptions, LinearAttention};

use super::{Bench, LEADS, Work};

/// Layers whose states take turns, so that one's is no longer in the GPU's cache when it is used again.
const LAYERS: usize = 6;
const MOST_SEQUENCES: usize = 256;
const CHUNK: usize = 64;

/// Qwen3-Next 80B-A3B.
const MODEL: &str = "Qwen3-Next";
const KEY_HEADS: usize = 16;
const VALUE_HEADS: usize = 32;
const DIM: usize = 128;

/// Sequences, and rows of each.
const STEPS: [(usize, usize); 11] =
    [(1, 1), (64, 1), (256, 1), (1, 16), (1, 32), (1, 64), (1, 512), (1, 2048), (1, 8192), (8, 1500), (4, 2048)];

/// In chunks, and then row by row.
pub fn delta_rule(rates: [f64; 2], options: &CudaOptions) -> Result<(), String> {
    for linear_attention in [LinearAttention::Chunks, LinearAttention::Rows] {
        let mut bench = Bench::open(rates, CudaOptions { linear_attention, ..options.clone() })?;
        for kept in [DType::F32, DType::F16] {
            bench.delta_rule(linear_attention, kept);
        }
        bench.backend.fault().map_or(Ok(()), |fault| Err(fault.to_owned()))?;
    }
    Ok(())
}

impl Bench {
    fn rules(&mut self, kept: DType) -> Vec<DeltaRule> {
        let rate: Vec<f32> = (0..VALUE_HEADS).map(|head| -0.02 * (1 + head) as f32).collect();
        let backend = &mut self.backend;
        let mut rule = || DeltaRule {
            key_heads: KEY_HEADS,
            value_heads: VALUE_HEADS,
            key_dim: DIM,
            value_dim: DIM,
            rate: backend.load_vector(&rate),
            dt_bias: backend.load_vector(&rate),
            state: backend.new_state(MOST_SEQUENCES, VALUE_HEADS * DIM * DIM, kept),
        };
        (0..LAYERS).map(|_| rule()).collect()
    }

    /// Row by row, prompts are launched but twice a round.
    fn delta_rule(&mut self, how: LinearAttention, kept: DType) {
        const ROWS: usize = 12_000;
        let slow = how == LinearAttention::Rows;
        let rules = self.rules(kept);
        let qkv = self.act(ROWS, rules[0].row_width());
        let rates = self.act(ROWS, 2 * VALUE_HEADS);
        let out = self.backend.new_rounded_act(ROWS, VALUE_HEADS * DIM, DType::Bf16);
        let cols = |first| Cols { act: rates, first };
        let input = DeltaInput { qkv, beta: cols(0), dt: cols(VALUE_HEADS) };
        for (sequences, rows) in STEPS {
            let calls = if rows == 1 || !slow { super::CALLS } else { 2 };
            self.begin(&vec![(usize::from(rows == 1), rows); sequences]);
            let leads = if sequences * rows > 256 { 0 } else { LEADS };
            let seconds = self.time_calls(leads, calls, |backend, i| {
                backend.delta_rule(input, rules[i % LAYERS], out);
            });
            let (all, state) = (sequences * rows, VALUE_HEADS * DIM * DIM);
            let moved = 2 * sequences * state * kept.size()
                + all * (rules[0].row_width() + 2 * VALUE_HEADS + VALUE_HEADS * DIM) * 2;
            // Of the chunked form: three products with the state, and those within a chunk.
            let flops = all * VALUE_HEADS * (6 * DIM * DIM + 8 * CHUNK * DIM);
            let work = Work { bytes: moved as f64, flops: if rows == 1 { 0.0 } else { flops as f64 } };
            self.report(
                MODEL,
                &format!("delta rule, {how:?}, {sequences} x {rows} rows, {}", kept.name()),
                seconds,
                work,
            );
        }
    }
}
