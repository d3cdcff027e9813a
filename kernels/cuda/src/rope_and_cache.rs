//! Launches `kernels/cuda/rope_and_cache.cu`; keeps a layer's keys and values.

use cudarc::driver::sys::{CUdeviceptr, CUtensorMap};

use super::acts::View;
use super::attention_prefill::hopper_fits;
use super::batch::Batch;
use super::context::Memory;
use super::device::{Device, Name, Shape, args};
use super::head_norms::QkNorms;
use super::special::HOPPER;
use super::tensor_map::tensor_map_of_groups;
use kernels::ops::{DType, Heads, KvScales, KvShape, Rope, RopeStyle};

/// K and V of one layer: `[block][kv head][token][dim]`.
pub(crate) struct Kv {
    pub(crate) shape: KvShape,
    keys: Option<Memory>,
    values: Option<Memory>,
    /// Where the Hopper kernel serves.
    pub(crate) maps: Option<Maps>,
}

/// Keys and values as the copy engine sees them: rows `[block, kv head, token][dim]`, in groups of 8.
#[derive(Clone, Copy)]
pub(crate) struct Maps {
    pub(crate) keys: CUtensorMap,
    pub(crate) values: CUtensorMap,
}

impl Kv {
    pub(crate) fn new(device: &mut Device, shape: KvShape) -> Self {
        let KvShape { num_blocks, block_size, kv_heads, head_dim, v_head_dim, shared, dtype } = shape;
        assert!(!shared || v_head_dim <= head_dim, "values as a part of keys: {shape:?}");
        assert!(block_size > 0 && kv_heads > 0 && head_dim > 0 && v_head_dim > 0, "an empty cache: {shape:?}");
        // One block more than the pool has: it is written by steps that are only timed.
        let heads = (num_blocks + 1) * block_size * kv_heads * dtype.size();
        let keys = device.allocate(heads * head_dim, "keys");
        let values = if shared { None } else { device.allocate(heads * v_head_dim, "values") };
        let maps = keys.as_ref().zip(values.as_ref()).and_then(|(keys, values)| Maps::new(device, shape, keys, values));
        Self { shape, keys, values, maps }
    }

    /// Where keys and values begin. Values that are a part of keys are the last elements of each.
    pub(crate) fn pointers(&self) -> (CUdeviceptr, CUdeviceptr) {
        let start = |memory: &Option<Memory>| memory.as_ref().map_or(0, |memory| memory.ptr);
        let KvShape { head_dim, v_head_dim, shared, dtype, .. } = self.shape;
        let keys = start(&self.keys);
        let inside = keys + ((head_dim.saturating_sub(v_head_dim)) * dtype.size()) as u64;
        (keys, if shared { inside } else { start(&self.values) })
    }

    /// Elements from one token's value to the next one's.
    pub(crate) fn value_stride(&self) -> usize {
        if self.shape.shared { self.shape.head_dim } else { self.shape.v_head_dim }
    }

    /// Columns of a row that goes into this cache, queries aside.
    pub(crate) fn row_width(&self) -> usize {
        let KvShape { kv_heads, head_dim, v_head_dim, shared, .. } = self.shape;
        kv_heads * (head_dim + if shared { 0 } else { v_head_dim })
    }

    pub(crate) fn check(&self, heads: Heads) {
        let KvShape { kv_heads, head_dim, v_head_dim, .. } = self.shape;
        assert_eq!((kv_heads, head_dim, v_head_dim), (heads.kv, heads.dim, heads.v_dim), "cache of {heads:?}");
    }

    /// Copies block `from[i]` to `to[i]`, in order.
    pub(crate) fn copy_blocks(&self, device: &mut Device, from: &[u32], to: &[u32]) {
        let KvShape { num_blocks, block_size, kv_heads, head_dim, v_head_dim, shared, dtype } = self.shape;
        assert_eq!(from.len(), to.len(), "blocks to copy from and to");
        assert!(
            from.iter().chain(to).all(|&block| (block as usize) < num_blocks),
            "{from:?} to {to:?} of {num_blocks}"
        );
        let (keys, values) = self.pointers();
        for (start, dim) in [(keys, head_dim), (values, if shared { 0 } else { v_head_dim })] {
            let bytes = block_size * kv_heads * dim * dtype.size();
            let at = |block: u32| start + u64::from(block) * bytes as u64;
            from.iter()
                .zip(to)
                .filter(|(from, to)| from != to)
                .for_each(|(from, to)| device.copy(at(*from), at(*to), bytes));
        }
    }
}

impl Maps {
    /// None where the device or the shape is not the Hopper kernel's.
    fn new(device: &mut Device, shape: KvShape, keys: &Memory, values: &Memory) -> Option<Self> {
        let KvShape { num_blocks, block_size, kv_heads, head_dim, v_head_dim, dtype, .. } = shape;
        if device.context.arch != HOPPER || dtype.size() != 2 || !hopper_fits(head_dim, v_head_dim, block_size) {
            return None;
        }
        let rows = num_blocks * kv_heads * block_size;
        let mut map = |memory: &Memory| {
            let what = || "describing the cache".to_owned();
            device.attempt(what, |_| tensor_map_of_groups(memory.ptr, dtype, [rows, head_dim], [block_size, head_dim]))
        };
        Some(Self { keys: map(keys)?, values: map(values)? })
    }
}

/// `struct Layer` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Layer {
    inv_freq: CUdeviceptr,
    mscale: f32,
    rotary_dim: u32,
    interleaved: u32,
    q_heads: u32,
    kv_heads: u32,
    dim: u32,
    v_dim: u32,
    block_size: u32,
    qkv_width: u32,
    /// What keys and values are multiplied by before they are stored.
    key_factor: f32,
    value_factor: f32,
}

/// `rope` comes with where its frequencies are; `norms`, if any, are done first, where [`takes_norms`] says so.
pub(crate) fn rope_and_cache(
    device: &mut Device,
    qkv: View,
    heads: Heads,
    rope: Option<(Rope, CUdeviceptr)>,
    norms: Option<QkNorms>,
    batch: &Batch,
    (kv, factors): (&Kv, KvScales),
) {
    let width = heads.q * heads.dim + kv.row_width();
    assert_eq!((qkv.rows, qkv.width), (batch.rows(), width), "shape of qkv for {heads:?}");
    kv.check(heads);
    batch.check_blocks(kv.shape.block_size);
    let rotary_dim = rope.map_or(0, |(rope, _)| rope.rotary_dim);
    let layer = Layer {
        inv_freq: rope.map_or(0, |(_, frequencies)| frequencies),
        mscale: rope.map_or(1.0, |(rope, _)| rope.mscale),
        rotary_dim: rotary_dim as u32,
        interleaved: u32::from(rope.is_some_and(|(rope, _)| rope.style == RopeStyle::Interleaved)),
        q_heads: heads.q as u32,
        kv_heads: heads.kv as u32,
        dim: heads.dim as u32,
        v_dim: if kv.shape.shared { 0 } else { heads.v_dim as u32 },
        block_size: kv.shape.block_size as u32,
        qkv_width: width as u32,
        key_factor: factors.key,
        value_factor: factors.value,
    };
    let (keys, values) = kv.pointers();
    let shared = rotary_dim * size_of::<f32>();
    let types = [qkv.dtype, kv.shape.dtype];
    let arguments = args![qkv.ptr, batch.pointers, layer, keys, values];
    if let Some(norms) = norms {
        let shape = Shape { shared, ..Shape::rows(qkv.rows, threads(qkv.rows, width)) };
        let arguments = args![qkv.ptr, batch.pointers, layer, keys, values, norms];
        device.launch_early(Name::in_file("rope_and_cache", "rope_and_cache_normed", &types), shape, arguments);
    } else if takes_pieces(qkv.dtype, kv.shape.dtype, heads, rotary_dim) {
        let shape = Shape { shared, ..Shape::rows(qkv.rows, threads(qkv.rows, width)) };
        device.launch_early(Name::in_file("rope_and_cache", "rope_and_cache_wide", &types), shape, arguments);
    } else {
        let shape = Shape { shared, ..Shape::rows(qkv.rows, width.min(256)) };
        device.launch(Name::of("rope_and_cache", &types), shape, arguments);
    }
}

/// Threads of a row's block where they work on 16 bytes at a time: with few rows, all at once; with many, more blocks at a time.
fn threads(rows: usize, width: usize) -> usize {
    (width / 8).min(if rows > 512 { 256 } else { 512 })
}

/// Whether norms of heads can be done with their rotation.
pub(crate) fn takes_norms(row: DType, cache: DType, heads: Heads, rotary_dim: usize) -> bool {
    takes_pieces(row, cache, heads, rotary_dim)
        && rotary_dim == heads.dim
        && (16..=256).contains(&rotary_dim)
        && rotary_dim.is_power_of_two()
}

/// Whether rows can be worked on 16 bytes at a time.
fn takes_pieces(row: DType, cache: DType, heads: Heads, rotary_dim: usize) -> bool {
    let whole = [heads.dim, heads.v_dim, rotary_dim / 2].iter().all(|count| count.is_multiple_of(8));
    row.size() == 2 && [row, DType::E4m3].contains(&cache) && whole
}
