//! Launches `kernels/cuda/csrc/attention/attention_cascade.cu`, and `attention_decode.cu` after it, for steps of
//! sequences that share the first blocks of their tables (`runtime/shared_prefix.rs`).

use cudarc::driver::sys::CUdeviceptr;

use crate::attention::attention_decode::{self, Cascaded, Scratch};
use crate::attention::attention_prefill;
use crate::attention::layer::{AttentionTypes, HeadDims, Layer, Tensors, narrow};
use crate::jit::layouts::twin;
use crate::jit::specialization::Special;
use crate::runtime::batch::Batch;
use crate::runtime::context::Memory;
use crate::runtime::device::{Device, Shape, args};

/// Warps of a block, and rows of a unit: pairs of sequence and query head.
const WARPS: usize = 8;
const ROWS: usize = 16 * WARPS;
/// Units that there is room for, by block of the grid.
const UNITS: usize = 2;

/// `struct Cascade` of kernels/cuda/csrc/attention/cascade.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cascade {
    units: CUdeviceptr,
    most: u32,
    blocks: u32,
}

twin!(Cascade = "Cascade" { units, most, blocks });

/// For rows of a type, and a cache of the same or of 8-bit floats.
fn special(types: AttentionTypes, HeadDims { dim, v_dim }: HeadDims) -> Special {
    let sizes = [("DIM", dim), ("V_DIM", v_dim), ("WARPS", WARPS)];
    Special::new("attention_cascade", types.rows, &[&sizes, narrow(types.cache)].concat())
}

/// What units leave for [`attention_decode`] to add.
#[derive(Debug)]
pub(crate) struct Units(Memory);

impl Units {
    /// For layers of such heads.
    pub(crate) fn new(device: &mut Device, dims: HeadDims) -> Option<Self> {
        device.allocate(bytes(device, dims), "parts of cascade attention").map(Self)
    }

    /// Whether they are enough for such heads.
    pub(crate) fn are_for(&self, device: &Device, dims: HeadDims) -> bool {
        bytes(device, dims) <= self.0.bytes
    }

    /// None where there is no room for the units of that many sequences.
    fn of(&self, device: &Device, layer: &Layer, sequences: usize) -> Option<Cascade> {
        let blocks = blocks(device, layer.dims());
        let (most, all) = (UNITS * blocks, (sequences * layer.group_size()).div_ceil(ROWS) * layer.kv_heads as usize);
        let fits = all <= most && self.are_for(device, layer.dims());
        fits.then_some(Cascade { units: self.0.ptr, most: most as u32, blocks: blocks as u32 })
    }
}

/// Bytes of the units that there is room for: `Unit` of the kernel has sums, and two numbers, of each row.
fn bytes(device: &Device, dims: HeadDims) -> usize {
    UNITS * blocks(device, dims) * ROWS * (dims.v_dim + 2) * size_of::<f32>()
}

/// Blocks that run at once: a multiprocessor has registers for one, or where heads are narrow for two.
fn blocks(device: &Device, HeadDims { dim, v_dim }: HeadDims) -> usize {
    device.context.multiprocessors * if dim + v_dim <= 128 { 2 } else { 1 }
}

/// Whether a layer that the fast kernels are for can be done here.
pub(crate) fn takes(device: &Device, layer: &Layer) -> bool {
    layer.sees_all_before() && attention_prefill::shared(layer.dims()) <= device.context.shared_of_block
}

/// Both kernels, for groups of query heads.
pub(crate) fn specials(types: AttentionTypes, dims: HeadDims, group: usize) -> [Special; 2] {
    [special(types, dims), attention_decode::cascaded(types, dims, group).0]
}

/// Those of a layer, with their shared memory.
pub(crate) fn kernels(types: AttentionTypes, layer: &Layer) -> [(Special, usize); 2] {
    let dims = layer.dims();
    let rest = attention_decode::cascaded(types, dims, layer.group_size());
    [(special(types, dims), attention_prefill::shared(dims)), rest]
}

/// Where both kernels leave parts of heads.
pub(crate) struct Rooms<'a> {
    pub(crate) scratch: &'a Scratch,
    pub(crate) units: &'a Units,
}

/// Queues attention of the sequences with one row, some of which share a prefix; false if that cannot be here.
pub(crate) fn run(
    device: &mut Device,
    Rooms { scratch, units }: Rooms<'_>,
    tensors: Tensors,
    layer: Layer,
    batch: &Batch,
) -> bool {
    let sequences = batch.all();
    let Some(cascade) = units.of(device, &layer, sequences.count).filter(|_| takes(device, &layer)) else {
        return false;
    };
    let (Tensors { qkv, keys, values, .. }, dims) = (tensors, layer.dims());
    let shape =
        Shape { grid: [cascade.blocks as usize, 1], block: 32 * WARPS, shared: attention_prefill::shared(dims) };
    device.launch_special(
        special(tensors.types(), dims),
        shape,
        args![qkv.ptr, keys, values, sequences.pointers, layer, cascade],
    ) && attention_decode::run_cascaded(device, scratch, tensors, layer, Cascaded { sequences, cascade })
}
