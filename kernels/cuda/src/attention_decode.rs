//! Launches `kernels/cuda/attention_decode.cu` for sequences with one row.

use super::attention_layer::{Layer, Tensors, narrow};
use super::batch::Batch;
use super::context::{Context, Memory};
use super::device::{Device, Shape, args};
use super::special::Special;
use kernels::ops::{DType, Heads};

/// Keys that a warp takes at a time.
const KEYS: usize = 16;
/// Query heads of one tile of a matrix operand, and most tiles.
const TILE_HEADS: usize = 8;
const MOST_TILES: usize = 2;
/// Blocks of the grid at most, on any device.
const MOST_BLOCKS: usize = 4 * 256;
/// (sequence, group of heads) pairs at most: 4,096 sequences of 64 groups.
const MOST_COUNTERS: usize = 1 << 18;

/// A block's warps, and stages of each warp's ring in shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Ring {
    warps: usize,
    stages: usize,
}

impl Ring {
    /// For few heads and for many: with few, a head's keys go to more warps.
    pub(crate) fn of(cache: DType, dim: usize, v_dim: usize) -> [Self; 2] {
        if dim + v_dim <= 256 {
            [Self { warps: 8, stages: 2 }, Self { warps: 4, stages: if cache == DType::E4m3 { 2 } else { 3 } }]
        } else {
            [Self { warps: 4, stages: 2 }; 2]
        }
    }

    /// Shared memory of a block; as `Decode::shared_bytes` of the kernel.
    fn shared(&self, cache: DType, (dim, v_dim): (usize, usize), group: usize, sequences: usize) -> usize {
        let stage = KEYS * (row_bytes(cache, dim) + row_bytes(cache, v_dim));
        let sums = group * (v_dim + 6) * size_of::<f32>();
        self.warps * (self.stages * stage + sums) + (sequences + 1) * size_of::<u32>()
    }
}

/// Blocks of a multiprocessor at most. A warp waits for what it does with 16 keys, one after another: where these are half as many bytes, twice the
/// warps keep as many on their way, if registers suffice.
fn most_blocks(cache: DType, (dim, v_dim): (usize, usize), tiles: usize, ring: Ring) -> usize {
    match cache {
        DType::E4m3 if dim + v_dim <= 256 && tiles == 1 => 16 / ring.warps,
        DType::E4m3 => 8 / ring.warps,
        _ => 2,
    }
}

/// As `Row` of the kernel: pieces of 16 bytes, swizzled or an odd number of them.
fn row_bytes(cache: DType, dim: usize) -> usize {
    let bytes = dim * cache.size();
    if bytes.is_multiple_of(128) || !bytes.is_multiple_of(32) { bytes } else { bytes + 16 }
}

/// For rows of a type, and a cache of the same or of 8-bit floats.
pub(crate) fn special([dtype, cache]: [DType; 2], (dim, v_dim): (usize, usize), tiles: usize, ring: Ring) -> Special {
    let sizes = [("DIM", dim), ("V_DIM", v_dim), ("TILES_Q", tiles), ("WARPS", ring.warps), ("STAGES", ring.stages)];
    Special::new("attention_decode", dtype, &[&sizes, narrow(cache)].concat())
}

/// The kernels for few heads and for many.
pub(crate) fn specials([dtype, cache]: [DType; 2], heads: Heads) -> Vec<Special> {
    let (dims, tiles) = ((heads.dim, heads.v_dim), tiles(heads.q / heads.kv));
    let mut all = Ring::of(cache, dims.0, dims.1).map(|ring| special([dtype, cache], dims, tiles, ring)).to_vec();
    all.dedup();
    all
}

/// Tiles of a group of query heads.
fn tiles(group: usize) -> usize {
    group.div_ceil(TILE_HEADS).min(MOST_TILES)
}

/// Partial sums of heads that several blocks share, and how many of them are there.
#[derive(Debug)]
pub(crate) struct Scratch {
    sums: Memory,
    counters: Memory,
}

impl Scratch {
    /// For any shape and batch.
    pub(crate) fn new(device: &mut Device) -> Option<Self> {
        const WIDEST: usize = MOST_TILES * TILE_HEADS * (256 + 2);
        let sums = device.allocate(2 * MOST_BLOCKS * WIDEST * size_of::<f32>(), "attention's partial sums")?;
        let counters = device.allocate(MOST_COUNTERS * size_of::<u32>(), "attention's counters")?;
        device.clear(&counters);
        Some(Self { sums, counters })
    }
}

/// How to launch it, or none where its memory does not suffice.
struct Plan {
    special: Special,
    shape: Shape,
}

impl Plan {
    fn new(context: &Context, types: [DType; 2], layer: &Layer, sequences: usize) -> Option<Self> {
        let (group, dims) = ((layer.q_heads / layer.kv_heads) as usize, (layer.dim as usize, layer.v_dim as usize));
        let tiles = tiles(group);
        let heads = sequences * layer.kv_heads as usize * group.div_ceil(TILE_HEADS * MOST_TILES);
        let multiprocessors = context.multiprocessors;
        let [few, many] = Ring::of(types[1], dims.0, dims.1);
        let ring = if heads <= multiprocessors { few } else { many };
        let shared = ring.shared(types[1], dims, group.min(TILE_HEADS * tiles), sequences);
        // A block has 1 KiB beside what it asks for.
        let fit = context.shared_of_multiprocessor / (shared + 1024);
        let blocks = multiprocessors * fit.min(most_blocks(types[1], dims, tiles, ring));
        let fits = shared <= context.shared_of_block && heads <= MOST_COUNTERS && blocks <= MOST_BLOCKS;
        fits.then(|| Self {
            special: special(types, dims, tiles, ring),
            shape: Shape { grid: [blocks, 1], block: 32 * ring.warps, shared },
        })
    }
}

/// Queues attention of the sequences with one row, and zeros for rows of none; false if that cannot be here.
pub(crate) fn run(device: &mut Device, scratch: &Scratch, tensors: Tensors, layer: Layer, batch: &Batch) -> bool {
    let types = [tensors.qkv.dtype, tensors.cache];
    let Some(Plan { special, shape }) = Plan::new(&device.context, types, &layer, batch.sequences()) else {
        return false;
    };
    let Tensors { qkv, keys, values, out, .. } = tensors;
    let (sums, counters) = (scratch.sums.ptr, scratch.counters.ptr);
    let [rows, multiprocessors] = [qkv.rows, device.context.multiprocessors].map(|number| number as u32);
    let arguments = args![out.ptr, qkv.ptr, keys, values, sums, counters, batch.pointers, layer, rows, multiprocessors];
    device.launch_special(special, shape, arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_head_size_fits_a_block() {
        for (cache, dim) in [DType::Bf16, DType::E4m3]
            .iter()
            .flat_map(|cache| [64, 80, 96, 112, 128, 192, 256].map(|dim| (*cache, dim)))
        {
            for ring in Ring::of(cache, dim, dim) {
                for (tiles, sequences) in [(1, 256), (2, 64)] {
                    let shared = ring.shared(cache, (dim, dim), TILE_HEADS * tiles, sequences);
                    assert!(shared <= 227 << 10, "{shared} bytes for heads of {dim} {cache:?} with {ring:?}");
                }
            }
        }
    }

    #[test]
    fn the_usual_shape_has_as_many_blocks_a_multiprocessor_as_it_may() {
        for cache in [DType::Bf16, DType::E4m3] {
            let [_, many] = Ring::of(cache, 128, 128);
            let blocks = most_blocks(cache, (128, 128), 1, many);
            assert!(blocks * (many.shared(cache, (128, 128), 4, 256) + 1024) <= 228 << 10, "{cache:?}");
        }
    }
}
