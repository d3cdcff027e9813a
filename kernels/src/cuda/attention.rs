//! Chooses and launches the attention kernels of `kernels/cuda`.

use cudarc::driver::sys::CUdeviceptr;

use super::acts::View;
use super::batch::Batch;
use super::device::{Device, Name, Shape, args};
use super::rope_and_cache::Kv;
use crate::ops;

/// Threads of a block of the plain kernel.
const THREADS: usize = 128;
/// Widest value head of the plain kernel.
const MOST_V_DIM: usize = 4 * THREADS;

/// `struct Attention` of kernels/cuda/quire.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Layer {
    sinks: CUdeviceptr,
    alibi: CUdeviceptr,
    scale: f32,
    soft_cap: f32,
    window: u32,
    q_heads: u32,
    kv_heads: u32,
    dim: u32,
    v_dim: u32,
    block_size: u32,
    qkv_width: u32,
    v_stride: u32,
}

/// A layer's attention with its vectors looked up: null for none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Params {
    pub(crate) layer: ops::Attention,
    pub(crate) sinks: CUdeviceptr,
    pub(crate) alibi: CUdeviceptr,
}

pub(crate) fn attention(device: &mut Device, qkv: View, params: Params, batch: &Batch, kv: &Kv, out: View) {
    let heads = params.layer.heads;
    let width = heads.q * heads.dim + kv.row_width();
    assert_eq!((qkv.rows, qkv.width), (batch.rows(), width), "shape of qkv for {heads:?}");
    kv.check(heads);
    batch.check_blocks(kv.shape.block_size);
    assert!(heads.v_dim <= MOST_V_DIM, "value heads of {}", heads.v_dim);
    let layer = Layer {
        sinks: params.sinks,
        alibi: params.alibi,
        scale: params.layer.scale,
        soft_cap: params.layer.soft_cap.unwrap_or(0.0),
        window: params.layer.window.map_or(u32::MAX, |window| u32::try_from(window).unwrap_or(u32::MAX)),
        q_heads: heads.q as u32,
        kv_heads: heads.kv as u32,
        dim: heads.dim as u32,
        v_dim: heads.v_dim as u32,
        block_size: kv.shape.block_size as u32,
        qkv_width: width as u32,
        v_stride: kv.value_stride() as u32,
    };
    let (keys, values) = kv.pointers();
    let name = Name::of("attention", &[qkv.dtype, kv.shape.dtype, out.dtype]);
    let shape = Shape { grid: [qkv.rows, heads.q], block: THREADS, shared: heads.dim * size_of::<f32>() };
    device.launch(name, shape, args![qkv.ptr, batch.pointers, layer, keys, values, out.ptr]);
}
