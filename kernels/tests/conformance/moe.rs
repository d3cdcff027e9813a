//! Mixtures of experts: the products and sums of the experts that rows chose, against float64.

use super::routing::{PLAIN, reference, route};
use super::{
    Random, backends, begin_rows, check, check_relative, check_same, encode, filled, filled_in, host, poisoned, round,
};
use kernels::ops::{
    Act, Activation, Backend, DType, Epilogue, ExpertRouting, GatedExperts, HeadColumns, MatrixGroup, MatrixUse,
    Routing, RowSelection,
};

/// A layer of experts.
pub(super) struct Layer {
    n: usize,
    k: usize,
    experts: usize,
    values: Vec<Vec<f32>>,
    bias: Vec<f32>,
    x: Vec<f32>,
    logits: Vec<f32>,
    weights: DType,
    compute: DType,
}

impl Layer {
    fn new((n, k): (usize, usize), experts: usize, rows: usize, weights: DType, compute: DType) -> Self {
        let mut random = Random((n * k + experts) as u64);
        let values = (0..experts).map(|_| encode(&random.values(n * k), weights).1).collect();
        let (bias, x, logits) = (random.values(experts * n), random.values(rows * k), random.values(rows * experts));
        Self { n, k, experts, values, bias, x, logits, weights, compute }
    }

    pub(super) fn shape(&self) -> [usize; 2] {
        [self.n, self.k]
    }

    pub(super) fn experts(&self) -> usize {
        self.experts
    }

    pub(super) fn rows(&self) -> usize {
        self.x.len() / self.k
    }

    pub(super) fn x(&self) -> &[f32] {
        &self.x
    }

    pub(super) fn bias(&self) -> &[f32] {
        &self.bias
    }

    /// The same layer with other rows.
    pub(super) fn with_x(&self, x: Vec<f32>) -> Self {
        let (values, bias, logits) = (self.values.clone(), self.bias.clone(), self.logits.clone());
        Self { values, bias, x, logits, ..*self }
    }

    /// Makes these the weights of its experts.
    pub(super) fn set_values(&mut self, values: Vec<Vec<f32>>) {
        self.values = values;
    }

    fn load(&self, backend: &mut dyn Backend) -> MatrixGroup {
        let load = |values: &Vec<f32>| {
            backend.load_matrix(host(self.weights, self.n, self.k, &encode(values, self.weights).0), self.compute)
        };
        let members: Vec<_> = self.values.iter().map(load).collect();
        backend.group_matrices(&members, MatrixUse::Experts)
    }

    pub(super) fn choose(&self, backend: &mut dyn Backend, rows: std::ops::Range<usize>) -> ExpertRouting {
        route(backend, self.experts, &self.logits[rows.start * self.experts..rows.end * self.experts], PLAIN)
    }

    /// The two chosen experts of a row, the better one first.
    fn chosen(&self, row: usize) -> [usize; 2] {
        let logits = &self.logits[row * self.experts..][..self.experts];
        let mut order: Vec<usize> = (0..self.experts).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        [order[0], order[1]]
    }

    fn product(&self, x: &[f32], expert: usize) -> Vec<f64> {
        let cell = |col: usize| {
            let w = &self.values[expert][col * self.k..][..self.k];
            let sum: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
            sum + f64::from(self.bias[expert * self.n + col])
        };
        (0..self.n).map(cell).collect()
    }

    /// Sums of the sizes of what [`Self::products`] adds up.
    pub(super) fn sizes(&self) -> Vec<Vec<f64>> {
        let size = |values: &[f32]| values.iter().map(|value| value.abs()).collect::<Vec<f32>>();
        let values = self.values.iter().map(|values| size(values)).collect();
        let logits = self.logits.clone();
        Self { values, bias: size(&self.bias), x: size(&self.x), logits, ..*self }.products(self.rows())
    }

    /// Of the first `rows` rows with each of their experts, in the order of choices.
    pub(super) fn products(&self, rows: usize) -> Vec<Vec<f64>> {
        let row = |row: usize| &self.x[row * self.k..][..self.k];
        (0..rows).flat_map(|index| self.chosen(index).map(|expert| self.product(row(index), expert))).collect()
    }
}

const TYPES: [(DType, DType); 4] =
    [(DType::F32, DType::F32), (DType::Bf16, DType::F32), (DType::Bf16, DType::Bf16), (DType::F16, DType::F32)];

#[test]
fn each_row_meets_its_experts() {
    for mut backend in backends() {
        for (weights, compute) in TYPES {
            for (shape, experts, rows) in [((96, 64), 4, 1), ((48, 33), 3, 5), ((160, 96), 8, 90)] {
                let layer = Layer::new(shape, experts, rows, weights, compute);
                let (group, choice) = (layer.load(&mut *backend), layer.choose(&mut *backend, 0..rows));
                let bias = backend.load_vector(&layer.bias);
                let what = format!("{} {shape:?} {experts} {rows} {weights:?} {compute:?}", backend.describe());
                // Rounding x costs 2^-9 of each product at most; sums of k of them grow with its root.
                let bound = (layer.k as f64).sqrt() * if compute == DType::Bf16 { 8e-3 } else { 2e-5 };
                let want = layer.products(rows).concat();
                let (x, out) = (filled(&mut *backend, layer.k, &layer.x), backend.new_act(rows * 2, layer.n));
                backend.expert_matmul(x, group, Some(bias), choice, out);
                check(&what, backend.read(out), &want, |_| bound);
                // The same rows, each given for each of its choices.
                let twice: Vec<f32> = layer.x.chunks(layer.k).flat_map(|row| [row, row].concat()).collect();
                let x = filled(&mut *backend, layer.k, &twice);
                let again = backend.new_act(rows * 2, layer.n);
                backend.expert_matmul(x, group, Some(bias), choice, again);
                let first = backend.read(out).to_vec();
                check_same(&what, backend.read(again), &first);
            }
        }
    }
}

/// Numbers of rows for which a device may choose different tiles, and shapes that these do not divide.
const SIXTEEN_BIT: [((usize, usize), usize, usize); 10] = [
    ((144, 200), 4, 1),
    ((40, 96), 8, 7),
    ((136, 72), 8, 30),
    ((144, 200), 8, 70),
    ((336, 64), 8, 90),
    ((144, 520), 8, 200),
    ((272, 192), 3, 400),
    ((144, 200), 4, 700),
    ((528, 1032), 2, 260),
    ((528, 72), 4, 1100),
];

/// A layer whose first expert is liked by most rows, and the last by none, with inputs of this type.
pub(super) fn unbalanced(shape: (usize, usize), experts: usize, rows: usize, dtype: DType) -> Layer {
    let mut layer = Layer::new(shape, experts, rows, dtype, dtype);
    for logits in layer.logits.chunks_mut(experts) {
        logits[0] += 1.5;
        logits[experts - 1] = if experts > 2 { -9.0 } else { 0.0 };
    }
    layer.x.iter_mut().for_each(|x| *x = round(0.25 * *x, dtype));
    layer
}

#[test]
fn rounded_rows_meet_their_experts() {
    let mut backends = backends();
    for dtype in [DType::Bf16, DType::F16] {
        for (shape, experts, rows) in SIXTEEN_BIT {
            let layer = unbalanced(shape, experts, rows, dtype);
            let want = layer.products(rows).concat();
            let twice: Vec<f32> = layer.x.chunks(layer.k).flat_map(|row| [row, row].concat()).collect();
            // A CPU may multiply f16 weights with inputs rounded to bf16.
            let inexact = if dtype == DType::F16 { 2.0_f64.powi(-10) } else { 1e-6 } * layer.k as f64;
            for backend in &mut backends {
                let backend = &mut **backend;
                let (group, choice) = (layer.load(backend), layer.choose(backend, 0..rows));
                let bias = backend.load_vector(&layer.bias);
                for (output, rounding) in [(dtype, half_step(dtype)), (DType::F32, 2.0_f64.powi(-24))] {
                    for x in [&layer.x, &twice] {
                        let given = x.len() / layer.k;
                        let what = format!(
                            "{} {shape:?} {experts} experts, {given} rows for {rows}, {dtype:?} to {output:?}",
                            backend.describe()
                        );
                        let out = filled_in(backend, layer.n, &vec![f32::NAN; want.len()], output);
                        let x = filled_in(backend, layer.k, x, dtype);
                        backend.expert_matmul(x, group, Some(bias), choice, out);
                        check(&what, backend.read(out), &want, |i| inexact + rounding * want[i].abs());
                    }
                }
            }
        }
    }
}

/// The most that rounding changes a value, relative to its size.
fn half_step(dtype: DType) -> f64 {
    2.0_f64.powi(if dtype == DType::Bf16 { -8 } else { -11 })
}

/// `activation(gate) * up`.
pub(super) fn gated(activation: Activation, gate: f64, up: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match activation {
        Activation::ClampedSwiGlu { limit } => {
            let (limit, gate) = (f64::from(limit), gate.min(f64::from(limit)));
            gate * sigmoid(1.702 * gate) * (up.clamp(-limit, limit) + 1.0)
        }
        _ => gate * sigmoid(gate) * up,
    }
}

#[test]
fn gates_follow_products() {
    let mut backends = backends();
    for dtype in [DType::F32, DType::Bf16, DType::F16] {
        for (shape, experts, rows) in SIXTEEN_BIT {
            let activation = [Activation::Silu, Activation::ClampedSwiGlu { limit: 3.0 }][rows % 2];
            let layer = unbalanced(shape, experts, rows, dtype);
            let half = layer.n / 2;
            let products = layer.products(rows);
            let pairs = || products.iter().flat_map(|row| row[..half].iter().zip(&row[half..]));
            let want: Vec<f64> = pairs().map(|(gate, up)| gated(activation, *gate, *up)).collect();
            let size: Vec<f64> = pairs().map(|(gate, up)| (gate.abs() + 1.0) * (up.abs() + 1.0)).collect();
            // Gate, up and what they give are each rounded at most once; a CPU may round f16 inputs to bf16.
            let rounding = if dtype == DType::F32 { 2e-5 } else { 3.0 * 2.0_f64.powi(-8) };
            for backend in &mut backends {
                let backend = &mut **backend;
                let (w, choice) = (layer.load(backend), layer.choose(backend, 0..rows));
                let bias = Some(backend.load_vector(&layer.bias));
                let x = filled_in(backend, layer.k, &layer.x, dtype);
                let raised = filled_in(backend, layer.n, &vec![f32::NAN; 2 * want.len()], dtype);
                let out = filled_in(backend, half, &vec![f32::NAN; want.len()], dtype);
                begin_rows(backend, rows);
                backend.gated_experts(x, GatedExperts { w, bias, activation, raised, reader: None }, choice, out);
                let what = format!("{} {shape:?} {experts} experts, {rows} rows, {dtype:?}", backend.describe());
                check(&what, backend.read(out), &want, |i| rounding * size[i]);
            }
        }
    }
}

#[test]
fn a_row_among_experts_does_not_know_its_company() {
    for mut backend in backends() {
        for (weights, compute) in TYPES {
            let (rows, layer) = (70, Layer::new((96, 320), 4, 70, weights, compute));
            let group = layer.load(&mut *backend);
            let mut run = |range: std::ops::Range<usize>| {
                let choice = layer.choose(&mut *backend, range.clone());
                let pairs = backend.new_act(range.len() * 2, layer.n);
                let x = filled(&mut *backend, layer.k, &layer.x[range.start * layer.k..range.end * layer.k]);
                let out = poisoned(&mut *backend, range.len(), layer.n);
                backend.expert_matmul(x, group, None, choice, pairs);
                backend.combine(pairs, choice, Epilogue::Store, out);
                backend.read(out).to_vec()
            };
            let whole = run(0..rows);
            for part in [0..1, 3..5, 10..27, 0..33, 20..70] {
                let want = &whole[part.start * layer.n..part.end * layer.n];
                check_same(&format!("{part:?} {weights:?} {compute:?}"), &run(part), want);
            }
        }
    }
}

#[test]
fn sums_are_weighted_and_may_be_added() {
    for mut backend in backends() {
        for width in [1, 17, 96] {
            let rows = 9;
            let layer = Layer::new((width, 24), 6, rows, DType::F32, DType::F32);
            let before = Random(width as u64).values(rows * width);
            let (group, choice) = (layer.load(&mut *backend), layer.choose(&mut *backend, 0..rows));
            let pairs = backend.new_act(rows * 2, width);
            let (x, bias) = (filled(&mut *backend, layer.k, &layer.x), backend.load_vector(&layer.bias));
            let out = backend.new_act(rows, width);
            begin_rows(&mut *backend, rows);
            backend.host_mut(out).copy_from_slice(&before);
            backend.expert_matmul(x, group, Some(bias), choice, pairs);
            backend.combine(pairs, choice, Epilogue::Accumulate, out);
            let mut want = Vec::new();
            for row in 0..rows {
                let weights = reference(&layer.logits[row * layer.experts..][..layer.experts], &PLAIN, &[0.0; 6]);
                let parts = layer
                    .chosen(row)
                    .map(|expert| (weights[expert], layer.product(&layer.x[row * layer.k..][..layer.k], expert)));
                for col in 0..width {
                    let sum: f64 = parts.iter().map(|(weight, product)| weight * product[col]).sum();
                    want.push(f64::from(before[row * width + col]) + sum);
                }
            }
            check("combine", backend.read(out), &want, |_| 1e-5);
        }
    }
}

#[test]
fn rounded_rows_are_summed() {
    for mut backend in backends() {
        for (dtype, width) in [(DType::Bf16, 17), (DType::F16, 17), (DType::Bf16, 96), (DType::F16, 96)] {
            let (rows, experts, routing) = (9, 12, Routing { top_k: 7, ..PLAIN });
            let mut random = Random(width as u64);
            let logits = random.values(rows * experts);
            let values: Vec<f32> =
                random.values(rows * routing.top_k * width).into_iter().map(|x| round(x, dtype)).collect();
            let choice = route(&mut *backend, experts, &logits, routing);
            let out = poisoned(&mut *backend, rows, width);
            let x = filled_in(&mut *backend, width, &values, dtype);
            backend.combine(x, choice, Epilogue::Store, out);
            let mut want = vec![0.0; rows * width];
            for (row, logits) in logits.chunks(experts).enumerate() {
                let mut weights = reference(logits, &routing, &vec![0.0; experts]);
                weights.sort_by(|a, b| b.total_cmp(a));
                for (slot, weight) in weights[..routing.top_k].iter().enumerate() {
                    let given = &values[(row * routing.top_k + slot) * width..][..width];
                    let sums = want[row * width..].iter_mut().zip(given);
                    sums.for_each(|(sum, x)| *sum += weight * f64::from(*x));
                }
            }
            check(&format!("{} {dtype:?} {width}", backend.describe()), backend.read(out), &want, |_| 1e-5);
        }
    }
}

#[test]
fn rows_are_gated_by_one_number_each() {
    for mut backend in backends() {
        let (rows, width) = (7, 33);
        let mut random = Random(5);
        let (values, gates) = (random.values(rows * width), random.values(rows));
        let (x, gate) = (filled(&mut *backend, width, &values), filled(&mut *backend, 1, &gates));
        backend.gate_rows(x, gate);
        let sigmoid = |x: f32| 1.0 / (1.0 + f64::from(-x).exp());
        let want: Vec<f64> =
            values.iter().enumerate().map(|(i, x)| f64::from(*x) * sigmoid(gates[i / width])).collect();
        check_relative("gate_rows", backend.read(x), &want, 1e-6);
    }
}

/// Rows with heads at some columns, and where their results go.
struct Heads {
    count: usize,
    from: HeadColumns,
    to: HeadColumns,
    widths: (usize, usize),
}

const HEADS: Heads = Heads {
    count: 3,
    from: HeadColumns { first: 5, stride: 50 },
    to: HeadColumns { first: 2, stride: 41 },
    widths: (160, 130),
};

fn head_rows(backend: &mut dyn Backend, rows: usize, values: &[f32]) -> (Act, Act) {
    let (x, out) = (filled(backend, HEADS.widths.0, values), backend.new_act(rows, HEADS.widths.1));
    begin_rows(backend, rows);
    backend.host_mut(out).fill(9.0);
    (x, out)
}

#[test]
fn each_head_meets_its_matrix() {
    let (n, k) = (32, 48);
    for mut backend in backends() {
        for (weights, compute) in TYPES {
            for rows in [1, 3, 40] {
                let layer = Layer::new((n, k), HEADS.count, rows, weights, compute);
                let values = Random(rows as u64).values(rows * HEADS.widths.0);
                let group = layer.load(&mut *backend);
                let (x, out) = head_rows(&mut *backend, rows, &values);
                backend.head_matmul(x, HEADS.from, group, out, HEADS.to);
                let mut want = vec![9.0; rows * HEADS.widths.1];
                for row in 0..rows {
                    for head in 0..HEADS.count {
                        let from = &values[row * HEADS.widths.0 + HEADS.from.first + head * HEADS.from.stride..][..k];
                        let to = row * HEADS.widths.1 + HEADS.to.first + head * HEADS.to.stride;
                        for (col, sum) in layer.product(from, head).into_iter().enumerate() {
                            want[to + col] = sum - f64::from(layer.bias[head * n + col]);
                        }
                    }
                }
                let bound = if compute == DType::Bf16 { 6e-2 } else { 1e-4 };
                check(&format!("{weights:?} {compute:?} {rows}"), backend.read(out), &want, |_| bound);
            }
        }
    }
}

#[test]
fn columns_are_copied_and_others_kept() {
    for mut backend in backends() {
        let (rows, width) = (4, 37);
        let values = Random(1).values(rows * HEADS.widths.0);
        let (x, out) = head_rows(&mut *backend, rows, &values);
        backend.copy_columns(x, HEADS.from, out, HEADS.to, HEADS.count, width);
        let mut want = vec![9.0; rows * HEADS.widths.1];
        for row in 0..rows {
            for head in 0..HEADS.count {
                let from = row * HEADS.widths.0 + HEADS.from.first + head * HEADS.from.stride;
                let to = row * HEADS.widths.1 + HEADS.to.first + head * HEADS.to.stride;
                want[to..to + width].copy_from_slice(&values[from..from + width]);
            }
        }
        check_same("copy_columns", backend.read(out), &want);
    }
}

/// What has room for the picked rows of a step alone takes them while the step has more.
#[test]
fn columns_of_picked_rows_are_copied_into_small_buffers() {
    let (rows, width, wide) = (40, 5, 7);
    for mut backend in backends() {
        let values = Random(1).values(rows * width);
        let [picked, out] = [width, wide].map(|width| backend.new_act(2, width));
        let all = filled(&mut *backend, width, &values);
        begin_rows(&mut *backend, rows);
        backend.host_mut(all).copy_from_slice(&values);
        backend.gather(all, RowSelection { rows: &[3, 39] }, picked);
        let at = HeadColumns { first: 0, stride: 0 };
        backend.copy_columns(picked, at, out, at, 1, width);
        let out = backend.read(out);
        for (row, from) in [3, 39].into_iter().enumerate() {
            check_same("copy_columns", &out[row * wide..][..width], &values[from * width..][..width]);
        }
    }
}

#[test]
#[should_panic(expected = "matrices of a group")]
fn a_group_of_different_shapes_panics() {
    let mut backend = backends().remove(0);
    let a = backend.load_matrix(host(DType::F32, 2, 3, &[0; 24]), DType::F32);
    let b = backend.load_matrix(host(DType::F32, 3, 2, &[0; 24]), DType::F32);
    backend.group_matrices(&[a, b], MatrixUse::Experts);
}
