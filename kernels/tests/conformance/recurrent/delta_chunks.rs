//! The gated delta rule of 16-bit types, which a GPU may take in chunks: against the recurrence in float64, over chunk
//! borders, steps and company.

use super::Delta;
use crate::{Random, backends, check_same, filled_in, round};
use kernels::ops::{Act, Backend, Batch, Cols, DType, DeltaInput, DeltaRule, Sequence};

const SLOTS: usize = 32;

/// A sequence's rows, `[q | k | v]` and `[beta | dt]` of each, as a 16-bit type keeps them.
#[derive(Clone)]
struct Prompt {
    qkv: Vec<Vec<f32>>,
    rates: Vec<Vec<f32>>,
}

/// What rows are made of.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Rows {
    Random,
    /// Decays next to 1 and next to 0, betas next to 0 and 1, empty keys, and few keys again and again.
    Extreme,
}

/// A layer on one backend.
struct Layer<'a> {
    backend: &'a mut dyn Backend,
    delta: Delta,
    rule: DeltaRule,
    dtype: DType,
}

impl<'a> Layer<'a> {
    fn new(backend: &'a mut dyn Backend, shape: [usize; 4], dtype: DType) -> Self {
        Self::with_states(backend, shape, dtype, DType::F32)
    }

    /// States are kept in another type than f32.
    fn with_states(backend: &'a mut dyn Backend, shape: [usize; 4], dtype: DType, kept: DType) -> Self {
        let [key_heads, value_heads, key_dim, value_dim] = shape;
        let mut random = Random(value_heads as u64);
        let rate = random.values(value_heads).iter().map(|x| -0.02 - x.abs()).collect();
        let delta = Delta { shape, rate, dt_bias: random.values(value_heads), kept, loaded: None, qkv: None };
        let rule = DeltaRule {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            rate: backend.load_vector(&delta.rate),
            dt_bias: backend.load_vector(&delta.dt_bias),
            state: backend.new_state(SLOTS, value_heads * key_dim * value_dim, kept),
        };
        Self { backend, delta, rule, dtype }
    }

    fn name(&self) -> String {
        let Delta { shape, kept, .. } = &self.delta;
        format!("{} {shape:?} {:?}, states in {kept:?}", self.backend.describe(), self.dtype)
    }

    fn prompt(&self, seed: u64, rows: usize, of: Rows) -> Prompt {
        let [_, value_heads, ..] = self.delta.shape;
        let mut random = Random(seed);
        let mut prompt = Prompt { qkv: Vec::new(), rates: Vec::new() };
        for row in 0..rows {
            let mut qkv = random.values(self.delta.qkv_width());
            let mut rates: Vec<f32> = random.values(2 * value_heads).iter().map(|x| 2.0 * x - 1.0).collect();
            if of == Rows::Extreme {
                self.make_extreme(row, &mut qkv, &mut rates);
            }
            prompt.qkv.push(qkv.iter().map(|x| round(*x, self.dtype)).collect());
            prompt.rates.push(rates.iter().map(|x| round(*x, self.dtype)).collect());
        }
        prompt
    }

    fn make_extreme(&self, row: usize, qkv: &mut [f32], rates: &mut [f32]) {
        let [key_heads, value_heads, key_dim, _] = self.delta.shape;
        let keys = &mut qkv[key_heads * key_dim..2 * key_heads * key_dim];
        match row % 11 {
            3 => keys.fill(0.0),
            4 => keys.iter_mut().for_each(|x| *x *= 100.0),
            // The same key, whatever the seed.
            5..8 => keys.copy_from_slice(&Random(1).values(keys.len())),
            _ => {}
        }
        let (betas, steps) = rates.split_at_mut(value_heads);
        betas.iter_mut().for_each(|x| *x *= 20.0);
        // Whole chunks of decays next to 1, then some that leave nothing of the state.
        steps.fill(if row % 50 == 49 { 300.0 } else { -12.0 });
    }

    fn reference(&self, prompt: &Prompt) -> Vec<f64> {
        self.reference_in(prompt, &[])
    }

    /// In steps that end before these rows.
    fn reference_in(&self, prompt: &Prompt, ends: &[usize]) -> Vec<f64> {
        let rows: Vec<Vec<f32>> =
            prompt.qkv.iter().zip(&prompt.rates).map(|(qkv, rates)| [&qkv[..], rates].concat()).collect();
        self.delta.in_steps(&rows, &|row| ends.contains(&(row + 1)))
    }

    fn buffer(&mut self, rows: &[Vec<f32>]) -> Act {
        filled_in(self.backend, rows[0].len(), &rows.concat(), self.dtype)
    }

    /// A step: of each prompt, its slot, the rows before it, and its rows in the step. Outputs by prompt.
    fn step(&mut self, parts: &[(&Prompt, usize, usize, usize)]) -> Vec<Vec<f32>> {
        let pick = |rows: fn(&Prompt) -> &Vec<Vec<f32>>| -> Vec<Vec<f32>> {
            parts.iter().flat_map(|(prompt, _, start, count)| rows(prompt)[*start..start + count].to_vec()).collect()
        };
        let (qkv, rates) = (pick(|prompt| &prompt.qkv), pick(|prompt| &prompt.rates));
        let (rows, width) = (qkv.len(), self.rule.value_heads * self.rule.value_dim);
        let (qkv, rates) = (self.buffer(&qkv), self.buffer(&rates));
        let out = filled_in(self.backend, width, &vec![f32::NAN; rows * width], self.dtype);
        let mut first_row = 0;
        let sequences: Vec<Sequence<'_>> = (parts.iter())
            .map(|(_, slot, start, num_rows)| {
                first_row += num_rows;
                let first_row = first_row - num_rows;
                Sequence { first_row, num_rows: *num_rows, start: *start, tables: &[], slot: *slot }
            })
            .collect();
        let tokens = vec![0; rows];
        self.backend.begin(Batch { tokens: &tokens, positions: &tokens, sequences: &sequences });
        let cols = |first| Cols { act: rates, first };
        let input = DeltaInput { qkv, beta: cols(0), dt: cols(self.rule.value_heads) };
        self.backend.delta_rule(input, self.rule, out);
        let got = self.backend.read(out).to_vec();
        let part = |of: &Sequence<'_>| got[of.first_row * width..][..of.num_rows * width].to_vec();
        sequences.iter().map(part).collect()
    }

    /// All rows of each prompt in one step, each in the slot of its number.
    fn whole(&mut self, prompts: &[Prompt]) -> Vec<Vec<f32>> {
        let parts: Vec<_> = prompts.iter().enumerate().map(|(i, prompt)| (prompt, i, 0, prompt.qkv.len())).collect();
        self.step(&parts)
    }

    /// Each head of each row, by the length of its error: operands of products are rounded, and the output is.
    fn check(&self, what: &str, got: &[f32], want: &[f64]) {
        let most = if self.dtype == DType::Bf16 { 0.02 } else { 0.0025 };
        let dim = self.rule.value_dim;
        let length = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
        let usual = length(want) / ((want.len() / dim) as f64).sqrt();
        assert_eq!(got.len(), want.len(), "{what}: number of elements");
        for (index, (got, want)) in got.chunks(dim).zip(want.chunks(dim)).enumerate() {
            let error: Vec<f64> = got.iter().zip(want).map(|(got, want)| f64::from(*got) - want).collect();
            let (error, size) = (length(&error), length(want) + 0.3 * usual + 0.001);
            let (row, head) = (index / self.rule.value_heads, index % self.rule.value_heads);
            // NaN is no number below that.
            assert!(
                error <= most * size,
                "{} {what}: row {row} of head {head} is off by {error} of {size}",
                self.name()
            );
        }
    }
}

const TYPES: [DType; 2] = [DType::Bf16, DType::F16];

#[test]
fn prompts_around_the_borders_of_chunks() {
    for mut backend in backends() {
        for dtype in TYPES {
            for (shape, lengths) in [
                ([1, 2, 128, 128], &[31, 32, 33, 63, 64, 65, 200, 1][..]),
                ([2, 4, 64, 32], &[127, 5, 128, 129, 96]),
                ([1, 1, 256, 48], &[70, 64]),
                ([1, 3, 128, 16], &[100, 32, 66]),
                ([1, 5, 64, 80], &[65, 130]),
                // Neither keys of 96 nor values of 20 are in chunks.
                ([1, 2, 96, 32], &[70, 3]),
                ([1, 2, 64, 20], &[70, 3]),
            ] {
                for of in [Rows::Random, Rows::Extreme] {
                    let mut layer = Layer::new(&mut *backend, shape, dtype);
                    let prompts: Vec<Prompt> =
                        (1..).zip(lengths).map(|(seed, rows)| layer.prompt(seed, *rows, of)).collect();
                    let got = layer.whole(&prompts);
                    for (got, prompt) in got.iter().zip(&prompts) {
                        let what = format!("{of:?}, {} rows", prompt.qkv.len());
                        layer.check(&what, got, &layer.reference(prompt));
                    }
                }
            }
        }
    }
}

#[test]
fn many_prompts_at_once_are_each_as_they_are_alone() {
    for mut backend in backends() {
        for dtype in TYPES {
            let mut layer = Layer::new(&mut *backend, [4, 8, 64, 128], dtype);
            let prompts: Vec<Prompt> = (0..20).map(|i| layer.prompt(i as u64, 30 + 3 * i, Rows::Random)).collect();
            let together = layer.whole(&prompts);
            for (index, prompt) in prompts.iter().enumerate() {
                layer.check("one of 20", &together[index], &layer.reference(prompt));
                let alone = layer.step(&[(prompt, SLOTS - 1, 0, prompt.qkv.len())]);
                check_same(
                    &format!("{} of {} rows, alone", layer.name(), prompt.qkv.len()),
                    &alone[0],
                    &together[index],
                );
            }
        }
    }
}

#[test]
fn states_are_kept_from_step_to_step() {
    for mut backend in backends() {
        for dtype in TYPES {
            for shape in [[1, 2, 128, 32], [2, 2, 64, 64], [1, 1, 256, 16]] {
                check_steps(Layer::new(&mut *backend, shape, dtype));
            }
            for kept in TYPES {
                check_steps(Layer::with_states(&mut *backend, [1, 2, 128, 128], dtype, kept));
            }
            check_steps(Layer::with_states(&mut *backend, [1, 2, 64, 20], dtype, DType::F16));
        }
    }
}

/// Slots hold what another sequence left; chunks follow rows, and rows chunks.
fn check_steps(mut layer: Layer<'_>) {
    let (long, other) = (layer.prompt(5, 240, Rows::Random), layer.prompt(6, 240, Rows::Random));
    layer.step(&[(&other, 3, 0, 90), (&other, 7, 0, 7)]);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    let mut done = [0, 0];
    let mut ends = [Vec::new(), Vec::new()];
    for rows in [[70, 1], [1, 100], [32, 31], [31, 32], [2, 64], [104, 12]] {
        let [a, b] = done;
        let got = layer.step(&[(&other, 7, b, rows[1]), (&long, 3, a, rows[0])]);
        second.extend_from_slice(&got[0]);
        first.extend_from_slice(&got[1]);
        done = [a + rows[0], b + rows[1]];
        ends.iter_mut().zip(done).for_each(|(ends, done)| ends.push(done));
    }
    assert_eq!(done, [240, 240], "all rows of both");
    layer.check("in steps", &first, &layer.reference_in(&long, &ends[0]));
    layer.check("in other steps", &second, &layer.reference_in(&other, &ends[1]));
}

/// Rows one by one, of as many sequences as keep each block of a GPU busy with several heads in turn; company changes
/// no bit, neither that of single rows nor of a prompt.
#[test]
fn single_rows_of_many_sequences() {
    const ROWS: usize = 5;
    for mut backend in backends() {
        for (dtype, kept) in
            [(DType::Bf16, DType::F32), (DType::Bf16, DType::Bf16), (DType::Bf16, DType::F16), (DType::F16, DType::F16)]
        {
            for (shape, count) in [([16, 32, 64, 64], SLOTS), ([1, 2, 128, 128], 3), ([1, 3, 64, 128], 2)] {
                let mut layer = Layer::with_states(&mut *backend, shape, dtype, kept);
                let prompts: Vec<Prompt> = (0..count).map(|i| layer.prompt(i as u64, 40, Rows::Random)).collect();
                let (long, short) = prompts.split_first().expect("some prompts");
                let mut got = vec![Vec::new(); count];
                for row in 0..ROWS {
                    let mut parts: Vec<_> = short.iter().enumerate().map(|(i, prompt)| (prompt, i, row, 1)).collect();
                    if row == 2 {
                        parts.insert(1, (long, SLOTS - 1, 0, 40));
                    }
                    let mut step = layer.step(&parts);
                    if row == 2 {
                        got[0] = step.remove(1);
                    }
                    got[1..].iter_mut().zip(step).for_each(|(got, row)| got.extend(row));
                }
                layer.check("a prompt among single rows", &got[0], &layer.reference(long));
                for (got, prompt) in got[1..].iter().zip(short) {
                    let some = Prompt { qkv: prompt.qkv[..ROWS].to_vec(), rates: prompt.rates[..ROWS].to_vec() };
                    layer.check("row by row", got, &layer.reference_in(&some, &[1, 2, 3, 4]));
                }
                let last = &short[count - 2];
                let alone: Vec<f32> = (0..ROWS).flat_map(|row| layer.step(&[(last, 5, row, 1)]).concat()).collect();
                check_same(&format!("{}, row by row alone", layer.name()), &alone, &got[count - 1]);
            }
        }
    }
}

/// Which kernels a step launches, on a GPU.
#[test]
fn a_gpu_takes_long_prompts_of_16_bits_in_chunks() {
    for mut backend in backends().into_iter().filter(|backend| backend.describe().starts_with("cuda")) {
        for (dtype, key_dim, rows, chunked) in [
            (DType::Bf16, 128, 32, true),
            (DType::F16, 64, 200, true),
            (DType::Bf16, 128, 31, false),
            (DType::Bf16, 96, 200, false),
            (DType::F32, 128, 200, false),
        ] {
            let mut layer = Layer::new(&mut *backend, [1, 1, key_dim, 16], dtype);
            let prompt = layer.prompt(1, rows, Rows::Random);
            layer.backend.start_profile();
            layer.whole(&[prompt]);
            let names: Vec<String> = layer.backend.end_profile().into_iter().map(|timing| timing.name).collect();
            let ran = |kernel: &str| names.iter().any(|name| name.starts_with(kernel));
            let walked = ran(&format!("delta_rule_{}", dtype.name()));
            let got = (ran("delta_rule_intra"), ran("delta_rule_inter"), walked);
            assert_eq!(got, (chunked, chunked, !chunked), "{dtype:?}, keys of {key_dim}, {rows} rows: {names:?}");
        }
    }
}
