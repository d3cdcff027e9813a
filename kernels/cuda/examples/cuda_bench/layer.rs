//! A whole layer of a decode step.

use super::{Bench, LEADS, MOST_ROWS, Model, ROTATION, Work};
use kernels::ops::*;

impl Bench {
    /// A layer of a decode step, kernel after kernel as a model has them; the share is that of reading weights and cache once.
    pub(crate) fn decode_layer(&mut self, model: &Model) {
        const ROWS: usize = 256;
        const TOKENS: usize = 256 * ROWS;
        let Model { hidden, heads, inner, .. } = *model;
        let qkv_width = (heads.q + 2 * heads.kv) * heads.dim;
        let shapes = [(qkv_width, hidden), (hidden, heads.q * heads.dim), (2 * inner, hidden), (hidden, inner)];
        let weight_bytes: usize = shapes.iter().map(|(n, k)| n * k * 2).sum();
        let copies = ROTATION.div_ceil(weight_bytes).max(2);
        let weights: Vec<[Matrix; 4]> = (0..copies).map(|_| shapes.map(|(n, k)| self.matrix(n, k))).collect();
        let qkv = self.act(MOST_ROWS, qkv_width);
        let caches = self.caches(heads, qkv, TOKENS, DType::Bf16);
        let scales = Some(self.backend.load_vector(&vec![1.0; hidden]));
        let norm = Norm { kind: NormKind::Rms, weight: scales, bias: None, eps: 1e-5 };
        let inv_freq = self.backend.load_vector(&vec![0.5; heads.dim / 2]);
        let rope = Some(Rope { inv_freq, rotary_dim: heads.dim, style: RopeStyle::Halves, mscale: 1.0 });
        let attention = self.attention(heads);
        let mut rounded = |rows, width| self.backend.new_rounded_act(rows, width, DType::Bf16);
        let (normed, attended) = (rounded(ROWS, hidden), rounded(ROWS, heads.q * heads.dim));
        let (gate_up, gated) = (rounded(ROWS, 2 * inner), rounded(ROWS, inner));
        let (residual, delta) = (self.backend.new_act(ROWS, hidden), self.backend.new_act(ROWS, hidden));
        let short = [1, 8, 16, 24, 32, 48, 64, 96, 128, ROWS].map(|rows| (rows, 256));
        for (rows, length) in short.into_iter().chain([8, 16, 32, 64].map(|rows| (rows, 1024))) {
            self.begin(&vec![(length - 1, 1); rows]);
            let seconds = self.time(2 * LEADS, |backend, i| {
                let ([qkv_w, o, gate_up_w, down], cache) = (weights[i % copies], caches[i % caches.len()]);
                backend.add_norm(residual, delta, norm, normed);
                backend.matmul(normed, qkv_w, None, Epilogue::Store, qkv);
                backend.rope_and_cache(qkv, heads, rope, cache);
                backend.attention(qkv, attention, cache, attended);
                backend.matmul(attended, o, None, Epilogue::Store, delta);
                backend.add_norm(residual, delta, norm, normed);
                backend.matmul(normed, gate_up_w, None, Epilogue::Store, gate_up);
                backend.gated(gate_up, Activation::Silu, gated);
                backend.matmul(gated, down, None, Epilogue::Store, delta);
            });
            let bytes = (weight_bytes + rows * length * heads.kv * heads.dim * 4) as f64;
            self.report(model.name, &format!("layer, {rows} rows of {length}"), seconds, Work { bytes, flops: 0.0 });
        }
    }
}
