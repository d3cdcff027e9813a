//! A whole layer of a step, kernel after kernel as a model has them.

use super::{Bench, LEADS, MOST_ROWS, Model, ROTATION, Work};
use kernels::ops::*;
use kernels_cuda::CudaBackend;

/// What a layer of a model is made of; weights and caches several times, so that none is still in the GPU's cache.
pub(super) struct Layer {
    heads: Heads,
    weights: Vec<[Matrix; 4]>,
    weight_elements: usize,
    caches: Vec<KvLayer>,
    norm: Norm,
    rope: Option<Rope>,
    attention: Attention,
    qkv: Act,
    normed: Act,
    attended: Act,
    gate_up: Act,
    gated: Act,
    residual: Act,
    delta: Act,
    /// Those of qkv, o, gate_up and down, as often as weights.
    adapters: Vec<[LoraSite; 4]>,
}

impl Layer {
    /// For steps of `rows` rows, and sequences of `tokens` tokens in all.
    pub(super) fn new(bench: &mut Bench, model: &Model, rows: usize, tokens: usize) -> Self {
        Self::of(bench, model, [rows, tokens], |bench, [n, k]| bench.matrix(n, k))
    }

    /// The same with weights that are stored in some way.
    pub(super) fn of(
        bench: &mut Bench,
        model: &Model,
        [rows, tokens]: [usize; 2],
        matrix: impl Fn(&mut Bench, [usize; 2]) -> Matrix,
    ) -> Self {
        let Model { hidden, heads, inner, .. } = *model;
        let (qkv_width, mixed) = ((heads.q + 2 * heads.kv) * heads.dim, heads.q * heads.dim);
        let shapes = [[qkv_width, hidden], [hidden, mixed], [2 * inner, hidden], [hidden, inner]];
        let weight_elements: usize = shapes.iter().map(|[n, k]| n * k).sum();
        let copies = ROTATION.div_ceil(2 * weight_elements).max(2);
        let qkv = bench.act(MOST_ROWS, qkv_width);
        let scales = Some(bench.backend.load_vector(&vec![1.0; hidden]));
        let inv_freq = bench.backend.load_vector(&vec![0.5; heads.dim / 2]);
        let mut rounded = |width| bench.backend.new_rounded_act(rows, width, DType::Bf16);
        let [normed, attended, gate_up, gated] = [hidden, mixed, 2 * inner, inner].map(&mut rounded);
        Self {
            heads,
            weights: (0..copies).map(|_| shapes.map(|shape| matrix(bench, shape))).collect(),
            weight_elements,
            caches: bench.caches(heads, qkv, tokens, DType::Bf16.into()),
            norm: Norm { kind: NormKind::Rms, weight: scales, bias: None, eps: 1e-5 },
            rope: Some(Rope { inv_freq, rotary_dim: heads.dim, style: RopeStyle::Halves, mscale: 1.0 }),
            attention: bench.attention(model),
            qkv,
            normed,
            attended,
            gate_up,
            gated,
            // Products of zeros need less power, so that they are faster.
            residual: bench.noisy_act(rows, hidden, DType::F32),
            delta: bench.backend.new_act(rows, hidden),
            adapters: Vec::new(),
        }
    }

    pub(super) fn with_adapters(mut self, bench: &mut Bench, model: &Model) -> Self {
        self.adapters = self.weights.iter().map(|_| bench.adapters(model)).collect();
        self
    }

    pub(super) fn weight_elements(&self) -> usize {
        self.weight_elements
    }

    pub(super) fn weight_bytes(&self) -> f64 {
        (2 * self.weight_elements) as f64
    }

    /// What adapters add to one of the products, the `i`th in a row.
    pub(super) fn adapt(&self, backend: &mut CudaBackend, i: usize, index: usize) {
        let Self { qkv, normed, attended, gate_up, gated, delta, .. } = *self;
        let (x, out) = [(normed, qkv), (attended, delta), (normed, gate_up), (gated, delta)][index];
        if !self.adapters.is_empty() {
            backend.lora(x, self.adapters[i % self.adapters.len()][index], out);
        }
    }

    /// The `i`th in a row.
    pub(super) fn run(&self, backend: &mut CudaBackend, i: usize) {
        let Self { heads, norm, qkv, normed, attended, gate_up, gated, residual, delta, .. } = *self;
        let [qkv_w, o, gate_up_w, down] = self.weights[i % self.weights.len()];
        let cache = self.caches[i % self.caches.len()];
        backend.add_norm(residual, delta, norm, normed);
        backend.matmul(normed, qkv_w, None, Epilogue::Store, qkv);
        self.adapt(backend, i, 0);
        backend.rope_and_cache(qkv, heads, self.rope, cache);
        backend.attention(qkv, self.attention, cache, None, attended);
        backend.matmul(attended, o, None, Epilogue::Store, delta);
        self.adapt(backend, i, 1);
        backend.add_norm(residual, delta, norm, normed);
        backend.matmul(normed, gate_up_w, None, Epilogue::Store, gate_up);
        self.adapt(backend, i, 2);
        backend.gated(gate_up, Activation::Silu, gated);
        backend.matmul(gated, down, None, Epilogue::Store, delta);
        self.adapt(backend, i, 3);
    }
}

impl Bench {
    /// A layer of a decode step; the share is that of reading weights and cache once.
    pub(crate) fn decode_layer(&mut self, model: &Model) {
        const ROWS: usize = 256;
        const TOKENS: usize = 256 * ROWS;
        let layer = Layer::new(self, model, ROWS, TOKENS);
        let Heads { kv, dim, .. } = model.heads;
        let short = [1, 8, 16, 24, 32, 48, 64, 96, 128, ROWS].map(|rows| (rows, 256));
        for (rows, length) in short.into_iter().chain([8, 16, 32, 64].map(|rows| (rows, 1024))) {
            self.begin(&vec![(length - 1, 1); rows]);
            let seconds = self.time(2 * LEADS, |backend, i| layer.run(backend, i));
            let bytes = (2 * layer.weight_elements + rows * length * kv * dim * 4) as f64;
            self.report(model.name, &format!("layer, {rows} rows of {length}"), seconds, Work { bytes, flops: 0.0 });
        }
    }

    /// A layer of a step of one prompt; the share is that of its products and attention.
    pub(crate) fn prefill_layer(&mut self, model: &Model) {
        let layer = Layer::new(self, model, MOST_ROWS, MOST_ROWS);
        for rows in [512, 1024, 2048, MOST_ROWS] {
            self.begin(&[(0, rows)]);
            let seconds = self.time(0, |backend, i| layer.run(backend, i));
            let seen = rows * (rows + 1) / 2 * model.heads.q * model.heads.dim;
            let flops = (2 * rows * layer.weight_elements + 4 * seen) as f64;
            self.report(model.name, &format!("prefill layer, {rows} rows"), seconds, Work { bytes: 0.0, flops });
        }
    }
}
