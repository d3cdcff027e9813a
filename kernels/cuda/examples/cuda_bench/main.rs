//! What each kernel of the CUDA backend takes at the shapes of some models, and its share of what the GPU could do.
//!
//! `cargo run --release
//! -p kernels-cuda --example cuda_bench [TB/s of memory] [TFLOP/s of bf16 GEMMs] [rows ...] [part or model
//! ...]`, of [`PARTS`], `mixture`, `small-mixture`, `packed-mixture`, `fp8-mixture` and [`MODELS`]; numbers after
//! the first two are rows for which mixtures are measured.
//!
//! `library` or `own` as first word: GEMMs of many rows by cuBLASLt as it chooses itself, or by our own kernel
//! wherever that can. `mma`, after it: attention by the kernels that every architecture has; `each`: all once by those
//! that are chosen, and once by these. `no-cascade`, after that:
//! blocks that sequences share are read by each of them; without it, once wherever two share any.
//!
//! `sharded`, in place of a part: products of few outputs, in every tactic; `scans`: what Mamba does between products,
//! in chunks of rows and row by row; `delta-rule`: linear attention, in both ways; `latent`: latent attention, and the
//! same by the plain kernel; `latent-decode`: its single rows, after longer contexts too; `latent-forms`: its prompts
//! in both forms; `latent-heads`: the products around it.
//!
//! Compiled kernels are kept in the folder `QUIRE_KERNEL_CACHE`, if that is set.
//!
//! Launches queue behind GEMMs that keep the GPU busy, so that what is timed is the GPU's work and not the host's.
//! Weights and caches are rotated so that none is still in the GPU's cache.

mod adapters;
mod cascade;
mod delta_rule;
mod latent;
mod layer;
mod many;
mod mixture;
mod packed;
mod parallel;
mod scans;
mod sharded;

use kernels::ops::*;
use kernels_cuda::{AttentionBackend, CascadeAttention, CudaBackend, CudaOptions, Folders, GemmTactics, Surroundings};
use std::time::Instant;

/// Rows of the largest step, tokens of a block, and bytes that a rotation covers at least.
const MOST_ROWS: usize = 8192;
const BLOCK: usize = 16;
const ROTATION: usize = 256 << 20;
/// Products that keep the GPU busy meanwhile, launches that are timed, and rounds of which the median counts.
const LEADS: usize = 24;
const CALLS: usize = 48;
const ROUNDS: usize = 5;

struct Model {
    name: &'static str,
    hidden: usize,
    heads: Heads,
    inner: usize,
    soft_cap: Option<f32>,
    alibi: bool,
    /// Whether attention and an MLP without a gate are branches side by side, and whether products have biases.
    parallel: bool,
    biased: bool,
}

impl Model {
    const fn new(name: &'static str, hidden: usize, [q, kv, dim]: [usize; 3], inner: usize) -> Self {
        let heads = Heads { q, kv, dim, v_dim: dim };
        Self { name, hidden, heads, inner, soft_cap: None, alibi: false, parallel: false, biased: false }
    }
}

const MODELS: [Model; 11] = [
    Model::new("Llama-8B", 4096, [32, 8, 128], 14336),
    Model::new("Qwen3-0.6B", 1024, [16, 8, 128], 3072),
    Model::new("Phi-3-mini", 3072, [32, 32, 96], 8192),
    Model::new("Gemma-3-4B", 2560, [8, 4, 256], 10240),
    Model { soft_cap: Some(50.0), ..Model::new("Gemma-2-9B", 3584, [16, 8, 256], 14336) },
    Model { alibi: true, ..Model::new("BLOOM-7B", 4096, [32, 32, 128], 16384) },
    Model { parallel: true, ..Model::new("Falcon-7B", 4544, [71, 1, 64], 18176) },
    // A rank of eight.
    Model { parallel: true, ..Model::new("Falcon-180B", 14848, [29, 1, 64], 7424) },
    Model { parallel: true, biased: true, ..Model::new("GPT-NeoX-20B", 6144, [64, 64, 96], 24576) },
    Model::new("StarCoder-15B", 6144, [48, 1, 128], 24576),
    Model::new("StableLM-2-12B", 5120, [32, 8, 160], 13824),
];

/// What a launch must at least move and compute.
struct Work {
    bytes: f64,
    flops: f64,
}

struct Bench {
    backend: CudaBackend,
    /// A long product: input, weights, output.
    lead: (Act, Matrix, Act),
    flag: Act,
    /// Bytes and operations a second.
    memory: f64,
    tensor: f64,
    noise: Vec<u8>,
}

/// What is measured, by the name that asks for it.
const PARTS: [(&str, Part); 17] = [
    ("products", Bench::products),
    ("decode", |bench, model| bench.decode(model, KvDType::Float(DType::Bf16))),
    ("decode-fp8", |bench, model| bench.decode(model, KvDType::E4m3)),
    ("prefix", |bench, model| bench.prefix(model, KvDType::Float(DType::Bf16))),
    ("prefix-fp8", |bench, model| bench.prefix(model, KvDType::E4m3)),
    ("prefill", |bench, model| bench.prefill(model, KvDType::Float(DType::Bf16))),
    ("prefill-fp8", |bench, model| bench.prefill(model, KvDType::E4m3)),
    ("rowwise", Bench::rowwise),
    ("layer", Bench::decode_layer),
    ("adapters", Bench::adapted_layer),
    ("prefill-layer", Bench::prefill_layer),
    ("parallel-layer", Bench::parallel_layer),
    ("long-decode", Bench::long_decode),
    ("many", Bench::many),
    ("packed", Bench::packed),
    ("codes", Bench::codes),
    ("packed-layer", Bench::packed_layer),
];
type Part = fn(&mut Bench, &Model);

fn main() -> Result<(), String> {
    let mut words = std::env::args().skip(1).peekable();
    let gemms = words.next_if(|word| ["library", "own"].contains(&word.as_str()));
    let gemms = gemms.map_or(GemmTactics::AutotunedAtOnce, |word| {
        if word == "own" { GemmTactics::Wgmma } else { GemmTactics::Library }
    });
    let attention = words.next_if(|word| ["mma", "each"].contains(&word.as_str()));
    let attention = match attention.as_deref() {
        Some("mma") => &[AttentionBackend::Mma][..],
        Some(_) => &[AttentionBackend::Auto, AttentionBackend::Mma],
        None => &[AttentionBackend::Auto],
    };
    let cascade =
        words.next_if(|word| word == "no-cascade").map_or(CascadeAttention::Always, |_| CascadeAttention::Never);
    let words: Vec<String> = words.collect();
    let mut numbers = words.iter().map_while(|word| word.parse::<f64>().ok());
    let (memory, tensor) = (numbers.next().unwrap_or(4.27), numbers.next().unwrap_or(816.0));
    let rows: Vec<usize> = numbers.map(|number| number as usize).collect();
    let named: Vec<String> = words.into_iter().filter(|word| word.parse::<f64>().is_err()).collect();
    attention.iter().try_for_each(|&attention| {
        let options = CudaOptions { gemms, attention, cascade, ..CudaOptions::default() };
        measure([memory * 1e12, tensor * 1e12], &options, &named, &rows)
    })
}

/// All that is named, by the kernels that are asked for.
fn measure(rates: [f64; 2], options: &CudaOptions, named: &[String], rows: &[usize]) -> Result<(), String> {
    let mut bench = Bench::open(rates, options.clone())?;
    let [memory, tensor] = rates.map(|rate| rate / 1e12);
    let (device, attention) = (bench.backend.describe(), options.attention.name());
    println!("{device}; attention: {attention}; shares of {memory} TB/s and {tensor} TFLOP/s");
    let models: Vec<&Model> = MODELS.iter().filter(|model| named.iter().any(|word| word == model.name)).collect();
    let models = if models.is_empty() { MODELS.iter().collect() } else { models };
    let named: Vec<&String> = named.iter().filter(|word| MODELS.iter().all(|model| *word != model.name)).collect();
    let wanted = |name: &str| named.is_empty() || named.iter().any(|word| *word == name);
    for model in models {
        for (_, part) in PARTS.iter().filter(|(name, _)| wanted(name)) {
            part(&mut bench, model);
        }
    }
    let mixtures = [
        ("mixture", &mixture::MODELS[..]),
        ("small-mixture", &mixture::SMALL),
        ("packed-mixture", &mixture::PACKED),
        ("fp8-mixture", &mixture::FP8),
    ];
    for (name, models) in mixtures {
        if wanted(name) {
            models.iter().for_each(|model| bench.mixture(model, rows));
        }
    }
    bench.backend.fault().map_or(Ok(()), |fault| Err(fault.to_owned()))?;
    drop(bench);
    if wanted("scans") {
        scans::scans(rates, options)?;
    }
    if wanted("delta-rule") {
        delta_rule::delta_rule(rates, options)?;
    }
    if wanted("latent-heads") {
        latent::products(rates, options)?;
    }
    if wanted("latent-decode") {
        latent::decode(rates, options)?;
    }
    if wanted("latent-forms") {
        latent::forms(rates, options)?;
    }
    if wanted("latent") {
        latent::latent(rates, options)?;
    }
    if wanted("sharded") { sharded::sharded(rates, options) } else { Ok(()) }
}

impl Bench {
    fn open([memory, tensor]: [f64; 2], options: CudaOptions) -> Result<Self, String> {
        let variable = std::env::var_os;
        let (named, virtual_env, path) =
            (variable("QUIRE_CUDA_LIBRARY_PATH"), variable("VIRTUAL_ENV"), variable("PATH"));
        let surroundings =
            Surroundings { named: named.as_deref(), virtual_env: virtual_env.as_deref(), path: path.as_deref() };
        let kernel_cache = variable("QUIRE_KERNEL_CACHE").map(Into::into);
        let folders = Folders::of(surroundings);
        let options = CudaOptions { folders, kernel_cache, ..options };
        let mut backend = CudaBackend::open(&options).map_err(|error| error.to_string())?;
        let noise = noise(320 << 20);
        let (rows, width) = (65536, 2048);
        let bytes = &noise[..rows * width * 2];
        let matrix = backend.load_matrix(HostMatrix::plain(DType::Bf16, rows, width, bytes), DType::Bf16);
        let flag = backend.new_act(2 * MOST_ROWS, 1);
        let lead = (flag, matrix, backend.new_act(256, rows));
        let mut bench = Self { backend, lead, flag, memory, tensor, noise };
        bench.lead.0 = bench.act(256, width);
        Ok(bench)
    }

    /// Starts a step of sequences with (tokens in the cache, rows), the blocks of each after those of the one before.
    fn begin(&mut self, sequences: &[(usize, usize)]) {
        self.begin_sharing(0, sequences);
    }

    /// The same where all have their first `shared` blocks in common.
    fn begin_sharing(&mut self, shared: u32, sequences: &[(usize, usize)]) {
        let rows = sequences.iter().map(|(_, rows)| rows).sum();
        let positions: Vec<u32> =
            sequences.iter().flat_map(|(start, rows)| (*start..start + rows).map(|position| position as u32)).collect();
        let (mut tables, mut first): (Vec<Vec<u32>>, u32) = (Vec::new(), shared);
        for (start, rows) in sequences {
            let own = (start + rows).div_ceil(BLOCK) as u32 - shared;
            tables.push((0..shared).chain(first..first + own).collect());
            first += own;
        }
        let mut first_row = 0;
        let parts: Vec<Sequence<'_>> = (sequences.iter().zip(tables.chunks(1)).enumerate())
            .map(|(slot, ((start, num_rows), tables))| {
                first_row += num_rows;
                Sequence { first_row: first_row - num_rows, num_rows: *num_rows, start: *start, tables, slot }
            })
            .collect();
        self.backend.begin(Batch { tokens: &vec![0; rows], positions: &positions, sequences: &parts });
    }

    /// Seconds of a launch.
    fn time(&mut self, leads: usize, call: impl FnMut(&mut CudaBackend, usize)) -> f64 {
        self.time_calls(leads, CALLS, call)
    }

    /// The same by so many launches.
    fn time_calls(&mut self, leads: usize, count: usize, mut call: impl FnMut(&mut CudaBackend, usize)) -> f64 {
        (0..count).for_each(|i| call(&mut self.backend, i));
        let mut round = |calls: usize| {
            self.backend.read(self.flag);
            let start = Instant::now();
            for _ in 0..leads {
                let (input, matrix, output) = self.lead;
                self.backend.matmul(input, matrix, None, Epilogue::Store, output);
            }
            (0..calls).for_each(|i| call(&mut self.backend, i));
            self.backend.read(self.flag);
            start.elapsed().as_secs_f64()
        };
        let mut times: Vec<f64> = (0..ROUNDS).map(|_| (round(count) - round(0)) / count as f64).collect();
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    }

    fn report(&self, name: &str, what: &str, seconds: f64, work: Work) {
        let (moved, computed) = (work.bytes / self.memory, work.flops / self.tensor);
        let bound = if moved > computed { "memory" } else { "tensor" };
        let (rate, unit) = if moved > computed {
            (work.bytes / seconds / 1e12, "TB/s")
        } else {
            (work.flops / seconds / 1e12, "TFLOP/s")
        };
        let share = 100.0 * moved.max(computed) / seconds;
        println!("{name:10} | {what:42} | {:9.1} us | {rate:7.2} {unit:7} | {share:3.0} % of {bound}", seconds * 1e6);
    }

    fn matrix(&mut self, rows: usize, cols: usize) -> Matrix {
        let bytes = &self.noise[..rows * cols * 2];
        self.backend.load_matrix(HostMatrix::plain(DType::Bf16, rows, cols, bytes), DType::Bf16)
    }

    fn products(&mut self, model: &Model) {
        let Model { hidden, heads, inner, .. } = *model;
        let qkv = (heads.q + 2 * heads.kv) * heads.dim;
        let shapes = [
            ("qkv", qkv, hidden, DType::Bf16),
            ("o", hidden, heads.q * heads.dim, DType::F32),
            ("gate_up", 2 * inner, hidden, DType::Bf16),
            ("down", hidden, inner, DType::F32),
        ];
        for (name, n, k, output) in shapes {
            let copies = (ROTATION / (n * k * 2)).clamp(2, 64);
            let weights: Vec<Matrix> = (0..copies).map(|_| self.matrix(n, k)).collect();
            let (x, out) = (self.act(256, k), self.backend.new_rounded_act(256, n, output));
            for rows in [1, 4, 8, 16, 32, 64, 128, 256] {
                self.begin(&vec![(0, 1); rows]);
                let seconds =
                    self.time(LEADS, |backend, i| backend.matmul(x, weights[i % copies], None, Epilogue::Store, out));
                let bytes = (n * k * 2 + rows * (k * 2 + n * output.size())) as f64;
                let work = Work { bytes, flops: (2 * rows * n * k) as f64 };
                self.report(model.name, &format!("{name} [{n}, {k}], {rows} rows"), seconds, work);
            }
        }
    }

    /// An activation of bf16 noise.
    fn act(&mut self, rows: usize, width: usize) -> Act {
        self.noisy_act(rows, width, DType::Bf16)
    }

    fn noisy_act(&mut self, rows: usize, width: usize, dtype: DType) -> Act {
        let act = self.backend.new_rounded_act(rows, width, dtype);
        // A step of all its rows, so that the buffer is written whole.
        self.begin(&[(0, rows)]);
        let noise = &self.noise;
        for (value, bits) in self.backend.host_mut(act).iter_mut().zip(noise.as_chunks::<2>().0.iter().cycle()) {
            *value = f32::from_bits(u32::from(u16::from_le_bytes(*bits)) << 16);
        }
        act
    }

    fn attention(&mut self, model: &Model) -> Attention {
        let heads = model.heads;
        let scale = (heads.dim as f32).sqrt().recip();
        let slopes = (1..=heads.q).map(|head| 0.5_f32.powf(8.0 * head as f32 / heads.q as f32));
        let alibi = model.alibi.then(|| self.backend.load_vector(&slopes.collect::<Vec<_>>()));
        Attention { soft_cap: model.soft_cap, alibi, ..Attention::causal(heads, scale) }
    }

    /// Layers of a cache whose first `tokens` tokens are noise: enough of them for what few rows read of one to be gone
    /// from the GPU's cache when its turn comes again.
    fn caches(&mut self, heads: Heads, qkv: Act, tokens: usize, dtype: KvDType) -> Vec<KvLayer> {
        let bytes = tokens * heads.kv * heads.dim * 2 * dtype.size();
        let layers = (ROTATION / bytes).clamp(4, 48);
        let num_blocks = tokens.div_ceil(BLOCK) + 1;
        let (kv_heads, head_dim, v_head_dim) = (heads.kv, heads.dim, heads.v_dim);
        let shape = KvShape { num_blocks, block_size: BLOCK, kv_heads, head_dim, v_head_dim, shared: false, dtype };
        let caches: Vec<KvLayer> = (0..layers).map(|_| self.backend.new_kv(shape)).collect();
        for start in (0..tokens).step_by(MOST_ROWS) {
            self.begin(&[(start, MOST_ROWS.min(tokens - start))]);
            caches.iter().for_each(|kv| self.backend.rope_and_cache(qkv, heads, None, *kv));
        }
        caches
    }

    fn decode(&mut self, model: &Model, cache: KvDType) {
        let heads = model.heads;
        let qkv = self.act(MOST_ROWS, (heads.q + 2 * heads.kv) * heads.dim);
        let out = self.backend.new_rounded_act(MOST_ROWS, heads.q * heads.dim, DType::Bf16);
        let attention = self.attention(model);
        let mut shapes: Vec<(String, Vec<usize>)> = [
            (1, 256),
            (1, 4096),
            (1, 65536),
            (8, 256),
            (8, 1024),
            (16, 256),
            (16, 1024),
            (32, 1024),
            (64, 256),
            (64, 1024),
            (256, 256),
            (256, 1024),
        ]
        .iter()
        .map(|(rows, length)| (format!("{rows} rows of {length}"), vec![*length; *rows]))
        .collect();
        // Whole numbers of blocks each, so that the blocks of all sequences are those of one long one.
        let mixed = (1..=16).map(|row| 512 + row * 7 % 16 * 64);
        shapes.push(("16 rows of 512 to 1472".to_owned(), mixed.collect()));
        for (name, lengths) in shapes {
            let tokens: usize = lengths.iter().sum();
            let caches = self.caches(heads, qkv, tokens, cache);
            self.begin(&lengths.iter().map(|length| (length - 1, 1)).collect::<Vec<_>>());
            let seconds =
                self.time(LEADS, |backend, i| backend.attention(qkv, attention, caches[i % caches.len()], None, out));
            let bytes = (tokens * heads.kv * heads.dim * 2 * cache.size()) as f64;
            let work = Work { bytes, flops: (4 * tokens * heads.q * heads.dim) as f64 };
            self.report(model.name, &format!("decode attention, {name}, {}", cache.name()), seconds, work);
        }
    }

    fn prefill(&mut self, model: &Model, cache: KvDType) {
        let heads = model.heads;
        let qkv = self.act(MOST_ROWS, (heads.q + 2 * heads.kv) * heads.dim);
        let out = self.backend.new_rounded_act(MOST_ROWS, heads.q * heads.dim, DType::Bf16);
        let attention = self.attention(model);
        for (sequences, start, rows) in
            [(1, 0, 512), (1, 0, 2048), (1, 0, 8192), (4, 0, 2048), (1, 6144, 2048), (1, 63_488, 2048)]
        {
            let caches = self.caches(heads, qkv, sequences * (start + rows), cache);
            self.begin(&vec![(start, rows); sequences]);
            let seconds =
                self.time(0, |backend, i| backend.attention(qkv, attention, caches[i % caches.len()], None, out));
            let seen = rows * start + rows * (rows + 1) / 2;
            let work = Work { bytes: 0.0, flops: (4 * sequences * seen * heads.q * heads.dim) as f64 };
            self.report(
                model.name,
                &format!("prefill attention, {sequences} x {rows} after {start}, {}", cache.name()),
                seconds,
                work,
            );
        }
    }

    fn rowwise(&mut self, model: &Model) {
        let Model { hidden, heads, inner, .. } = *model;
        let qkv_width = (heads.q + 2 * heads.kv) * heads.dim;
        let qkv = self.act(MOST_ROWS, qkv_width);
        let (x, delta) = (self.backend.new_act(MOST_ROWS, hidden), self.backend.new_act(MOST_ROWS, hidden));
        let normed = self.backend.new_rounded_act(MOST_ROWS, hidden, DType::Bf16);
        let (gate_up, gated) =
            (self.act(MOST_ROWS, 2 * inner), self.backend.new_rounded_act(MOST_ROWS, inner, DType::Bf16));
        let weight = Some(self.backend.load_vector(&vec![1.0; hidden]));
        let norm = Norm { kind: NormKind::Rms, weight, bias: None, eps: 1e-5 };
        let inv_freq = self.backend.load_vector(&vec![0.5; heads.dim / 2]);
        let rope = Some(Rope { inv_freq, rotary_dim: heads.dim, style: RopeStyle::Halves, mscale: 1.0 });
        let cache = self.caches(heads, qkv, MOST_ROWS, DType::Bf16.into())[0];
        for rows in [1, 64, MOST_ROWS] {
            self.begin(&[(0, rows)]);
            let leads = if rows > 256 { 0 } else { LEADS };
            let work = |bytes: usize| Work { bytes: (rows * bytes) as f64, flops: 0.0 };
            let seconds = self.time(leads, |backend, _| backend.add_norm(x, delta, norm, normed));
            self.report(model.name, &format!("add and norm, {rows} rows"), seconds, work(14 * hidden));
            let seconds = self.time(leads, |backend, _| {
                backend.norm(delta, norm, delta);
                backend.add_norm(x, delta, norm, normed);
            });
            self.report(model.name, &format!("norm, add and norm, {rows} rows"), seconds, work(14 * hidden));
            let seconds = self.time(leads, |backend, _| backend.rope_and_cache(qkv, heads, rope, cache));
            let cached = heads.kv * heads.dim * 2 * 2;
            self.report(
                model.name,
                &format!("rotate and cache, {rows} rows"),
                seconds,
                work(4 * qkv_width + cached - heads.kv * heads.dim * 2),
            );
            let seconds = self.time(leads, |backend, _| backend.gated(gate_up, Activation::Silu, gated));
            self.report(model.name, &format!("gate, {rows} rows"), seconds, work(6 * inner));
        }
    }
}

/// bf16 numbers of any sign between 1/16 and 1/8.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 16) as u16 & 0x807f | 0x3d80
    };
    (0..bytes / 2).flat_map(|_| next().to_le_bytes()).collect()
}
