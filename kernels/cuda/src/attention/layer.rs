//! What attention kernels are told of a layer, and what they read and write.

use cudarc::driver::sys::CUdeviceptr;

use crate::attention::kv::Kv;
use crate::jit::layouts::twin;
use crate::runtime::activations::View;
use crate::runtime::batch::Batch;
use kernels::ops::{self, DType, KvDType, ScoreMods};

/// Widest value head of the plain kernel: four elements for each of a block's threads.
pub(crate) const MOST_V_DIM: usize = 512;

/// `struct Attention` of kernels/cuda/csrc/include/quire.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layer {
    sinks: CUdeviceptr,
    pub(crate) alibi: CUdeviceptr,
    pub(crate) relative: CUdeviceptr,
    key_scales: CUdeviceptr,
    value_scales: CUdeviceptr,
    scale: f32,
    pub(crate) soft_cap: f32,
    window: u32,
    pub(crate) q_heads: u32,
    pub(crate) kv_heads: u32,
    pub(crate) dim: u32,
    pub(crate) v_dim: u32,
    pub(crate) block_size: u32,
    qkv_width: u32,
    v_stride: u32,
    v_scale: f32,
    bidirectional: u32,
    reach: u32,
}

twin!(Layer = "Attention" {
    sinks, alibi, relative, key_scales, value_scales, scale, soft_cap, window, q_heads, kv_heads, dim, v_dim,
    block_size, qkv_width, v_stride, v_scale, bidirectional, reach,
});

impl Layer {
    /// Checks shapes, and puts together what kernels are told.
    pub(crate) fn new(qkv: View, params: Params, batch: &Batch, kv: &Kv) -> Self {
        let heads = params.layer.heads;
        kv.shape.check_rows(heads, [qkv.rows, qkv.width], batch.rows());
        batch.check_blocks(kv.shape);
        assert!(heads.v_dim <= MOST_V_DIM, "value heads of {}", heads.v_dim);
        Self {
            sinks: params.sinks,
            alibi: params.alibi,
            relative: params.relative,
            key_scales: params.head_scales.key,
            value_scales: params.head_scales.value,
            scale: params.layer.scale,
            soft_cap: params.layer.soft_cap.unwrap_or(0.0),
            window: params.layer.window.map_or(u32::MAX, |window| u32::try_from(window).unwrap_or(u32::MAX)),
            q_heads: heads.q as u32,
            kv_heads: heads.kv as u32,
            dim: heads.dim as u32,
            v_dim: heads.v_dim as u32,
            block_size: kv.shape.block_size as u32,
            qkv_width: qkv.width as u32,
            v_stride: kv.value_stride() as u32,
            v_scale: params.value_scale,
            bidirectional: u32::from(params.layer.mask == ops::Mask::Bidirectional),
            reach: params.layer.relative.map_or(0, |bias| bias.reach as u32),
        }
    }

    /// Whether a row sees all that was in the cache before it.
    pub(crate) fn sees_all_before(&self) -> bool {
        self.window == u32::MAX && self.bidirectional == 0 && self.relative == 0
    }

    /// Whether there is more to the sum of weights than those of keys.
    pub(crate) fn has_sinks(&self) -> bool {
        self.sinks != 0
    }

    /// What is done to scores.
    pub(crate) fn scores(&self) -> ScoreMods {
        ScoreMods { soft_cap: self.soft_cap != 0.0, alibi: self.alibi != 0, relative: self.relative != 0 }
    }

    pub(crate) fn dims(&self) -> HeadDims {
        HeadDims { dim: self.dim as usize, v_dim: self.v_dim as usize }
    }

    /// Query heads of a key head.
    pub(crate) fn group_size(&self) -> usize {
        (self.q_heads / self.kv_heads) as usize
    }
}

/// A layer's attention with its vectors looked up: null for none.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Params {
    /// Its scale holds that of keys.
    pub(crate) layer: ops::Attention,
    /// What stored values are multiplied by.
    pub(crate) value_scale: f32,
    pub(crate) sinks: CUdeviceptr,
    pub(crate) alibi: CUdeviceptr,
    pub(crate) relative: CUdeviceptr,
    pub(crate) head_scales: HeadScales,
}

/// Where the scales of each K/V head of a cache lie: null for none.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(crate) struct HeadScales {
    pub(crate) key: CUdeviceptr,
    pub(crate) value: CUdeviceptr,
}

/// What attention reads and writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tensors {
    pub(crate) qkv: View,
    pub(crate) keys: CUdeviceptr,
    pub(crate) values: CUdeviceptr,
    /// Element type of keys and values.
    pub(crate) cache: KvDType,
    pub(crate) out: View,
}

/// Widths of a layer's heads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HeadDims {
    /// Of queries and keys.
    pub(crate) dim: usize,
    /// Of values.
    pub(crate) v_dim: usize,
}

impl HeadDims {
    /// Values as wide as keys.
    pub(crate) const fn same(dim: usize) -> Self {
        Self { dim, v_dim: dim }
    }
}

/// Element types that attention kernels are compiled for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AttentionTypes {
    /// Of queries, and of new keys and values.
    pub(crate) rows: DType,
    /// Of what is cached.
    pub(crate) cache: KvDType,
}

impl AttentionTypes {
    /// Rows of 16 bits, and a cache of the same type or of 8-bit floats: what the fast kernels are for.
    pub(crate) fn are_short(self) -> bool {
        self.rows.size() == 2 && (self.cache == self.rows || self.cache == KvDType::E4m3)
    }
}

impl Tensors {
    pub(crate) fn new(qkv: View, kv: &Kv, out: View) -> Self {
        let (keys, values) = kv.pointers();
        Self { qkv, keys, values, cache: kv.shape.dtype, out }
    }

    pub(crate) fn types(&self) -> AttentionTypes {
        AttentionTypes { rows: self.qkv.dtype, cache: self.cache }
    }
}

/// What the fast kernels are told of a cache of another type than rows have.
pub(crate) fn narrow(cache: KvDType) -> &'static [(&'static str, usize)] {
    if cache == KvDType::E4m3 { &[("NARROW", 1)] } else { &[] }
}
