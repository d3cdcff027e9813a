//! Layers of a scaled-down Mixtral (8 experts of which a row uses 2): time a layer takes, and how fast it reads the
//! experts it uses, beside a dense MLP as large as the two.
//!
//! `cargo run --release -p kernels --example mixture_bench [bf16|f32] [threads]`

use kernels::cpu::{CpuBackend, CpuOptions};
use kernels::ops::*;
use std::time::Instant;

const WIDTH: usize = 1024;
const INNER: usize = 3584;
const EXPERTS: usize = 8;
const TOP_K: usize = 2;
/// More than any cache holds.
const LAYERS: usize = 4;
const MAX_ROWS: usize = 256;
const ROUTING: Routing = Routing {
    score: RouterScore::Softmax,
    correction: None,
    groups: None,
    top_k: TOP_K,
    renormalise: true,
    scale: 1.0,
};

struct Layer {
    up: MatrixGroup,
    down: MatrixGroup,
    /// The same weights in one MLP of twice an expert's width.
    dense: [Matrix; 2],
}

struct Bench {
    backend: CpuBackend,
    dtype: DType,
    layers: Vec<Layer>,
    choice: ExpertRouting,
    x: Act,
    logits: Act,
    raised: Act,
    inner: Act,
    given: Act,
    wide: [Act; 2],
    out: Act,
}

fn main() {
    let mut words = std::env::args().skip(1);
    let dtype = if words.next().as_deref() == Some("f32") { DType::F32 } else { DType::Bf16 };
    let threads = words.next().and_then(|word| word.parse().ok()).unwrap_or(2);
    let mut bench = Bench::new(dtype, threads);
    println!("{} {dtype:?}, a layer:", bench.backend.describe());
    for rows in [1, 2, 4, 8, 16, 64, 256] {
        let used = bench.fill(rows);
        let mixture = bench.time(Bench::mixture);
        let dense = bench.time(Bench::dense);
        let (read, two) = ((used * expert_bytes(dtype)) as f64, (TOP_K * expert_bytes(dtype)) as f64);
        println!(
            "{rows:3} rows: {used} of {EXPERTS} experts, {:8.0} us, {:5.1} GB/s | dense {:8.0} us, {:5.1} GB/s",
            mixture * 1e6,
            read / mixture / 1e9,
            dense * 1e6,
            two / dense / 1e9
        );
    }
}

fn expert_bytes(dtype: DType) -> usize {
    3 * WIDTH * INNER * dtype.size()
}

impl Bench {
    fn new(dtype: DType, threads: usize) -> Self {
        let mut backend = CpuBackend::new(CpuOptions { threads, isa: None });
        let bytes = vec![0x3c; 4 * INNER * WIDTH * dtype.size()];
        let load = |backend: &mut CpuBackend, rows: usize, cols: usize| {
            let bytes = &bytes[..rows * cols * dtype.size()];
            backend.load_matrix(HostMatrix::plain(dtype, rows, cols, bytes), dtype)
        };
        let group = |backend: &mut CpuBackend, rows, cols| {
            let members: Vec<Matrix> = (0..EXPERTS).map(|_| load(backend, rows, cols)).collect();
            backend.group_matrices(&members, MatrixUse::Experts)
        };
        let layers = (0..LAYERS)
            .map(|_| Layer {
                up: group(&mut backend, 2 * INNER, WIDTH),
                down: group(&mut backend, WIDTH, INNER),
                dense: [load(&mut backend, 2 * TOP_K * INNER, WIDTH), load(&mut backend, WIDTH, TOP_K * INNER)],
            })
            .collect();
        let pairs = MAX_ROWS * TOP_K;
        Self {
            dtype,
            layers,
            choice: backend.new_expert_routing(MAX_ROWS, TOP_K),
            x: backend.new_act(MAX_ROWS, WIDTH),
            logits: backend.new_act(MAX_ROWS, EXPERTS),
            raised: backend.new_act(pairs, 2 * INNER),
            inner: backend.new_act(pairs, INNER),
            given: backend.new_act(pairs, WIDTH),
            wide: [backend.new_act(MAX_ROWS, 2 * TOP_K * INNER), backend.new_act(MAX_ROWS, TOP_K * INNER)],
            out: backend.new_act(MAX_ROWS, WIDTH),
            backend,
        }
    }

    /// Begins a step whose rows choose pairs of experts in turn; returns how many experts are used.
    fn fill(&mut self, rows: usize) -> usize {
        let zeros = vec![0; rows];
        self.backend.begin(Batch { tokens: &zeros, positions: &zeros, sequences: &[] });
        self.backend.host_mut(self.x).fill(0.01);
        let mut used = [false; EXPERTS];
        for (row, logits) in self.backend.host_mut(self.logits).chunks_mut(EXPERTS).enumerate() {
            logits.fill(0.0);
            for expert in [row * 3 % EXPERTS, (row * 3 + 1) % EXPERTS] {
                (logits[expert], used[expert]) = (5.0, true);
            }
        }
        used.iter().filter(|used| **used).count()
    }

    fn mixture(&mut self, layer: usize) {
        let (Layer { up, down, .. }, b) = (&self.layers[layer], &mut self.backend);
        b.route(self.logits, ROUTING, self.choice);
        b.expert_matmul(self.x, *up, None, self.choice, self.raised);
        b.gated(self.raised, Activation::Silu, self.inner);
        b.expert_matmul(self.inner, *down, None, self.choice, self.given);
        b.combine(self.given, self.choice, Epilogue::Store, self.out);
    }

    fn dense(&mut self, layer: usize) {
        let ([up, down], b) = (self.layers[layer].dense, &mut self.backend);
        b.matmul(self.x, up, None, Epilogue::Store, self.wide[0]);
        b.gated(self.wide[0], Activation::Silu, self.wide[1]);
        b.matmul(self.wide[1], down, None, Epilogue::Store, self.out);
    }

    /// Seconds of a layer, the best of several rounds through all of them.
    fn time(&mut self, run: fn(&mut Self, usize)) -> f64 {
        let mut best = f64::INFINITY;
        for _ in 0..8 {
            let start = Instant::now();
            (0..LAYERS).for_each(|layer| run(self, layer));
            best = best.min(start.elapsed().as_secs_f64() / LAYERS as f64);
        }
        assert!(self.backend.read(self.out)[0].is_finite(), "{:?}", self.dtype);
        best
    }
}
