//! Products of many rows, with what follows them in a model.

use super::{Bench, MOST_ROWS, Model, Work};
use kernels::ops::*;
use kernels_cuda::CudaBackend;

impl Bench {
    /// A layer's products with the gate, and with sum and norm; the share is that of the product alone.
    pub(crate) fn many(&mut self, model: &Model) {
        let Model { hidden, heads, inner, .. } = *model;
        let (qkv_width, mixed) = ((heads.q + 2 * heads.kv) * heads.dim, heads.q * heads.dim);
        let shapes = [(qkv_width, hidden), (hidden, mixed), (2 * inner, hidden), (hidden, inner)];
        let [qkv_w, o, gate_up_w, down] = shapes.map(|(n, k)| self.matrix(n, k));
        let inputs = [hidden, mixed, inner].map(|width| self.act(MOST_ROWS, width));
        let [normed, attended, raised] = inputs;
        let mut rounded = |width| self.backend.new_rounded_act(MOST_ROWS, width, DType::Bf16);
        let (qkv, gate_up, gated) = (rounded(qkv_width), rounded(2 * inner), rounded(inner));
        let out = rounded(hidden);
        let (residual, delta) = (self.backend.new_act(MOST_ROWS, hidden), self.backend.new_act(MOST_ROWS, hidden));
        let norm = Norm { kind: NormKind::Rms, weight: None, bias: None, eps: 1e-5 };
        for rows in [512, 1024, 2048, 8192] {
            self.begin(&[(0, rows)]);
            let report = |this: &mut Self, what: &str, (n, k): (usize, usize), call: &dyn Fn(&mut CudaBackend)| {
                let seconds = this.time(0, |backend, _| call(backend));
                let bytes = (n * k * 2 + rows * (k * 2 + n * 2)) as f64;
                let work = Work { bytes, flops: (2 * rows * n * k) as f64 };
                this.report(model.name, &format!("{what}, {rows} rows"), seconds, work);
            };
            report(self, "qkv", shapes[0], &|backend| backend.matmul(normed, qkv_w, None, Epilogue::Store, qkv));
            report(self, "o", shapes[1], &|backend| backend.matmul(attended, o, None, Epilogue::Store, delta));
            report(self, "o, sum, norm", shapes[1], &|backend| {
                backend.matmul(attended, o, None, Epilogue::Store, delta);
                backend.add_norm(residual, delta, norm, out);
            });
            report(self, "gate_up", shapes[2], &|backend| {
                backend.matmul(normed, gate_up_w, None, Epilogue::Store, gate_up);
            });
            report(self, "gate_up, gate", shapes[2], &|backend| {
                backend.matmul(normed, gate_up_w, None, Epilogue::Store, gate_up);
                backend.gated(gate_up, Activation::Silu, gated);
            });
            report(self, "down, sum, norm", shapes[3], &|backend| {
                backend.matmul(raised, down, None, Epilogue::Store, delta);
                backend.add_norm(residual, delta, norm, out);
            });
        }
    }
}
