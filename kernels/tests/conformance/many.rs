//! Products of many rows of 16 bits: a GPU has several kernels for them, each of which must be right.

use super::rowwise::reference_activation;
use super::{Random, encode, filled_in, gpu, host, round};
use kernels::ops::{Activation, Backend, DType, Epilogue, Norm, NormKind};
use kernels_cuda::{CudaOptions, GemmTactics};

/// Rows, outputs and inputs: ragged in each, many tiles, few of them and a k of many parts, and a k that is no multiple
/// of a stage.
const SHAPES: [(usize, usize, usize); 18] = [
    (17, 528, 200),
    (33, 8208, 64),
    (64, 272, 328),
    (100, 8208, 136),
    (24, 4112, 192),
    (40, 528, 576),
    (30, 4240, 2048),
    (90, 1040, 576),
    (128, 7184, 320),
    (100, 4808, 448),
    (40, 4808, 2048),
    (129, 16, 8),
    (176, 17008, 264),
    (256, 512, 64),
    (300, 272, 520),
    (700, 1040, 200),
    (2305, 2064, 72),
    (513, 4112, 328),
];

/// A gate function and its name.
type Gate = (Activation, fn(f64, f64) -> f64);

/// The first GPU with each way forced on it; none where there is none.
fn backends() -> Vec<(String, Box<dyn Backend>)> {
    let only = std::env::var("QUIRE_TEST_DEVICE").ok();
    if only.as_deref() == Some("cpu") || gpu::backend(only.is_some()).is_none() {
        return Vec::new();
    }
    let open = |gemms| {
        let backend = gpu::open(&CudaOptions { gemms, ..gpu::options() });
        (format!("{gemms:?} on {}", backend.describe()), backend)
    };
    let all = [
        GemmTactics::Wgmma,
        GemmTactics::SplitK,
        GemmTactics::Library,
        GemmTactics::Autotuned,
        GemmTactics::AutotunedAtOnce,
    ];
    all.map(open).into()
}

/// A product's operands, and some of its rows in float64.
struct Case {
    rows: usize,
    n: usize,
    k: usize,
    dtype: DType,
    w: Vec<f32>,
    bytes: Vec<u8>,
    x: Vec<f32>,
    bias: Option<Vec<f32>>,
}

impl Case {
    fn new((rows, n, k): (usize, usize, usize), dtype: DType, with_bias: bool) -> Self {
        let mut random = Random((rows * n + k) as u64);
        let (bytes, w) = encode(&random.values(n * k), dtype);
        let (_, x) = encode(&random.values(rows * k), dtype);
        let bias = with_bias.then(|| random.values(n).iter().map(|shift| round(*shift, dtype)).collect());
        Self { rows, n, k, dtype, w, bytes, x, bias }
    }

    /// Rows that are compared: about 20, the first and the last ones of tiles among them.
    fn compared(&self) -> impl Iterator<Item = usize> {
        let rows = self.rows;
        (0..rows).filter(move |row| row % (rows / 12) == 0 || [63, 64, 127, 128, 255, rows - 1].contains(row))
    }

    fn row(&self, row: usize) -> Vec<f64> {
        let x = &self.x[row * self.k..][..self.k];
        let outputs = self.w.chunks(self.k).enumerate();
        let sum = |w: &[f32]| x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>();
        outputs.map(|(col, w)| sum(w) + self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[col]))).collect()
    }

    fn what(&self, name: &str) -> String {
        let Self { rows, n, k, dtype, .. } = self;
        format!("{name}: {rows} x {n} x {k} {dtype:?}, bias: {}", self.bias.is_some())
    }
}

/// To what 16 bits keep of it. Tensor cores cut what they add to a sum, by a unit in the last place for each 16 of `k`
/// products: 8e-6 of sums that have come to 64, as those of 2,048 do.
fn check_row(what: &str, row: usize, got: &[f32], want: &[f64], step: f64, k: usize) {
    let sums = 1e-4_f64.max(8e-6 * k as f64 / 16.0);
    for (col, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        let bound = step * (want.abs() + 0.1) + sums;
        assert!(error <= bound, "{what}: row {row}, column {col} is {got}, want {want} (off by {error:e})");
    }
}

fn step(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 1e-5,
        DType::F16 => 2.0_f64.powi(-10),
        _ => 2.0_f64.powi(-7),
    }
}

fn cases() -> impl Iterator<Item = Case> {
    let types = [DType::Bf16, DType::F16];
    types.into_iter().flat_map(|dtype| SHAPES.into_iter().map(move |shape| Case::new(shape, dtype, shape.0 % 2 == 0)))
}

#[test]
fn products() {
    for (name, mut backend) in backends() {
        let backend = &mut *backend;
        for case in cases() {
            let matrix = backend.load_matrix(host(case.dtype, case.n, case.k, &case.bytes), case.dtype);
            let bias = case.bias.as_ref().map(|bias| backend.load_vector(bias));
            let x = filled_in(backend, case.k, &case.x, case.dtype);
            for output in [case.dtype, DType::F32] {
                let out = filled_in(backend, case.n, &vec![f32::NAN; case.rows * case.n], output);
                backend.matmul(x, matrix, bias, Epilogue::Store, out);
                let got = backend.read(out);
                assert!(got.iter().all(|value| value.is_finite()), "{}: all is written", case.what(&name));
                for row in case.compared() {
                    check_row(
                        &case.what(&name),
                        row,
                        &got[row * case.n..][..case.n],
                        &case.row(row),
                        step(output),
                        case.k,
                    );
                }
            }
        }
    }
}

fn gelu_tanh(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

/// A product, and what comes after it at once.
#[test]
fn gated() {
    for (name, mut backend) in backends() {
        let backend = &mut *backend;
        for case in cases() {
            let half = case.n / 2;
            let matrix = backend.load_matrix(host(case.dtype, case.n, case.k, &case.bytes), case.dtype);
            let bias = case.bias.as_ref().map(|bias| backend.load_vector(bias));
            let x = filled_in(backend, case.k, &case.x, case.dtype);
            // Of two functions each type has one, so that as few kernels are compiled.
            let other: Gate = match case.dtype {
                DType::Bf16 => (Activation::GeluTanh, |gate, up| gelu_tanh(gate) * up),
                _ => (Activation::Relu, |gate, up| gate.max(0.0) * up),
            };
            let functions: [Gate; 2] = [(Activation::Silu, |gate, up| gate / (1.0 + (-gate).exp()) * up), other];
            for (activation, function) in functions {
                let gate_up = filled_in(backend, case.n, &vec![f32::NAN; case.rows * case.n], case.dtype);
                let out = filled_in(backend, half, &vec![f32::NAN; case.rows * half], case.dtype);
                backend.matmul(x, matrix, bias, Epilogue::Store, gate_up);
                backend.gated(gate_up, activation, out);
                let got = backend.read(out);
                assert!(got.iter().all(|value| value.is_finite()), "{}: all is written", case.what(&name));
                for row in case.compared() {
                    let sums = case.row(row);
                    let want: Vec<f64> = (0..half).map(|col| function(sums[col], sums[half + col])).collect();
                    // Where the sums are rounded before they are gated, each adds its share; and a small gate is its
                    // sum's error.
                    let largest = sums.iter().fold(1.0_f64, |most, sum| most.max(sum.abs()));
                    let what = format!("{} {activation:?}", case.what(&name));
                    for (col, (got, want)) in got[row * half..][..half].iter().zip(&want).enumerate() {
                        let (error, bound) = ((f64::from(*got) - want).abs(), 2.0 * step(case.dtype));
                        let bound = bound * (want.abs() + 0.1 * largest);
                        assert!(
                            error <= bound,
                            "{what}: row {row}, column {col} is {got}, want {want} (off by {error:e})"
                        );
                    }
                }
            }
        }
    }
}

/// A product, and an activation of each output.
#[test]
fn activated() {
    for (name, mut backend) in backends() {
        let backend = &mut *backend;
        // Types take turns, and each has one function, so that as few kernels are compiled.
        let halves = [(DType::Bf16, Activation::Gelu), (DType::F16, Activation::GeluTanh)];
        for (shape, (dtype, activation)) in SHAPES.into_iter().zip(halves.into_iter().cycle()) {
            let case = Case::new(shape, dtype, shape.0 % 4 != 0);
            let matrix = backend.load_matrix(host(case.dtype, case.n, case.k, &case.bytes), case.dtype);
            let bias = case.bias.as_ref().map(|bias| backend.load_vector(bias));
            let x = filled_in(backend, case.k, &case.x, case.dtype);
            let out = filled_in(backend, case.n, &vec![f32::NAN; case.rows * case.n], case.dtype);
            backend.matmul_activated(x, matrix, bias, activation, out);
            let got = backend.read(out);
            let what = format!("{} {activation:?}", case.what(&name));
            assert!(got.iter().all(|value| value.is_finite()), "{what}: all is written");
            for row in case.compared() {
                let sums = case.row(row);
                for (col, (got, sum)) in got[row * case.n..][..case.n].iter().zip(&sums).enumerate() {
                    let want = reference_activation(*sum, activation);
                    // Where sums are rounded before it, a value near zero has their error.
                    let (error, bound) = ((f64::from(*got) - want).abs(), step(case.dtype));
                    let bound = bound * (want.abs() + sum.abs() + 0.1);
                    assert!(error <= bound, "{what}: row {row}, column {col} is {got}, want {want} (off by {error:e})");
                }
            }
        }
    }
}

#[test]
fn added_to_a_residual_and_normed() {
    let norm = Norm { kind: NormKind::Rms, weight: None, bias: None, eps: 1e-5 };
    for (name, mut backend) in backends() {
        let backend = &mut *backend;
        for case in cases() {
            let before = Random(case.n as u64).values(case.rows * case.n);
            let matrix = backend.load_matrix(host(case.dtype, case.n, case.k, &case.bytes), case.dtype);
            let bias = case.bias.as_ref().map(|bias| backend.load_vector(bias));
            let x = filled_in(backend, case.k, &case.x, case.dtype);
            let delta = filled_in(backend, case.n, &vec![f32::NAN; case.rows * case.n], DType::F32);
            let out = filled_in(backend, case.n, &vec![f32::NAN; case.rows * case.n], case.dtype);
            // The last one written by the host: looking at another buffer sends it off.
            let residual = filled_in(backend, case.n, &before, DType::F32);
            // Twice, so that what was measured the first time has not been added too often.
            for times in 1..=2 {
                backend.matmul(x, matrix, bias, Epilogue::Store, delta);
                backend.add_norm(residual, delta, norm, out);
                let sums = backend.read(residual).to_vec();
                let normed = backend.read(out);
                for row in case.compared() {
                    let range = row * case.n..(row + 1) * case.n;
                    let added = case.row(row).into_iter().zip(&before[range.clone()]);
                    let want: Vec<f64> =
                        added.map(|(sum, before)| f64::from(times) * sum + f64::from(*before)).collect();
                    check_row(&case.what(&name), row, &sums[range.clone()], &want, step(DType::F32), case.k);
                    let mean = want.iter().map(|sum| sum * sum).sum::<f64>() / case.n as f64;
                    let want: Vec<f64> = want.iter().map(|sum| sum / (mean + 1e-5).sqrt()).collect();
                    check_row(&case.what(&name), row, &normed[range], &want, step(case.dtype), case.k);
                }
            }
        }
    }
}

/// What is measured between two steps changes how the second is computed, and nothing of what it means.
#[test]
fn measured_ahead() {
    let gate = |gate: f64, up: f64| gate / (1.0 + (-gate).exp()) * up;
    for (name, mut backend) in backends() {
        let backend = &mut *backend;
        let case = Case::new((300, 1040, 512), DType::Bf16, true);
        let matrix = backend.load_matrix(host(case.dtype, case.n, case.k, &case.bytes), case.dtype);
        let bias = case.bias.as_ref().map(|bias| backend.load_vector(bias));
        for round in 0..3 {
            let what = format!("round {round}, {}", case.what(&name));
            let x = filled_in(backend, case.k, &case.x, case.dtype);
            let out = filled_in(backend, case.n, &vec![f32::NAN; case.rows * case.n], DType::F32);
            let gated = filled_in(backend, case.n / 2, &vec![f32::NAN; case.rows * case.n / 2], case.dtype);
            let gate_up = filled_in(backend, case.n, &vec![f32::NAN; case.rows * case.n], case.dtype);
            backend.matmul(x, matrix, bias, Epilogue::Store, out);
            let sums = backend.read(out).to_vec();
            backend.matmul(x, matrix, bias, Epilogue::Store, gate_up);
            backend.gated(gate_up, Activation::Silu, gated);
            let gates = backend.read(gated);
            for row in case.compared() {
                let want = case.row(row);
                let largest = want.iter().fold(1.0_f64, |most, sum| most.max(sum.abs()));
                check_row(&what, row, &sums[row * case.n..][..case.n], &want, step(DType::F32), case.k);
                for (col, got) in gates[row * case.n / 2..][..case.n / 2].iter().enumerate() {
                    let gated = gate(want[col], want[case.n / 2 + col]);
                    let (error, bound) = ((f64::from(*got) - gated).abs(), 2.0 * step(case.dtype));
                    let bound = bound * (gated.abs() + 0.1 * largest);
                    assert!(error <= bound, "{what}: row {row}, gated column {col} is {got}, want {gated}");
                }
            }
            // All of it after the first round; then there is nothing left but what the new buffers bring.
            let pieces = (0..100_000).take_while(|_| backend.warm_up()).count();
            assert!(pieces < 100_000, "{what}: preparing has no end");
        }
    }
}

/// The same rows give the same bits, however often: what was measured first stays.
#[test]
fn a_way_once_taken_stays() {
    for (name, mut backend) in backends() {
        let backend = &mut *backend;
        let case = Case::new((300, 1024, 512), DType::Bf16, false);
        let matrix = backend.load_matrix(host(case.dtype, case.n, case.k, &case.bytes), case.dtype);
        let x = filled_in(backend, case.k, &case.x, case.dtype);
        let out = filled_in(backend, case.n, &vec![f32::NAN; case.rows * case.n], case.dtype);
        let mut run = || {
            backend.matmul(x, matrix, None, Epilogue::Store, out);
            backend.read(out).to_vec()
        };
        let first = run();
        for _ in 0..4 {
            super::check_same(&name, &run(), &first);
        }
    }
}
