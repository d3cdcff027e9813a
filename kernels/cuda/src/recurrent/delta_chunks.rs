//! The gated delta rule in chunks on tensor cores: the launches of `delta_rule_intra.cu` and `delta_rule_inter.cu`.

use cudarc::driver::sys::CUdeviceptr;

use super::{Columns, Rule};
use crate::jit::layouts::twin;
use crate::jit::specialization::{LOWEST, Special};
use crate::runtime::activations::View;
use crate::runtime::arch::Arch;
use crate::runtime::batch::Batch;
use crate::runtime::context::Memory;
use crate::runtime::device::{Device, Shape, args};
use kernels::ops::{self, DType, ExpectedDeltaRule};

/// Rows of a chunk, and key sizes that there are kernels for.
const CHUNK: usize = 64;
const KEY_DIMS: [usize; 3] = [64, 128, 256];
/// Sequences with fewer rows in a step are walked row by row: it depends on nothing else, so that results do not.
const LEAST: usize = 32;
/// Columns of a state that a pair of warps has, pairs of a block (fewer where there is little shared memory), and most
/// chunks of a block in shared memory.
const COLUMNS: usize = 16;
const PAIRS: [usize; 2] = [4, 2];
const STAGES: usize = 2;
/// Threads of a block that looks into a chunk, and value heads of it.
const INTRA_THREADS: usize = 128;
const INTRA_HEADS: usize = 2;
/// Bytes that end a row in shared memory, for rows to begin in different banks.
const PADDING: usize = 16;

/// `struct Chunks` of delta_chunks.cuh: what is known of chunks before they are walked, by rows and value heads.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunks {
    matrices: CUdeviceptr,
    factors: CUdeviceptr,
    ends: CUdeviceptr,
}

twin!(Chunks = "Chunks" { matrices, factors, ends });

/// Room for [`Chunks`]: as much as any layer's needs for the largest step.
#[derive(Default)]
pub(crate) struct ChunkScratch {
    memory: Option<Memory>,
}

impl ChunkScratch {
    /// Bytes of a row of each list, in one value head: of T and A, of factors, and of a chunk's end.
    const BYTES: [usize; 3] = [2 * CHUNK * 2, 4 * size_of::<f32>(), 2 * size_of::<f32>()];

    /// Makes room for the largest step of such layers, if chunks of theirs can be worked on here.
    pub(crate) fn prepare(&mut self, device: &mut Device, expected: ExpectedDeltaRule) {
        let ExpectedDeltaRule { value_heads, key_dim, value_dim, compute, max_rows, .. } = expected;
        let dims = [key_dim, value_dim];
        if !takes(device.context.arch, compute, dims) {
            return;
        }
        // One prompt, and several.
        for heads in [value_heads, usize::MAX / value_dim] {
            if let Some(Walk { pairs, .. }) = Walk::of(device, heads, dims) {
                device.order(intra_special(compute, key_dim));
                device.order(inter_special(compute, key_dim, pairs));
                self.reserve(device, max_rows * value_heads);
            }
        }
    }

    /// Lists of `places` rows of value heads, in room for at least as many.
    fn reserve(&mut self, device: &mut Device, places: usize) -> Chunks {
        let bytes = places * Self::BYTES.iter().sum::<usize>();
        let matrices = device.reserve(&mut self.memory, bytes, "chunks of linear attention");
        let factors = matrices + (places * Self::BYTES[0]) as u64;
        Chunks { matrices, factors, ends: factors + (places * Self::BYTES[1]) as u64 }
    }
}

/// Whether chunks of a type and these key and value sizes can be worked on.
fn takes(arch: Arch, dtype: DType, [key_dim, value_dim]: [usize; 2]) -> bool {
    arch >= LOWEST && dtype.size() == 2 && KEY_DIMS.contains(&key_dim) && value_dim.is_multiple_of(COLUMNS)
}

fn intra_special(dtype: DType, key_dim: usize) -> Special {
    Special::new("delta_rule_intra", dtype, &[("KEY_DIM", key_dim)])
}

fn inter_special(dtype: DType, key_dim: usize, pairs: usize) -> Special {
    Special::new("delta_rule_inter", dtype, &[("KEY_DIM", key_dim), ("PAIRS", pairs)])
}

/// What the usual models need, on any device.
pub(crate) fn usual(dtype: DType) -> impl Iterator<Item = Special> {
    const KEY_DIM: usize = 128;
    PAIRS.into_iter().map(move |pairs| inter_special(dtype, KEY_DIM, pairs)).chain([intra_special(dtype, KEY_DIM)])
}

/// Bytes of a row of queries or keys in shared memory.
fn key_row(key_dim: usize) -> usize {
    2 * key_dim + PADDING
}

/// Shared memory of a block of `delta_rule_intra.cu`: queries and keys, and then L of each head in their place.
fn intra_shared(key_dim: usize) -> usize {
    let lower = INTRA_HEADS * CHUNK * (CHUNK * size_of::<f32>() + PADDING);
    (2 * CHUNK * key_row(key_dim)).max(lower)
}

/// Shared memory of a chunk in `delta_rule_inter.cu`: queries, keys, T and A, factors, and the block's values.
fn stage_bytes(key_dim: usize, pairs: usize) -> usize {
    let matrices = 2 * CHUNK * 2 + PADDING;
    let values = pairs * COLUMNS * 2 + PADDING;
    CHUNK * (2 * key_row(key_dim) + matrices + 4 * size_of::<f32>() + values)
}

/// Pairs of warps of a block that walks chunks, and how many of these it holds. Bits are the same with any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Walk {
    pairs: usize,
    stages: usize,
}

impl Walk {
    /// All that fit into so much shared memory of a block, the best first.
    fn all(shared_of_block: usize, key_dim: usize) -> impl Iterator<Item = Self> {
        let all = (1..=STAGES).rev().flat_map(|stages| PAIRS.map(|pairs| Self { pairs, stages }));
        all.filter(move |walk| walk.shared(key_dim) <= shared_of_block)
    }

    /// The best for so many heads. Each of a block's pairs reads all keys from shared memory, which is what takes
    /// longest: narrow blocks take less, where there are multiprocessors for twice as many.
    fn of(device: &Device, heads: usize, [key_dim, value_dim]: [usize; 2]) -> Option<Self> {
        let fits = || Self::all(device.context.shared_of_block, key_dim);
        let blocks = |walk: &Self| heads * value_dim.div_ceil(walk.pairs * COLUMNS);
        let few = fits().find(|walk| walk.pairs == PAIRS[1] && blocks(walk) <= device.context.multiprocessors);
        few.or_else(|| fits().next())
    }

    /// Chunks, and what a pair shares: two states and a chunk's news, as operands.
    fn shared(&self, key_dim: usize) -> usize {
        let Self { pairs, stages } = *self;
        stages * stage_bytes(key_dim, pairs) + pairs * COLUMNS * (2 * key_dim + CHUNK) * 2
    }
}

/// A layer as both kernels are told of it.
pub(crate) struct ChunkedCall {
    pub(crate) rule: ops::DeltaRule,
    pub(crate) parameters: Rule,
    /// Queries, keys and values; beta; dt.
    pub(crate) columns: [Columns; 3],
}

/// Queues the sequences with many rows; how many rows these have at least, or none where all are left.
pub(crate) fn run(
    device: &mut Device,
    scratch: &mut ChunkScratch,
    call: &ChunkedCall,
    batch: &Batch,
    out: View,
) -> Option<usize> {
    let ChunkedCall { rule, parameters, columns } = call;
    let ops::DeltaRule { key_heads, value_heads, key_dim, value_dim, .. } = *rule;
    let (chunks, sequences) = (batch.chunks_of_long(CHUNK, LEAST), batch.long(LEAST));
    let dims = [key_dim, value_dim];
    if sequences == 0 || !takes(device.context.arch, out.dtype, dims) {
        return None;
    }
    let walk = Walk::of(device, sequences * value_heads, dims)?;
    let scratch = scratch.reserve(device, out.rows * value_heads);
    let heads = key_heads * (value_heads / key_heads).div_ceil(INTRA_HEADS);
    let shape = Shape { grid: [chunks, heads], block: INTRA_THREADS, shared: intra_shared(key_dim) };
    let (least, stages) = (LEAST as u32, walk.stages as u32);
    let intra = intra_special(out.dtype, key_dim);
    if !device.launch_special(intra, shape, args![*columns, *parameters, batch.pointers, scratch, least]) {
        return None;
    }
    let parts = value_heads * value_dim.div_ceil(walk.pairs * COLUMNS);
    let shape = Shape { grid: [parts, batch.sequences()], block: 2 * 32 * walk.pairs, shared: walk.shared(key_dim) };
    let inter = inter_special(out.dtype, key_dim, walk.pairs);
    let all = args![*columns, *parameters, batch.pointers, scratch, least, stages, out.ptr];
    device.launch_special(inter, shape, all).then_some(LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_for_16_bits_and_whole_tiles() {
        let of = |dtype, dims| takes(LOWEST, dtype, dims);
        assert!(of(DType::Bf16, [128, 128]) && of(DType::F16, [64, 16]) && of(DType::Bf16, [256, 48]));
        assert!(!of(DType::F32, [128, 128]) && !of(DType::Bf16, [96, 128]) && !of(DType::Bf16, [128, 20]));
        assert!(!takes(Arch::new(7, 5), DType::F16, [128, 128]));
    }

    /// Compute capabilities 9.0, 8.0 and 8.9.
    #[test]
    fn a_block_is_as_large_as_its_memory_lets_it_be() {
        let of =
            |kib: usize, key_dim| Walk::all(kib << 10, key_dim).next().map(|Walk { pairs, stages }| (pairs, stages));
        assert_eq!([64, 128, 256].map(|key_dim| of(227, key_dim)), [Some((4, 2)), Some((4, 2)), Some((2, 2))]);
        assert_eq!([64, 128, 256].map(|key_dim| of(163, key_dim)), [Some((4, 2)), Some((4, 2)), Some((2, 1))]);
        assert_eq!([64, 128, 256].map(|key_dim| of(99, key_dim)), [Some((2, 2)), Some((2, 1)), None]);
        assert_eq!((stage_bytes(128, 4), intra_shared(128)), (62_464, 34_816));
        assert_eq!(Walk { pairs: 4, stages: 2 }.shared(128), 2 * 62_464 + 40_960);
    }
}
