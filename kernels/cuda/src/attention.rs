//! Chooses the attention kernels of `kernels/cuda`, and launches the plain one.

use cudarc::driver::sys::CUdeviceptr;

use super::acts::View;
use super::attention_decode::{self, Scratch};
use super::attention_prefill::{self, Counter, Hopper};
use super::batch::{Batch, Rows};
use super::device::{Device, Name, Shape, args};
use super::rope_and_cache::Kv;
use super::special::LOWEST;
use kernels::ops::{self, DType};

/// Threads of a block of the plain kernel.
const THREADS: usize = 128;
/// Widest value head of the plain kernel.
const MOST_V_DIM: usize = 4 * THREADS;

/// `struct Attention` of kernels/cuda/quire.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layer {
    sinks: CUdeviceptr,
    pub(crate) alibi: CUdeviceptr,
    scale: f32,
    pub(crate) soft_cap: f32,
    window: u32,
    pub(crate) q_heads: u32,
    pub(crate) kv_heads: u32,
    pub(crate) dim: u32,
    pub(crate) v_dim: u32,
    block_size: u32,
    qkv_width: u32,
    v_stride: u32,
    v_scale: f32,
}

/// A layer's attention with its vectors looked up: null for none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Params {
    /// Its scale holds that of keys.
    pub(crate) layer: ops::Attention,
    /// What stored values are multiplied by.
    pub(crate) value_scale: f32,
    pub(crate) sinks: CUdeviceptr,
    pub(crate) alibi: CUdeviceptr,
}

/// What attention reads and writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tensors {
    pub(crate) qkv: View,
    pub(crate) keys: CUdeviceptr,
    pub(crate) values: CUdeviceptr,
    /// Element type of keys and values.
    pub(crate) cache: DType,
    pub(crate) out: View,
}

/// What attention keeps between launches.
#[derive(Debug, Default)]
pub(crate) struct Attention {
    scratch: Option<(Scratch, Counter)>,
}

impl Attention {
    pub(crate) fn run(&mut self, device: &mut Device, qkv: View, params: Params, batch: &Batch, kv: &Kv, out: View) {
        let layer = layer(qkv, params, batch, kv);
        let (keys, values) = kv.pointers();
        let tensors = Tensors { qkv, keys, values, cache: kv.shape.dtype, out };
        if !self.fast(device, tensors, layer, batch, kv) {
            plain(device, tensors, layer, batch);
        }
    }

    /// The kernels for rows of 16-bit types, which between them do all rows; false where one of them cannot.
    fn fast(&mut self, device: &mut Device, tensors: Tensors, layer: Layer, batch: &Batch, kv: &Kv) -> bool {
        let Tensors { qkv, out, cache, .. } = tensors;
        let fits = device.context.arch >= LOWEST
            && qkv.dtype.size() == 2
            && out.dtype == qkv.dtype
            && [qkv.dtype, DType::E4m3].contains(&cache)
            && !kv.shape.shared
            && [layer.dim, layer.v_dim].iter().all(|dim| dim.is_multiple_of(16) && *dim <= 256)
            && kv.shape.block_size.is_multiple_of(16);
        if !fits {
            return false;
        }
        if self.scratch.is_none() {
            self.scratch = Scratch::new(device).zip(Counter::new(device));
        }
        let Some((scratch, counter)) = &self.scratch else { return true };
        if !batch.has(Rows::Several) {
            attention_prefill::wish(device, tensors, layer, Hopper::of(device, kv).as_ref());
        }
        (!batch.has(Rows::Several)
            || attention_prefill::run(device, counter, tensors, layer, Hopper::of(device, kv), batch))
            && (!batch.has(Rows::One) || attention_decode::run(device, scratch, tensors, layer, batch))
    }
}

/// Checks shapes, and puts together what kernels are told.
fn layer(qkv: View, params: Params, batch: &Batch, kv: &Kv) -> Layer {
    let heads = params.layer.heads;
    let width = heads.q * heads.dim + kv.row_width();
    assert_eq!((qkv.rows, qkv.width), (batch.rows(), width), "shape of qkv for {heads:?}");
    kv.check(heads);
    batch.check_blocks(kv.shape.block_size);
    assert!(heads.v_dim <= MOST_V_DIM, "value heads of {}", heads.v_dim);
    Layer {
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
        v_scale: params.value_scale,
    }
}

/// What the fast kernels are told of a cache of another type than rows have.
pub(crate) fn narrow(cache: DType) -> &'static [(&'static str, usize)] {
    if cache == DType::E4m3 { &[("NARROW", 1)] } else { &[] }
}

fn plain(device: &mut Device, tensors: Tensors, layer: Layer, batch: &Batch) {
    let Tensors { qkv, keys, values, cache, out } = tensors;
    let name = Name::of("attention", &[qkv.dtype, cache, out.dtype]);
    let shared = layer.dim as usize * size_of::<f32>();
    let shape = Shape { grid: [qkv.rows, layer.q_heads as usize], block: THREADS, shared };
    device.launch(name, shape, args![qkv.ptr, batch.pointers, layer, keys, values, out.ptr]);
}
