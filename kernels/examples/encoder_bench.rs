//! A BERT's forward pass with made-up weights: how long a step takes, and which operations take it.
//!
//! `cargo run --release -p kernels --example encoder_bench [minilm|large] [f32|bf16] [tokens] [texts] [threads]`

use kernels::cpu::{CpuBackend, CpuOptions};
use kernels::ops::*;
use std::time::Instant;

const BLOCK: usize = 16;

struct Shape {
    layers: usize,
    heads: usize,
    width: usize,
    inner: usize,
}

struct Layer {
    qkv: Matrix,
    out: Matrix,
    up: Matrix,
    down: Matrix,
}

struct Model {
    backend: CpuBackend,
    shape: Shape,
    layers: Vec<Layer>,
    kv: KvLayer,
    norm: Norm,
    biases: [Vector; 3],
    acts: [Act; 5],
}

/// Seconds that each kind of operation took.
#[derive(Default)]
struct Spent(Vec<(&'static str, f64)>);

impl Spent {
    fn time<R>(&mut self, name: &'static str, run: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = run();
        let seconds = start.elapsed().as_secs_f64();
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += seconds,
            None => self.0.push((name, seconds)),
        }
        result
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: usize| words.get(index).and_then(|word| word.parse().ok()).unwrap_or(default);
    let shape = match words.first().map(String::as_str) {
        Some("large") => Shape { layers: 24, heads: 16, width: 1024, inner: 4096 },
        _ => Shape { layers: 6, heads: 12, width: 384, inner: 1536 },
    };
    let dtype = if words.get(1).map(String::as_str) == Some("bf16") { DType::Bf16 } else { DType::F32 };
    let (tokens, texts, threads) = (number(2, 64), number(3, 1), number(4, 2));
    let products = shape.layers * (4 * shape.width * shape.width + 2 * shape.width * shape.inner);
    let mut model = Model::new(shape, dtype, [tokens, texts], threads);
    let (mut best, mut steps, begin) = (Spent::default(), 0, Instant::now());
    let mut all = f64::INFINITY;
    while steps < 5 || begin.elapsed().as_secs_f64() < 2.0 {
        let (start, mut spent) = (Instant::now(), Spent::default());
        model.step(tokens, texts, &mut spent);
        let seconds = start.elapsed().as_secs_f64();
        if seconds < all {
            (all, best) = (seconds, spent);
        }
        steps += 1;
    }
    let rows = tokens * texts;
    println!(
        "{} {dtype:?}, {texts} x {tokens} tokens: {:.2} ms, {:.0} GFLOP/s of products; mean {:.2} ms",
        model.backend.describe(),
        all * 1e3,
        2.0 * (products * rows) as f64 / all / 1e9,
        begin.elapsed().as_secs_f64() / steps as f64 * 1e3
    );
    for (name, seconds) in best.0 {
        println!("  {name:16} {:8.0} us {:5.1} %", seconds * 1e6, seconds / all * 100.0);
    }
}

impl Model {
    fn new(shape: Shape, dtype: DType, [tokens, texts]: [usize; 2], threads: usize) -> Self {
        let mut backend = CpuBackend::new(CpuOptions { threads, isa: None });
        let Shape { layers, heads, width, inner } = shape;
        let bytes = pattern(dtype, width * inner);
        let load = |backend: &mut CpuBackend, rows: usize, cols: usize| {
            let bytes = &bytes[..rows * cols * dtype.size()];
            backend.load_matrix(HostMatrix::plain(dtype, rows, cols, bytes), dtype)
        };
        let layers = (0..layers)
            .map(|_| Layer {
                qkv: load(&mut backend, 3 * width, width),
                out: load(&mut backend, width, width),
                up: load(&mut backend, inner, width),
                down: load(&mut backend, width, inner),
            })
            .collect();
        let head_dim = width / heads;
        let kv = backend.new_kv(KvShape {
            num_blocks: texts * tokens.div_ceil(BLOCK),
            block_size: BLOCK,
            kv_heads: heads,
            head_dim,
            v_head_dim: head_dim,
            shared: false,
            dtype: dtype.into(),
        });
        let weight = Some(backend.load_vector(&vec![1.0; width]));
        let bias = Some(backend.load_vector(&vec![0.1; width]));
        let norm = Norm { kind: NormKind::Layer, weight, bias, eps: 1e-12 };
        let biases = [width, 3 * width, inner].map(|width| backend.load_vector(&vec![0.1; width]));
        let acts = [width, 3 * width, width, inner, width].map(|width| backend.new_act(tokens * texts, width));
        Self { backend, shape, layers, kv, norm, biases, acts }
    }

    fn step(&mut self, tokens: usize, texts: usize, spent: &mut Spent) {
        let [x, qkv, mixed, inner, delta] = self.acts;
        let [bias, qkv_bias, inner_bias] = self.biases.map(Some);
        let dim = self.shape.width / self.shape.heads;
        let heads = Heads { q: self.shape.heads, kv: self.shape.heads, dim, v_dim: dim };
        let attention = Attention { mask: Mask::Bidirectional, ..Attention::causal(heads, 0.2) };
        let ids = vec![0; tokens * texts];
        let blocks = tokens.div_ceil(BLOCK);
        let tables: Vec<[Vec<u32>; 1]> =
            (0..texts).map(|text| [((text * blocks) as u32..((text + 1) * blocks) as u32).collect()]).collect();
        let sequences: Vec<Sequence<'_>> = tables
            .iter()
            .enumerate()
            .map(|(slot, tables)| Sequence { first_row: slot * tokens, num_rows: tokens, start: 0, tables, slot })
            .collect();
        let b = &mut self.backend;
        b.begin(Batch { tokens: &ids, positions: &ids, sequences: &sequences });
        for (i, x) in b.host_mut(x).iter_mut().enumerate() {
            *x = (i % 97) as f32 / 97.0 - 0.5;
        }
        for layer in &self.layers {
            spent.time("qkv", || b.matmul(x, layer.qkv, qkv_bias, Epilogue::Store, qkv));
            spent.time("rope_and_cache", || b.rope_and_cache(qkv, heads, None, self.kv));
            spent.time("attention", || b.attention(qkv, attention, self.kv, None, mixed));
            spent.time("out", || b.matmul(mixed, layer.out, bias, Epilogue::Store, delta));
            spent.time("norm", || b.add_norm_in_place(x, delta, self.norm));
            spent.time("up", || b.matmul_activated(x, layer.up, inner_bias, Activation::Gelu, inner));
            spent.time("down", || b.matmul(inner, layer.down, bias, Epilogue::Store, delta));
            spent.time("norm", || b.add_norm_in_place(x, delta, self.norm));
        }
        assert!(b.read(x)[0].is_finite());
    }
}

/// Small numbers of both signs.
fn pattern(dtype: DType, count: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut bytes = Vec::new();
    for _ in 0..count {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let value = (state >> 8) as f32 / (1 << 24) as f32 * 0.04 - 0.02;
        match dtype {
            DType::F32 => bytes.extend(value.to_le_bytes()),
            _ => bytes.extend(&value.to_le_bytes()[2..]),
        }
    }
    bytes
}
