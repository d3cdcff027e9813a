//! Launches `expert_lora.cu`: what adapters of experts add to the products of rows with the experts that they chose.

use cudarc::driver::sys::CUdeviceptr;

use super::lora::{DOTS, EACH, WARPS};
use crate::jit::layouts::twin;
use crate::moe::routing::Choices;
use crate::runtime::activations::View;
use crate::runtime::device::{Device, Name, Shape, args};
use kernels::ops::DType;

/// Outputs of a block that expands.
const BLOCK: usize = 128;

/// `struct ExpertAdapters` of expert_lora.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertAdapters {
    pub(crate) slots: CUdeviceptr,
    pub(crate) ranks: CUdeviceptr,
    pub(crate) ends: CUdeviceptr,
    pub(crate) shrunk: CUdeviceptr,
    pub(crate) experts: u32,
    pub(crate) top_k: u32,
    pub(crate) parts: u32,
    pub(crate) inputs: u32,
    pub(crate) outputs: u32,
    pub(crate) max_rank: u32,
    pub(crate) pairs: u32,
    pub(crate) pairs_a_row: u32,
    pub(crate) pieces: u32,
}

twin!(ExpertAdapters = "ExpertAdapters" {
    slots, ranks, ends, shrunk, experts, top_k, parts, inputs, outputs, max_rank, pairs, pairs_a_row, pieces
});

/// A call with everything looked up. `out` has a row for every choice; `x` one for every choice or for every row.
pub(crate) struct Call<'a> {
    pub(crate) adapters: ExpertAdapters,
    /// Where the two matrices of all adapters lie, and what they are kept in.
    pub(crate) weights: [CUdeviceptr; 2],
    pub(crate) dtype: DType,
    pub(crate) choices: &'a Choices,
    pub(crate) x: View,
    pub(crate) out: View,
}

/// Queues both products of all pairs of row and expert, and adds them to what experts gave.
pub(crate) fn add(device: &mut Device, Call { mut adapters, weights: [a, b], dtype, choices, x, out }: Call<'_>) {
    let chosen = choices.chosen();
    let (shrink, expand, each, dots) = match choices.tile_rows {
        1 => ("expert_lora_shrink", "expert_lora_expand", 1, 1),
        _ => ("expert_lora_shrink_many", "expert_lora_expand_many", EACH, DOTS),
    };
    let pieces = choices.tile_rows.div_ceil(each);
    adapters.pieces = pieces as u32;
    let (blocks, all_dots) = (choices.most_tiles() * pieces, adapters.parts * adapters.max_rank.div_ceil(dots as u32));
    device.launch(
        Name::in_file("expert_lora", shrink, &[x.dtype, dtype]),
        Shape { grid: [blocks, all_dots as usize], block: 32 * WARPS, shared: 0 },
        args![x.ptr, a, chosen, adapters],
    );
    device.launch(
        Name::in_file("expert_lora", expand, &[dtype, out.dtype]),
        Shape { grid: [blocks, out.width.div_ceil(BLOCK)], block: BLOCK, shared: 0 },
        args![b, out.ptr, chosen, adapters],
    );
}
