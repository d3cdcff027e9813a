//! Adapters of a layer on tensor cores, from compute capability 8.0 on, where rows and adapters are of one 16-bit type:
//! the launches of `lora_shrink.cu`, `lora_expand.cu` and `lora_gate.cu`.

use cudarc::driver::sys::CUdeviceptr;

use super::adapter_groups::AdapterGroups;
use crate::jit::layouts::twin;
use crate::jit::specialization::{LOWEST, Special};
use crate::runtime::activations::View;
use crate::runtime::device::{Device, Shape, args};
use kernels::ops::DType;

/// `struct AdapterRows` of csrc/include/adapter_rows.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdapterRows {
    pub(crate) groups: CUdeviceptr,
    pub(crate) order: CUdeviceptr,
    pub(crate) ranks: CUdeviceptr,
    pub(crate) count: u32,
    pub(crate) rows: u32,
    pub(crate) parts: u32,
    pub(crate) max_rank: u32,
}

twin!(AdapterRows = "AdapterRows" { groups, order, ranks, count, rows, parts, max_rank });

/// Ranks of a block that shrinks, and its warps.
const DEPTH: usize = 16;
const SHARES: usize = 8;
/// Warps of a block that expands, and outputs of a warp.
const EXPANDERS: usize = 4;
const OUTPUTS: usize = 32;
/// Inputs of a block's share at least, and most shares.
const SHARE: usize = 1024;
const MOST_SPLITS: usize = 8;
/// Blocks of each kernel that a device has room for at the same time, about: more take several groups each.
const SHRINK_BLOCKS: usize = 512;
const EXPAND_BLOCKS: usize = 896;
const GATE_BLOCKS: usize = 512;

/// Inputs that one block sums. A row's sums depend on this, so it depends on the inputs alone.
fn split_length(inputs: usize) -> usize {
    // Each warp has pieces of 32.
    inputs.div_ceil(MOST_SPLITS).next_multiple_of(32 * SHARES).max(SHARE)
}

/// Parts in which a row's sums are left.
pub(crate) fn splits(inputs: usize) -> usize {
    inputs.div_ceil(split_length(inputs))
}

/// Whether adapters of this type and rank can be expanded here.
pub(crate) fn expands(device: &Device, dtype: DType, max_rank: usize) -> bool {
    device.context.arch >= LOWEST && dtype.size() == 2 && max_rank.is_multiple_of(8)
}

/// Whether rows of `x` can be shrunk here.
pub(crate) fn shrinks(device: &Device, x: View, dtype: DType, max_rank: usize) -> bool {
    expands(device, dtype, max_rank) && x.dtype == dtype && x.width.is_multiple_of(8)
}

fn shrink_special(dtype: DType, tiles: usize) -> Special {
    Special::new("lora_shrink", dtype, &[("ROW_TILES", 2 * tiles)])
}

fn expand_special(dtype: DType, out: DType, tiles: usize) -> Special {
    Special::new("lora_expand", dtype, &[("ROW_TILES", tiles), ("WIDE", usize::from(out == DType::F32))])
}

fn gate_special(dtype: DType, tiles: usize) -> Special {
    Special::new("lora_gate", dtype, &[("ROW_TILES", tiles)])
}

/// All that steps with adapters of a type may need.
pub(crate) fn specials(dtype: DType) -> Vec<Special> {
    let of = |tiles| {
        let expand = [dtype, DType::F32].map(|out| expand_special(dtype, out, tiles));
        [shrink_special(dtype, tiles), gate_special(dtype, tiles)].into_iter().chain(expand)
    };
    [1, 2].into_iter().flat_map(of).collect()
}

/// A layer's weights of one half, and the step's rows.
#[derive(Clone, Copy)]
pub(crate) struct Half {
    pub(crate) layout: AdapterGroups,
    pub(crate) rows: AdapterRows,
    /// `[slots][parts][max_rank][inputs]`, or `[slots][outputs * max_rank]`.
    pub(crate) weights: CUdeviceptr,
    pub(crate) dtype: DType,
    /// `[splits][rows][parts][max_rank]`.
    pub(crate) shrunk: CUdeviceptr,
}

/// A layer's second halves, for products that gate what these add to.
#[derive(Clone, Copy)]
pub(crate) struct GateAdapters {
    pub(crate) half: Half,
    /// In how many parts shrunk sums are left.
    pub(crate) splits: usize,
    /// The slots of the step's rows.
    pub(crate) slots: CUdeviceptr,
}

/// Blocks for `outputs` of a layer, and for groups, many of which may be empty; `most` in all.
fn grid(outputs: usize, layout: AdapterGroups, most: usize) -> [usize; 2] {
    [outputs, layout.groups.min((most / outputs).max(1))]
}

/// A layer's projections.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a> {
    pub(crate) outputs: &'a [usize],
    /// Where on the device it says where each one's outputs end.
    pub(crate) ends: CUdeviceptr,
}

impl Half {
    /// Shrinks rows; in how many parts the sums are left, or none where the kernel cannot be compiled.
    pub(crate) fn shrink(&self, device: &mut Device, x: View) -> Option<usize> {
        let Self { layout, rows, weights, dtype, shrunk } = *self;
        let length = split_length(x.width);
        let splits = if layout.sums_all() { 1 } else { splits(x.width) };
        let outputs = rows.parts as usize * (rows.max_rank as usize).div_ceil(DEPTH);
        let shape = Shape { grid: grid(outputs * splits, layout, SHRINK_BLOCKS), block: 32 * SHARES, shared: 0 };
        let [inputs, length] = [x.width, length].map(|size| size as u32);
        let special = shrink_special(dtype, layout.tiles());
        device.launch_special(special, shape, args![x.ptr, weights, rows, shrunk, inputs, length]).then_some(splits)
    }

    /// Expands shrunk rows, and adds them.
    pub(crate) fn expand(&self, device: &mut Device, splits: usize, parts: Parts<'_>, out: View) -> bool {
        let Self { layout, rows, weights, dtype, shrunk } = *self;
        let Parts { outputs, ends } = parts;
        let blocks = outputs.iter().map(|outputs| outputs.div_ceil(OUTPUTS * EXPANDERS)).sum();
        let shape = Shape { grid: grid(blocks, layout, EXPAND_BLOCKS), block: 32 * EXPANDERS, shared: 0 };
        let [splits, all] = [splits, out.width].map(|size| size as u32);
        let special = expand_special(dtype, out.dtype, layout.tiles());
        device.launch_special(special, shape, args![shrunk, splits, weights, rows, ends, out.ptr, all])
    }

    /// Expands shrunk rows of `[gate | up]`, adds them to `gate_up` unwritten, and gates that by SiLU.
    pub(crate) fn gate(&self, device: &mut Device, splits: usize, gate_up: View, out: View) -> bool {
        let Self { layout, rows, weights, dtype, shrunk } = *self;
        let blocks = out.width.div_ceil(OUTPUTS * EXPANDERS);
        let shape = Shape { grid: grid(blocks, layout, GATE_BLOCKS), block: 32 * EXPANDERS, shared: 0 };
        let [splits, width] = [splits, out.width].map(|size| size as u32);
        let special = gate_special(dtype, layout.tiles());
        device.launch_special(special, shape, args![shrunk, splits, weights, rows, gate_up.ptr, out.ptr, width])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_are_whole_pieces_of_warps() {
        for inputs in [8, 64, 512, 1000, 4096, 14_336, 28_672, 100_000] {
            assert_eq!(split_length(inputs) % (32 * SHARES), 0);
            assert!(splits(inputs) <= MOST_SPLITS && splits(inputs) * split_length(inputs) >= inputs);
        }
        assert_eq!([4096, 14_336].map(splits), [4, 8]);
    }
}
