//! A layer of experts: each of its operations, and all of them one after the other.

use super::packed::{INT4, MXFP4, Stored};
use super::{Bench, LEADS, Work};
use kernels::ops::*;
use kernels_cuda::CudaBackend;

/// Rows of steps, where none are named, and of the largest.
const ROWS: [usize; 11] = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, MOST_ROWS];
const MOST_ROWS: usize = 8192;
/// Choices of experts that take turns, so that those of one are no longer in the GPU's cache when it is used again.
const CHOICES: usize = 6;

pub struct Model {
    name: &'static str,
    hidden: usize,
    inner: usize,
    experts: usize,
    top_k: usize,
    stored: Stored,
}

const MIXTRAL: Model =
    Model { name: "Mixtral", hidden: 4096, inner: 14336, experts: 8, top_k: 2, stored: Stored::Bf16 };
const QWEN: Model = Model { name: "Qwen3-30B", hidden: 2048, inner: 768, experts: 128, top_k: 8, stored: Stored::Bf16 };
const GPT_OSS: Model = Model {
    name: "gpt-oss-20b, MXFP4",
    hidden: 2880,
    inner: 2880,
    experts: 32,
    top_k: 4,
    stored: Stored::Grouped(MXFP4),
};

pub const MODELS: [Model; 2] = [MIXTRAL, QWEN];

/// Those of many small experts, of which each has few rows.
pub const SMALL: [Model; 2] = [
    Model { name: "Qwen3-Next", hidden: 2048, inner: 512, experts: 512, top_k: 10, stored: Stored::Bf16 },
    Model { name: "DeepSeek-V2-Lite", hidden: 2048, inner: 1408, experts: 64, top_k: 6, stored: Stored::Bf16 },
];

/// Those whose experts are stored in 4 or 8 bits.
pub const PACKED: [Model; 2] = [GPT_OSS, Model { name: "Mixtral, int4", stored: Stored::Grouped(INT4), ..MIXTRAL }];

/// Those whose experts are 8-bit floats: multiplied by 16-bit inputs, and by inputs that are rounded alike.
pub const FP8: [Model; 2] = [
    Model { name: "Qwen3-30B, fp8", stored: Stored::E4m3Blocks(InputRounding::None), ..QWEN },
    Model { name: "Qwen3-30B, fp8 by fp8", stored: Stored::E4m3Blocks(InputRounding::Dynamic { cols: 128 }), ..QWEN },
];

/// A layer's weights and buffers.
struct Layer {
    routing: Routing,
    up: MatrixGroup,
    down: MatrixGroup,
    x: Act,
    /// Each with choices of its own.
    logits: Vec<Act>,
    choices: Vec<ExpertRouting>,
    raised: Act,
    inner: Act,
    given: Act,
    out: Act,
}

impl Layer {
    fn route(&self, backend: &mut CudaBackend, i: usize) {
        backend.route(self.logits[i % CHOICES], self.routing, self.choices[i % CHOICES]);
    }

    fn up(&self, backend: &mut CudaBackend, i: usize) {
        let reader = Some(self.down);
        let experts =
            GatedExperts { w: self.up, bias: None, activation: Activation::Silu, raised: self.raised, reader };
        backend.gated_experts(self.x, experts, self.choices[i % CHOICES], self.inner);
    }

    fn down(&self, backend: &mut CudaBackend, i: usize) {
        backend.expert_matmul(self.inner, self.down, None, self.choices[i % CHOICES], self.given);
    }

    fn combine(&self, backend: &mut CudaBackend, i: usize) {
        backend.combine(self.given, self.choices[i % CHOICES], Epilogue::Store, self.out);
    }

    fn all(&self, backend: &mut CudaBackend, i: usize) {
        self.route(backend, i);
        self.up(backend, i);
        self.down(backend, i);
        self.combine(backend, i);
    }
}

impl Bench {
    pub fn mixture(&mut self, model: &Model, rows: &[usize]) {
        let Model { name, hidden, inner, experts, top_k, stored } = *model;
        let layer = self.layer(model);
        let named = !rows.is_empty();
        for &rows in if named { rows } else { &ROWS } {
            let rows = rows.min(MOST_ROWS);
            let used = self.fill(&layer, model, rows);
            let leads = if rows > 256 { 0 } else { LEADS };
            let (pairs, matrix) = (rows * top_k, stored.bits() * hidden * inner / 8);
            // Bytes of a row of `hidden` and of `inner` elements, in bf16.
            let (wide, narrow) = (2 * hidden * pairs, 2 * inner * pairs);
            let work = |matrices: usize, moved: usize| Work {
                bytes: (used * matrices * matrix + moved) as f64,
                flops: (2 * pairs * matrices * hidden * inner) as f64,
            };
            let report = |bench: &Bench, what: &str, seconds: f64, work: Work| {
                bench.report(name, &format!("{what}, {rows} rows, {used} of {experts} experts"), seconds, work);
            };
            (0..CHOICES).for_each(|i| layer.all(&mut self.backend, i));
            let seconds = self.time(leads, |backend, i| layer.route(backend, i));
            report(self, "route", seconds, Work { bytes: (4 * experts * rows) as f64, flops: 0.0 });
            let seconds = self.time(leads, |backend, i| layer.up(backend, i));
            report(self, "gate and up", seconds, work(2, wide / top_k + narrow));
            let seconds = self.time(leads, |backend, i| layer.down(backend, i));
            report(self, "down", seconds, work(1, narrow + wide));
            let seconds = self.time(leads, |backend, i| layer.combine(backend, i));
            report(self, "sums", seconds, Work { bytes: (wide + 4 * hidden * rows) as f64, flops: 0.0 });
            let seconds = self.time(leads, |backend, i| layer.all(backend, i));
            report(self, "all four", seconds, work(3, 0));
        }
    }

    fn layer(&mut self, model: &Model) -> Layer {
        let Model { hidden, inner, experts, top_k, .. } = *model;
        let group = |bench: &mut Self, rows, cols| {
            let members: Vec<Matrix> = (0..experts).map(|_| bench.stored_matrix(model.stored, [rows, cols])).collect();
            bench.backend.group_matrices(&members, MatrixUse::Experts)
        };
        let (up, down) = (group(self, 2 * inner, hidden), group(self, hidden, inner));
        let routing = Routing {
            score: RouterScore::Softmax,
            correction: None,
            groups: None,
            top_k,
            renormalise: true,
            scale: 1.0,
        };
        let x = self.act(MOST_ROWS, hidden);
        let (backend, pairs) = (&mut self.backend, MOST_ROWS * top_k);
        Layer {
            routing,
            up,
            down,
            x,
            logits: (0..CHOICES).map(|_| backend.new_act(MOST_ROWS, experts)).collect(),
            choices: (0..CHOICES).map(|_| backend.new_expert_routing(MOST_ROWS, top_k)).collect(),
            raised: backend.new_rounded_act(pairs, 2 * inner, DType::Bf16),
            inner: backend.new_rounded_act(pairs, inner, DType::Bf16),
            given: backend.new_rounded_act(pairs, hidden, DType::Bf16),
            out: backend.new_act(MOST_ROWS, hidden),
        }
    }

    /// Begins a step of rows that choose experts at random; how many are chosen at least once, of the choices' mean.
    fn fill(&mut self, layer: &Layer, model: &Model, rows: usize) -> usize {
        self.begin(&vec![(0, 1); rows]);
        let mut state = 0x2545_f491_u32;
        let mut total = 0;
        for logits in &layer.logits {
            let mut used = vec![false; model.experts];
            for row in self.backend.host_mut(*logits).chunks_mut(model.experts) {
                for logit in row.iter_mut() {
                    state ^= state << 13;
                    state ^= state >> 17;
                    state ^= state << 5;
                    *logit = (state >> 8) as f32 / (1 << 24) as f32;
                }
                let mut order: Vec<usize> = (0..row.len()).collect();
                order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
                order[..model.top_k].iter().for_each(|expert| used[*expert] = true);
            }
            total += used.iter().filter(|used| **used).count();
        }
        (total + CHOICES / 2) / CHOICES
    }
}
