//! A residual's sum and norm between two products, which a backend may do as parts of these. Looking at a buffer in
//! between keeps all apart.

use super::{Random, backends, check, check_same, encode, filled, filled_in, host};
use kernels::ops::{Activation, Backend, DType, Epilogue, Matrix, Norm, NormKind, RowSelection, Vector};

const TYPES: [DType; 2] = [DType::Bf16, DType::F16];
/// Rows, columns of the first product's input, the residual's, and the second product's outputs.
const SHAPES: [[usize; 4]; 18] = [
    [1, 64, 96, 160],
    [3, 128, 1024, 4096],
    [5, 96, 2048, 2112],
    [8, 8192, 2016, 64],
    [8, 2048, 1024, 6144],
    [8, 64, 96, 16_448],
    [8, 64, 6144, 96],
    [12, 64, 1024, 96],
    [16, 3072, 1024, 6144],
    [16, 64, 96, 16_448],
    [16, 1024, 1072, 320],
    [27, 1024, 1056, 2016],
    [31, 2048, 1024, 4096],
    [40, 1024, 96, 160],
    [48, 192, 1088, 320],
    [50, 3072, 1024, 6144],
    [64, 128, 2048, 2096],
    [90, 2048, 1024, 4096],
];

/// A step's operands, each row of which is made of its own number.
struct Case {
    shape: [usize; 4],
    dtype: DType,
    kind: NormKind,
    matrices: [Vec<u8>; 2],
    values: [Vec<f32>; 2],
    x: Vec<f32>,
    residual: Vec<f32>,
    weight: Vec<f32>,
    bias: [Vec<f32>; 2],
}

/// What comes of it: the residual, its norm, the product of that, and the gate of the product.
struct Given {
    residual: Vec<f32>,
    normed: Vec<f32>,
    out: Vec<f32>,
    gated: Vec<f32>,
}

/// Which buffers are looked at on the way.
#[derive(Clone, Copy, PartialEq)]
enum Look {
    Never,
    AtSum,
    AtNorm,
}

impl Case {
    fn new(shape: [usize; 4], dtype: DType, kind: NormKind) -> Self {
        let [rows, k, width, n] = shape;
        let mut random = Random((k + width + n) as u64);
        let scale = (k as f32).sqrt().recip();
        let first: Vec<f32> = random.values(width * k).iter().map(|w| w * scale).collect();
        let second: Vec<f32> = random.values(n * width).iter().map(|w| w * 0.25).collect();
        let pieces = [encode(&first, dtype), encode(&second, dtype)];
        let weight = random.values(width).iter().map(|weight| 1.0 + 0.5 * weight).collect();
        let bias = [random.values(width), random.values(n)];
        let (x, residual) = (encode(&random.values(rows * k), dtype).1, random.values(rows * width));
        let [(first, first_values), (second, second_values)] = pieces;
        let (matrices, values) = ([first, second], [first_values, second_values]);
        Self { shape, dtype, kind, matrices, values, x, residual, weight, bias }
    }

    fn load(&self, backend: &mut dyn Backend) -> ([Matrix; 2], [Option<Vector>; 2], Norm) {
        let [rows, k, width, n] = self.shape;
        let [first, second] = [(width, k, 0), (n, width, 1)]
            .map(|(n, k, i)| backend.load_matrix(host(self.dtype, n, k, &self.matrices[i]), self.dtype));
        let bias = [0, 1].map(|i| (rows % 2 == 0).then(|| backend.load_vector(&self.bias[i])));
        let weight = (rows != 5).then(|| backend.load_vector(&self.weight));
        ([first, second], bias, Norm { kind: self.kind, weight, bias: None, eps: 1e-5 })
    }

    /// Of these rows alone.
    fn run(
        &self,
        backend: &mut dyn Backend,
        (matrices, bias, norm): ([Matrix; 2], [Option<Vector>; 2], Norm),
        of: std::ops::Range<usize>,
        look: Look,
    ) -> Given {
        let [_, k, width, n] = self.shape;
        let rows = of.len();
        let poison = |columns: usize| vec![f32::NAN; rows * columns];
        let delta = filled(backend, width, &poison(width));
        let normed = filled_in(backend, width, &poison(width), self.dtype);
        let (out, gate_up) = (filled(backend, n, &poison(n)), filled_in(backend, n, &poison(n), self.dtype));
        let gated = filled_in(backend, n / 2, &poison(n / 2), self.dtype);
        let x = filled_in(backend, k, &self.x[of.start * k..of.end * k], self.dtype);
        let residual = filled(backend, width, &self.residual[of.start * width..of.end * width]);
        backend.matmul(x, matrices[0], bias[0], Epilogue::Store, delta);
        if look == Look::AtSum {
            backend.read(delta);
        }
        backend.add_norm(residual, delta, norm, normed);
        if look == Look::AtNorm {
            backend.read(normed);
        }
        backend.matmul(normed, matrices[1], bias[1], Epilogue::Store, out);
        backend.matmul(normed, matrices[1], bias[1], Epilogue::Store, gate_up);
        backend.gated(gate_up, Activation::Silu, gated);
        let mut look_at = |act| backend.read(act).to_vec();
        Given { gated: look_at(gated), out: look_at(out), residual: look_at(residual), normed: look_at(normed) }
    }

    /// The residual of a row, its norm and the product in float64.
    fn reference(&self, row: usize) -> [Vec<f64>; 3] {
        let [rows, k, width, n] = self.shape;
        let product = |x: &[f64], i: usize, n: usize| -> Vec<f64> {
            let w = self.values[i].chunks(x.len()).take(n);
            let sums = w.map(|w| x.iter().zip(w).map(|(x, w)| x * f64::from(*w)).sum::<f64>());
            let shift = |at: usize| if rows % 2 == 0 { f64::from(self.bias[i][at]) } else { 0.0 };
            sums.enumerate().map(|(at, sum)| sum + shift(at)).collect()
        };
        let x: Vec<f64> = self.x[row * k..][..k].iter().map(|x| f64::from(*x)).collect();
        let before = &self.residual[row * width..][..width];
        let sum: Vec<f64> = product(&x, 0, width).iter().zip(before).map(|(a, b)| a + f64::from(*b)).collect();
        let mean = if self.kind == NormKind::Layer { sum.iter().sum::<f64>() / width as f64 } else { 0.0 };
        let square = sum.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / width as f64;
        let weight = |at: usize| if rows == 5 { 1.0 } else { f64::from(self.weight[at]) };
        let normed: Vec<f64> =
            sum.iter().enumerate().map(|(at, x)| (x - mean) / (square + 1e-5).sqrt() * weight(at)).collect();
        let out = product(&normed, 1, n);
        [sum, normed, out]
    }
}

/// Half a step of a value just below one.
fn step(dtype: DType) -> f64 {
    if dtype == DType::Bf16 { 2.0_f64.powi(-9) } else { 2.0_f64.powi(-12) }
}

fn cases() -> impl Iterator<Item = Case> {
    TYPES.into_iter().flat_map(|dtype| {
        let kind = |shape: &[usize; 4]| if shape[0] == 12 { NormKind::Layer } else { NormKind::Rms };
        SHAPES.into_iter().map(move |shape| Case::new(shape, dtype, kind(&shape)))
    })
}

#[test]
fn two_products_and_a_norm() {
    for mut backend in backends() {
        let backend = &mut *backend;
        for case in cases() {
            let [rows, _, width, n] = case.shape;
            let loaded = case.load(backend);
            let given = [Look::Never, Look::AtSum, Look::AtNorm].map(|look| case.run(backend, loaded, 0..rows, look));
            for row in [0, rows - 1] {
                let [sum, normed, out] = case.reference(row);
                for given in &given {
                    let what = |name: &str| format!("{name} of row {row}, {:?} {:?}", case.shape, case.dtype);
                    // A CPU may multiply f16 weights with inputs rounded to bf16.
                    let inexact = 2.0_f64.powi(-9);
                    let bound = |_: usize| if is_cpu(&*backend) { 8.0 * inexact } else { 1e-4 };
                    check(&what("residual"), &given.residual[row * width..][..width], &sum, bound);
                    let near = |at: usize| 2.5 * step(case.dtype) * (normed[at].abs() + 0.1) + 2.0 * bound(at);
                    check(&what("norm"), &given.normed[row * width..][..width], &normed, near);
                    // Roundings of `width` terms, of random signs.
                    let spread = 6.0 * step(case.dtype).max(if is_cpu(&*backend) { inexact } else { 0.0 });
                    let spread = spread * (width as f64).sqrt();
                    check(&what("product"), &given.out[row * n..][..n], &out, |at| spread + 1e-4 * out[at].abs());
                    let gate = |at: usize| out[at] / (1.0 + (-out[at]).exp()) * out[n / 2 + at];
                    let gated: Vec<f64> = (0..n / 2).map(gate).collect();
                    let most = out.iter().fold(1.0_f64, |most, x| most.max(x.abs()));
                    let bound = |at: usize| 3.0 * spread * most + 4.0 * step(case.dtype) * gated[at].abs();
                    check(&what("gate"), &given.gated[row * (n / 2)..][..n / 2], &gated, bound);
                }
            }
        }
    }
}

fn is_cpu(backend: &dyn Backend) -> bool {
    !backend.describe().starts_with("cuda")
}

/// Where operations may be done as parts of others.
fn gpus() -> impl Iterator<Item = Box<dyn Backend>> {
    backends().into_iter().filter(|backend| !is_cpu(&**backend))
}

/// Nothing that is looked at depends on who did it: the sum and the norm have the same bits.
#[test]
fn the_same_norm_with_and_without_a_look() {
    for mut backend in gpus() {
        let backend = &mut *backend;
        for case in cases() {
            let (loaded, rows) = (case.load(backend), case.shape[0]);
            // From the second step on that needs them, products are done in their fastest ways.
            case.run(backend, loaded, 0..rows, Look::AtNorm);
            case.run(backend, loaded, 0..rows, Look::AtSum);
            let [never, at_sum, at_norm] =
                [Look::Never, Look::AtSum, Look::AtNorm].map(|look| case.run(backend, loaded, 0..rows, look));
            let what = format!("{:?} {:?}", case.shape, case.dtype);
            check_same(&format!("residual of {what}"), &never.residual, &at_sum.residual);
            check_same(&format!("norm of {what}"), &never.normed, &at_sum.normed);
            check_same(&format!("norm of {what}, looked at"), &at_norm.normed, &at_sum.normed);
            check_same(&format!("product of {what}, looked at"), &at_norm.out, &at_sum.out);
        }
    }
}

/// Up to 16 rows, a row's bits are its own.
#[test]
fn a_row_does_not_know_its_company() {
    for mut backend in gpus() {
        let backend = &mut *backend;
        for case in cases().filter(|case| (2..=16).contains(&case.shape[0])) {
            let (loaded, [rows, _, width, n]) = (case.load(backend), case.shape);
            let all = case.run(backend, loaded, 0..rows, Look::Never);
            for of in [0..1, rows - 2..rows - 1, 1..rows] {
                let some = case.run(backend, loaded, of.clone(), Look::Never);
                let what = format!("rows {of:?} of {:?} {:?}", case.shape, case.dtype);
                check_same(&what, &some.residual, &all.residual[of.start * width..of.end * width]);
                check_same(&what, &some.out, &all.out[of.start * n..of.end * n]);
                check_same(&what, &some.gated, &all.gated[of.start * (n / 2)..of.end * (n / 2)]);
            }
        }
    }
}

/// Logits of a long step are made of few of its rows, in a buffer for no more.
#[test]
fn results_have_room_for_fewer_rows_than_the_step() {
    for mut backend in backends() {
        let backend = &mut *backend;
        for case in cases().filter(|case| case.shape[0] == 3) {
            let ([_, matrix], [_, bias], _) = case.load(backend);
            let [rows, _, width, n] = case.shape;
            let x = filled_in(backend, width, &case.residual, case.dtype);
            let all = backend.new_act(rows, n);
            backend.matmul(x, matrix, bias, Epilogue::Store, all);
            let want = backend.read(all)[(rows - 1) * n..].to_vec();
            let last = backend.new_rounded_act(1, width, case.dtype);
            let (out, gate_up) = (backend.new_act(1, n), backend.new_rounded_act(1, n, case.dtype));
            let gated = backend.new_rounded_act(1, n / 2, case.dtype);
            backend.gather(x, RowSelection { rows: &[rows as u32 - 1] }, last);
            backend.matmul(last, matrix, bias, Epilogue::Store, out);
            backend.matmul(last, matrix, bias, Epilogue::Store, gate_up);
            backend.gated(gate_up, Activation::Silu, gated);
            check_same("a product of few rows", backend.read(out), &want);
            assert_eq!(backend.read(gated).len(), n / 2);
        }
    }
}
