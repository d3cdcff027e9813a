//! Launches `kernels/cuda/csrc/attention/attention_prefill.cu`, and on Hopper `attention_prefill_hopper.cu`, for
//! sequences with several rows.

use crate::attention::kv::{Kv, Maps};
use crate::attention::layer::{AttentionTypes, HeadDims, Layer, Tensors, narrow};
use crate::jit::specialization::{HOPPER, Special};
use crate::runtime::batch::Batch;
use crate::runtime::context::Memory;
use crate::runtime::device::{Device, Shape, args};
use kernels::ops::{KvDType, KvShape, ScoreMods};

/// Warps of a block of the general kernel, and keys of a tile.
const WARPS: usize = 8;
const KEYS: usize = 64;
/// Pairs of token and query head that a block of either kernel has.
const ROWS: usize = 16 * WARPS;
/// Blocks in the second dimension of a grid, on any device.
const MOST_TILES: usize = 65_535;
/// Head sizes of the Hopper kernel, and those of them that it reads from caches of 8-bit floats; a block's threads.
const HOPPER_DIMS: [usize; 8] = [64, 80, 96, 112, 128, 160, 192, 256];
const HOPPER_NARROW_DIMS: [usize; 6] = [64, 80, 96, 112, 128, 256];
const HOPPER_THREADS: usize = 384;
/// Most blocks of a cluster, which share keys and values.
const HOPPER_BLOCKS: usize = 2;
/// Fewest tokens of a block of a cache, and a divisor of any such block.
const LEAST_BLOCK: usize = 16;
/// Rows that the copy engine brings at least: those of a swizzle.
pub(crate) const ROW_GROUP: usize = 8;
/// Sequences with fewer rows are not these kernels'.
const LEAST: u32 = 2;

/// For rows of a type, and a cache of the same or of 8-bit floats.
pub(crate) fn special(types: AttentionTypes, HeadDims { dim, v_dim }: HeadDims) -> Special {
    let sizes = [("DIM", dim), ("V_DIM", v_dim), ("WARPS", WARPS)];
    Special::new("attention_prefill", types.rows, &[&sizes, narrow(types.cache)].concat())
}

/// The same, for clusters of `blocks` blocks.
fn hopper_special(types: AttentionTypes, tile: HopperTile, scores: ScoreMods, blocks: usize) -> Special {
    let HopperTile { dim, keys } = tile;
    let sizes = [("DIM", dim), ("TILE_KEYS", keys), ("STAGES", tile.stages(blocks)), ("BLOCKS", blocks)];
    let plain = Special::new("attention_prefill_hopper", types.rows, &[&sizes, narrow(types.cache)].concat());
    let mods = [("SOFT_CAP", scores.soft_cap), ("ALIBI", scores.alibi)].into_iter().filter(|(_, is_there)| *is_there);
    mods.fold(plain, |special, (name, _)| special.with(name, 1))
}

/// All that are made for a type, a cache and heads: keys and values that are widened on their way are not shared.
pub(crate) fn hopper_specials(
    types: AttentionTypes,
    tile: HopperTile,
    scores: ScoreMods,
) -> impl Iterator<Item = Special> {
    let most = if types.cache == KvDType::E4m3 { 1 } else { HOPPER_BLOCKS };
    (1..=most).map(move |blocks| hopper_special(types, tile, scores, blocks))
}

/// All kernels for rows of a type, a cache and heads: those for Hopper, with their tile and what they do to scores, or
/// those for all.
pub(crate) fn specials(hopper: Option<(HopperTile, ScoreMods)>, types: AttentionTypes, dims: HeadDims) -> Vec<Special> {
    match hopper {
        Some((tile, scores)) => hopper_specials(types, tile, scores).collect(),
        None => vec![special(types, dims)],
    }
}

/// What a block of the Hopper kernel takes at a time: keys, for heads of a size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HopperTile {
    dim: usize,
    keys: usize,
}

impl HopperTile {
    /// For heads over a cache whose blocks have so many tokens; none if these are not the kernel's.
    pub(crate) fn of(heads: HeadDims, cache: KvDType, block_size: usize) -> Option<Self> {
        let tiles = hopper_tiles(heads, cache);
        let find = |parts: usize| tiles.iter().copied().find(|tile| (tile.keys / parts).is_multiple_of(block_size));
        // Best where each block of a cluster brings whole blocks of the cache.
        let found = find(HOPPER_BLOCKS).or_else(|| find(1));
        found.filter(|_| block_size.is_multiple_of(ROW_GROUP))
    }

    pub(crate) fn keys(self) -> usize {
        self.keys
    }

    /// Tiles of keys, and of values, that a block holds: one more where it may have to wait for another block, if there
    /// is room.
    fn stages(self, blocks: usize) -> usize {
        if matches!(self.dim, 160 | 256) { 2 } else { 1 + blocks }
    }

    /// Tokens of a cache's block that the copy engine brings at once: each block of a cluster brings its part of a tile
    /// of keys.
    pub(crate) fn copied_tokens(self, block_size: usize) -> usize {
        let part = self.keys / HOPPER_BLOCKS;
        let most = block_size.min(part);
        if part.is_multiple_of(most) { most } else { LEAST_BLOCK }
    }

    /// As `PrefillBlock::prepare` of the kernel has it: queries, stages of keys and of values, barriers, two tiles'
    /// descriptions and numbers, and room to align them.
    fn shared(self, blocks: usize) -> usize {
        const TILE: usize = (12 + 1) * size_of::<u32>();
        let stages = self.stages(blocks);
        let (barriers, rows) = (4 * stages + 8, ROWS + 2 * stages * self.keys);
        1024 + rows * self.dim.next_multiple_of(64) * 2 + barriers * size_of::<u64>() + 2 * TILE
    }
}

/// Tiles for heads over a cache, the best first: as many keys as there are registers for beside a row's sums and
/// queries, or fewer that more blocks of a cache divide. Warps that widen keys bring up to 32 each.
pub(crate) fn hopper_tiles(HeadDims { dim, v_dim }: HeadDims, cache: KvDType) -> Vec<HopperTile> {
    let is_taken = dim == v_dim && hopper_heads(cache).contains(&dim);
    let keys: &[usize] = match dim {
        _ if !is_taken => &[],
        64 if cache != KvDType::E4m3 => &[192, 128],
        ..=128 => &[128],
        160 => &[96],
        _ => &[64],
    };
    keys.iter().map(|&keys| HopperTile { dim, keys }).collect()
}

/// The Hopper kernel for a cache.
#[derive(Clone, Copy)]
pub(crate) struct Hopper<'a> {
    tile: HopperTile,
    /// By which the copy engine reads it; none for numbers of 8 bits, which are read by address.
    maps: Option<&'a Maps>,
}

impl<'a> Hopper<'a> {
    /// Blocks of a cluster: several where few of their tiles of rows stay empty. A row's bits are the same.
    fn blocks(self, layer: Layer, batch: &Batch) -> usize {
        let tiles = |blocks: usize| blocks * batch.tiles(layer.group_size(), blocks * ROWS);
        let shares = self.maps.is_some() && 15 * tiles(HOPPER_BLOCKS) <= 16 * tiles(1);
        if shares { HOPPER_BLOCKS } else { 1 }
    }

    /// None where the device has not what it needs, or the shape is not the kernel's.
    pub(crate) fn of(device: &Device, kv: &'a Kv) -> Option<Self> {
        let KvShape { head_dim, v_head_dim, block_size, dtype, .. } = kv.shape;
        let narrow = dtype == KvDType::E4m3 && device.context.arch == HOPPER;
        let maps = kv.maps.as_ref();
        let tile = HopperTile::of(HeadDims { dim: head_dim, v_dim: v_head_dim }, dtype, block_size);
        tile.filter(|_| narrow || maps.is_some()).map(|tile| Self { tile, maps })
    }
}

/// What blocks of the Hopper kernel count their tiles with: zero between launches.
#[derive(Debug)]
pub(crate) struct Counter(Memory);

impl Counter {
    pub(crate) fn new(device: &mut Device) -> Option<Self> {
        let memory = device.allocate(size_of::<u32>(), "attention's counter of tiles")?;
        device.clear(&memory);
        Some(Self(memory))
    }
}

/// Prompts will come, whose kernel is compiled and loaded meanwhile.
pub(crate) fn wish(device: &mut Device, tensors: Tensors, layer: Layer, hopper: Option<&Hopper<'_>>) {
    let (types, dims) = (tensors.types(), layer.dims());
    let kernels: Vec<(Special, usize)> = match hopper.filter(|_| !layer.scores().relative) {
        Some(hopper) => (1..)
            .zip(hopper_specials(types, hopper.tile, layer.scores()))
            .map(|(blocks, special)| (special, hopper.tile.shared(blocks)))
            .collect(),
        None => vec![(special(types, dims), shared(dims))],
    };
    for (kernel, shared) in kernels {
        if shared <= device.context.shared_of_block {
            device.wish(kernel, shared);
        }
    }
}

/// Queues attention of the sequences with several rows; false if that cannot be here. `hopper`: where the Hopper kernel
/// can.
pub(crate) fn run(
    device: &mut Device,
    counter: &Counter,
    tensors: Tensors,
    layer: Layer,
    hopper: Option<Hopper<'_>>,
    batch: &Batch,
) -> bool {
    if let Some(hopper) = hopper.filter(|_| !layer.scores().relative) {
        return run_hopper(device, counter, tensors, layer, hopper, batch);
    }
    let (heads, tiles) = (layer.kv_heads as usize, batch.tiles(layer.group_size(), ROWS));
    let Tensors { qkv, keys, values, out, .. } = tensors;
    let (types, dims) = (tensors.types(), layer.dims());
    let shared = shared(dims);
    if shared > device.context.shared_of_block || tiles > MOST_TILES {
        return false;
    }
    let shape = Shape { grid: [heads, tiles], block: 32 * WARPS, shared };
    device.launch_special(
        special(types, dims),
        shape,
        args![out.ptr, qkv.ptr, keys, values, batch.pointers, layer, LEAST],
    )
}

/// The same by the Hopper kernel: blocks that stay.
fn run_hopper(
    device: &mut Device,
    counter: &Counter,
    tensors: Tensors,
    layer: Layer,
    hopper: Hopper<'_>,
    batch: &Batch,
) -> bool {
    let Tensors { qkv, keys, values, out, .. } = tensors;
    let Hopper { tile, maps } = hopper;
    let blocks = hopper.blocks(layer, batch);
    let row_tiles = batch.tiles(layer.group_size(), blocks * ROWS);
    let clusters = (device.context.multiprocessors / blocks).min(layer.kv_heads as usize * row_tiles);
    let shape = Shape { grid: [clusters * blocks, 1], block: HOPPER_THREADS, shared: tile.shared(blocks) };
    let special = hopper_special(tensors.types(), tile, layer.scores(), blocks);
    let (row_tiles, counter, batch) = (row_tiles as u32, counter.0.ptr, batch.pointers);
    match maps {
        Some(Maps { keys, values }) => device.launch_special(
            special,
            shape,
            args![out.ptr, qkv.ptr, *keys, *values, batch, layer, LEAST, row_tiles, counter],
        ),
        None => device.launch_special(
            special,
            shape,
            args![out.ptr, qkv.ptr, keys, values, batch, layer, LEAST, row_tiles, counter],
        ),
    }
}

/// `Prefill::SHARED_BYTES` of the kernel: two stages of keys and values, with padded rows.
pub(crate) fn shared(HeadDims { dim, v_dim }: HeadDims) -> usize {
    2 * KEYS * (2 * dim + 16 + 2 * v_dim + 16)
}

/// Head sizes over such a cache.
pub(crate) fn hopper_heads(cache: KvDType) -> &'static [usize] {
    if cache == KvDType::E4m3 { &HOPPER_NARROW_DIMS } else { &HOPPER_DIMS }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::ops::DType;

    #[test]
    fn blocks_fit_tiles_and_tiles_fit_shared_memory() {
        let tiles = |cache| hopper_heads(cache).iter().flat_map(move |dim| hopper_tiles(HeadDims::same(*dim), cache));
        for tile in tiles(DType::Bf16.into()).chain(tiles(KvDType::E4m3)) {
            let part = tile.keys / HOPPER_BLOCKS;
            for block_size in (16..=256).step_by(16).filter(|block_size| tile.keys.is_multiple_of(*block_size)) {
                let copied = tile.copied_tokens(block_size);
                assert!(block_size.is_multiple_of(copied) && part.is_multiple_of(copied), "{tile:?}, {block_size}");
                // Each is a lane's.
                assert!(copied.is_multiple_of(ROW_GROUP) && part / copied <= 32, "{tile:?}, {block_size}");
            }
            for blocks in 1..=HOPPER_BLOCKS {
                assert!(tile.shared(blocks) <= 227 << 10, "{tile:?}, {blocks} blocks");
            }
        }
    }

    #[test]
    fn heads_of_64_have_the_larger_tile_where_blocks_divide_it() {
        let keys = |cache, block_size| HopperTile::of(HeadDims::same(64), cache, block_size).map(|tile| tile.keys);
        let bf16 = DType::Bf16.into();
        let found = [16, 32, 64, 128, 192, 256].map(|block_size| keys(bf16, block_size));
        assert_eq!(found, [Some(192), Some(192), Some(128), Some(128), Some(192), None]);
        assert_eq!(keys(KvDType::E4m3, 16), Some(128));
    }
}
