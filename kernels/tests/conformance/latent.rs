//! Attention whose values are a part of its keys: as with values of their own that happen to be the same; and against
//! float64 at the sizes of DeepSeek's models.

mod expanded;
mod heads;

use super::attention::{Part, row, tolerance, with_attention_kernels};
use super::{Random, backends, begin_rows, check, check_same, filled, filled_in, gpu, round};
use kernels::ops::{
    Act, Attention, Backend, Batch, CaptureOwner, CaptureSize, DType, Heads, KvLayer, KvShape, RowSelection, Sequence,
};

const BLOCK: usize = 16;
const SEED: u64 = 3;

/// A cache of one kind or the other, for sequences on blocks that alternate.
struct Cache {
    heads: Heads,
    shared: bool,
    kv: KvLayer,
}

impl Cache {
    fn new(backend: &mut dyn Backend, heads: Heads, shared: bool, dtype: DType, num_blocks: usize) -> Self {
        let Heads { kv: kv_heads, dim: head_dim, v_dim: v_head_dim, .. } = heads;
        let shape =
            KvShape { num_blocks, block_size: BLOCK, kv_heads, head_dim, v_head_dim, shared, dtype: dtype.into() };
        Self { heads, shared, kv: backend.new_kv(shape) }
    }

    /// Queries and keys of a position, and values where the cache has them.
    fn row(&self, sequence: usize, position: usize) -> Vec<f32> {
        let Heads { q, kv, dim, v_dim } = self.heads;
        let mut values = row(SEED, (q + kv) * dim, sequence, position);
        if !self.shared {
            for head in q..q + kv {
                values.extend_from_within((head + 1) * dim - v_dim..(head + 1) * dim);
            }
        }
        values
    }

    /// Runs rows of some sequences: attention's output.
    fn step(&self, backend: &mut dyn Backend, parts: &[Part], blocks: &[Vec<u32>]) -> Vec<f32> {
        let rows = |part: &Part| part.start..part.start + part.rows;
        let values: Vec<f32> =
            parts.iter().flat_map(|part| rows(part).flat_map(|at| self.row(part.sequence, at))).collect();
        let positions: Vec<u32> = parts.iter().flat_map(rows).map(|position| position as u32).collect();
        let width = values.len() / positions.len();
        let qkv = filled(backend, width, &values);
        let out: Act = backend.new_act(positions.len(), self.heads.q * self.heads.v_dim);
        let mut sequences = Vec::new();
        let mut first_row = 0;
        for part in parts {
            let Part { sequence, start, rows } = *part;
            sequences.push(Sequence {
                first_row,
                num_rows: rows,
                start,
                tables: &blocks[sequence..=sequence],
                slot: sequence,
            });
            first_row += rows;
        }
        backend.begin(Batch { tokens: &positions, positions: &positions, sequences: &sequences });
        backend.rope_and_cache(qkv, self.heads, None, self.kv);
        let attention = Attention::causal(self.heads, 0.1);
        backend.host_mut(out).fill(f32::NAN);
        backend.attention(qkv, attention, self.kv, None, out);
        backend.read(out).to_vec()
    }
}

/// Even blocks for sequence 0 and odd ones for sequence 1.
fn blocks(count: usize) -> Vec<Vec<u32>> {
    (0..2).map(|sequence| (0..count as u32).map(|block| 2 * block + sequence).collect()).collect()
}

#[test]
fn values_inside_keys_are_the_same_values() {
    let shapes = [(4, 48, 32), (16, 96, 64), (3, 40, 24), (2, 576, 512)];
    for mut backend in backends() {
        for (q, dim, v_dim) in shapes {
            for dtype in [DType::F32, DType::Bf16, DType::F16] {
                let heads = Heads { q, kv: 1, dim, v_dim };
                let blocks = blocks(10);
                let parts = [Part { sequence: 0, start: 0, rows: 130 }, Part { sequence: 1, start: 0, rows: 21 }];
                let [shared, own] = [true, false].map(|shared| {
                    let cache = Cache::new(&mut *backend, heads, shared, dtype, 20);
                    cache.step(&mut *backend, &parts, &blocks)
                });
                let own: Vec<f64> = own.into_iter().map(f64::from).collect();
                let bound = if dtype == DType::Bf16 { 8e-3 } else { 2e-5 };
                check(&format!("{} {heads:?} {dtype:?}", backend.describe()), &shared, &own, |_| bound);
            }
        }
    }
}

#[test]
fn chunks_and_strangers_change_nothing() {
    let heads = Heads { q: 4, kv: 1, dim: 96, v_dim: 64 };
    for mut backend in backends() {
        for dtype in [DType::F32, DType::Bf16] {
            let blocks = blocks(10);
            let cache = Cache::new(&mut *backend, heads, true, dtype, 20);
            let whole = cache.step(&mut *backend, &[Part { sequence: 0, start: 0, rows: 130 }], &blocks);
            let width = heads.q * heads.v_dim;
            for (index, start) in (0..130).step_by(13).enumerate() {
                let stranger = Part { sequence: 1, start: index, rows: 1 };
                let parts = [stranger, Part { sequence: 0, start, rows: 13 }];
                let got = cache.step(&mut *backend, &parts, &blocks);
                check_same(
                    &format!("{dtype:?} from {start}"),
                    &got[width..],
                    &whole[start * width..(start + 13) * width],
                );
            }
        }
    }
}

#[test]
fn copied_blocks_hold_the_same() {
    let heads = Heads { q: 2, kv: 1, dim: 48, v_dim: 32 };
    for mut backend in backends() {
        let mut blocks = blocks(4);
        let cache = Cache::new(&mut *backend, heads, true, DType::F32, 8);
        cache.step(&mut *backend, &[Part { sequence: 0, start: 0, rows: 60 }], &blocks);
        let last = [Part { sequence: 0, start: 60, rows: 1 }];
        let want = cache.step(&mut *backend, &last, &blocks);
        let (from, to) = (blocks[0].clone(), blocks[1].clone());
        backend.copy_blocks(cache.kv, &from, &to);
        blocks[0] = to;
        check_same("copied", &cache.step(&mut *backend, &last, &blocks), &want);
    }
}

/// A step of some heads over keys of 576 elements, or others.
struct Latent<'a> {
    heads: Heads,
    block_size: usize,
    dtype: DType,
    scale: f32,
    /// Of one sequence each, in order.
    parts: &'a [Part],
}

/// As DeepSeek's models have it, on a rank with `q` heads.
fn deepseek(q: usize) -> Heads {
    Heads { q, kv: 1, dim: 576, v_dim: 512 }
}

impl Latent<'_> {
    fn key(&self, sequence: usize, position: usize) -> Vec<f32> {
        let key = row(SEED, self.heads.dim, sequence, position);
        key.into_iter().map(|x| round(x, self.dtype)).collect()
    }

    fn queries(&self, sequence: usize, position: usize) -> Vec<f32> {
        let queries = row(SEED + 1, self.heads.q * self.heads.dim, sequence, position);
        queries.into_iter().map(|x| round(x, self.dtype)).collect()
    }

    /// What a head of a row should give.
    fn wanted(&self, keys: &[Vec<f32>], part: &Part, step: usize, head: usize) -> Vec<f64> {
        let Heads { dim, v_dim, .. } = self.heads;
        let position = part.start + step;
        let query = &self.queries(part.sequence, position)[head * dim..][..dim];
        let dot = |key: &[f32]| query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
        let scores: Vec<f64> = keys[..=position].iter().map(|key| dot(key) * f64::from(self.scale)).collect();
        let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - highest).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut out = vec![0.0; v_dim];
        for (key, weight) in keys.iter().zip(&weights) {
            out.iter_mut().zip(&key[dim - v_dim..]).for_each(|(out, x)| *out += weight / total * f64::from(*x));
        }
        out
    }

    /// Rows and heads that are looked at, with what they should give.
    fn samples(&self) -> Vec<(usize, usize, Vec<f64>)> {
        let (mut samples, mut first_row) = (Vec::new(), 0);
        for part in self.parts {
            let keys: Vec<Vec<f32>> = (0..part.start + part.rows).map(|at| self.key(part.sequence, at)).collect();
            for step in [0, part.rows / 3, part.rows / 2, part.rows - 1] {
                for head in [0, self.heads.q / 2, self.heads.q - 1] {
                    samples.push((first_row + step, head, self.wanted(&keys, part, step, head)));
                }
            }
            first_row += part.rows;
        }
        samples
    }

    /// Writes rows to the cache: of each a query of one head, and its key.
    fn write(&self, backend: &mut dyn Backend, kv: KvLayer, table: &[u32], keys: &[Vec<f32>]) {
        let heads = Heads { q: 1, ..self.heads };
        let values: Vec<f32> = keys.iter().flat_map(|key| key.iter().chain(key).copied()).collect();
        let qkv = filled_in(backend, 2 * heads.dim, &values, self.dtype);
        let positions: Vec<u32> = (0..keys.len() as u32).collect();
        let tables = [table.to_vec()];
        let sequence = Sequence { first_row: 0, num_rows: keys.len(), start: 0, tables: &tables, slot: 0 };
        backend.begin(Batch { tokens: &positions, positions: &positions, sequences: &[sequence] });
        backend.rope_and_cache(qkv, heads, None, kv);
    }

    /// A cache full of NaN but for what was there before the step; and the sequences' block tables.
    fn fill(&self, backend: &mut dyn Backend) -> (KvLayer, Vec<[Vec<u32>; 1]>) {
        let Heads { dim, v_dim, .. } = self.heads;
        let block_size = self.block_size;
        let counts = self.parts.iter().map(|part| (part.start + part.rows).div_ceil(block_size));
        let num_blocks = counts.clone().sum::<usize>() + 1;
        let (kv_heads, head_dim, v_head_dim, dtype) = (1, dim, v_dim, self.dtype.into());
        let shape = KvShape { num_blocks, block_size, kv_heads, head_dim, v_head_dim, shared: true, dtype };
        let kv = backend.new_kv(shape);
        let mut free = Random(num_blocks as u64).permutation(num_blocks);
        self.write(backend, kv, &free, &vec![vec![f32::NAN; dim]; num_blocks * block_size]);
        let tables: Vec<[Vec<u32>; 1]> = counts.map(|count| [free.split_off(free.len() - count)]).collect();
        for (part, [table]) in self.parts.iter().zip(&tables).filter(|(part, _)| part.start > 0) {
            let keys: Vec<Vec<f32>> = (0..part.start).map(|at| self.key(part.sequence, at)).collect();
            self.write(backend, kv, table, &keys);
        }
        (kv, tables)
    }

    /// Runs the step, all rows and then the last ones alone, and compares.
    fn check(&self, backend: &mut dyn Backend, samples: &[(usize, usize, Vec<f64>)]) {
        let Self { heads, dtype, parts, .. } = *self;
        let (kv, tables) = self.fill(backend);
        let rows = |part: &Part| part.start..part.start + part.rows;
        let of_row = |part: &Part, at| [self.queries(part.sequence, at), self.key(part.sequence, at)].concat();
        let values: Vec<f32> = parts.iter().flat_map(|part| rows(part).flat_map(|at| of_row(part, at))).collect();
        let positions: Vec<u32> = parts.iter().flat_map(rows).map(|position| position as u32).collect();
        let qkv = filled_in(backend, (heads.q + 1) * heads.dim, &values, dtype);
        let out = backend.new_rounded_act(positions.len(), heads.q * heads.v_dim, dtype);
        let (mut sequences, mut end) = (Vec::new(), 0);
        for (slot, (part, tables)) in parts.iter().zip(&tables).enumerate() {
            sequences.push(Sequence { first_row: end, num_rows: part.rows, start: part.start, tables, slot });
            end += part.rows;
        }
        backend.begin(Batch { tokens: &positions, positions: &positions, sequences: &sequences });
        backend.rope_and_cache(qkv, heads, None, kv);
        let last: Vec<u32> = sequences.iter().map(|part| (part.first_row + part.num_rows - 1) as u32).collect();
        let what = format!("{} {heads:?} blocks of {} {dtype:?} {parts:?}", backend.describe(), self.block_size);
        for only in [None, Some(RowSelection { rows: &last })] {
            backend.host_mut(out).fill(f32::NAN);
            backend.attention(qkv, Attention::causal(heads, self.scale), kv, only, out);
            let got = backend.read(out);
            assert!(only.is_some() || got.iter().all(|x| x.is_finite()), "{what}: not finite");
            for (row, head, want) in samples.iter().filter(|(row, ..)| only.is_none() || last.contains(&(*row as u32)))
            {
                let at = (row * heads.q + head) * heads.v_dim;
                let what = format!("row {row} head {head}, last rows alone: {}, {what}", only.is_some());
                let allowed = |index: usize| 2.0 * tolerance(dtype.into(), dtype) * f64::abs(want[index]).max(1.0);
                check(&what, &got[at..at + heads.v_dim], want, allowed);
            }
        }
    }

    fn check_all(&self, backends: &mut [Box<dyn Backend>]) {
        let samples = self.samples();
        backends.iter_mut().for_each(|backend| self.check(&mut **backend, &samples));
    }
}

/// Of sequences in order, with (tokens in the cache, rows).
fn parts(of: &[(usize, usize)]) -> Vec<Part> {
    of.iter().enumerate().map(|(sequence, &(start, rows))| Part { sequence, start, rows }).collect()
}

#[test]
fn latent_steps_of_prompts_and_single_rows() {
    let mixed = parts(&[(0, 130), (2047, 1), (511, 5), (70, 1), (0, 64), (63, 1), (64, 2), (0, 1)]);
    let decode = parts(&[(1000, 1), (30, 1), (0, 1), (127, 1), (1500, 1)]);
    let prompts = parts(&[(0, 70), (100, 33)]);
    let few = parts(&[(0, 9), (300, 1), (190, 3)]);
    let mut backends = with_attention_kernels();
    for (q, parts, block_size) in [
        (16, &mixed, 16),
        (16, &decode, 64),
        (16, &prompts, 32),
        (5, &mixed, 8),
        (5, &decode, 48),
        (1, &mixed, 128),
        (1, &decode, 16),
        (64, &few, 24),
        (128, &few, 16),
        (128, &decode, 16),
    ] {
        for dtype in [DType::Bf16, DType::F16] {
            Latent { heads: deepseek(q), block_size, dtype, scale: 0.1, parts }.check_all(&mut backends);
        }
    }
}

/// Their keys fall to many blocks of a grid.
#[test]
fn latent_steps_of_long_contexts() {
    let one = parts(&[(9000, 1)]);
    let several = parts(&[(5000, 1), (100, 1), (2500, 4)]);
    let mut backends = with_attention_kernels();
    for (q, parts) in [(16, &one), (128, &one), (8, &several)] {
        Latent { heads: deepseek(q), block_size: 16, dtype: DType::Bf16, scale: 0.1, parts }.check_all(&mut backends);
    }
}

/// Few keys have nearly all of the weight, and which they are changes along a context.
#[test]
fn latent_scores_that_rise() {
    let parts = parts(&[(0, 200), (700, 1)]);
    let mut backends = with_attention_kernels();
    for scale in [0.4, 3.0] {
        Latent { heads: deepseek(4), block_size: 16, dtype: DType::F16, scale, parts: &parts }.check_all(&mut backends);
    }
}

#[test]
fn latent_keys_of_other_sizes() {
    let parts = parts(&[(0, 70), (200, 1), (30, 3)]);
    let mut backends = with_attention_kernels();
    for (dim, v_dim, block_size) in [(48, 32, 16), (320, 256, 16), (576, 512, 4)] {
        let heads = Heads { q: 4, kv: 1, dim, v_dim };
        Latent { heads, block_size, dtype: DType::Bf16, scale: 0.1, parts: &parts }.check_all(&mut backends);
    }
}

/// Decode steps that are captured, and replayed for other sequences.
struct Captured<'a> {
    backend: Box<dyn Backend>,
    latent: Latent<'a>,
    kv: KvLayer,
    tables: Vec<[Vec<u32>; 1]>,
    qkv: Act,
    out: Act,
}

const OWNER: CaptureOwner = CaptureOwner(0);

impl<'a> Captured<'a> {
    fn new(mut backend: Box<dyn Backend>, latent: Latent<'a>) -> Self {
        let Heads { q, dim, v_dim, .. } = latent.heads;
        let (kv, tables) = latent.fill(&mut *backend);
        let rows = latent.parts.len();
        let [qkv, out] = [(q + 1) * dim, q * v_dim].map(|width| backend.new_rounded_act(rows, width, latent.dtype));
        Self { backend, latent, kv, tables, qkv, out }
    }

    fn attend(&mut self) {
        let Self { backend, latent, kv, qkv, out, .. } = self;
        backend.rope_and_cache(*qkv, latent.heads, None, *kv);
        backend.attention(*qkv, Attention::causal(latent.heads, latent.scale), *kv, None, *out);
    }

    fn dummy_run(&mut self, rows: usize) {
        let zeros = vec![0; rows];
        self.backend.begin_padded(OWNER, Batch { tokens: &zeros, positions: &zeros, sequences: &[] });
        self.attend();
    }

    fn end(&mut self) {
        let ticket = self.backend.end_step(self.out);
        self.backend.take(ticket, &mut Vec::new());
    }

    /// Captures every step that is to be.
    fn capture(&mut self) {
        while let Some(CaptureSize { rows, has_run, is_ready }) = self.backend.next_capture(OWNER) {
            if !has_run && is_ready {
                self.dummy_run(rows);
                self.end();
            }
            if has_run || is_ready {
                self.backend.begin_capture();
                self.dummy_run(rows);
                self.backend.end_step(self.out);
                self.backend.end_capture().expect("a step that can be captured");
            }
            while self.backend.warm_up() {}
        }
    }

    /// Runs a step of some sequences, and checks some heads of it; whether it was replayed.
    fn check(&mut self, sequences: std::ops::Range<usize>) -> bool {
        let Latent { heads, dtype, parts, .. } = self.latent;
        let parts = &parts[sequences.clone()];
        begin_rows(&mut *self.backend, self.latent.parts.len());
        let width = (heads.q + 1) * heads.dim;
        for (row, part) in parts.iter().enumerate() {
            let (queries, key) =
                (self.latent.queries(part.sequence, part.start), self.latent.key(part.sequence, part.start));
            self.backend.host_mut(self.qkv)[row * width..][..width].copy_from_slice(&[queries, key].concat());
        }
        self.backend.host_mut(self.out).fill(f32::NAN);
        let positions: Vec<u32> = parts.iter().map(|part| part.start as u32).collect();
        let tables = self.tables[sequences].to_vec();
        let of = |(slot, part): (usize, &Part)| Sequence {
            first_row: slot,
            num_rows: 1,
            start: part.start,
            tables: &tables[slot],
            slot,
        };
        let batch: Vec<Sequence<'_>> = parts.iter().enumerate().map(of).collect();
        let batch = Batch { tokens: &positions, positions: &positions, sequences: &batch };
        let replayed = self.backend.replay_pass(OWNER, batch);
        if !replayed {
            self.backend.begin_padded(OWNER, batch);
            self.attend();
        }
        self.end();
        let got = self.backend.read(self.out);
        for (row, part) in parts.iter().enumerate() {
            let keys: Vec<Vec<f32>> = (0..=part.start).map(|at| self.latent.key(part.sequence, at)).collect();
            for head in [0, heads.q / 2, heads.q - 1] {
                let want = self.latent.wanted(&keys, part, 0, head);
                let allowed = |index: usize| 2.0 * tolerance(dtype.into(), dtype) * f64::abs(want[index]).max(1.0);
                let what = format!("replayed: {replayed}, row {row}, head {head}, {part:?}");
                check(&what, &got[(row * heads.q + head) * heads.v_dim..][..heads.v_dim], &want, allowed);
            }
        }
        replayed
    }
}

/// Of other numbers of sequences and tokens each time: what a block has to do lies in the batch.
#[test]
fn captured_latent_steps_follow_the_batch() {
    let parts = parts(&[(600, 1), (0, 1), (64, 1), (1900, 1), (63, 1), (250, 1), (129, 1), (1000, 1)]);
    for q in [4, 128] {
        let Some(backend) = gpu::backend(false) else { return };
        let latent = Latent { heads: deepseek(q), block_size: 16, dtype: DType::Bf16, scale: 0.1, parts: &parts };
        let mut captured = Captured::new(backend, latent);
        captured.backend.set_capture_sizes(OWNER, &[4, parts.len()], 1);
        let steps = [0..4, 3..4, 1..3, 0..8, 2..7, 4..8];
        for step in steps.clone() {
            assert!(!captured.check(step.clone()), "{step:?} was captured before it ran");
        }
        captured.capture();
        for step in steps.clone().into_iter().chain(steps.into_iter().rev()) {
            assert!(captured.check(step.clone()), "{step:?} was not captured");
        }
    }
}
