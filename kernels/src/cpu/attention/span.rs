//! One span of keys for one tile of queries: scores, online softmax (see `softmax.rs`), weighted sum.

use super::{Call, QueryTile, SPAN, TILE};
use crate::cpu::runtime::memory::Reserve;
use crate::cpu::simd::{Element, Kernel, Simd};
use std::marker::PhantomData;
use std::ops::Range;

/// A running softmax for each query of a tile.
pub(super) struct State {
    /// Largest score; minus infinity while nothing was seen.
    pub(super) highest: Vec<f32>,
    /// Sum of `e^(score - highest)`.
    pub(super) weight: Vec<f32>,
    /// Sum of values with these weights, `[queries][v_dim]`.
    pub(super) sums: Vec<f32>,
    v_dim: usize,
}

impl State {
    pub(super) fn new(queries: usize, v_dim: usize) -> Self {
        let mut state = Self { highest: Vec::new(), weight: Vec::new(), sums: Vec::new(), v_dim };
        state.reserve(queries, v_dim);
        state
    }

    /// Makes room; what it held is lost.
    pub(super) fn reserve(&mut self, queries: usize, v_dim: usize) {
        self.v_dim = v_dim;
        self.highest.resize(queries, 0.0);
        self.weight.resize(queries, 0.0);
        self.sums.resize(queries * v_dim, 0.0);
    }

    /// Nothing seen yet, for the first `queries`.
    pub(super) fn clear(&mut self, queries: usize) {
        self.highest[..queries].fill(f32::NEG_INFINITY);
        self.weight[..queries].fill(0.0);
        self.sums[..queries * self.v_dim].fill(0.0);
    }

    /// Takes up a later span's state.
    pub(super) fn fold(&mut self, later: &Self, queries: usize) {
        for query in 0..queries {
            let highest = self.highest[query].max(later.highest[query]);
            if highest == f32::NEG_INFINITY && later.weight[query] == 0.0 {
                continue;
            }
            let (mine, theirs) = ((self.highest[query] - highest).exp(), (later.highest[query] - highest).exp());
            self.highest[query] = highest;
            self.weight[query] = self.weight[query] * mine + later.weight[query] * theirs;
            let sums = &mut self.sums[query * self.v_dim..][..self.v_dim];
            sums.iter_mut().zip(later.values(query)).for_each(|(sum, later)| *sum = *sum * mine + later * theirs);
        }
    }

    /// Weighted sum of a query.
    pub(super) fn values(&self, query: usize) -> &[f32] {
        &self.sums[query * self.v_dim..][..self.v_dim]
    }

    /// What turns a query's sums into its result.
    pub(super) fn factor(&self, query: usize, sink: Option<f32>) -> f32 {
        let Some(sink) = sink else { return 1.0 / self.weight[query] };
        let highest = self.highest[query].max(sink);
        let scale = (self.highest[query] - highest).exp();
        scale / (self.weight[query] * scale + (sink - highest).exp())
    }
}

/// A thread's working memory.
#[derive(Default)]
pub(super) struct Workspace {
    /// Scaled queries `[queries][dim]`.
    pub(super) queries: Vec<f32>,
    /// Scores, then weights, `[queries][TILE]`.
    pub(super) scores: Vec<f32>,
    /// Largest score of each query with a tile; minus infinity where it sees nothing.
    pub(super) highest: Vec<f32>,
    /// What a tile multiplies a query's sums by.
    pub(super) decay: Vec<f32>,
    /// Operands of the tile unit, or values turned around.
    pub(super) tiles: Reserve,
}

impl Workspace {
    pub(super) fn reserve(&mut self, queries: usize, dim: usize) {
        // Tiles of sixteen queries may be partly empty.
        let queries = queries.next_multiple_of(16);
        self.queries.resize(queries * dim, 0.0);
        self.scores.resize(queries * TILE, 0.0);
        self.highest.resize(queries, 0.0);
        self.decay.resize(queries, 0.0);
    }
}

/// The kernel: one span for one query tile.
pub(super) struct Span<'a, E: Element> {
    pub(super) call: Call<'a>,
    pub(super) tile: QueryTile,
    pub(super) span: usize,
    pub(super) blocks: &'a [u32],
    pub(super) group: usize,
    pub(super) queries: usize,
    pub(super) workspace: &'a mut Workspace,
    pub(super) state: &'a mut State,
    pub(super) element: PhantomData<E>,
}

/// Tokens of one block inside a tile: their values, their place in the tile.
#[derive(Clone, Copy)]
struct Run<B> {
    values: *const B,
    first: usize,
    count: usize,
}

impl<'a, E: Element> Span<'a, E> {
    pub(super) fn new(
        call: Call<'a>,
        tile: QueryTile,
        span: usize,
        workspace: &'a mut Workspace,
        state: &'a mut State,
    ) -> Self {
        let heads = call.params.layer.heads;
        let group = heads.q / heads.kv;
        let blocks = call.batch.blocks(&tile.sequence, call.table);
        // The batch outlives the call; its table is borrowed for as long.
        Self { call, tile, span, blocks, group, queries: tile.rows * group, workspace, state, element: PhantomData }
    }

    /// Position of a query.
    #[inline(always)]
    pub(super) fn position(&self, query: usize) -> usize {
        self.tile.sequence.start + self.tile.row + query / self.group
    }

    /// Positions that any query of the tile sees in this span.
    pub(super) fn seen(&self) -> Range<usize> {
        let end = self.call.end(&self.tile.sequence, self.position(self.queries - 1));
        self.call.lowest(self.position(0)).max(self.span * SPAN)..end.min((self.span + 1) * SPAN)
    }

    #[inline(always)]
    pub(super) fn scale_queries(&mut self) {
        let heads = self.call.params.layer.heads;
        let scale = self.call.params.layer.scale * self.call.params.scales.of(self.tile.kv_head).key;
        for query in 0..self.queries {
            let row = self.tile.sequence.first_row + self.tile.row + query / self.group;
            let head = self.tile.kv_head * self.group + query % self.group;
            // SAFETY: nobody writes qkv during attention.
            let from = unsafe { &self.call.qkv.row(row)[head * heads.dim..][..heads.dim] };
            let to = &mut self.workspace.queries[query * heads.dim..][..heads.dim];
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from * scale);
        }
    }
}

impl<E: Element> Kernel for Span<'_, E> {
    #[inline(always)]
    fn run<S: Simd>(mut self) {
        self.scale_queries();
        self.state.clear(self.queries);
        let seen = self.seen();
        let mut tile = seen.start / TILE * TILE;
        while tile < seen.end {
            let tokens = seen.start.max(tile) - tile..seen.end.min(tile + TILE) - tile;
            self.score_tile::<S>(tile, tokens.clone());
            self.weigh::<S>(tile);
            self.sum_tile::<S>(tile, tokens);
            tile += TILE;
        }
    }
}

impl<E: Element> Span<'_, E> {
    /// Scores of all queries with the tile's tokens; those outside `tokens` get anything.
    #[inline(always)]
    fn score_tile<S: Simd>(&mut self, tile: usize, tokens: Range<usize>) {
        const AT_ONCE: usize = 4;
        let block_size = self.call.kv.shape.block_size;
        let vectors = tokens.start / S::N..tokens.end.div_ceil(S::N);
        let mut vector = vectors.start / AT_ONCE * AT_ONCE;
        while vector < vectors.end {
            let mut keys = [std::ptr::null::<E::Bits>(); AT_ONCE];
            for (i, keys) in keys.iter_mut().enumerate() {
                // A vector outside what is seen may have no block: read a neighbour's keys instead, its scores are
                // masked.
                let position = tile + (vector + i).clamp(vectors.start, vectors.end - 1) * S::N;
                let block = self.call.kv.keys::<E>(self.blocks[position / block_size], self.tile.kv_head);
                // SAFETY: vectors divide blocks, so this one is inside the block's first dimension.
                *keys = unsafe { block.add(position % block_size) };
            }
            let mut query = 0;
            while query < self.queries {
                let left = self.queries - query;
                // SAFETY: `left` queries are left; the keys are those of a block with `dim` dimensions.
                unsafe {
                    query += match left {
                        4.. => self.score::<S, 4>(query, vector, keys),
                        2.. => self.score::<S, 2>(query, vector, keys),
                        _ => self.score::<S, 1>(query, vector, keys),
                    };
                }
            }
            vector += AT_ONCE;
        }
    }

    /// Scores of `Q` queries with four vectors of tokens; returns `Q`.
    ///
    /// # Safety
    /// The queries exist and `keys` point to `[dim][block_size]` with a whole vector in each dimension.
    #[inline(always)]
    unsafe fn score<S: Simd, const Q: usize>(
        &mut self,
        query: usize,
        vector: usize,
        keys: [*const E::Bits; 4],
    ) -> usize {
        let (dim, stride) = (self.call.kv.shape.head_dim, self.call.kv.shape.block_size);
        let mut sums = [[S::splat(0.0); 4]; Q];
        // SAFETY: the caller's promise; a tile of scores holds all vectors.
        unsafe {
            let queries = self.workspace.queries.as_ptr().add(query * dim);
            let mut line = 0;
            for d in 0..dim {
                let mut k = [S::splat(0.0); 4];
                for (k, keys) in k.iter_mut().zip(keys) {
                    *k = E::load(keys.add(line));
                }
                line += stride;
                for (q, sums) in sums.iter_mut().enumerate() {
                    let x = S::splat(*queries.add(q * dim + d));
                    for (sum, k) in sums.iter_mut().zip(k) {
                        *sum = x.fma(k, *sum);
                    }
                }
            }
            let scores = self.workspace.scores.as_mut_ptr().add(query * TILE + vector * S::N);
            for (q, sums) in sums.iter().enumerate() {
                for (i, sum) in sums.iter().enumerate() {
                    sum.store(scores.add(q * TILE + i * S::N));
                }
            }
        }
        Q
    }

    /// The tile's tokens block by block: first token, block's number in the table, slot of the token, how many.
    pub(super) fn pieces(
        &self,
        tile: usize,
        tokens: Range<usize>,
    ) -> impl Iterator<Item = (usize, usize, usize, usize)> + use<E> {
        let (block_size, mut token) = (self.call.kv.shape.block_size, tokens.start);
        std::iter::from_fn(move || {
            let (first, block, slot) = (token, (tile + token) / block_size, (tile + token) % block_size);
            let count = (block_size - slot).min(tokens.end - token);
            token += count;
            (count > 0).then_some((first, block, slot, count))
        })
    }

    /// Values that are the last dimensions of keys, as `[token][dim]`.
    #[inline(always)]
    fn turn_values(&mut self, tile: usize, tokens: Range<usize>) -> *const E::Bits {
        /// Dimensions at a time: a line of each token, so that what is written to stays in the first-level cache.
        const STRIP: usize = 16;
        let kv = self.call.kv;
        let v_dim = kv.shape.v_head_dim;
        let turned = self.workspace.tiles.reserve(TILE * v_dim * size_of::<E::Bits>()).cast::<E::Bits>();
        for (token, block, slot, count) in self.pieces(tile, tokens.clone()) {
            let keys = kv.keys::<E>(self.blocks[block], self.tile.kv_head);
            for strip in (0..v_dim).step_by(STRIP) {
                for dim in strip..v_dim.min(strip + STRIP) {
                    let from = kv.key_offset(slot, kv.shape.head_dim - v_dim + dim);
                    let to = (token - tokens.start) * v_dim + dim;
                    for i in 0..count {
                        // SAFETY: `count` tokens are left in the block's line of this dimension, and in what was
                        // reserved.
                        unsafe { *turned.add(to + i * v_dim) = *keys.add(from + i) };
                    }
                }
            }
        }
        turned.cast_const()
    }

    /// Adds the tile's values, weighted, to the sums of all queries.
    #[inline(always)]
    fn sum_tile<S: Simd>(&mut self, tile: usize, tokens: Range<usize>) {
        let v_dim = self.call.kv.shape.v_head_dim;
        let mut runs = [Run { values: std::ptr::null::<E::Bits>(), first: 0, count: 0 }; TILE];
        let mut used = 0;
        if self.call.kv.shape.shared {
            let values = self.turn_values(tile, tokens.clone());
            (runs[0], used) = (Run { values, first: tokens.start, count: tokens.len() }, 1);
        } else {
            for (token, block, slot, count) in self.pieces(tile, tokens) {
                let values = self.call.kv.values::<E>(self.blocks[block], self.tile.kv_head);
                // SAFETY: the slot is inside the block.
                runs[used] = Run { values: unsafe { values.add(slot * v_dim) }, first: token, count };
                used += 1;
            }
        }
        let runs = &runs[..used];
        let mut query = 0;
        while query < self.queries {
            // SAFETY: that many queries are left, and the runs' values have `v_dim` dimensions.
            unsafe {
                query += match self.queries - query {
                    8.. if S::N == 16 && v_dim == 2 * S::N => {
                        // Eight sums would not keep both multipliers busy.
                        self.sum::<S, 8, 2>(query, 0, runs);
                        8
                    }
                    4.. => self.sum_queries::<S, 4>(query, runs),
                    2.. => self.sum_queries::<S, 2>(query, runs),
                    _ => self.sum_queries::<S, 1>(query, runs),
                };
            }
        }
    }

    /// All dimensions for `Q` queries; returns `Q`.
    ///
    /// # Safety
    /// The queries exist, the runs are inside the tile and their values have `v_dim` dimensions, a multiple of `S::N`.
    #[inline(always)]
    unsafe fn sum_queries<S: Simd, const Q: usize>(&mut self, query: usize, runs: &[Run<E::Bits>]) -> usize {
        let vectors = self.state.v_dim / S::N;
        let mut vector = 0;
        while vector < vectors {
            // SAFETY: that many vectors are left; the rest is the caller's promise.
            unsafe {
                vector += match vectors - vector {
                    4.. => self.sum::<S, Q, 4>(query, vector, runs),
                    2.. => self.sum::<S, Q, 2>(query, vector, runs),
                    _ => self.sum::<S, Q, 1>(query, vector, runs),
                };
            }
        }
        Q
    }

    /// `V` vectors of dimensions for `Q` queries; returns `V`.
    ///
    /// # Safety
    /// As above, and the vectors are inside `v_dim`.
    #[inline(always)]
    unsafe fn sum<S: Simd, const Q: usize, const V: usize>(
        &mut self,
        query: usize,
        vector: usize,
        runs: &[Run<E::Bits>],
    ) -> usize {
        let v_dim = self.state.v_dim;
        let mut sums = [[S::splat(0.0); V]; Q];
        // SAFETY: the caller's promise.
        unsafe {
            let state = self.state.sums.as_mut_ptr().add(query * v_dim + vector * S::N);
            for (q, sums) in sums.iter_mut().enumerate() {
                let decay = S::splat(self.workspace.decay[query + q]);
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = S::load(state.add(q * v_dim + v * S::N)).mul(decay);
                }
            }
            let weights = self.workspace.scores.as_ptr().add(query * TILE);
            for run in runs {
                for token in 0..run.count {
                    let mut values = [S::splat(0.0); V];
                    for (v, value) in values.iter_mut().enumerate() {
                        *value = E::load(run.values.add(token * v_dim + (vector + v) * S::N));
                    }
                    for (q, sums) in sums.iter_mut().enumerate() {
                        let weight = S::splat(*weights.add(q * TILE + run.first + token));
                        for (sum, value) in sums.iter_mut().zip(values) {
                            *sum = weight.fma(value, *sum);
                        }
                    }
                }
            }
            for (q, sums) in sums.iter().enumerate() {
                for (v, sum) in sums.iter().enumerate() {
                    sum.store(state.add(q * v_dim + v * S::N));
                }
            }
        }
        V
    }
}
