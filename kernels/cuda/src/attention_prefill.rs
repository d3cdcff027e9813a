//! Launches `kernels/cuda/attention_prefill.cu`, and on Hopper `attention_prefill_hopper.cu`, for sequences with several rows.

use super::attention::{Layer, Tensors, narrow};
use super::batch::Batch;
use super::device::{Device, Shape, args};
use super::rope_and_cache::Maps;
use super::special::Special;
use kernels::ops::DType;

/// Warps of a block of the general kernel, and keys of a tile.
const WARPS: usize = 8;
const KEYS: usize = 64;
/// Pairs of token and query head that a block of either kernel has.
const ROWS: usize = 16 * WARPS;
/// Head sizes of the Hopper kernel, keys of a tile, its threads and barriers.
pub(crate) const HOPPER_DIMS: [usize; 2] = [64, 128];
const HOPPER_KEYS: usize = 128;
const HOPPER_THREADS: usize = 384;
const BARRIERS: usize = 8;
/// Sequences with fewer rows are not these kernels'.
const LEAST: u32 = 2;

/// For rows of a type, and a cache of the same or of 8-bit floats.
pub(crate) fn special([dtype, cache]: [DType; 2], (dim, v_dim): (usize, usize)) -> Special {
    let sizes = [("DIM", dim), ("V_DIM", v_dim), ("WARPS", WARPS)];
    Special::new("attention_prefill", dtype, &[&sizes, narrow(cache)].concat())
}

pub(crate) fn hopper_special(dtype: DType, dim: usize) -> Special {
    Special::new("attention_prefill_hopper", dtype, &[("DIM", dim)])
}

/// Queues attention of the sequences with several rows; false if that cannot be here. `maps`: where the device has what the
/// Hopper kernel needs.
pub(crate) fn run(device: &mut Device, tensors: Tensors, layer: Layer, maps: Option<&Maps>, batch: &Batch) -> bool {
    let Tensors { qkv, keys, values, cache, out } = tensors;
    let (dtype, dims) = (qkv.dtype, (layer.dim as usize, layer.v_dim as usize));
    let grid = [layer.kv_heads as usize, batch.tiles((layer.q_heads / layer.kv_heads) as usize, ROWS)];
    if let Some(maps) = maps.filter(|_| layer.soft_cap == 0.0 && layer.alibi == 0) {
        let shape = Shape { grid, block: HOPPER_THREADS, shared: hopper_shared(dims.0) };
        let arguments = args![out.ptr, qkv.ptr, maps.keys, maps.values, batch.pointers, layer, LEAST];
        return device.launch_special(hopper_special(dtype, dims.0), shape, arguments);
    }
    let shared = shared(dims);
    if shared > device.context.shared_of_block {
        return false;
    }
    let shape = Shape { grid, block: 32 * WARPS, shared };
    device.launch_special(
        special([dtype, cache], dims),
        shape,
        args![out.ptr, qkv.ptr, keys, values, batch.pointers, layer, LEAST],
    )
}

/// `Prefill::SHARED_BYTES` of the kernel: two stages of keys and values, with padded rows.
fn shared((dim, v_dim): (usize, usize)) -> usize {
    2 * KEYS * (2 * dim + 16 + 2 * v_dim + 16)
}

/// `HopperPrefill::SHARED_BYTES` of the kernel: queries, two stages of keys and of values, barriers, and room to align them.
fn hopper_shared(dim: usize) -> usize {
    1024 + ROWS * dim * 2 + 4 * HOPPER_KEYS * dim * 2 + BARRIERS * size_of::<u64>()
}

/// Whether blocks of the cache fit the Hopper kernel's tiles.
pub(crate) fn hopper_fits(dim: usize, v_dim: usize, block_size: usize) -> bool {
    dim == v_dim && HOPPER_DIMS.contains(&dim) && block_size >= 8 && HOPPER_KEYS.is_multiple_of(block_size)
}
