//! Products of 17 to 256 rows with matrices of few outputs, such as the share of one rank of several: a few tiles of
//! them for each multiprocessor, in every tactic.

use super::{Bench, LEADS, ROTATION};
use kernels::ops::*;
use kernels_cuda::{CudaOptions, GemmTactics};

/// A matrix: what it is called, `[n, k]`, and what its outputs are. Those of gates, and what these gate, are gated.
type Shape = (&'static str, [usize; 2], DType);

const SHAPES: [Shape; 14] = [
    ("Llama-70B / 4 qkv", [2560, 8192], DType::Bf16),
    ("Llama-70B / 4 o", [8192, 2048], DType::Bf16),
    ("Llama-70B / 4 gate_up", [14336, 8192], DType::Bf16),
    ("Llama-70B / 4 down", [8192, 7168], DType::Bf16),
    ("Llama-70B / 2 qkv", [5120, 8192], DType::Bf16),
    ("Llama-70B / 8 gate_up", [7168, 8192], DType::Bf16),
    ("Qwen3-32B / 2 qkv", [5120, 5120], DType::Bf16),
    ("Qwen3-32B / 2 o", [5120, 4096], DType::Bf16),
    ("Qwen3-32B / 2 gate_up", [25600, 5120], DType::Bf16),
    ("Qwen3-32B / 2 down", [5120, 12800], DType::Bf16),
    ("Llama-8B qkv", [6144, 4096], DType::Bf16),
    ("Llama-8B o", [4096, 4096], DType::F32),
    ("Llama-8B down", [4096, 14336], DType::F32),
    ("Gemma-3-4B down", [2560, 10240], DType::F32),
];
const ROWS: [usize; 8] = [32, 64, 72, 104, 128, 160, 192, 256];
const TACTICS: [(&str, GemmTactics); 4] = [
    ("library", GemmTactics::Library),
    ("wgmma", GemmTactics::Wgmma),
    ("split-k", GemmTactics::SplitK),
    ("fastest", GemmTactics::AutotunedAtOnce),
];

/// Times of all shapes and rows, by tactics on devices of their own: the library's first choice, our kernels wherever
/// they fit, and what the autotuner takes.
pub fn sharded(rates: [f64; 2], options: &CudaOptions) -> Result<(), String> {
    let times = TACTICS.map(|(_, gemms)| -> Result<Vec<f64>, String> {
        let mut bench = Bench::open(rates, CudaOptions { gemms, ..options.clone() })?;
        let times = SHAPES.iter().flat_map(|shape| bench.times(shape)).collect();
        bench.backend.fault().map_or(Ok(times), |fault| Err(fault.to_owned()))
    });
    let times: Vec<Vec<f64>> = times.into_iter().collect::<Result<_, _>>()?;
    let cases = SHAPES.iter().flat_map(|shape| ROWS.map(|rows| (shape, rows)));
    for (i, ((name, [n, k], output), rows)) in cases.enumerate() {
        let bytes = (n * k * 2 + rows * (k * 2 + n * output.size())) as f64;
        let bound = (bytes / rates[0]).max((2 * rows * n * k) as f64 / rates[1]);
        let times = TACTICS.iter().zip(&times).map(|((tactic, _), times)| format!("{tactic} {:5.1}", times[i] * 1e6));
        let times: Vec<String> = times.collect();
        let what = format!("[{n}, {k}], {rows} rows");
        println!("{name:21} | {what:24} | {} us | at best {:5.1}", times.join(", "), bound * 1e6);
    }
    Ok(())
}

impl Bench {
    /// Seconds of a product of each number of rows.
    fn times(&mut self, (name, [n, k], output): &Shape) -> Vec<f64> {
        let copies = (ROTATION / (n * k * 2)).clamp(2, 64);
        let weights: Vec<Matrix> = (0..copies).map(|_| self.matrix(*n, *k)).collect();
        let most = ROWS[ROWS.len() - 1];
        let (x, out) = (self.act(most, *k), self.backend.new_rounded_act(most, *n, *output));
        let gated = name.ends_with("gate_up").then(|| self.backend.new_rounded_act(most, n / 2, *output));
        let time = |rows: usize| {
            self.begin(&vec![(0, 1); rows]);
            self.time(LEADS, |backend, i| {
                backend.matmul(x, weights[i % copies], None, Epilogue::Store, out);
                if let Some(gated) = gated {
                    backend.gated(out, Activation::Silu, gated);
                }
            })
        };
        ROWS.into_iter().map(time).collect()
    }
}
