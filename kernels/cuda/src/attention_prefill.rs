//! Launches `kernels/cuda/attention_prefill.cu`, and on Hopper `attention_prefill_hopper.cu`, for sequences with several rows.

use super::attention_layer::{Layer, Tensors, narrow};
use super::batch::{Batch, Pointers};
use super::context::Memory;
use super::device::{Device, Shape, args};
use super::kv::{Kv, Maps};
use super::special::{HOPPER, Special};
use kernels::ops::{DType, KvShape};

/// Warps of a block of the general kernel, and keys of a tile.
const WARPS: usize = 8;
const KEYS: usize = 64;
/// Pairs of token and query head that a block of either kernel has.
const ROWS: usize = 16 * WARPS;
/// Head sizes of the Hopper kernel, keys of a tile, tiles of keys (and of values) that a block holds, and its threads.
pub(crate) const HOPPER_DIMS: [usize; 2] = [64, 128];
const HOPPER_KEYS: usize = 128;
const HOPPER_STAGES: usize = 2;
const HOPPER_THREADS: usize = 384;
/// Rows that the copy engine brings at least: those of a swizzle.
pub(crate) const ROW_GROUP: usize = 8;
/// Sequences with fewer rows are not these kernels'.
const LEAST: u32 = 2;

/// For rows of a type, and a cache of the same or of 8-bit floats.
pub(crate) fn special([dtype, cache]: [DType; 2], (dim, v_dim): (usize, usize)) -> Special {
    let sizes = [("DIM", dim), ("V_DIM", v_dim), ("WARPS", WARPS)];
    Special::new("attention_prefill", dtype, &[&sizes, narrow(cache)].concat())
}

/// The same.
pub(crate) fn hopper_special([dtype, cache]: [DType; 2], dim: usize) -> Special {
    let sizes = [("DIM", dim), ("STAGES", HOPPER_STAGES)];
    Special::new("attention_prefill_hopper", dtype, &[&sizes, narrow(cache)].concat())
}

/// How the Hopper kernel reads a cache.
#[derive(Clone, Copy)]
pub(crate) enum Hopper<'a> {
    /// With the copy engine.
    Maps(&'a Maps),
    /// Numbers of 8 bits, by address.
    Narrow,
}

impl<'a> Hopper<'a> {
    /// None where the device has not what it needs, or the shape is not the kernel's.
    pub(crate) fn of(device: &Device, kv: &'a Kv) -> Option<Self> {
        let KvShape { head_dim, v_head_dim, block_size, dtype, .. } = kv.shape;
        let narrow = dtype == DType::E4m3 && device.context.arch == HOPPER;
        match &kv.maps {
            Some(maps) => Some(Self::Maps(maps)),
            None => (narrow && hopper_fits(head_dim, v_head_dim, block_size)).then_some(Self::Narrow),
        }
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
    let (types, dims) = ([tensors.qkv.dtype, tensors.cache], (layer.dim as usize, layer.v_dim as usize));
    let (kernel, shared) = match hopper.filter(|_| layer.soft_cap == 0.0 && layer.alibi == 0) {
        Some(_) => (hopper_special(types, dims.0), hopper_shared(dims.0)),
        None => (special(types, dims), shared(dims)),
    };
    if shared <= device.context.shared_of_block {
        device.wish(kernel, shared);
    }
}

/// Queues attention of the sequences with several rows; false if that cannot be here. `hopper`: where the Hopper kernel can.
pub(crate) fn run(
    device: &mut Device,
    counter: &Counter,
    tensors: Tensors,
    layer: Layer,
    hopper: Option<Hopper<'_>>,
    batch: &Batch,
) -> bool {
    let (heads, tiles) = (layer.kv_heads as usize, batch.tiles((layer.q_heads / layer.kv_heads) as usize, ROWS));
    if let Some(hopper) = hopper.filter(|_| layer.soft_cap == 0.0 && layer.alibi == 0) {
        return run_hopper(device, counter, tensors, layer, hopper, batch.pointers, heads * tiles);
    }
    let Tensors { qkv, keys, values, cache, out } = tensors;
    let (dtype, dims) = (qkv.dtype, (layer.dim as usize, layer.v_dim as usize));
    let shared = shared(dims);
    if shared > device.context.shared_of_block {
        return false;
    }
    let shape = Shape { grid: [heads, tiles], block: 32 * WARPS, shared };
    device.launch_special(
        special([dtype, cache], dims),
        shape,
        args![out.ptr, qkv.ptr, keys, values, batch.pointers, layer, LEAST],
    )
}

/// The same by the Hopper kernel: blocks that stay, for `tiles` tiles of rows of all heads.
fn run_hopper(
    device: &mut Device,
    counter: &Counter,
    tensors: Tensors,
    layer: Layer,
    hopper: Hopper<'_>,
    batch: Pointers,
    tiles: usize,
) -> bool {
    let Tensors { qkv, keys, values, cache, out } = tensors;
    let blocks = device.context.multiprocessors.min(tiles);
    let shape = Shape { grid: [blocks, 1], block: HOPPER_THREADS, shared: hopper_shared(layer.dim as usize) };
    let special = hopper_special([qkv.dtype, cache], layer.dim as usize);
    let (row_tiles, counter) = (tiles as u32 / layer.kv_heads, counter.0.ptr);
    match hopper {
        Hopper::Maps(Maps { keys, values }) => device.launch_special(
            special,
            shape,
            args![out.ptr, qkv.ptr, *keys, *values, batch, layer, LEAST, row_tiles, counter],
        ),
        Hopper::Narrow => device.launch_special(
            special,
            shape,
            args![out.ptr, qkv.ptr, keys, values, batch, layer, LEAST, row_tiles, counter],
        ),
    }
}

/// `Prefill::SHARED_BYTES` of the kernel: two stages of keys and values, with padded rows.
fn shared((dim, v_dim): (usize, usize)) -> usize {
    2 * KEYS * (2 * dim + 16 + 2 * v_dim + 16)
}

/// As `HopperPrefill::prepare` of the kernel has it: queries, stages of keys and of values, barriers, two tiles' descriptions, and room to
/// align them.
fn hopper_shared(dim: usize) -> usize {
    const BARRIERS: usize = 4 * HOPPER_STAGES + 6;
    const TILE: usize = 12 * size_of::<u32>();
    let rows = ROWS + 2 * HOPPER_STAGES * HOPPER_KEYS;
    1024 + rows * dim * 2 + BARRIERS * size_of::<u64>() + 2 * TILE
}

/// Whether blocks of the cache fit the Hopper kernel's tiles.
pub(crate) fn hopper_fits(dim: usize, v_dim: usize, block_size: usize) -> bool {
    dim == v_dim
        && HOPPER_DIMS.contains(&dim)
        && block_size.is_multiple_of(ROW_GROUP)
        && HOPPER_KEYS.is_multiple_of(block_size)
}
