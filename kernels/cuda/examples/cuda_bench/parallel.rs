//! A layer whose attention and MLP, which has no gate, are parallel branches: its operations one by one, and all of it
//! as a model has them.

use super::{Bench, LEADS, MOST_ROWS, Model, ROTATION, Work};
use kernels::ops::*;
use kernels_cuda::CudaBackend;

/// Launches that are timed at once: they are long.
const CALLS: usize = 16;
/// Rows of a step that are no power of 2.
const ROWS: usize = 7000;

/// A layer's operations: what they are done with, weights several times.
struct Layer {
    heads: Heads,
    weights: Vec<[Matrix; 4]>,
    biases: [Option<Vector>; 4],
    cache: KvLayer,
    norm: Norm,
    /// The MLP's own norm, or that of attention.
    second: Option<Norm>,
    rope: Rope,
    attention: Attention,
    activation: Activation,
    qkv: Act,
    normed: Act,
    /// The input of an MLP with its own norm.
    other: Act,
    attended: Act,
    inner: Act,
    residual: Act,
    delta: Act,
}

type Step = fn(&Layer, &mut CudaBackend, usize);

impl Layer {
    fn new(bench: &mut Bench, model: &Model) -> Self {
        let Model { hidden, heads, inner, .. } = *model;
        let (qkv_width, mixed) = ((heads.q + 2 * heads.kv) * heads.dim, heads.q * heads.dim);
        let shapes = [[qkv_width, hidden], [hidden, mixed], [inner, hidden], [hidden, inner]];
        let elements: usize = shapes.iter().map(|[n, k]| n * k).sum();
        let copies = ROTATION.div_ceil(2 * elements).max(2);
        let two_norms = model.biased;
        let biases = shapes.map(|[n, _]| model.biased.then(|| bench.backend.load_vector(&vec![0.25; n])));
        let ones = Some(bench.backend.load_vector(&vec![1.0; hidden]));
        let zeros = Some(bench.backend.load_vector(&vec![0.0; hidden]));
        let norm = Norm { kind: NormKind::Layer, weight: ones, bias: zeros, eps: 1e-5 };
        let rotary_dim = if model.biased { heads.dim / 4 } else { heads.dim };
        let inv_freq = bench.backend.load_vector(&vec![0.5; rotary_dim / 2]);
        let qkv = bench.act(MOST_ROWS, qkv_width);
        Self {
            heads,
            weights: (0..copies).map(|_| shapes.map(|[n, k]| bench.matrix(n, k))).collect(),
            biases,
            cache: bench.caches(heads, qkv, MOST_ROWS, DType::Bf16.into())[0],
            norm,
            second: two_norms.then_some(norm),
            rope: Rope { inv_freq, rotary_dim, style: RopeStyle::Halves, mscale: 1.0 },
            attention: bench.attention(model),
            activation: if model.biased { Activation::GeluTanh } else { Activation::Gelu },
            qkv,
            normed: bench.act(MOST_ROWS, hidden),
            other: bench.act(MOST_ROWS, hidden),
            attended: bench.act(MOST_ROWS, mixed),
            inner: bench.act(MOST_ROWS, inner),
            residual: bench.noisy_act(MOST_ROWS, hidden, DType::F32),
            delta: bench.noisy_act(MOST_ROWS, hidden, DType::F32),
        }
    }

    fn weights(&self, i: usize) -> [Matrix; 4] {
        self.weights[i % self.weights.len()]
    }

    fn product(&self, backend: &mut CudaBackend, i: usize, index: usize) {
        let Self { qkv, normed, attended, inner, delta, .. } = *self;
        let (x, out) = [(normed, qkv), (attended, delta), (normed, inner), (inner, delta)][index];
        backend.matmul(x, self.weights(i)[index], self.biases[index], Epilogue::Store, out);
    }

    /// A product of a branch's end, added to a buffer.
    fn add(&self, backend: &mut CudaBackend, i: usize, index: usize, out: Act) {
        let x = if index == 1 { self.attended } else { self.inner };
        backend.matmul(x, self.weights(i)[index], self.biases[index], Epilogue::Accumulate, out);
    }

    fn raise(&self, backend: &mut CudaBackend, i: usize, x: Act) {
        backend.matmul_activated(x, self.weights(i)[2], self.biases[2], self.activation, self.inner);
    }

    fn attend(&self, backend: &mut CudaBackend, i: usize) {
        let Self { heads, rope, cache, attention, qkv, attended, .. } = *self;
        self.product(backend, i, 0);
        backend.rope_and_cache(qkv, heads, Some(rope), cache);
        backend.attention(qkv, attention, cache, None, attended);
    }

    /// As on one rank: branches are added to the residual stream.
    fn all(&self, backend: &mut CudaBackend, i: usize) {
        let Self { norm, second, normed, other, residual, .. } = *self;
        backend.norm(residual, norm, normed);
        let input = second.map_or(normed, |second| {
            backend.norm(residual, second, other);
            other
        });
        self.attend(backend, i);
        self.add(backend, i, 1, residual);
        self.raise(backend, i, input);
        self.add(backend, i, 3, residual);
    }

    /// As on one of several ranks, but for their sum: branches are added to each other first.
    fn all_summed(&self, backend: &mut CudaBackend, i: usize) {
        let Self { norm, second, normed, residual, delta, .. } = *self;
        backend.add_norm(residual, delta, norm, normed);
        self.attend(backend, i);
        self.product(backend, i, 1);
        if let Some(second) = second {
            backend.norm(residual, second, normed);
        }
        self.raise(backend, i, normed);
        self.add(backend, i, 3, delta);
    }
}

/// The operations of a layer, by name. Products that are added are measured as those that are stored.
const STEPS: [(&str, Step); 13] = [
    ("qkv", |layer, backend, i| layer.product(backend, i, 0)),
    ("rotate and cache", |layer, backend, _| {
        backend.rope_and_cache(layer.qkv, layer.heads, Some(layer.rope), layer.cache)
    }),
    ("attention", |layer, backend, _| backend.attention(layer.qkv, layer.attention, layer.cache, None, layer.attended)),
    ("o", |layer, backend, i| layer.product(backend, i, 1)),
    ("o, added", |layer, backend, i| layer.add(backend, i, 1, layer.residual)),
    ("norm", |layer, backend, _| backend.norm(layer.residual, layer.norm, layer.normed)),
    ("two norms", |layer, backend, _| {
        backend.norm(layer.residual, layer.norm, layer.normed);
        backend.norm(layer.residual, layer.norm, layer.other);
    }),
    ("up", |layer, backend, i| layer.product(backend, i, 2)),
    ("activation", |layer, backend, _| backend.activate(layer.inner, layer.activation)),
    ("up and activation", |layer, backend, i| layer.raise(backend, i, layer.normed)),
    ("down", |layer, backend, i| layer.product(backend, i, 3)),
    ("down, added", |layer, backend, i| layer.add(backend, i, 3, layer.residual)),
    ("add and norm", |layer, backend, _| backend.add_norm(layer.residual, layer.delta, layer.norm, layer.normed)),
];

impl Bench {
    /// A layer of a step of one prompt: each operation, and all of them for some numbers of rows; the share is that of
    /// its products and attention.
    pub(crate) fn parallel_layer(&mut self, model: &Model) {
        if !model.parallel {
            return;
        }
        let layer = Layer::new(self, model);
        self.begin(&[(0, ROWS)]);
        for (name, step) in STEPS {
            let seconds = self.time_calls(0, CALLS, |backend, i| step(&layer, backend, i));
            self.report(model.name, &format!("{name}, {ROWS} rows"), seconds, work(model, name, ROWS));
        }
        let layers: [(&str, Step); 2] = [("parallel layer", Layer::all), ("the same, summed first", Layer::all_summed)];
        for (rows, (name, run)) in
            [4088, ROWS, MOST_ROWS].into_iter().flat_map(|rows| layers.map(|layer| (rows, layer)))
        {
            self.begin(&[(0, rows)]);
            let seconds = self.time_calls(0, CALLS, |backend, i| run(&layer, backend, i));
            let flops = ["qkv", "attention", "o", "up", "down"].map(|name| work(model, name, rows).flops);
            let work = Work { bytes: 0.0, flops: flops.iter().sum() };
            self.report(model.name, &format!("{name}, {rows} rows"), seconds, work);
        }
    }

    /// Attention of decode steps over long contexts, where many query heads have one key head.
    pub(crate) fn long_decode(&mut self, model: &Model) {
        let heads = model.heads;
        if heads.kv > 1 {
            return;
        }
        const TOKENS: usize = 32 * 131_072;
        let qkv = self.act(MOST_ROWS, (heads.q + 2 * heads.kv) * heads.dim);
        let out = self.backend.new_rounded_act(MOST_ROWS, heads.q * heads.dim, DType::Bf16);
        let attention = self.attention(model);
        let caches = self.caches(heads, qkv, TOKENS, DType::Bf16.into());
        let lengths = [256, 1024, 4096, 32768, 131_072];
        let steps = [1, 2, 4, 8, 32].into_iter().flat_map(|rows| lengths.map(|length| (rows, length)));
        for (rows, length) in steps.chain([(64, 256), (64, 4096), (256, 256)]) {
            self.begin(&vec![(length - 1, 1); rows]);
            let seconds = self.time(LEADS, |backend, i| {
                backend.attention(qkv, attention, caches[i % caches.len()], None, out);
            });
            let tokens = rows * length;
            let bytes = (tokens * heads.kv * heads.dim * 4) as f64;
            let work = Work { bytes, flops: (4 * tokens * heads.q * heads.dim) as f64 };
            self.report(model.name, &format!("decode attention, {rows} rows of {length}"), seconds, work);
        }
    }
}

/// What an operation must at least move or compute.
fn work(model: &Model, name: &str, rows: usize) -> Work {
    let Model { hidden, heads, inner, .. } = *model;
    let (qkv, mixed) = ((heads.q + 2 * heads.kv) * heads.dim, heads.q * heads.dim);
    let flops = match name {
        "qkv" => 2 * rows * qkv * hidden,
        "o" | "o, added" => 2 * rows * mixed * hidden,
        "up" | "up and activation" | "down" | "down, added" => 2 * rows * inner * hidden,
        "attention" => 2 * rows * (rows + 1) * mixed,
        _ => 0,
    };
    let bytes = match name {
        "rotate and cache" => rows * (4 * qkv + 2 * heads.kv * heads.dim),
        "norm" => 6 * rows * hidden,
        "two norms" => 8 * rows * hidden,
        "activation" => 4 * rows * inner,
        "add and norm" => 14 * rows * hidden,
        _ => 0,
    };
    Work { bytes: bytes as f64, flops: flops as f64 }
}
