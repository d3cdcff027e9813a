//! Rotary embedding of q and k in place, and writing k and v to the cache.

use crate::cpu::attention::kv::{CacheScales, CacheSlot, Kv, Scaled};
use crate::cpu::runtime::activations::View;
use crate::cpu::runtime::batch::Batch;
use crate::cpu::runtime::isa::Isa;
use crate::cpu::runtime::pool::Pool;
use crate::cpu::simd::transpose::MOST_ROWS;
use crate::cpu::simd::{Bf16, E4m3, Element, F16, F32};
use crate::ops::{DType, Heads, KvDType, Rope, RopeStyle, Vector};

/// Cosines and sines of the step's positions, computed once per kind of rope and step; layers share them.
#[derive(Default)]
pub(crate) struct Angles {
    tables: Vec<Table>,
    /// Tables that belong to the current step; the others only keep their memory.
    live: usize,
}

struct Table {
    inv_freq: Vector,
    mscale: f32,
    /// `[rows][rotary_dim]`: cosines, then sines.
    values: Vec<f32>,
}

impl Angles {
    pub(crate) fn begin(&mut self) {
        self.live = 0;
    }

    /// The table for a rope, made at its first use in a step.
    pub(crate) fn get(&mut self, rope: &Rope, inv_freq: &[f32], positions: &[u32]) -> &[f32] {
        let same = |table: &Table| table.inv_freq == rope.inv_freq && table.mscale == rope.mscale;
        let index = match self.tables[..self.live].iter().position(same) {
            Some(index) => index,
            None => {
                if self.live == self.tables.len() {
                    self.tables.push(Table { inv_freq: rope.inv_freq, mscale: rope.mscale, values: Vec::new() });
                }
                let table = &mut self.tables[self.live];
                (table.inv_freq, table.mscale) = (rope.inv_freq, rope.mscale);
                fill(&mut table.values, inv_freq, positions, rope.mscale);
                self.live += 1;
                self.live - 1
            }
        };
        &self.tables[index].values
    }
}

/// The angle is a product of f32, as in the reference implementations; its cosine is exact to the last bit or so.
fn fill(values: &mut Vec<f32>, inv_freq: &[f32], positions: &[u32], mscale: f32) {
    let half = inv_freq.len();
    values.clear();
    values.resize(positions.len() * half * 2, 0.0);
    for (row, &position) in values.chunks_exact_mut((half * 2).max(1)).zip(positions) {
        let (cosines, sines) = row.split_at_mut(half);
        for ((cosine, sine), freq) in cosines.iter_mut().zip(sines).zip(inv_freq) {
            let (s, c) = f64::from(position as f32 * freq).sin_cos();
            *cosine = c as f32 * mscale;
            *sine = s as f32 * mscale;
        }
    }
}

/// A rope with its table.
#[derive(Clone, Copy)]
pub(crate) struct Rotation<'a> {
    pub(crate) table: &'a [f32],
    pub(crate) dim: usize,
    pub(crate) style: RopeStyle,
}

/// Where keys and values go: a memory, one of each sequence's tables, and what they are divided by before.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) kv: &'a Kv,
    pub(crate) table: u32,
    pub(crate) scales: CacheScales<'a>,
}

/// See [`crate::ops::Ops::rope_and_cache`].
pub(crate) fn rope_and_cache(
    isa: Isa,
    pool: &mut Pool,
    qkv: View,
    heads: Heads,
    rotation: Option<Rotation<'_>>,
    batch: &Batch,
    to: Target<'_>,
) {
    let (shape, table) = (to.kv.shape, to.table);
    shape.check_rows(heads, [qkv.rows, qkv.width], batch.rows());
    for sequence in &batch.sequences {
        shape.check_blocks(sequence.start + sequence.num_rows, batch.blocks(sequence, table).len());
    }
    qkv.for_rows(pool, 4, MOST_ROWS, &|rows| {
        let mut places = Vec::with_capacity(rows.len());
        for row in rows {
            let Some(sequence) = batch.owner(row) else { continue };
            // SAFETY: a row is one task's.
            let qkv = unsafe { qkv.row_mut(row) };
            if let Some(rotation) = rotation {
                let angles = &rotation.table[row * rotation.dim..][..rotation.dim];
                let rotated = (heads.q + heads.kv) * heads.dim;
                qkv[..rotated].chunks_exact_mut(heads.dim).for_each(|head| rotate(head, rotation, angles));
            }
            let position = sequence.start + row - sequence.first_row;
            let block = batch.blocks(sequence, table)[position / shape.block_size];
            places.push((&*qkv, CacheSlot { block, slot: position % shape.block_size }));
        }
        match shape.dtype {
            KvDType::Float(DType::F32) if to.scales.are_one() => store_plain(isa, &places, heads, to.kv),
            KvDType::Float(DType::F32) => store::<F32>(&places, heads, to),
            KvDType::Float(DType::Bf16) => store::<Bf16>(&places, heads, to),
            KvDType::Float(DType::F16) => store::<F16>(&places, heads, to),
            KvDType::E4m3 => store::<E4m3>(&places, heads, to),
        }
    });
}

fn rotate(head: &mut [f32], rotation: Rotation<'_>, angles: &[f32]) {
    let half = rotation.dim / 2;
    let (cosines, sines) = angles.split_at(half);
    match rotation.style {
        RopeStyle::Halves => {
            let (first, second) = head[..rotation.dim].split_at_mut(half);
            for i in 0..half {
                let (a, b) = (first[i], second[i]);
                first[i] = a * cosines[i] - b * sines[i];
                second[i] = b * cosines[i] + a * sines[i];
            }
        }
        RopeStyle::Interleaved => {
            for (i, pair) in head[..rotation.dim].chunks_exact_mut(2).enumerate() {
                let (a, b) = (pair[0], pair[1]);
                pair[0] = a * cosines[i] - b * sines[i];
                pair[1] = b * cosines[i] + a * sines[i];
            }
        }
    }
}

/// Writes rows' k and v to their slots, head by head: those of a block's head lie close together.
fn store<E: Element>(places: &[(&[f32], CacheSlot)], heads: Heads, to: Target<'_>) {
    for head in 0..heads.kv {
        let factors = to.scales.of(head).inverse();
        for (qkv, slot) in places {
            let (keys, values) = qkv[heads.q * heads.dim..].split_at(heads.kv * heads.dim);
            let value = (!to.kv.shape.shared).then(|| &values[head * heads.v_dim..][..heads.v_dim]);
            // SAFETY: slots of different positions and sequences differ; the scheduler shares only full blocks, which
            // nobody writes.
            unsafe {
                let key = Scaled { numbers: &keys[head * heads.dim..][..heads.dim], factor: factors.key };
                let value = value.map(|numbers| Scaled { numbers, factor: factors.value });
                to.kv.write::<E>(*slot, head, key, value);
            }
        }
    }
}

/// The same of numbers that are stored as they are: rows of neighbouring slots together.
fn store_plain(isa: Isa, places: &[(&[f32], CacheSlot)], heads: Heads, kv: &Kv) {
    let neighbours = |(_, a): &(_, CacheSlot), (_, b): &(_, CacheSlot)| a.block == b.block && a.slot + 1 == b.slot;
    let (first_key, first_value) = (heads.q * heads.dim, (heads.q + heads.kv) * heads.dim);
    for run in places.chunk_by(neighbours).flat_map(|run| run.chunks(MOST_ROWS)) {
        let (slot, count) = (run[0].1, run.len());
        for head in 0..heads.kv {
            let (mut keys, mut values) = ([&[][..]; MOST_ROWS], [&[][..]; MOST_ROWS]);
            for (index, (row, _)) in run.iter().enumerate() {
                keys[index] = &row[first_key + head * heads.dim..][..heads.dim];
                if !kv.shape.shared {
                    values[index] = &row[first_value + head * heads.v_dim..][..heads.v_dim];
                }
            }
            // SAFETY: as in `store`.
            unsafe { kv.write_plain(isa, slot, head, [&keys[..count], &values[..count]]) };
        }
    }
}
