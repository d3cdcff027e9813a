//! Attention whose values are a part of its keys: as with values of their own that happen to be the same.

mod heads;

use super::attention::{Part, row};
use super::{backends, check, check_same, filled};
use kernels::ops::{Act, Attention, Backend, Batch, DType, Heads, KvLayer, KvShape, Sequence};

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
