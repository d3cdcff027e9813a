//! Operations with a state: against plain float64 recurrences, and the same bits however a sequence is cut.

use super::{Random, backends, check_relative, check_same, filled};
use kernels::ops::{Act, Activation, Backend, Batch, Cols, Conv, DeltaInput, DeltaRule, Scan, ScanInput, Sequence};

const SLOTS: usize = 3;
/// Rows of each sequence; sequence `i` has slot `SLOTS - 1 - i`.
const LENGTHS: [usize; 3] = [13, 1, 6];

/// An operation on columns `0..input` of a step's rows.
trait Operation {
    /// Columns of the input, and of the output.
    fn widths(&self) -> (usize, usize);
    /// Loads parameters and takes a state.
    fn load(&mut self, backend: &mut dyn Backend);
    /// Runs it.
    fn run(&self, backend: &mut dyn Backend, input: Act, out: Act);
    /// A whole sequence, from a state of zero.
    fn reference(&self, rows: &[Vec<f32>]) -> Vec<f64>;
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
        let input = filled(backend, inputs[0][0].len(), &values);
        let out = backend.new_act(first_row, width);
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
            check_relative(what, got, &operation.reference(rows), relative);
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
            state: backend.new_state(SLOTS, (self.kernel - 1) * self.channels),
        });
    }

    fn run(&self, backend: &mut dyn Backend, input: Act, out: Act) {
        backend.causal_conv(Cols { act: input, first: SKIPPED }, self.loaded.expect("loaded"), out);
    }

    fn reference(&self, rows: &[Vec<f32>]) -> Vec<f64> {
        let mut out = Vec::new();
        for row in 0..rows.len() {
            for channel in 0..self.channels {
                let mut sum = self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[channel]));
                for tap in 0..self.kernel {
                    let Some(from) = (row + tap + 1).checked_sub(self.kernel) else { continue };
                    let weight = f64::from(self.taps[tap * self.channels + channel]);
                    sum += weight * f64::from(rows[from][SKIPPED + channel]);
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
        check("causal_conv", Convolution { channels, kernel, taps, bias, loaded: None }, 1e-5);
    }
}

struct Selective {
    /// heads, head_dim, groups, state_dim
    shape: [usize; 4],
    decay: Vec<f32>,
    skip: Vec<f32>,
    dt_bias: Option<Vec<f32>>,
    loaded: Option<Scan>,
}

impl Selective {
    /// First columns of x, dt, b and c in the input.
    fn firsts(&self) -> [usize; 4] {
        let [heads, head_dim, groups, state_dim] = self.shape;
        let x = 3;
        let dt = x + heads * head_dim;
        let b = dt + heads;
        [x, dt, b, b + groups * state_dim]
    }
}

const DT_LIMIT: (f32, f32) = (0.3, 1.5);

impl Operation for Selective {
    fn widths(&self) -> (usize, usize) {
        let [heads, head_dim, groups, state_dim] = self.shape;
        (self.firsts()[3] + groups * state_dim, heads * head_dim)
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
            dt_limit: DT_LIMIT,
            state: backend.new_state(SLOTS, heads * head_dim * state_dim),
        });
    }

    fn run(&self, backend: &mut dyn Backend, act: Act, out: Act) {
        let [x, dt, b, c] = self.firsts().map(|first| Cols { act, first });
        backend.selective_scan(ScanInput { x, dt, b, c }, self.loaded.expect("loaded"), out);
    }

    fn reference(&self, rows: &[Vec<f32>]) -> Vec<f64> {
        let [heads, head_dim, groups, state_dim] = self.shape;
        let [x_at, dt_at, b_at, c_at] = self.firsts();
        let mut state = vec![0.0; heads * head_dim * state_dim];
        let mut out = Vec::new();
        for row in rows.iter().map(|row| double(row)) {
            for head in 0..heads {
                let bias = self.dt_bias.as_ref().map_or(0.0, |bias| f64::from(bias[head]));
                let dt = softplus(row[dt_at + head] + bias).clamp(DT_LIMIT.0.into(), DT_LIMIT.1.into());
                let group = head / (heads / groups) * state_dim;
                for channel in 0..head_dim {
                    let x = row[x_at + head * head_dim + channel];
                    let mut sum = f64::from(self.skip[head]) * x;
                    for n in 0..state_dim {
                        let rate = self.decay[if self.decay.len() == heads { head } else { head * state_dim + n }];
                        let value = &mut state[(head * head_dim + channel) * state_dim + n];
                        *value = (dt * f64::from(rate)).exp() * *value + dt * x * row[b_at + group + n];
                        sum += *value * row[c_at + group + n];
                    }
                    out.push(sum);
                }
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
        check(
            "selective_scan",
            Selective { shape, decay, skip, dt_bias: with_bias.then_some(bias), loaded: None },
            1e-4,
        );
    }
}

struct Delta {
    /// key_heads, value_heads, key_dim, value_dim
    shape: [usize; 4],
    rate: Vec<f32>,
    dt_bias: Vec<f32>,
    loaded: Option<DeltaRule>,
    /// `[q | k | v]`, which the operation wants in a buffer of their own.
    qkv: Option<Act>,
}

impl Delta {
    fn qkv_width(&self) -> usize {
        let [key_heads, value_heads, key_dim, value_dim] = self.shape;
        2 * key_heads * key_dim + value_heads * value_dim
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
            state: backend.new_state(SLOTS, value_heads * key_dim * value_dim),
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

    fn reference(&self, rows: &[Vec<f32>]) -> Vec<f64> {
        let [key_heads, value_heads, key_dim, value_dim] = self.shape;
        let unit = |x: &[f64]| -> Vec<f64> {
            let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
            x.iter().map(|x| x / length).collect()
        };
        let mut states = vec![vec![0.0; key_dim * value_dim]; value_heads];
        let mut out = Vec::new();
        for row in rows.iter().map(|row| double(row)) {
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
        }
        out
    }
}

#[test]
fn gated_delta_rule() {
    for shape in [[2, 4, 16, 16], [1, 3, 7, 5], [2, 2, 64, 128]] {
        let mut random = Random(shape[1] as u64);
        let rate = random.values(shape[1]).iter().map(|x| -x.abs()).collect();
        let dt_bias = random.values(shape[1]);
        check("delta_rule", Delta { shape, rate, dt_bias, loaded: None, qkv: None }, 1e-5);
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
