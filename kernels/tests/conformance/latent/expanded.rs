//! Latent attention as a model asks for it, with queries brought into the latent space and values out of it: in
//! whatever form, against float64.

use super::{Latent, deepseek, parts};
use crate::attention::{Part, row, tolerance};
use crate::{Random, backends, check, encode, filled_in, gpu, host, round};
use kernels::ops::{
    Act, Attention, Backend, Batch, DType, HeadColumns, Heads, LatentAttention, Matrix, MatrixGroup, MatrixUse,
    RowSelection, Sequence,
};
use kernels_cuda::{CudaOptions, LatentForm};

const NOPE: usize = 128;
const ROPE: usize = 64;
const RANK: usize = 512;
const VALUE: usize = 128;
const KEY: usize = NOPE + ROPE;

struct Case<'a> {
    heads: usize,
    block_size: usize,
    dtype: DType,
    scale: f32,
    parts: &'a [Part],
    /// Rows of the largest buffer when matrices are joined.
    room: usize,
}

/// Of each head: from a query's part to the latent space `[RANK, NOPE]`, from there to a value `[VALUE, RANK]`.
struct Weights {
    absorb: Vec<Vec<f32>>,
    restore: Vec<Vec<f32>>,
}

/// A device with a case's matrices.
struct Loaded {
    absorb: MatrixGroup,
    restore: MatrixGroup,
    joined: Option<Matrix>,
}

impl Case<'_> {
    fn latent(&self) -> Latent<'_> {
        let Self { heads, block_size, dtype, scale, parts, .. } = *self;
        Latent { heads: deepseek(heads), block_size, dtype, scale, parts }
    }

    /// As matrices of trained models, keys and values are about as large as latent vectors.
    fn weights(&self) -> Weights {
        let of = |seed: u64| {
            let values = Random(seed).values(RANK * NOPE).into_iter();
            values.map(|x| round(x / (RANK as f32).sqrt(), self.dtype)).collect()
        };
        let all = |first: u64| (0..self.heads as u64).map(|head| of(first + head)).collect();
        Weights { absorb: all(100), restore: all(1000) }
    }

    fn load(&self, backend: &mut dyn Backend, weights: &Weights) -> Loaded {
        backend.new_act(self.room, 8);
        let mut group = |all: &[Vec<f32>], [n, k]: [usize; 2]| {
            let load = |values: &Vec<f32>| {
                let (bytes, _) = encode(values, self.dtype);
                backend.load_matrix(host(self.dtype, n, k, &bytes), self.dtype)
            };
            let matrices: Vec<_> = all.iter().map(load).collect();
            backend.group_matrices(&matrices, MatrixUse::Heads)
        };
        let absorb = group(&weights.absorb, [RANK, NOPE]);
        let restore = group(&weights.restore, [VALUE, RANK]);
        Loaded { absorb, restore, joined: backend.join_heads(absorb, restore) }
    }

    fn query(&self, sequence: usize, position: usize, head: usize) -> Vec<f32> {
        let all = row(11, self.heads * KEY, sequence, position);
        all[head * KEY..][..KEY].iter().map(|x| round(*x, self.dtype)).collect()
    }

    /// What a head of a row should give: by keys in the latent space, which in float64 is the same.
    fn wanted(&self, weights: &Weights, keys: &[Vec<f32>], part: &Part, step: usize, head: usize) -> Vec<f64> {
        let position = part.start + step;
        let query = self.query(part.sequence, position, head);
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let absorbed: Vec<f64> = weights.absorb[head].chunks(NOPE).map(|row| dot(row, &query[..NOPE])).collect();
        let score = |key: &Vec<f32>| {
            let latent: f64 = absorbed.iter().zip(&key[ROPE..]).map(|(q, k)| q * f64::from(*k)).sum();
            (dot(&query[NOPE..], &key[..ROPE]) + latent) * f64::from(self.scale)
        };
        let scores: Vec<f64> = keys[..=position].iter().map(score).collect();
        let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let shares: Vec<f64> = scores.iter().map(|score| (score - highest).exp()).collect();
        let total: f64 = shares.iter().sum();
        let mut attended = vec![0.0; RANK];
        for (key, share) in keys.iter().zip(&shares) {
            attended.iter_mut().zip(&key[ROPE..]).for_each(|(to, x)| *to += share / total * f64::from(*x));
        }
        let value = |row: &[f32]| row.iter().zip(&attended).map(|(w, x)| f64::from(*w) * x).sum();
        weights.restore[head].chunks(RANK).map(value).collect()
    }

    /// Rows and heads that are looked at, with what they should give.
    fn samples(&self, weights: &Weights) -> Vec<(usize, usize, Vec<f64>)> {
        let (mut samples, mut first_row) = (Vec::new(), 0);
        for part in self.parts {
            let latent = self.latent();
            let keys: Vec<Vec<f32>> = (0..part.start + part.rows).map(|at| latent.key(part.sequence, at)).collect();
            let mut steps = vec![0, part.rows / 3, part.rows / 2, part.rows - 1];
            steps.dedup();
            for step in steps {
                for head in [0, self.heads - 1] {
                    samples.push((first_row + step, head, self.wanted(weights, &keys, part, step, head)));
                }
            }
            first_row += part.rows;
        }
        samples
    }

    /// Queries in the latent space and the key side by side, as a model assembles them, and keys in the cache.
    fn assemble(&self, backend: &mut dyn Backend, loaded: &Loaded, latent: LatentAttention, keys: Act) {
        let at = |first, stride| HeadColumns { first, stride };
        let Heads { q, dim, .. } = latent.attention.heads;
        let LatentAttention { queries, absorbed, kv, .. } = latent;
        backend.head_matmul(queries, at(0, KEY), loaded.absorb, absorbed, at(ROPE, dim));
        backend.copy_columns(queries, at(NOPE, KEY), absorbed, at(0, dim), q, ROPE);
        backend.copy_columns(keys, at(0, 0), absorbed, at(q * dim, 0), 1, dim);
        backend.rope_and_cache(absorbed, latent.attention.heads, None, kv);
    }

    fn check(&self, backend: &mut dyn Backend, weights: &Weights, samples: &[(usize, usize, Vec<f64>)]) -> bool {
        let Self { heads, dtype, parts, .. } = *self;
        let loaded = self.load(backend, weights);
        let latent = self.latent();
        let (kv, tables) = latent.fill(backend);
        let rows = |part: &Part| part.start..part.start + part.rows;
        let places = || parts.iter().flat_map(|part| rows(part).map(|at| (part.sequence, at)));
        let of_heads = |(sequence, at)| (0..heads).flat_map(move |head| self.query(sequence, at, head));
        let queries: Vec<f32> = places().flat_map(of_heads).collect();
        let keys: Vec<f32> = places().flat_map(|(sequence, at)| latent.key(sequence, at)).collect();
        let positions: Vec<u32> = places().map(|(_, position)| position as u32).collect();
        let queries = filled_in(backend, heads * KEY, &queries, dtype);
        let keys = filled_in(backend, ROPE + RANK, &keys, dtype);
        let widths = [(heads + 1) * (ROPE + RANK), heads * RANK, heads * VALUE];
        let [absorbed, attended, out] = widths.map(|width| backend.new_rounded_act(positions.len(), width, dtype));
        let (mut sequences, mut end) = (Vec::new(), 0);
        for (slot, (part, tables)) in parts.iter().zip(&tables).enumerate() {
            sequences.push(Sequence { first_row: end, num_rows: part.rows, start: part.start, tables, slot });
            end += part.rows;
        }
        backend.begin(Batch { tokens: &positions, positions: &positions, sequences: &sequences });
        let attention = Attention::causal(latent.heads, self.scale);
        let (restore, joined) = (loaded.restore, loaded.joined);
        let call = LatentAttention { attention, kv, queries, absorbed, attended, restore, value_dim: VALUE, joined };
        self.assemble(backend, &loaded, call, keys);
        let last: Vec<u32> = sequences.iter().map(|part| (part.first_row + part.num_rows - 1) as u32).collect();
        let what = format!("{} {heads} heads blocks of {} {dtype:?} {parts:?}", backend.describe(), self.block_size);
        backend.start_profile();
        for only in [None, Some(RowSelection { rows: &last })] {
            backend.host_mut(out).fill(f32::NAN);
            backend.latent_attention(call, only, out);
            let got = backend.read(out);
            assert!(only.is_some() || got.iter().all(|x| x.is_finite()), "{what}: not finite");
            for (row, head, want) in samples.iter().filter(|(row, ..)| only.is_none() || last.contains(&(*row as u32)))
            {
                let at = (row * heads + head) * VALUE;
                let what = format!("row {row} head {head}, last rows alone: {}, {what}", only.is_some());
                let allowed = |index: usize| 2.0 * tolerance(dtype.into(), dtype) * f64::abs(want[index]).max(1.0);
                check(&what, &got[at..at + VALUE], want, allowed);
            }
        }
        backend.end_profile().iter().any(|timing| timing.name.starts_with("attention_expanded "))
    }

    /// On every device.
    fn check_all(&self) {
        self.check_with(backends());
    }

    /// On those, and on a GPU that makes keys and values wherever it can.
    fn check_with(&self, mut backends: Vec<Box<dyn Backend>>) {
        let weights = self.weights();
        let samples = self.samples(&weights);
        for backend in &mut backends {
            self.check(&mut **backend, &weights, &samples);
        }
        if backends.iter().any(|backend| backend.memory().is_some()) {
            let mut forced = gpu::open(&CudaOptions { latent_form: LatentForm::Expanded, ..gpu::options() });
            let may = self.load(&mut *forced, &weights).joined.is_some();
            let expands = may && self.parts.iter().any(|part| part.rows > 1);
            assert_eq!(self.check(&mut *forced, &weights, &samples), expands, "keys and values were made");
        }
    }
}

#[test]
fn latent_prompts_beside_single_rows() {
    let mixed = parts(&[(0, 130), (2047, 1), (511, 5), (70, 1), (0, 64), (1300, 300), (64, 2), (0, 1)]);
    for (heads, block_size, dtype) in [(4, 16, DType::Bf16), (3, 64, DType::F16)] {
        Case { heads, block_size, dtype, scale: 0.2, parts: &mixed, room: 1024 }.check_all();
    }
}

/// Longer than what keys and values are made of at a time, and in more rows than may go on.
#[test]
fn latent_prompts_of_long_contexts() {
    let long = parts(&[(0, 20), (16_300, 700), (8100, 130), (90, 200)]);
    let case = Case { heads: 2, block_size: 16, dtype: DType::Bf16, scale: 0.2, parts: &long, room: 200 };
    // It takes long elsewhere.
    case.check_with(backends().into_iter().filter(|backend| backend.memory().is_some()).collect());
}

#[test]
fn many_short_latent_prompts() {
    let many = parts(&(0..40).map(|index| (37 * index, 2 + index % 3)).collect::<Vec<_>>());
    Case { heads: 16, block_size: 32, dtype: DType::Bf16, scale: 0.2, parts: &many, room: 256 }.check_all();
}

/// Few keys have nearly all of the weight, and which they are changes along a context.
#[test]
fn latent_scores_that_rise_in_either_form() {
    let rising = parts(&[(0, 600), (9000, 40)]);
    Case { heads: 2, block_size: 16, dtype: DType::F16, scale: 0.4, parts: &rising, room: 640 }.check_all();
}

#[test]
fn no_latent_prompts() {
    let single = parts(&[(100, 1), (700, 1)]);
    Case { heads: 16, block_size: 16, dtype: DType::Bf16, scale: 0.2, parts: &single, room: 64 }.check_all();
}
