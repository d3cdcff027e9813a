//! What state-space models do between their products: convolution, scan, and the gated norm; scans in chunks beside row
//! by row.

use kernels::ops::*;
use kernels_cuda::{CudaBackend, CudaOptions, SelectiveScan};

use super::{Bench, CALLS, LEADS, MOST_ROWS, ROTATION, Work};

/// Sequences, and rows of each.
const PROMPTS: [(usize, usize); 9] =
    [(1, 8), (1, 16), (1, 32), (1, 64), (1, 512), (1, 2048), (1, 4096), (1, 8192), (24, 1500)];
const DECODES: [usize; 3] = [1, 64, 256];
const KERNEL: usize = 4;
/// What states are kept as: where single rows read and write them, and where prompts do.
const KEPT: [DType; 3] = [DType::F16, DType::Bf16, DType::F32];
const KEPT_OF_PROMPTS: [DType; 2] = [DType::F32, DType::F16];

/// A model of one group.
#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    hidden: usize,
    heads: usize,
    head_dim: usize,
    state_dim: usize,
    /// Whether each value has a decay, and nothing is normed.
    is_first: bool,
}

const MODELS: [Shape; 2] = [
    Shape { name: "Mamba-2 2.7B", hidden: 2560, heads: 80, head_dim: 64, state_dim: 128, is_first: false },
    Shape { name: "Mamba 2.8B", hidden: 2560, heads: 5120, head_dim: 1, state_dim: 16, is_first: true },
];

impl Shape {
    fn inner(self) -> usize {
        self.heads * self.head_dim
    }

    /// Those of x, b and c.
    fn channels(self) -> usize {
        self.inner() + 2 * self.state_dim
    }

    /// Columns of `[gate | x | b | c | dt]`.
    fn projected(self) -> usize {
        self.inner() + self.channels() + self.heads
    }

    /// Bytes of a row's x, b, c, dt and outputs, and operations of what makes and reads states.
    fn work(self, sequences: usize, rows: usize, kept: DType) -> Work {
        let states = sequences * self.inner() * self.state_dim * 2 * kept.size();
        let (all, columns) = (sequences * rows, self.channels() + self.heads + self.inner());
        Work { bytes: (all * 2 * columns + states) as f64, flops: (all * self.inner() * self.state_dim * 4) as f64 }
    }
}

/// Layers of a model, each with its states.
struct Mixers {
    shape: Shape,
    scans: Vec<Scan>,
    convs: Vec<Conv>,
    norm: Norm,
    /// `[gate | x | b | c | dt]`, `[x | b | c]`, and what is scanned.
    projected: Act,
    convolved: Act,
    mixed: Act,
}

impl Mixers {
    /// States are kept as such numbers, the convolution's as rows are.
    fn new(bench: &mut Bench, shape: Shape, [sequences, rows]: [usize; 2], kept: DType) -> Self {
        let Shape { heads, head_dim, state_dim, is_first, .. } = shape;
        let (inner, channels) = (shape.inner(), shape.channels());
        let layers = (ROTATION / (sequences * inner * state_dim * kept.size())).clamp(2, 48);
        let vector = |bench: &mut Bench, count, value| bench.backend.load_vector(&vec![value; count]);
        let decay = vector(bench, if is_first { heads * state_dim } else { heads }, -1.0);
        let (skip, dt_bias) = (vector(bench, heads, 1.0), Some(vector(bench, heads, -3.0)));
        let (taps, weight) = (vector(bench, KERNEL * channels, 0.5), Some(vector(bench, inner, 1.0)));
        let (mut scans, mut convs) = (Vec::new(), Vec::new());
        for _ in 0..layers {
            let state = bench.backend.new_state(sequences, inner * state_dim, kept);
            let (groups, dt_limit) = (1, (0.0, f32::INFINITY));
            scans.push(Scan { heads, head_dim, groups, state_dim, decay, skip, dt_bias, dt_limit, state });
            let state = bench.backend.new_state(sequences, (KERNEL - 1) * channels, DType::Bf16);
            convs.push(Conv { channels, kernel: KERNEL, taps, bias: None, state });
        }
        Self {
            shape,
            scans,
            convs,
            norm: Norm { kind: NormKind::Rms, weight, bias: None, eps: 1e-5 },
            projected: bench.act(rows, shape.projected()),
            convolved: bench.act(rows, channels),
            mixed: bench.act(rows, inner),
        }
    }

    fn scan(&self, backend: &mut CudaBackend, call: usize) {
        let (inner, channels) = (self.shape.inner(), self.shape.channels());
        let x = |first| Cols { act: self.convolved, first };
        let dt = Cols { act: self.projected, first: inner + channels };
        let input = ScanInput { x: x(0), dt, b: x(inner), c: x(inner + self.shape.state_dim) };
        backend.selective_scan(input, self.scans[call % self.scans.len()], self.mixed);
    }

    fn convolve(&self, backend: &mut CudaBackend, call: usize) {
        let conv = self.convs[call % self.convs.len()];
        backend.causal_conv(Cols { act: self.projected, first: self.shape.inner() }, conv, self.convolved);
    }

    fn gate(&self, backend: &mut CudaBackend) {
        backend.gate(self.mixed, Cols { act: self.projected, first: 0 }, Activation::Silu);
        if !self.shape.is_first {
            backend.head_norm(self.mixed, 0, 1, self.shape.inner(), self.norm);
        }
    }
}

pub fn scans(rates: [f64; 2], options: &CudaOptions) -> Result<(), String> {
    let prompts = PROMPTS.map(|(sequences, rows)| (sequences, 0, rows));
    let steps: Vec<_> = DECODES.map(|sequences| (sequences, 1000, 1)).into_iter().chain(prompts).collect();
    let ways = [("chunks", SelectiveScan::Chunked), ("by row", SelectiveScan::RowByRow)];
    let open = |(name, scans)| Ok((name, Bench::open(rates, CudaOptions { scans, ..options.clone() })?));
    let mut benches: Vec<(&str, Bench)> = ways.map(open).into_iter().collect::<Result<_, String>>()?;
    for shape in MODELS {
        println!("{}", shape.name);
        for step in &steps {
            for (name, bench) in benches.iter_mut().filter(|(name, _)| *name != "chunks" || !shape.is_first) {
                let kept = if step.1 > 0 { &KEPT[..] } else { &KEPT_OF_PROMPTS };
                for &kept in kept {
                    bench.mixer(name, shape, *step, kept);
                    bench.backend.fault().map_or(Ok(()), |fault| Err(fault.to_owned()))?;
                }
            }
        }
    }
    Ok(())
}

impl Bench {
    /// The scan of such a step; long prompts and single rows have what is beside it, too.
    fn mixer(&mut self, name: &str, shape: Shape, (sequences, start, rows): (usize, usize, usize), kept: DType) {
        let all = sequences * rows;
        self.flag = self.backend.new_act(all.max(MOST_ROWS), 1);
        let mixers = Mixers::new(self, shape, [sequences, all], kept);
        let what = format!("{sequences} x {rows} after {start}");
        self.begin(&vec![(start, rows); sequences]);
        let few = all <= 256;
        let leads = if few { LEADS } else { 0 };
        let calls = if few { CALLS } else { CALLS / 8 };
        let each = |this: &mut Self, name: &str, what: String, work: Work, call: &dyn Fn(&mut CudaBackend, usize)| {
            let seconds = this.time(leads, |backend, i| {
                if i < calls {
                    call(backend, i);
                }
            });
            this.report(name, &what, seconds * CALLS as f64 / calls as f64, work);
        };
        let (title, work) = (format!("scan, {what}, {}", kept.name()), shape.work(sequences, rows, kept));
        each(self, name, title, work, &|backend, i| mixers.scan(backend, i));
        if (name == "by row") != shape.is_first || (all < 2048 && start == 0) || kept != DType::F32 {
            return;
        }
        let bytes = |columns: usize| Work { bytes: (all * columns * 2) as f64, flops: 0.0 };
        let convolved = bytes(2 * shape.channels());
        each(self, "", format!("convolution, {what}"), convolved, &|backend, i| mixers.convolve(backend, i));
        each(self, "", format!("gate and norm, {what}"), bytes(3 * shape.inner()), &|backend, _| mixers.gate(backend));
        if shape.is_first {
            return;
        }
        let (hidden, inner, projected) = (shape.hidden, shape.inner(), shape.projected());
        let (input, output) = (self.matrix(projected, hidden), self.matrix(hidden, inner));
        let (x, out) = (self.act(all, hidden), self.backend.new_rounded_act(all, hidden, DType::Bf16));
        self.begin(&vec![(start, rows); sequences]);
        let elements = hidden * (projected + inner);
        let work = Work { bytes: (2 * elements) as f64, flops: (2 * all * elements) as f64 };
        each(self, "", format!("both products, {what}"), work, &|backend, _| {
            backend.matmul(x, input, None, Epilogue::Store, mixers.projected);
            backend.matmul(mixers.mixed, output, None, Epilogue::Store, out);
        });
    }
}
