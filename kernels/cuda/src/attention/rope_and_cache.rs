//! Launches `rope_and_cache.cu` of `kernels/cuda/csrc/attention`, or `rope_and_cache_narrow.cu`: rotates queries and
//! keys, and keeps keys and values.

use cudarc::driver::sys::CUdeviceptr;

use crate::attention::kv::Kv;
use crate::attention::layer::{AttentionTypes, HeadScales};
use crate::fusion::head_norms::QkNorms;
use crate::jit::layouts::twin;
use crate::runtime::activations::View;
use crate::runtime::batch::Batch;
use crate::runtime::device::{Device, Name, Shape, args};
use kernels::ops::{Heads, KvDType, KvScales, Rope, RopeStyle};

/// `struct Layer` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layer {
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
    /// What those of each head are divided by beside.
    key_scales: CUdeviceptr,
    value_scales: CUdeviceptr,
}

twin!(Layer = "Layer" {
    inv_freq, mscale, rotary_dim, interleaved, q_heads, kv_heads, dim, v_dim, block_size, qkv_width, key_factor,
    value_factor, key_scales, value_scales,
});

/// Where keys and values go.
pub(crate) struct Target<'a> {
    pub(crate) kv: &'a Kv,
    /// What they are multiplied by before they are stored.
    pub(crate) factors: KvScales,
    pub(crate) head_scales: HeadScales,
}

/// `rope` comes with where its frequencies are; `norms`, if any, are done first, where [`takes_norms`] says so.
pub(crate) fn rope_and_cache(
    device: &mut Device,
    qkv: View,
    heads: Heads,
    rope: Option<(Rope, CUdeviceptr)>,
    norms: Option<QkNorms>,
    batch: &Batch,
    Target { kv, factors, head_scales }: Target<'_>,
) {
    let width = qkv.width;
    kv.shape.check_rows(heads, [qkv.rows, width], batch.rows());
    batch.check_blocks(kv.shape);
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
        key_scales: head_scales.key,
        value_scales: head_scales.value,
    };
    let (keys, values) = kv.pointers();
    let shared = rotary_dim * size_of::<f32>();
    let types = AttentionTypes { rows: qkv.dtype, cache: kv.shape.dtype };
    let name = |function| Name::in_file(file(types.cache), function, &[types.rows]).with_cache(types.cache);
    let arguments = args![qkv.ptr, batch.pointers, layer, keys, values];
    if let Some(norms) = norms {
        let shape = Shape { shared, ..Shape::rows(qkv.rows, threads(qkv.rows, width)) };
        let arguments = args![qkv.ptr, batch.pointers, layer, keys, values, norms];
        device.launch_early(name("rope_and_cache_normed"), shape, arguments);
    } else if let Some(function) = by_pieces(types, heads, rotary_dim) {
        let shape = Shape { shared, ..Shape::rows(qkv.rows, threads(qkv.rows, width)) };
        device.launch_early(name(function), shape, arguments);
    } else {
        let shape = Shape { shared, ..Shape::rows(qkv.rows, width.min(256)) };
        device.launch(name("rope_and_cache"), shape, arguments);
    }
}

/// The file with what is for such a cache.
fn file(cache: KvDType) -> &'static str {
    if cache == KvDType::E4m3 { "rope_and_cache_narrow" } else { "rope_and_cache" }
}

/// Threads of a row's block where they work on 16 bytes at a time: with few rows, all at once; with many, more blocks
/// at a time.
fn threads(rows: usize, width: usize) -> usize {
    (width / 8).min(if rows > 512 { 256 } else { 512 })
}

/// Whether norms of heads can be done with their rotation.
pub(crate) fn takes_norms(types: AttentionTypes, heads: Heads, rotary_dim: usize) -> bool {
    by_pieces(types, heads, rotary_dim) == Some(WIDE)
        && rotary_dim == heads.dim
        && (16..=256).contains(&rotary_dim)
        && rotary_dim.is_power_of_two()
}

/// The kernel that works on 16 bytes at a time.
const WIDE: &str = "rope_and_cache_wide";

/// The kernel that works on several numbers at a time: as many pairs as the rotated part of a head is a multiple of.
fn by_pieces(types: AttentionTypes, heads: Heads, rotary_dim: usize) -> Option<&'static str> {
    let whole = [heads.dim, heads.v_dim].iter().all(|count| count.is_multiple_of(8));
    let pairs = rotary_dim / 2;
    let kernels = [(8, WIDE), (4, "rope_and_cache_by_fours")];
    let fits = |(at_once, _): &(usize, &str)| types.are_short() && whole && pairs.is_multiple_of(*at_once);
    kernels.into_iter().find(fits).map(|(_, kernel)| kernel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::ops::{DType, KvDType};

    #[test]
    fn kernels_take_as_many_pairs_as_a_rotated_part_is_a_multiple_of() {
        let types = AttentionTypes { rows: DType::Bf16, cache: KvDType::Float(DType::Bf16) };
        let of = |dim, rotary_dim| by_pieces(types, Heads { q: 4, kv: 2, dim, v_dim: dim }, rotary_dim);
        assert_eq!([of(128, 128), of(80, 32), of(64, 0)], [Some(WIDE); 3]);
        // GPT-NeoX-20B's and StableLM 2 12B's.
        assert_eq!([of(96, 24), of(160, 40)], [Some("rope_and_cache_by_fours"); 2]);
        // Pythia 2.8B's.
        assert_eq!([of(80, 20), of(36, 36)], [None; 2]);
        let types = AttentionTypes { rows: DType::F32, ..types };
        assert_eq!(by_pieces(types, Heads { q: 4, kv: 2, dim: 64, v_dim: 64 }, 64), None);
    }
}
