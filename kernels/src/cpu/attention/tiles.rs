//! One span of keys for one tile of queries on the tile unit: bf16 cache in pairs, queries and weights rounded to bf16,
//! sums in f32.
//!
//! Per tile of 64 positions: scores (queries x keys, each key tile loaded from the cache as it lies), the softmax of
//! [`super::span`], then weights x values (gathered from their blocks) added to the running sums. Every number of
//! queries takes this path.

use super::TILE;
use super::span::Span;
use crate::cpu::simd::tile::{TILE_BYTES, TILE_ROWS, TileShape, load, multiply, release, store, zero};
use crate::cpu::simd::{Bf16, Kernel, Simd};
use std::ops::Range;

/// Elements of k a tile.
const DEPTH: usize = 32;
/// Tiles of depth in [`TILE`] positions.
const STEPS: usize = TILE / DEPTH;

/// The kernel.
pub(super) struct TileSpan<'a>(pub(super) Span<'a, Bf16>);

/// Where operands lie in a thread's working memory.
#[derive(Clone, Copy)]
struct Operands {
    /// `[query tile][dim / 32][16][32]`.
    queries: *mut u16,
    /// `[query tile][step][16][32]`.
    weights: *mut u16,
    /// `[TILE / 2][v_dim][2]`.
    values: *mut u16,
    /// Two tiles of sums.
    sums: *mut f32,
    query_tiles: usize,
    dim_steps: usize,
    v_dim: usize,
}

impl Kernel for TileSpan<'_> {
    #[inline(always)]
    fn run<S: Simd>(mut self) {
        self.0.scale_queries();
        self.0.state.clear(self.0.queries);
        let operands = self.operands();
        self.pack_queries::<S>(operands);
        let seen = self.0.seen();
        // SAFETY: a paired cache exists only where the tile unit was detected; operands have their places.
        unsafe {
            TileShape::new(self.0.queries.min(TILE_ROWS)).load();
            let mut tile = seen.start / TILE * TILE;
            while tile < seen.end {
                let tokens = seen.start.max(tile) - tile..seen.end.min(tile + TILE) - tile;
                self.score(operands, tile, tokens.clone());
                self.0.weigh::<S>(tile);
                self.pack_weights::<S>(operands);
                let values = match self.values_in_place(tile, tokens.clone()) {
                    Some(values) => values,
                    None => self.gather_values(operands, tile, tokens.clone()),
                };
                self.sum::<S>(operands, values, tokens);
                tile += TILE;
            }
            release();
        }
    }
}

impl TileSpan<'_> {
    fn operands(&mut self) -> Operands {
        let shape = self.0.call.kv.shape;
        let query_tiles = self.0.queries.div_ceil(TILE_ROWS);
        let dim_steps = shape.head_dim / DEPTH;
        let sizes =
            [query_tiles * dim_steps * TILE_BYTES, query_tiles * STEPS * TILE_BYTES, TILE * shape.v_head_dim * 2];
        let base = self.0.workspace.tiles.reserve(sizes.iter().sum::<usize>() + 2 * TILE_BYTES);
        // SAFETY: the offsets are inside what was reserved.
        unsafe {
            Operands {
                queries: base.cast(),
                weights: base.add(sizes[0]).cast(),
                values: base.add(sizes[0] + sizes[1]).cast(),
                sums: base.add(sizes[0] + sizes[1] + sizes[2]).cast(),
                query_tiles,
                dim_steps,
                v_dim: shape.v_head_dim,
            }
        }
    }

    /// Rounds the scaled queries into tiles; rows past the last query keep whatever is there, and nobody reads their
    /// results.
    #[inline(always)]
    fn pack_queries<S: Simd>(&mut self, operands: Operands) {
        let dim = self.0.call.kv.shape.head_dim;
        for query in 0..self.0.queries {
            let from = &self.0.workspace.queries[query * dim..][..dim];
            let tile = query / TILE_ROWS * operands.dim_steps;
            for (step, from) in from.chunks_exact(DEPTH).enumerate() {
                // SAFETY: the row is inside its tile, and the tile inside the operands.
                unsafe {
                    let to = operands.queries.add(((tile + step) * TILE_ROWS + query % TILE_ROWS) * DEPTH);
                    for i in (0..DEPTH).step_by(S::N) {
                        S::load(from.as_ptr().add(i)).round_to_bf16().store_bf16(to.add(i));
                    }
                }
            }
        }
    }

    /// Scores of all queries with the tile's tokens, two vectors of tokens at a time; those outside `tokens` get
    /// anything.
    ///
    /// # Safety
    /// The tile unit is configured and the queries are packed.
    #[inline(always)]
    unsafe fn score(&mut self, operands: Operands, tile: usize, tokens: Range<usize>) {
        let block_size = self.0.call.kv.shape.block_size;
        let vectors = tokens.start / TILE_ROWS..tokens.end.div_ceil(TILE_ROWS);
        let keys = |vector: usize| {
            // A vector outside what is seen may have no block: read a neighbour's keys instead, its scores are masked.
            let position = tile + vector.clamp(vectors.start, vectors.end - 1) * TILE_ROWS;
            let block = self.0.call.kv.keys::<Bf16>(self.0.blocks[position / block_size], self.0.tile.kv_head);
            // SAFETY: sixteen tokens divide blocks, so they are inside the block's first pair of dimensions.
            unsafe { block.add(position % block_size * 2).cast_const() }
        };
        let scores = self.0.workspace.scores.as_mut_ptr();
        for vector in (vectors.start / 2 * 2..vectors.end).step_by(2) {
            let (k0, k1) = (keys(vector), keys(vector + 1));
            for query_tile in (0..operands.query_tiles).step_by(2) {
                let both = query_tile + 1 < operands.query_tiles;
                // SAFETY: keys have `head_dim / 2` lines of pairs, `block_size` apart; scores have room for whole tiles
                // of queries. A second tile of queries is touched only where there is one.
                unsafe {
                    zero!("0");
                    zero!("1");
                    zero!("2");
                    zero!("3");
                    for step in 0..operands.dim_steps {
                        let (keys, line) = (step * TILE_ROWS * block_size * 2, block_size * 4);
                        let queries =
                            operands.queries.add((query_tile * operands.dim_steps + step) * TILE_ROWS * DEPTH);
                        load!("4", queries);
                        load!("6", k0.add(keys), line);
                        multiply!("0", "4", "6");
                        load!("7", k1.add(keys), line);
                        multiply!("1", "4", "7");
                        if both {
                            load!("5", queries.add(operands.dim_steps * TILE_ROWS * DEPTH));
                            multiply!("2", "5", "6");
                            multiply!("3", "5", "7");
                        }
                    }
                    let to = scores.add(query_tile * TILE_ROWS * TILE + vector * TILE_ROWS);
                    store!("0", to, TILE * 4);
                    store!("1", to.add(TILE_ROWS), TILE * 4);
                    if both {
                        store!("2", to.add(TILE_ROWS * TILE), TILE * 4);
                        store!("3", to.add(TILE_ROWS * TILE + TILE_ROWS), TILE * 4);
                    }
                }
            }
        }
    }

    /// Weights into tiles; they are bf16 already.
    ///
    /// # Safety
    /// Operands have their places.
    #[inline(always)]
    unsafe fn pack_weights<S: Simd>(&mut self, operands: Operands) {
        for query in 0..self.0.queries {
            let from = &self.0.workspace.scores[query * TILE..][..TILE];
            let tile = query / TILE_ROWS * STEPS;
            for (step, from) in from.chunks_exact(DEPTH).enumerate() {
                // SAFETY: the row is inside its tile, and the tile inside the operands.
                unsafe {
                    let to = operands.weights.add(((tile + step) * TILE_ROWS + query % TILE_ROWS) * DEPTH);
                    for i in (0..DEPTH).step_by(S::N) {
                        S::load(from.as_ptr().add(i)).store_bf16(to.add(i));
                    }
                }
            }
        }
    }

    /// The values of a whole tile where its blocks follow each other in the cache.
    #[inline(always)]
    fn values_in_place(&self, tile: usize, tokens: Range<usize>) -> Option<*const u16> {
        let block_size = self.0.call.kv.shape.block_size;
        let blocks = &self.0.blocks[tile / block_size..(tile + tokens.end).div_ceil(block_size)];
        if self.0.call.kv.shape.shared {
            return None;
        }
        let in_a_row = tokens == (0..TILE) && blocks.windows(2).all(|pair| pair[0].wrapping_add(1) == pair[1]);
        let values = self.0.call.kv.values::<Bf16>(blocks[0], self.0.tile.kv_head);
        // SAFETY: the tile's first position is inside its first block.
        in_a_row.then(|| unsafe { values.add(tile % block_size * self.0.call.kv.shape.v_head_dim).cast_const() })
    }

    /// Brings the values of `tokens` together. Others of the same tiles become zero: what lies in the cache there may
    /// be anything.
    ///
    /// # Safety
    /// Operands have their places.
    #[inline(always)]
    unsafe fn gather_values(&mut self, operands: Operands, tile: usize, tokens: Range<usize>) -> *const u16 {
        let line = operands.v_dim * 2;
        let pairs = tokens.start / 2..tokens.end.div_ceil(2);
        // SAFETY: pairs are inside the tile; a block has `block_size / 2` lines of pairs, and one line never straddles
        // blocks.
        unsafe {
            let values = operands.values;
            let first = tokens.start / DEPTH * DEPTH / 2;
            values.add(first * line).write_bytes(0, (pairs.start - first) * line);
            if self.0.call.kv.shape.shared {
                self.turn_values(operands, tile, pairs.start * 2..pairs.end * 2);
            } else {
                self.copy_values(operands, tile, pairs.start * 2..pairs.end * 2);
            }
            if !tokens.end.is_multiple_of(2) {
                let last = values.add((pairs.end - 1) * line);
                (0..operands.v_dim).for_each(|dim| *last.add(dim * 2 + 1) = 0);
            }
            let end = tokens.end.next_multiple_of(DEPTH) / 2;
            values.add(pairs.end * line).write_bytes(0, (end - pairs.end) * line);
            values.cast_const()
        }
    }

    /// Copies the values of pairs of tokens.
    ///
    /// # Safety
    /// Operands have their places, and tokens come in pairs.
    #[inline(always)]
    unsafe fn copy_values(&mut self, operands: Operands, tile: usize, tokens: Range<usize>) {
        let line = operands.v_dim * 2;
        for (token, block, slot, count) in self.0.pieces(tile, tokens) {
            let from = self.0.call.kv.values::<Bf16>(self.0.blocks[block], self.0.tile.kv_head);
            // SAFETY: blocks hold whole pairs, so the lines are inside the block and inside the tile.
            unsafe {
                let to = operands.values.add(token / 2 * line);
                std::ptr::copy_nonoverlapping(from.add(slot / 2 * line).cast_const(), to, count / 2 * line);
            }
        }
    }

    /// Values that are the last dimensions of keys: from pairs of dimensions to pairs of tokens.
    ///
    /// # Safety
    /// As [`Self::copy_values`].
    #[inline(always)]
    unsafe fn turn_values(&mut self, operands: Operands, tile: usize, tokens: Range<usize>) {
        let kv = self.0.call.kv;
        let (block_size, first) = (kv.shape.block_size, kv.shape.head_dim - operands.v_dim);
        for (token, block, slot, count) in self.0.pieces(tile, tokens) {
            let keys = kv.keys::<Bf16>(self.0.blocks[block], self.0.tile.kv_head).cast::<u32>();
            for dim in (0..operands.v_dim).step_by(2) {
                // SAFETY: dimensions and tokens come in pairs; all are inside the block, and the pairs inside the tile.
                unsafe {
                    let line = keys.add((first + dim) / 2 * block_size + slot);
                    let to = operands.values.cast::<u32>().add(token / 2 * operands.v_dim + dim);
                    for pair in 0..count / 2 {
                        let (a, b) = (*line.add(2 * pair), *line.add(2 * pair + 1));
                        *to.add(pair * operands.v_dim) = (a & 0xffff) | b << 16;
                        *to.add(pair * operands.v_dim + 1) = a >> 16 | (b & 0xffff_0000);
                    }
                }
            }
        }
    }

    /// `sums = sums * decay + weights x values`.
    ///
    /// # Safety
    /// The tile unit is configured, weights are packed, and `values` points to `[TILE / 2][v_dim][2]`.
    #[inline(always)]
    unsafe fn sum<S: Simd>(&mut self, operands: Operands, values: *const u16, tokens: Range<usize>) {
        let steps = tokens.start / DEPTH..tokens.end.div_ceil(DEPTH);
        for query_tile in (0..operands.query_tiles).step_by(2) {
            let both = query_tile + 1 < operands.query_tiles;
            for col in (0..operands.v_dim).step_by(2 * TILE_ROWS) {
                let two = col + TILE_ROWS < operands.v_dim;
                // SAFETY: tiles are inside the operands; a second tile of queries or columns is touched only where
                // there is one.
                unsafe {
                    zero!("0");
                    zero!("1");
                    zero!("2");
                    zero!("3");
                    for step in steps.clone() {
                        let values = values.add((step * TILE_ROWS * operands.v_dim + col) * 2);
                        let weights = operands.weights.add((query_tile * STEPS + step) * TILE_ROWS * DEPTH);
                        load!("4", weights);
                        load!("6", values, operands.v_dim * 4);
                        multiply!("0", "4", "6");
                        if both {
                            load!("5", weights.add(STEPS * TILE_ROWS * DEPTH));
                            multiply!("2", "5", "6");
                        }
                        if two {
                            load!("7", values.add(TILE_ROWS * 2), operands.v_dim * 4);
                            multiply!("1", "4", "7");
                            if both {
                                multiply!("3", "5", "7");
                            }
                        }
                    }
                    let line = 2 * TILE_ROWS * 4;
                    store!("0", operands.sums, line);
                    store!("1", operands.sums.add(TILE_ROWS), line);
                    let width = if two { 2 * TILE_ROWS } else { TILE_ROWS };
                    self.take_up::<S>(operands, query_tile, col, width);
                    if both {
                        store!("2", operands.sums, line);
                        store!("3", operands.sums.add(TILE_ROWS), line);
                        self.take_up::<S>(operands, query_tile + 1, col, width);
                    }
                }
            }
        }
    }

    /// Adds a tile's sums (two tiles wide) to the running sums, decayed.
    ///
    /// # Safety
    /// The sums were stored, and the columns exist.
    #[inline(always)]
    unsafe fn take_up<S: Simd>(&mut self, operands: Operands, query_tile: usize, col: usize, width: usize) {
        let first = query_tile * TILE_ROWS;
        for query in first..self.0.queries.min(first + TILE_ROWS) {
            let decay = S::splat(self.0.workspace.decay[query]);
            // SAFETY: the query's sums have `v_dim` columns, and the stored ones two tiles.
            unsafe {
                let from = operands.sums.add((query - first) * 2 * TILE_ROWS);
                let to = self.0.state.sums.as_mut_ptr().add(query * operands.v_dim + col);
                for i in (0..width).step_by(S::N) {
                    S::load(to.add(i)).fma(decay, S::load(from.add(i))).store(to.add(i));
                }
            }
        }
    }
}
