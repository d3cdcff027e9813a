//! Operations with a state: against plain float64 recurrences, and the same bits however a sequence is cut.

mod delta_chunks;
mod kept;

use super::rounded::step;
use super::{Random, backends, check_relative, check_same, filled, filled_in, round};
use kernels::ops::{
    Act, Activation, Backend, Batch, Cols, Conv, DType, DeltaInput, DeltaRule, Norm, NormKind, Scan, ScanInput,
    Sequence,
};
use std::ops::Range;

const SLOTS: usize = 10;
/// Rows of each sequence; sequence `i` has slot `SLOTS - 1 - i`.
const LENGTHS: [usize; 3] = [13, 1, 6];

/// An operation on columns `0..input` of a step's rows.
trait Operation {
    /// What inputs and outputs may be rounded to.
    fn precision(&self) -> DType {
        DType::F32
    }
    /// Columns of the input, and of the output.
    fn widths(&self) -> (usize, usize);
    /// Loads parameters and takes a state.
    fn load(&mut self, backend: &mut dyn Backend);
    /// Runs it.
    fn run(&self, backend: &mut dyn Backend, input: Act, out: Act);
    /// A whole sequence, from a state of zero. `ends`: whether a step ends with a row, so that the state is rounded.
    fn reference(&self, rows: &[Vec<f32>], ends: &dyn Fn(usize) -> bool) -> Vec<f64>;
}

/// Runs all sequences, at most `chunk` rows of each in a step; outputs by sequence.
fn run(backend: &mut dyn Backend, operation: &dyn Operation, inputs: &[Vec<Vec<f32>>], chunk: usize) -> Vec<Vec<f32>> {
    let (_, width) = operation.widths();
    let mut outputs = vec![Vec::new(); inputs.len()];
    let mut done = 0;
    while inputs.iter().any(|rows| done < rows.len()) {
        let mut sequences = Vec::new();
        let mut values = Vec::new();
        let mut first_row = 0;
        for (index, rows) in inputs.iter().enumerate().filter(|(_, rows)| done < rows.len()) {
            let part = &rows[done..rows.len().min(done + chunk)];
            let slot = SLOTS - 1 - index;
            sequences.push((index, Sequence { first_row, num_rows: part.len(), start: done, tables: &[], slot }));
            values.extend(part.concat());
            first_row += part.len();
        }
        let input = filled_in(backend, inputs[0][0].len(), &values, operation.precision());
        let out = backend.new_rounded_act(first_row, width, operation.precision());
        let tokens = vec![0; first_row];
        let parts: Vec<Sequence<'_>> = sequences.iter().map(|(_, sequence)| *sequence).collect();
        backend.begin(Batch { tokens: &tokens, positions: &tokens, sequences: &parts });
        operation.run(backend, input, out);
        let rows = backend.read(out);
        for (index, sequence) in sequences {
            outputs[index].extend(&rows[sequence.first_row * width..][..sequence.num_rows * width]);
        }
        done += chunk;
    }
    outputs
}

/// Against the reference; then again in chunks, over states that others left, and alone.
fn check(what: &str, mut operation: impl Operation, relative: f64) {
    for mut backend in backends() {
        let (width, _) = operation.widths();
        operation.load(&mut *backend);
        let mut random = Random(7);
        let inputs: Vec<Vec<Vec<f32>>> =
            LENGTHS.iter().map(|&rows| (0..rows).map(|_| random.values(width)).collect()).collect();
        let whole = run(&mut *backend, &operation, &inputs, usize::MAX);
        for (rows, got) in inputs.iter().zip(&whole) {
            check_relative(what, got, &operation.reference(rows, &|_| false), relative);
        }
        for chunk in [1, 4] {
            let cut = run(&mut *backend, &operation, &inputs, chunk);
            cut.iter()
                .zip(&whole)
                .for_each(|(got, want)| check_same(&format!("{what} in chunks of {chunk}"), got, want));
        }
        let alone = run(&mut *backend, &operation, &inputs[..1], usize::MAX);
        check_same(&format!("{what}, alone"), &alone[0], &whole[0]);
    }
}

fn double(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

/// A number as a state keeps it: of what f16 has no room for, the largest that it has.
pub(super) fn kept_as(x: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F32 => x,
        DType::Bf16 => round(x as f32, dtype).into(),
        DType::F16 => round(x.clamp(-65504.0, 65504.0) as f32, dtype).into(),
    }
}

fn softplus(x: f64) -> f64 {
    x.exp().ln_1p()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

struct Convolution {
    channels: usize,
    kernel: usize,
    taps: Vec<f32>,
    bias: Option<Vec<f32>>,
    /// What states are kept as.
    kept: DType,
    loaded: Option<Conv>,
}

/// Columns before the ones that are convolved.
const SKIPPED: usize = 5;

impl Operation for Convolution {
    fn widths(&self) -> (usize, usize) {
        (SKIPPED + self.channels + 2, self.channels)
    }

    fn load(&mut self, backend: &mut dyn Backend) {
        self.loaded = Some(Conv {
            channels: self.channels,
            kernel: self.kernel,
            taps: backend.load_vector(&self.taps),
            bias: self.bias.as_ref().map(|bias| backend.load_vector(bias)),
            state: backend.new_state(SLOTS, (self.kernel - 1) * self.channels, self.kept),
        });
    }

    fn run(&self, backend: &mut dyn Backend, input: Act, out: Act) {
        backend.causal_conv(Cols { act: input, first: SKIPPED }, self.loaded.expect("loaded"), out);
    }

    fn reference(&self, rows: &[Vec<f32>], ends: &dyn Fn(usize) -> bool) -> Vec<f64> {
        let mut out = Vec::new();
        for row in 0..rows.len() {
            // What another step has left.
            let left = (0..row).rev().find(|row| ends(*row)).map_or(0, |last| last + 1);
            for channel in 0..self.channels {
                let mut sum = self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[channel]));
                for tap in 0..self.kernel {
                    let Some(from) = (row + tap + 1).checked_sub(self.kernel) else { continue };
                    let weight = f64::from(self.taps[tap * self.channels + channel]);
                    let x = f64::from(rows[from][SKIPPED + channel]);
                    sum += weight * if from < left { kept_as(x, self.kept) } else { x };
                }
                out.push(sum * sigmoid(sum));
            }
        }
        out
    }
}

#[test]
fn causal_convolution() {
    for (channels, kernel, with_bias) in [(16, 4, true), (7, 2, false), (100, 3, true), (130, 8, false)] {
        let mut random = Random(channels as u64);
        let taps = random.values(channels * kernel);
        let bias = with_bias.then(|| random.values(channels));
        check("causal_conv", Convolution { channels, kernel, taps, bias, kept: DType::F32, loaded: None }, 1e-5);
    }
}

struct Selective {
    /// heads, head_dim, groups, state_dim
    shape: [usize; 4],
    decay: Vec<f32>,
    skip: Vec<f32>,
    dt_bias: Option<Vec<f32>>,
    dt_limit: (f32, f32),
    precision: DType,
    /// The column of x, the first of the input that is read; and columns of a row's end that are not.
    first: usize,
    rest: usize,
    /// What states are kept as.
    kept: DType,
    loaded: Option<Scan>,
}

impl Selective {
    /// First columns of x, b, c and dt in the input.
    fn firsts(&self) -> [usize; 4] {
        let [heads, head_dim, groups, state_dim] = self.shape;
        let b = self.first + heads * head_dim;
        [self.first, b, b + groups * state_dim, b + 2 * groups * state_dim]
    }
}

const DT_LIMIT: (f32, f32) = (0.3, 1.5);

impl Operation for Selective {
    fn precision(&self) -> DType {
        self.precision
    }

    fn widths(&self) -> (usize, usize) {
        let [heads, head_dim, ..] = self.shape;
        (self.firsts()[3] + heads + self.rest, heads * head_dim)
    }

    fn load(&mut self, backend: &mut dyn Backend) {
        let [heads, head_dim, groups, state_dim] = self.shape;
        self.loaded = Some(Scan {
            heads,
            head_dim,
            groups,
            state_dim,
            decay: backend.load_vector(&self.decay),
            skip: backend.load_vector(&self.skip),
            dt_bias: self.dt_bias.as_ref().map(|bias| backend.load_vector(bias)),
            dt_limit: self.dt_limit,
            state: backend.new_state(SLOTS, heads * head_dim * state_dim, self.kept),
        });
    }

    fn run(&self, backend: &mut dyn Backend, act: Act, out: Act) {
        let [x, b, c, dt] = self.firsts().map(|first| Cols { act, first });
        backend.selective_scan(ScanInput { x, dt, b, c }, self.loaded.expect("loaded"), out);
    }

    fn reference(&self, rows: &[Vec<f32>], ends: &dyn Fn(usize) -> bool) -> Vec<f64> {
        let [heads, head_dim, groups, state_dim] = self.shape;
        let [x_at, b_at, c_at, dt_at] = self.firsts();
        let mut state = vec![0.0; heads * head_dim * state_dim];
        let mut out = Vec::new();
        for (index, row) in rows.iter().map(|row| double(row)).enumerate() {
            for head in 0..heads {
                let bias = self.dt_bias.as_ref().map_or(0.0, |bias| f64::from(bias[head]));
                let (least, most) = self.dt_limit;
                let dt = softplus(row[dt_at + head] + bias).clamp(least.into(), most.into());
                let rates = self.decay.chunks(self.decay.len() / heads).nth(head).expect("a rate of each head");
                let factors: Vec<f64> = rates.iter().map(|rate| (dt * f64::from(*rate)).exp()).collect();
                let group = head / (heads / groups) * state_dim;
                for channel in 0..head_dim {
                    let x = row[x_at + head * head_dim + channel];
                    let mut sum = f64::from(self.skip[head]) * x;
                    for n in 0..state_dim {
                        let value = &mut state[(head * head_dim + channel) * state_dim + n];
                        *value = factors[n % factors.len()] * *value + dt * x * row[b_at + group + n];
                        sum += *value * row[c_at + group + n];
                    }
                    out.push(sum);
                }
            }
            if ends(index) {
                state.iter_mut().for_each(|x| *x = kept_as(*x, self.kept));
            }
        }
        out
    }
}

#[test]
fn selective_scans() {
    // Mamba 1 has heads of one channel and a decay for each value; Mamba 2 one decay a head.
    for (shape, each_value, with_bias) in [
        ([130, 1, 1, 16], true, false),
        ([8, 16, 2, 16], false, true),
        ([3, 5, 1, 7], true, true),
        ([4, 64, 4, 128], false, true),
    ] {
        let [heads, .., state_dim] = shape;
        let mut random = Random(heads as u64);
        let decay = random.values(if each_value { heads * state_dim } else { heads });
        let decay = decay.iter().map(|x| -x.abs() - 0.1).collect();
        let (skip, bias) = (random.values(heads), random.values(heads));
        let dt_bias = with_bias.then_some(bias);
        let (dt_limit, precision, kept) = (DT_LIMIT, DType::F32, DType::F32);
        let (first, rest, loaded) = (3, 0, None);
        let scan = Selective { shape, decay, skip, dt_bias, dt_limit, precision, first, rest, kept, loaded };
        check("selective_scan", scan, 1e-4);
    }
}

/// Rows of sequences that a GPU may cut into spans, and of one beside them.
const LONG: [usize; 3] = [2048, 130, 2500];
/// Rows of sequences: beside the borders of chunks, of tiles in them, and of what is scanned in chunks at all.
const PROMPTS: [usize; 9] = [1, 15, 16, 17, 63, 64, 65, 130, 200];

/// A scan of 16-bit rows with one decay a head, from hardly any to all of a state in a row.
fn rounded_scan(shape: [usize; 4], precision: DType, first: usize) -> Selective {
    let heads = shape[0];
    let mut random = Random(heads as u64 + shape[3] as u64);
    let decay = [-0.02, -1.0, -60.0, -0.3, -1e5, 0.0];
    let decay = decay.iter().cycle().take(heads).copied().collect();
    let dt_bias = Some(random.values(heads));
    // Rows of whole 16 bytes.
    let rest = 8 - (heads + shape[2] * shape[3] * 2 + heads * shape[1] + first) % 8;
    let dt_limit = if first == 0 { DT_LIMIT } else { (0.0, f32::INFINITY) };
    let skip = random.values(heads);
    Selective { shape, decay, skip, dt_bias, dt_limit, precision, first, rest, kept: DType::F32, loaded: None }
}

/// Off by little of each head's size, and by less on average: what rounding the outputs and each factor of a product
/// once gives.
fn check_heads(what: &str, scan: &Selective, got: &[f32], want: &[f64]) {
    let [heads, head_dim, ..] = scan.shape;
    assert_eq!(got.len(), want.len(), "{what}: number of elements");
    // Where a state lies between two numbers that it is kept as, another order of sums may take the other one.
    let coarser = match scan.kept {
        DType::F32 => step(scan.precision),
        kept => 2.0 * step(scan.precision).max(step(kept)),
    };
    for head in 0..heads {
        let of_head = |index: &usize| index / head_dim % heads == head;
        let each: Vec<(f64, f64)> =
            (0..got.len()).filter(of_head).map(|index| (f64::from(got[index]) - want[index], want[index])).collect();
        let mean =
            |square: &dyn Fn(&(f64, f64)) -> f64| (each.iter().map(square).sum::<f64>() / each.len() as f64).sqrt();
        let (error, size) = (mean(&|(error, _)| error * error), mean(&|(_, want)| want * want) + 0.05);
        assert!(error <= 2.0 * coarser * size, "{what}, head {head}: off by {error:e} of {size:e}");
        for (index, (error, want)) in each.iter().enumerate() {
            let most = 6.0 * coarser * (size + want.abs());
            assert!(error.abs() <= most, "{what}, element {index} of head {head}: off by {error:e} of {want:e}");
        }
    }
}

/// Prompts at once, in steps that keep states over several chunks, and row by row: always near the reference. Company
/// changes no bit.
fn check_rounded_scan(shape: [usize; 4], precision: DType, first: usize) {
    check_prompts(&mut rounded_scan(shape, precision, first), &PROMPTS, &[usize::MAX, 80, 33, 1], &[2..5, 6..9]);
}

/// The same with other rows, in such steps, and with some of the sequences alone.
fn check_prompts(scan: &mut Selective, prompts: &[usize], steps: &[usize], alone: &[Range<usize>]) {
    let (shape, precision) = (scan.shape, scan.precision);
    for mut backend in backends() {
        scan.load(&mut *backend);
        let (width, _) = scan.widths();
        let mut random = Random(7);
        let mut row = || -> Vec<f32> { random.values(width).into_iter().map(|x| round(x, precision)).collect() };
        let inputs: Vec<Vec<Vec<f32>>> = prompts.iter().map(|&rows| (0..rows).map(|_| row()).collect()).collect();
        let reference = |chunk: usize| -> Vec<Vec<f64>> {
            inputs.iter().map(|rows| scan.reference(rows, &|row| (row + 1) % chunk == 0)).collect()
        };
        let exact = (scan.kept == DType::F32).then(|| reference(usize::MAX));
        for &chunk in steps {
            let (name, kept) = (backend.describe(), scan.kept);
            let what = format!("{name} scan of {shape:?} in {precision:?}, kept in {kept:?}, {chunk} rows a step");
            let together = run(&mut *backend, scan, &inputs, chunk);
            let wanted = exact.clone().unwrap_or_else(|| reference(chunk));
            for ((got, want), rows) in together.iter().zip(&wanted).zip(&inputs) {
                check_heads(&format!("{what}, of {}", rows.len()), scan, got, want);
            }
            for some in alone {
                let apart = run(&mut *backend, scan, &inputs[some.clone()], chunk);
                apart.iter().zip(&together[some.clone()]).for_each(|(got, want)| check_same(&what, got, want));
            }
        }
    }
}

#[test]
fn scans_of_prompts_in_bf16() {
    for shape in [[6, 64, 1, 128], [4, 64, 2, 64], [2, 32, 2, 128], [2, 16, 1, 16], [1, 128, 1, 48], [1, 64, 1, 256]] {
        check_rounded_scan(shape, DType::Bf16, 8);
    }
    check_rounded_scan([3, 64, 3, 128], DType::Bf16, 0);
}

#[test]
fn scans_of_prompts_in_f16() {
    for shape in [[6, 64, 2, 128], [2, 32, 1, 96], [1, 128, 1, 256]] {
        check_rounded_scan(shape, DType::F16, 8);
    }
    check_rounded_scan([3, 64, 1, 128], DType::F16, 0);
}

/// Prompts in spans that blocks scan side by side, then in steps that are cut as well and begin with a kept state.
#[test]
fn scans_of_prompts_in_spans() {
    for (shape, precision) in [([3, 64, 1, 128], DType::Bf16), ([2, 16, 1, 32], DType::F16)] {
        check_prompts(
            &mut rounded_scan(shape, precision, 8),
            &LONG,
            &[usize::MAX, 2048],
            std::slice::from_ref(&(2..3)),
        );
    }
}

/// Shapes and places that no tiles of a chunk fit.
#[test]
fn scans_of_prompts_of_odd_shapes() {
    for (shape, first) in [([2, 80, 1, 128], 8), ([3, 24, 1, 40], 8), ([2, 64, 1, 100], 8), ([2, 64, 1, 128], 3)] {
        check_rounded_scan(shape, DType::Bf16, first);
    }
}

/// What is left of a slot's last sequence is nothing to a prompt that begins, however it decays.
#[test]
fn scans_begin_with_nothing() {
    for mut backend in backends() {
        let mut scan = rounded_scan([3, 64, 1, 128], DType::Bf16, 8);
        scan.load(&mut *backend);
        let (width, _) = scan.widths();
        let mut random = Random(3);
        let rows: Vec<Vec<f32>> = (0..70).map(|_| random.values(width)).collect();
        let huge: Vec<Vec<f32>> = rows.iter().map(|row| row.iter().map(|x| x * 1e15).collect()).collect();
        let first = run(&mut *backend, &scan, std::slice::from_ref(&rows), usize::MAX);
        run(&mut *backend, &scan, &[huge], usize::MAX);
        let again = run(&mut *backend, &scan, &[rows], usize::MAX);
        check_same("a scan in a slot that was used", &again[0], &first[0]);
    }
}

pub(super) struct Delta {
    /// key_heads, value_heads, key_dim, value_dim
    pub(super) shape: [usize; 4],
    pub(super) rate: Vec<f32>,
    pub(super) dt_bias: Vec<f32>,
    /// What states are kept as.
    pub(super) kept: DType,
    pub(super) loaded: Option<DeltaRule>,
    /// `[q | k | v]`, which the operation wants in a buffer of their own.
    pub(super) qkv: Option<Act>,
}

impl Delta {
    pub(super) fn qkv_width(&self) -> usize {
        let [key_heads, value_heads, key_dim, value_dim] = self.shape;
        2 * key_heads * key_dim + value_heads * value_dim
    }

    /// See [`Operation::reference`].
    pub(super) fn in_steps(&self, rows: &[Vec<f32>], ends: &dyn Fn(usize) -> bool) -> Vec<f64> {
        self.reference(rows, ends)
    }
}

impl Operation for Delta {
    fn widths(&self) -> (usize, usize) {
        let [_, value_heads, _, value_dim] = self.shape;
        (self.qkv_width() + 2 * value_heads, value_heads * value_dim)
    }

    fn load(&mut self, backend: &mut dyn Backend) {
        let [key_heads, value_heads, key_dim, value_dim] = self.shape;
        self.loaded = Some(DeltaRule {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            rate: backend.load_vector(&self.rate),
            dt_bias: backend.load_vector(&self.dt_bias),
            state: backend.new_state(SLOTS, value_heads * key_dim * value_dim, self.kept),
        });
        self.qkv = Some(backend.new_act(LENGTHS.iter().sum(), self.qkv_width()));
    }

    fn run(&self, backend: &mut dyn Backend, input: Act, out: Act) {
        let (width, own) = (self.widths().0, self.qkv_width());
        let qkv = self.qkv.expect("loaded");
        let rows: Vec<f32> = backend.read(input).chunks(width).flat_map(|row| row[..own].to_vec()).collect();
        backend.host_mut(qkv)[..rows.len()].copy_from_slice(&rows);
        let cols = |first| Cols { act: input, first };
        let input = DeltaInput { qkv, beta: cols(own), dt: cols(own + self.shape[1]) };
        backend.delta_rule(input, self.loaded.expect("loaded"), out);
    }

    fn reference(&self, rows: &[Vec<f32>], ends: &dyn Fn(usize) -> bool) -> Vec<f64> {
        let [key_heads, value_heads, key_dim, value_dim] = self.shape;
        let unit = |x: &[f64]| -> Vec<f64> {
            let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
            x.iter().map(|x| x / length).collect()
        };
        let mut states = vec![vec![0.0; key_dim * value_dim]; value_heads];
        let mut out = Vec::new();
        for (index, row) in rows.iter().map(|row| double(row)).enumerate() {
            for (head, state) in states.iter_mut().enumerate() {
                let key_head = head / (value_heads / key_heads);
                let query = unit(&row[key_head * key_dim..][..key_dim]);
                let key = unit(&row[(key_heads + key_head) * key_dim..][..key_dim]);
                let value = &row[2 * key_heads * key_dim + head * value_dim..][..value_dim];
                let beta = sigmoid(row[self.qkv_width() + head]);
                let step = softplus(row[self.qkv_width() + value_heads + head] + f64::from(self.dt_bias[head]));
                let decay = (f64::from(self.rate[head]) * step).exp();
                state.iter_mut().for_each(|x| *x *= decay);
                for v in 0..value_dim {
                    let recalled: f64 = (0..key_dim).map(|k| key[k] * state[k * value_dim + v]).sum();
                    let change = beta * (value[v] - recalled);
                    (0..key_dim).for_each(|k| state[k * value_dim + v] += key[k] * change);
                    let sum: f64 = (0..key_dim).map(|k| query[k] * state[k * value_dim + v]).sum();
                    out.push(sum / (key_dim as f64).sqrt());
                }
            }
            if ends(index) {
                states.iter_mut().flatten().for_each(|x| *x = kept_as(*x, self.kept));
            }
        }
        out
    }
}

#[test]
fn gated_delta_rule() {
    for shape in [[2, 4, 16, 16], [1, 3, 7, 5], [2, 2, 64, 128], [1, 2, 128, 36], [1, 1, 200, 24]] {
        let mut random = Random(shape[1] as u64);
        let rate = random.values(shape[1]).iter().map(|x| -x.abs()).collect();
        let dt_bias = random.values(shape[1]);
        let delta = Delta { shape, rate, dt_bias, kept: DType::F32, loaded: None, qkv: None };
        check("delta_rule", delta, 1e-5);
    }
}

#[test]
fn gates_multiply_by_columns_of_another_buffer() {
    for mut backend in backends() {
        for (width, first) in [(16, 0), (7, 3), (100, 16)] {
            let mut random = Random(width as u64);
            let (x, gates) = (random.values(4 * width), random.values(4 * (first + width + 1)));
            for activation in [Activation::Silu, Activation::Sigmoid] {
                let act = filled(&mut *backend, first + width + 1, &gates);
                let out = filled(&mut *backend, width, &x);
                backend.gate(out, Cols { act, first }, activation);
                let factor =
                    |gate: f64| if activation == Activation::Silu { gate * sigmoid(gate) } else { sigmoid(gate) };
                let gates = gates.chunks(first + width + 1).flat_map(|row| row[first..first + width].to_vec());
                let want: Vec<f64> = gates.zip(&x).map(|(gate, x)| f64::from(*x) * factor(gate.into())).collect();
                check_relative("gate", backend.read(out), &want, 4e-6);
            }
        }
    }
}

/// A backend may do both at once, where what is gated is rounded once less than one by one.
#[test]
fn norms_of_what_was_gated() {
    const ROWS: usize = 3;
    for mut backend in backends() {
        let backend = &mut *backend;
        for precision in [DType::F32, DType::Bf16, DType::F16] {
            for (heads, dim, first) in [(1, 5120, 0), (8, 640, 8), (2, 7, 0), (4, 32, 3), (1, 10_240, 0)] {
                let (width, gate_width) = (heads * dim, first + heads * dim + 4);
                let mut random = Random(width as u64);
                let [x, gates] = [width, gate_width].map(|width| {
                    random.values(ROWS * width).into_iter().map(|x| round(x, precision)).collect::<Vec<f32>>()
                });
                let weights = random.values(width);
                for own in [false, true] {
                    let weight = &weights[..if own { width } else { dim }];
                    let loaded = Some(backend.load_vector(weight));
                    let norm = Norm { kind: NormKind::Rms, weight: loaded, bias: None, eps: 1e-5 };
                    let act = filled_in(backend, gate_width, &gates, precision);
                    let out = filled_in(backend, width, &x, precision);
                    backend.gate(out, Cols { act, first }, Activation::Silu);
                    backend.head_norm(out, 0, heads, dim, norm);
                    let mut want = Vec::new();
                    for (x, gates) in x.chunks(width).zip(gates.chunks(gate_width)) {
                        let gated = x.iter().zip(&gates[first..]).map(|(x, gate)| {
                            let gate = f64::from(*gate);
                            f64::from(*x) * gate * sigmoid(gate)
                        });
                        for (head, gated) in gated.collect::<Vec<f64>>().chunks(dim).enumerate() {
                            let square: f64 = gated.iter().map(|x| x * x).sum();
                            let factor = (square / dim as f64 + 1e-5).sqrt().recip();
                            let weight = weight.iter().cycle().skip(head * dim);
                            want.extend(gated.iter().zip(weight).map(|(x, weight)| x * factor * f64::from(*weight)));
                        }
                    }
                    let rounding = if precision == DType::F32 { 1e-5 } else { 5.0 * step(precision) };
                    let what = format!("{} gated norm of {heads} x {dim} in {precision:?}", backend.describe());
                    check_relative(&what, backend.read(out), &want, rounding);
                }
            }
        }
    }
}
