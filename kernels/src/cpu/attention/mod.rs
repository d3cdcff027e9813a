//! Attention over the paged cache.
//!
//! Keys are walked in tiles of [`TILE`] positions and spans of [`SPAN`], both counted from position 0. Inside a span
//! runs an online softmax; spans are folded together in order. Every row does this arithmetic in this order, so neither
//! chunking, nor batching, nor who computed which span changes a bit: a long context with few heads gives each thread
//! some spans, otherwise a task folds its own. (Online softmax: Milakov and Gimelshein; tiles: FlashAttention; spans
//! side by side: Flash-Decoding, both of Dao and others.)

pub(crate) mod kv;
mod relative;
pub(crate) mod rope_and_cache;
mod softmax;
mod span;
#[cfg(target_arch = "x86_64")]
mod tiles;

use crate::cpu::attention::kv::Kv;
use crate::cpu::runtime::activations::View;
use crate::cpu::runtime::batch::{Batch, Sequence};
use crate::cpu::runtime::isa::Isa;
use crate::cpu::runtime::memory::Shared;
use crate::cpu::runtime::pool::Pool;
use crate::cpu::simd::{Bf16, E4m3, Element, F16, F32, Kernel, Simd, vectorize, vectorize_dividing};
use crate::ops::{self, DType, KvDType};
use span::{Span, State};

/// Positions a tile.
const TILE: usize = 64;
/// Positions a span.
const SPAN: usize = 1024;
/// Queries (rows times heads of a group) that share a tile's keys and values.
const QUERIES: usize = 64;

/// An attention layer with its parameters looked up.
#[derive(Clone, Copy)]
pub(crate) struct Params<'a> {
    pub(crate) layer: ops::Attention,
    /// What stored keys and values are multiplied by.
    pub(crate) scales: kv::CacheScales<'a>,
    pub(crate) sinks: Option<&'a [f32]>,
    pub(crate) alibi: Option<&'a [f32]>,
    pub(crate) relative: Option<&'a [f32]>,
}

/// What a call needs from start to end.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) qkv: View,
    pub(crate) params: Params<'a>,
    pub(crate) batch: &'a Batch,
    /// The rows that are wanted, if not all.
    pub(crate) only: Option<&'a [u32]>,
    pub(crate) kv: &'a Kv,
    pub(crate) table: u32,
    pub(crate) out: View,
}

/// Memory kept from call to call.
#[derive(Default)]
pub(crate) struct Scratch {
    tiles: Vec<QueryTile>,
    /// Two states a thread, or one a piece where spans are spread.
    states: Vec<State>,
    workspaces: Vec<span::Workspace>,
}

/// Some rows of a sequence and the query heads of one kv head.
#[derive(Clone, Copy)]
struct QueryTile {
    sequence: Sequence,
    kv_head: usize,
    /// First row, counted from the sequence's first.
    row: usize,
    rows: usize,
    /// First of its states, and spans, where spans are spread.
    first_piece: usize,
}

/// See [`crate::ops::Ops::attention`].
pub(crate) fn attention(isa: Isa, pool: &mut Pool, scratch: &mut Scratch, call: Call<'_>) {
    call.check();
    let heads = call.params.layer.heads;
    let group = heads.q / heads.kv;
    let queries = QUERIES.max(group);
    let pieces = plan(&mut scratch.tiles, call, (QUERIES / group).max(1));
    let threads = pool.threads();
    let spread = scratch.tiles.len() < 4 * threads && pieces > scratch.tiles.len();
    let states = threads * 2 + if spread { pieces } else { 0 };
    scratch.states.iter_mut().for_each(|state| state.reserve(queries, heads.v_dim));
    scratch.states.resize_with(states.max(scratch.states.len()), || State::new(queries, heads.v_dim));
    scratch.workspaces.resize_with(threads, Default::default);
    scratch.workspaces.iter_mut().for_each(|workspace| workspace.reserve(queries, heads.dim));

    let tiles = &scratch.tiles;
    let states = Shared::new(scratch.states.as_mut_ptr());
    let workspaces = Shared::new(scratch.workspaces.as_mut_ptr());
    let compute = |tile: &QueryTile, span: usize, thread: usize, state: &mut State| {
        // SAFETY: each thread has its own workspace.
        let workspace = unsafe { &mut *workspaces.at(thread) };
        #[cfg(target_arch = "x86_64")]
        if call.kv.paired {
            return vectorize(isa, tiles::TileSpan(Span::new(call, *tile, span, workspace, state)));
        }
        match call.kv.shape.dtype {
            KvDType::Float(DType::F32) => run::<F32>(isa, call, tile, span, workspace, state),
            KvDType::Float(DType::Bf16) => run::<Bf16>(isa, call, tile, span, workspace, state),
            KvDType::Float(DType::F16) => run::<F16>(isa, call, tile, span, workspace, state),
            KvDType::E4m3 => run::<E4m3>(isa, call, tile, span, workspace, state),
        }
    };
    if spread {
        let owners: Vec<(usize, usize)> = tiles
            .iter()
            .enumerate()
            .flat_map(|(index, tile)| call.spans(tile).map(move |span| (index, span)))
            .collect();
        pool.run(owners.len(), &|piece, thread| {
            let (index, span) = owners[piece];
            // SAFETY: each piece has its own state, after those of the threads.
            let state = unsafe { &mut *states.at(threads * 2 + piece) };
            compute(&tiles[index], span, thread, state);
        });
    }
    pool.run(tiles.len(), &|index, thread| {
        // Later tiles of a prompt see more keys: the longest first.
        let tile = &tiles[tiles.len() - 1 - index];
        // SAFETY: each thread has its own two states.
        let (total, part) = unsafe { (&mut *states.at(thread * 2), &mut *states.at(thread * 2 + 1)) };
        let spans = call.spans(tile);
        let single = spans.len() == 1;
        if !single {
            total.clear(tile.rows * group);
        }
        for (piece, span) in spans.enumerate() {
            let state: &State = if spread {
                // SAFETY: pieces are complete, and each belongs to one tile.
                unsafe { &*states.at(threads * 2 + tile.first_piece + piece) }
            } else {
                compute(tile, span, thread, part);
                part
            };
            if single {
                return vectorize(isa, Finish { call, tile, total: state });
            }
            total.fold(state, tile.rows * group);
        }
        vectorize(isa, Finish { call, tile, total });
    });
}

/// Cuts the batch into query tiles; returns how many spans they have in all.
fn plan(tiles: &mut Vec<QueryTile>, call: Call<'_>, rows: usize) -> usize {
    tiles.clear();
    let mut pieces = 0;
    let mut add = |sequence: &Sequence, row: usize, rows: usize| {
        for kv_head in 0..call.params.layer.heads.kv {
            let tile = QueryTile { sequence: *sequence, kv_head, row, rows, first_piece: pieces };
            pieces += call.spans(&tile).len();
            tiles.push(tile);
        }
    };
    if let Some(only) = call.only {
        for row in only.iter().map(|row| *row as usize) {
            if let Some(sequence) = call.batch.owner(row) {
                add(sequence, row - sequence.first_row, 1);
            }
        }
        return pieces;
    }
    for sequence in &call.batch.sequences {
        for row in (0..sequence.num_rows).step_by(rows) {
            add(sequence, row, rows.min(sequence.num_rows - row));
        }
    }
    pieces
}

impl Call<'_> {
    fn check(&self) {
        let Self { params, kv, qkv, batch, .. } = self;
        params.layer.check(params.sinks.map(<[f32]>::len), params.alibi.map(<[f32]>::len));
        params.layer.check_relative(params.relative.map(<[f32]>::len));
        kv.shape.check_rows(params.layer.heads, [qkv.rows, qkv.width], batch.rows());
        for sequence in &batch.sequences {
            kv.shape.check_blocks(sequence.start + sequence.num_rows, batch.blocks(sequence, self.table).len());
        }
    }

    /// First position that a query at `position` sees.
    fn lowest(&self, position: usize) -> usize {
        self.params.layer.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// Past the last position that a query of a sequence at `position` sees.
    fn end(&self, sequence: &Sequence, position: usize) -> usize {
        let ops::Attention { mask, window, .. } = self.params.layer;
        mask.end(position, sequence.start + sequence.num_rows, window)
    }

    /// The spans that a tile's rows see.
    fn spans(&self, tile: &QueryTile) -> std::ops::Range<usize> {
        let first = tile.sequence.start + tile.row;
        self.lowest(first) / SPAN..(self.end(&tile.sequence, first + tile.rows - 1) - 1) / SPAN + 1
    }
}

/// Computes one span of a tile into `state`.
fn run<E: Element>(
    isa: Isa,
    call: Call<'_>,
    tile: &QueryTile,
    span: usize,
    workspace: &mut span::Workspace,
    state: &mut State,
) {
    let (block, value) = (call.kv.shape.block_size, call.kv.shape.v_head_dim);
    let lanes =
        [16, 8].into_iter().find(|&lanes| block.is_multiple_of(lanes) && value.is_multiple_of(lanes)).unwrap_or(1);
    vectorize_dividing(isa, lanes, Span::<E>::new(call, *tile, span, workspace, state));
}

/// Adds the sinks, divides by the sum of weights and writes the tile's rows.
struct Finish<'a> {
    call: Call<'a>,
    tile: &'a QueryTile,
    total: &'a State,
}

impl Kernel for Finish<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Self { call, tile, total } = self;
        let heads = call.params.layer.heads;
        let group = heads.q / heads.kv;
        let value_scale = call.params.scales.of(tile.kv_head).value;
        for query in 0..tile.rows * group {
            let head = tile.kv_head * group + query % group;
            let row = tile.sequence.first_row + tile.row + query / group;
            let factor = total.factor(query, call.params.sinks.map(|sinks| sinks[head])) * value_scale;
            let sums = total.values(query).as_ptr();
            // SAFETY: the tile's rows times its heads belong to one task, and `v_dim` columns to each.
            unsafe {
                let out = call.out.data.at(row * call.out.width + head * heads.v_dim);
                for col in (0..heads.v_dim).step_by(S::N) {
                    let count = S::N.min(heads.v_dim - col);
                    S::load_up_to(sums.add(col), count).mul(S::splat(factor)).store_up_to(out.add(col), count);
                }
            }
        }
    }
}
