//! A whole forward pass of a 1B Llama shape with made-up weights: prefill and decode in tokens/s, and the share of
//! memory bandwidth.
//!
//! `cargo run --release -p kernels --example forward_bench [bf16|f32] [threads] [isa]`

use kernels::cpu::{CpuBackend, CpuOptions, Isa};
use kernels::ops::*;
use std::time::Instant;

const LAYERS: usize = 16;
const WIDTH: usize = 2048;
const INNER: usize = 8192;
const VOCABULARY: usize = 128_256;
const HEADS: Heads = Heads { q: 32, kv: 8, dim: 64, v_dim: 64 };
const QKV: usize = (32 + 2 * 8) * 64;
const BLOCK: usize = 16;
const MAX_TOKENS: usize = 2048;
const PROMPT: usize = 512;

struct Layer {
    qkv: Matrix,
    out: Matrix,
    gate_up: Matrix,
    down: Matrix,
    kv: KvLayer,
}

struct Model {
    backend: CpuBackend,
    embedding: Table,
    layers: Vec<Layer>,
    logits: Matrix,
    norm: Norm,
    rope: Rope,
    acts: [Act; 8],
}

fn main() {
    let mut words = std::env::args().skip(1);
    let dtype = if words.next().as_deref() == Some("f32") { DType::F32 } else { DType::Bf16 };
    let threads = words.next().and_then(|word| word.parse().ok()).unwrap_or(2);
    let isa = words.next().and_then(|word| Isa::available().into_iter().find(|isa| isa.name() == word));
    let start = Instant::now();
    let mut model = Model::new(dtype, threads, isa);
    println!("{} {dtype:?}: weights packed in {:.1} s", model.backend.describe(), start.elapsed().as_secs_f64());
    let blocks: Vec<u32> = (0..(MAX_TOKENS / BLOCK) as u32).collect();
    for round in 0..2 {
        let prompt = Instant::now();
        model.step(0, PROMPT, &blocks);
        let seconds = prompt.elapsed().as_secs_f64();
        println!("round {round}: prefill {PROMPT} tokens in {seconds:.3} s, {:.1} tokens/s", PROMPT as f64 / seconds);
    }
    let mut best = f64::INFINITY;
    let begin = Instant::now();
    const STEPS: usize = 32;
    for position in PROMPT..PROMPT + STEPS {
        let step = Instant::now();
        model.step(position, 1, &blocks);
        best = best.min(step.elapsed().as_secs_f64());
    }
    let mean = begin.elapsed().as_secs_f64() / STEPS as f64;
    let weights = LAYERS * (QKV * WIDTH + WIDTH * WIDTH + 3 * WIDTH * INNER) + VOCABULARY * WIDTH;
    let rate = |seconds: f64| (weights * dtype.size()) as f64 / seconds / 1e9;
    println!(
        "decode: mean {:.2} tokens/s ({:.1} GB/s), best {:.2} ({:.1} GB/s)",
        1.0 / mean,
        rate(mean),
        1.0 / best,
        rate(best)
    );
}

impl Model {
    fn new(dtype: DType, threads: usize, isa: Option<Isa>) -> Self {
        let mut backend = CpuBackend::new(CpuOptions { threads, isa });
        let bytes = pattern(dtype, VOCABULARY * WIDTH);
        let load = |backend: &mut CpuBackend, rows: usize, cols: usize| {
            let bytes = &bytes[..rows * cols * dtype.size()];
            backend.load_matrix(HostMatrix::plain(dtype, rows, cols, bytes), dtype)
        };
        let shape = KvShape {
            num_blocks: MAX_TOKENS / BLOCK,
            block_size: BLOCK,
            kv_heads: 8,
            head_dim: 64,
            v_head_dim: 64,
            shared: false,
            dtype: dtype.into(),
        };
        let mut layer = |_| Layer {
            qkv: load(&mut backend, QKV, WIDTH),
            out: load(&mut backend, WIDTH, WIDTH),
            gate_up: load(&mut backend, 2 * INNER, WIDTH),
            down: load(&mut backend, WIDTH, INNER),
            kv: backend.new_kv(shape),
        };
        let layers = (0..LAYERS).map(&mut layer).collect();
        let logits = load(&mut backend, VOCABULARY, WIDTH);
        let embedding =
            backend.load_table(HostMatrix::plain(dtype, 1024, WIDTH, &bytes[..1024 * WIDTH * dtype.size()]));
        let norm =
            Norm { kind: NormKind::Rms, weight: Some(backend.load_vector(&[1.0; WIDTH])), bias: None, eps: 1e-5 };
        let inv_freq: Vec<f32> = (0..32).map(|i| 500_000_f32.powf(-(i as f32) / 32.0)).collect();
        let rope =
            Rope { inv_freq: backend.load_vector(&inv_freq), rotary_dim: 64, style: RopeStyle::Halves, mscale: 1.0 };
        let widths = [WIDTH, WIDTH, QKV, WIDTH, 2 * INNER, INNER, WIDTH];
        let mut acts: Vec<Act> = widths.iter().map(|&width| backend.new_act(PROMPT, width)).collect();
        acts.push(backend.new_act(1, VOCABULARY));
        let acts = acts.try_into().expect("eight buffers");
        Self { backend, embedding, layers, logits, norm, rope, acts }
    }

    /// Runs `rows` tokens from `start` on, and reads the last one's logits.
    fn step(&mut self, start: usize, rows: usize, blocks: &[u32]) {
        let [x, normed, qkv, mixed, gate_up, inner, last, logits] = self.acts;
        let b = &mut self.backend;
        let tokens: Vec<u32> = (0..rows as u32).map(|i| i * 7 % 1000).collect();
        let positions: Vec<u32> = (start..start + rows).map(|position| position as u32).collect();
        let sequences = [Sequence { first_row: 0, num_rows: rows, start, tables: &[blocks.to_vec()], slot: 0 }];
        b.begin(Batch { tokens: &tokens, positions: &positions, sequences: &sequences });
        b.embed(self.embedding, 0, 1.0, x);
        let attention = Attention::causal(HEADS, 0.125);
        for layer in &self.layers {
            b.norm(x, self.norm, normed);
            b.matmul(normed, layer.qkv, None, Epilogue::Store, qkv);
            b.rope_and_cache(qkv, HEADS, Some(self.rope), layer.kv);
            b.attention(qkv, attention, layer.kv, None, mixed);
            b.matmul(mixed, layer.out, None, Epilogue::Accumulate, x);
            b.norm(x, self.norm, normed);
            b.matmul(normed, layer.gate_up, None, Epilogue::Store, gate_up);
            b.gated(gate_up, Activation::Silu, inner);
            b.matmul(inner, layer.down, None, Epilogue::Accumulate, x);
        }
        b.gather(x, RowSelection { rows: &[rows as u32 - 1] }, last);
        b.norm(last, self.norm, last);
        b.matmul(last, self.logits, None, Epilogue::Store, logits);
        assert!(b.read(logits)[0].is_finite());
    }
}

/// Small numbers of both signs.
fn pattern(dtype: DType, count: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut block = Vec::new();
    for _ in 0..1 << 16 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let value = (state >> 8) as f32 / (1 << 24) as f32 * 0.04 - 0.02;
        match dtype {
            DType::F32 => block.extend(value.to_le_bytes()),
            _ => block.extend(&value.to_le_bytes()[2..]),
        }
    }
    block.iter().copied().cycle().take(count * dtype.size()).collect()
}
