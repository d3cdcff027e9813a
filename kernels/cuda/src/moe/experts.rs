//! Launches products of rows with the experts they chose, and their sums: `expert_matmul_skinny.cu` and
//! `expert_matmul_wgmma.cu` for 16-bit weights and inputs, `expert_matmul.cu` for the rest, `combine.cu`.

use cudarc::driver::sys::CUdeviceptr;

use crate::jit::layouts::twin;
use crate::jit::specialization::{HOPPER, LOWEST, Special};
use crate::layers::elementwise::Function;
use crate::layers::groups::{Group, OUTPUTS};
use crate::moe::experts_packed;
use crate::moe::routing::{Choices, Chosen};
use crate::runtime::activations::View;
use crate::runtime::arch::Arch;
use crate::runtime::context::Memory;
use crate::runtime::device::{Device, Name, Shape, args};
use crate::runtime::tensor_map::tensor_map;
use crate::weights::{Staging, Weights};
use kernels::ops::{Activation, DType, Epilogue};

/// What rows of 16-bit inputs and weights must be a multiple of: elements of 16 bytes.
const PIECE: usize = 8;
/// Columns of a box of weights for the copy engine, and boxes of a tile.
const BOX: usize = 64;
const BOXES: usize = 4;
/// Threads of a block of the Hopper kernel.
pub(crate) const HOPPER_THREADS: usize = 384;
/// Bytes of sums on their way out, of both consuming warpgroups: 32 rows of 128 columns.
pub(crate) const LEAVING_LINES: usize = 2 * 32 * 256;

/// What is kept of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keep {
    All,
    /// `activation(gate) * up` of columns `[gate | up]`.
    Gated(Function),
}

impl Keep {
    /// `FUNCTION` of experts.cuh.
    pub(crate) fn macro_value(self) -> (&'static str, usize) {
        /// `ALL`.
        const ALL: usize = 7;
        ("FUNCTION", if let Self::Gated(function) = self { function.number as usize } else { ALL })
    }

    /// Columns of the output for one.
    pub(crate) fn columns(self) -> usize {
        if let Self::Gated(_) = self { 2 } else { 1 }
    }
}

/// How `expert_matmul_skinny.cu` is compiled: see `skinny.cuh`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Skinny {
    warps: usize,
    halves: usize,
    tiles: usize,
    depth: usize,
}

impl Skinny {
    /// For tiles of up to 8 rows three, then of up to 16 and 32. Where columns are gated, fewer loads are under way in
    /// the first two, whose registers would not suffice otherwise.
    fn all(keep: Keep) -> [Self; 5] {
        let depth = if let Keep::All = keep { 4 } else { 3 };
        [
            Self { warps: 4, halves: 1, tiles: 2, depth },
            Self { warps: 8, halves: 1, tiles: 2, depth },
            Self { warps: 16, halves: 1, tiles: 2, depth: 2 },
            Self { warps: 4, halves: 2, tiles: 2, depth: 4 },
            Self { warps: 8, halves: 4, tiles: 2, depth: 2 },
        ]
    }

    /// The one for `tiles` tiles of `tile_rows` rows. Where k is large blocks are few, and have many warps to share it.
    fn of(tiles: usize, tile_rows: usize, [n, k]: [usize; 2], keep: Keep) -> Option<Self> {
        let [narrow, deep, deepest, two, four] = Self::all(keep);
        match tile_rows {
            ..=8 if k < 8192 => Some(narrow),
            ..=8 if tiles * n > 16384 => Some(deep),
            ..=8 => Some(deepest),
            9..=16 => Some(two),
            17..=32 => Some(four),
            _ => None,
        }
    }

    fn special(&self, dtype: DType, keep: Keep) -> Special {
        let Self { warps, halves, tiles, depth } = *self;
        let sizes = [("WARPS", warps), ("HALVES", halves), ("TILES", tiles), ("DEPTH", depth), keep.macro_value()];
        // Rows of x come through the cache, again for each block: 64 rows of DeepSeek-V2-Lite took a fifth longer where
        // the kernel ahead had much shared memory.
        Special::new("expert_matmul_skinny", dtype, &sizes).with_cache()
    }
}

/// How `expert_matmul_wgmma.cu` is compiled: rows of a block's tile, blocks of a cluster, stages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wgmma {
    rows: usize,
    blocks: usize,
    depth: usize,
}

impl Wgmma {
    const ALL: [Self; 4] = [
        Self { rows: 32, blocks: 1, depth: 5 },
        Self { rows: 64, blocks: 1, depth: 5 },
        Self { rows: 160, blocks: 1, depth: 4 },
        Self { rows: 160, blocks: 2, depth: 4 },
    ];

    /// For tiles that were made for packed experts, where some of a model's are not.
    const BESIDE_PACKED: [Self; 2] = [Self { rows: 128, blocks: 1, depth: 4 }, Self { rows: 128, blocks: 2, depth: 4 }];

    /// The one whose clusters' tiles have `tile_rows` rows.
    fn of(tile_rows: usize) -> Option<Self> {
        let mut all = Self::ALL.into_iter().chain(Self::BESIDE_PACKED);
        all.find(|wgmma| tile_rows == wgmma.rows * wgmma.blocks)
    }

    fn special(&self, dtype: DType, keep: Keep) -> Special {
        let Self { rows, blocks, depth } = *self;
        let sizes = [("ROWS", rows), ("BLOCKS", blocks), ("DEPTH", depth), keep.macro_value()];
        Special::new("expert_matmul_wgmma", dtype, &sizes)
    }

    /// Stages of weights and inputs, two barriers each, what is on its way out, and room to align them.
    fn shared(&self) -> usize {
        const STEP_BYTES: usize = 128;
        let leaving = LEAVING_LINES + 2 * self.rows * size_of::<u32>();
        1024 + self.depth * ((BOX * BOXES + self.rows) * STEP_BYTES + 2 * size_of::<u64>()) + leaving
    }
}

/// What is compiled ahead for any model: gates are nearly always SiLU.
pub(crate) fn usual(arch: Arch, dtype: DType) -> impl Iterator<Item = Special> {
    [Keep::All, Keep::Gated(Activation::Silu.into())].into_iter().flat_map(move |keep| {
        Skinny::all(keep).into_iter().map(move |skinny| skinny.special(dtype, keep)).chain(wgmma(arch, dtype, keep))
    })
}

/// Kernels for products with a group of numbers of 16 bits, for tiles of few rows first: those that [`expert_matmul`]
/// prefers.
pub(crate) fn specials(arch: Arch, group: &Group, keep: Keep) -> Vec<Special> {
    let (dtype, shape) = (group.dtype, [group.n, group.k]);
    if dtype.size() != 2 || group.compute != dtype || !group.k.is_multiple_of(PIECE) {
        return Vec::new();
    }
    let by_wgmma = arch == HOPPER && group.maps.is_some();
    let tiles = [(1, 1), (group.count, 8), (group.count, 16), (group.count, 32)];
    let few = tiles.into_iter().filter(|(_, rows)| !(by_wgmma && Wgmma::of(*rows).is_some()));
    let few = few.filter_map(|(tiles, rows)| Skinny::of(tiles, rows, shape, keep));
    let many = wgmma(arch, dtype, keep).filter(|_| by_wgmma);
    let mut all: Vec<Special> = few.map(|skinny| skinny.special(dtype, keep)).chain(many).collect();
    all.dedup();
    all
}

fn wgmma(arch: Arch, dtype: DType, keep: Keep) -> impl Iterator<Item = Special> {
    Wgmma::ALL.into_iter().filter(move |_| arch == HOPPER).map(move |wgmma| wgmma.special(dtype, keep))
}

/// Descriptions of each matrix for the copy engine, on the device; absent where it cannot be used.
pub(crate) fn maps(device: &mut Device, staging: &mut Staging, members: &[&Weights]) -> Option<Memory> {
    if device.context.arch != HOPPER || members.first()?.dtype.size() != 2 || !members[0].cols.is_multiple_of(PIECE) {
        return None;
    }
    let map = |matrix: &&Weights| tensor_map(matrix.ptr(), matrix.dtype, [matrix.rows, matrix.cols], BOX).ok();
    let maps: Vec<_> = members.iter().map(map).collect::<Option<_>>()?;
    let bytes: Vec<u8> = maps.iter().flat_map(|map| map.opaque).flat_map(u64::to_ne_bytes).collect();
    staging.load(device, &bytes)
}

/// `struct ExpertShape` of experts.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertShape {
    pairs: u32,
    pairs_a_row: u32,
    n: u32,
    k: u32,
    wide: u32,
    limit: f32,
}

twin!(ExpertShape = "ExpertShape" { pairs, pairs_a_row, n, k, wide, limit });

/// A call with everything looked up. `out` has a row for every choice; `x` one for every choice or for every row.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) x: View,
    /// Whether those rows were left as the kernel for them reads them (`experts_prepared.rs`).
    pub(crate) is_prepared: bool,
    pub(crate) group: &'a Group,
    pub(crate) bias: CUdeviceptr,
    pub(crate) choices: &'a Choices,
    pub(crate) keep: Keep,
    pub(crate) out: View,
    /// Whether it gets rows as the next product's kernel reads them.
    pub(crate) prepares: bool,
    /// Memory of `room_bytes` for rounded inputs.
    pub(crate) room: CUdeviceptr,
}

/// Queues the products of rows with their experts; false, and nothing happens, where they cannot be gated at once.
pub(crate) fn expert_matmul(device: &mut Device, call: &Call<'_>) -> bool {
    let Call { x, group, bias, choices, keep, out, .. } = call;
    let [pairs, pairs_a_row] = [out.rows, out.rows / x.rows.max(1)].map(|number| number as u32);
    let limit = if let Keep::Gated(function) = keep { function.limit } else { 0.0 };
    let wide = u32::from(out.dtype == DType::F32);
    let shape = ExpertShape { pairs, pairs_a_row, n: group.n as u32, k: group.k as u32, wide, limit };
    if let Some(experts) = &group.packed {
        return experts_packed::run(device, call, experts, shape);
    }
    let chosen = choices.chosen();
    if call.wgmma(device, chosen, shape) || call.skinny(device, chosen, shape) {
        return true;
    }
    if let Keep::Gated(_) = keep {
        return false;
    }
    let grid = [choices.most_tiles(), group.n.div_ceil(OUTPUTS)];
    let name = Name::of("expert_matmul", &[x.dtype, group.dtype, out.dtype]);
    let launch = Shape { grid, block: 32 * OUTPUTS, shared: 0 };
    device.launch_early(name, launch, args![x.ptr, group.ptr(), *bias, chosen, out.ptr, shape]);
    true
}

impl Call<'_> {
    fn is_16_bit(&self) -> bool {
        let Self { x, group, out, .. } = self;
        let outputs = [DType::F32, group.dtype];
        group.dtype.size() == 2
            && x.dtype == group.dtype
            && outputs.contains(&out.dtype)
            && group.k.is_multiple_of(PIECE)
    }

    /// Queues the kernel for tiles of few rows; false where it is not for these.
    fn skinny(&self, device: &mut Device, chosen: Chosen, shape: ExpertShape) -> bool {
        let Self { x, group, bias, choices, keep, out, .. } = self;
        let Some(skinny) = Skinny::of(choices.most_tiles(), choices.tile_rows, [group.n, group.k], *keep) else {
            return false;
        };
        if device.context.arch < LOWEST || !self.is_16_bit() {
            return false;
        }
        let grid = [choices.most_tiles(), out.width.div_ceil(8 * skinny.tiles / keep.columns())];
        let launch = Shape { grid, block: 32 * skinny.warps, shared: 0 };
        let special = skinny.special(group.dtype, *keep);
        device.launch_special(special, launch, args![out.ptr, x.ptr, group.ptr(), *bias, chosen, shape])
    }

    /// Queues the kernel for tiles of many rows; false where it is not for these.
    fn wgmma(&self, device: &mut Device, chosen: Chosen, shape: ExpertShape) -> bool {
        let Self { x, group, bias, choices, keep, out, .. } = self;
        let (Some(wgmma), Some(maps)) = (Wgmma::of(choices.tile_rows), &group.maps) else { return false };
        if !self.is_16_bit() || !out.width.is_multiple_of(PIECE) || wgmma.shared() > device.context.shared_of_block {
            return false;
        }
        let special = wgmma.special(group.dtype, *keep);
        let cluster = Shape { grid: [wgmma.blocks, 1], block: HOPPER_THREADS, shared: wgmma.shared() };
        let clusters = match device.clusters_at_once(special, cluster) {
            Some(0) => return false,
            Some(clusters) => clusters,
            None => return device.fault().is_some(),
        };
        let work = choices.most_tiles() * out.width.div_ceil(BOX * BOXES / keep.columns());
        let launch = Shape { grid: [wgmma.blocks * work.min(clusters), 1], ..cluster };
        device.launch_special(special, launch, args![out.ptr, x.ptr, maps.ptr, *bias, chosen, shape])
    }
}

/// Queues the weighted sums of what experts gave.
pub(crate) fn combine(device: &mut Device, x: View, choices: &Choices, epilogue: Epilogue, out: View) {
    assert_eq!((x.rows, x.width), (out.rows * choices.top_k, out.width), "what experts gave, and its sums");
    let [top_k, width] = [choices.top_k, out.width].map(|number| number as u32);
    let accumulate = u32::from(epilogue == Epilogue::Accumulate);
    let name = Name::of("combine", &[x.dtype, out.dtype]);
    const BLOCK: usize = 256;
    // A thread reads 16 bytes of each.
    let columns = BLOCK * 16 / x.dtype.size();
    let shape = Shape { grid: [out.rows, out.width.div_ceil(columns)], block: BLOCK, shared: 0 };
    device.launch_early(name, shape, args![x.ptr, choices.chosen().weights, out.ptr, top_k, width, accumulate]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moe::routing::{ExpertStorage, tile_rows};

    #[test]
    fn tiles_have_a_kernel() {
        for arch in [LOWEST, HOPPER, Arch::new(10, 0)] {
            for rows in [1, 2, 8, 64, 256, 2048, 8192] {
                for (top_k, experts) in [(2, 8), (8, 128), (1, 16), (6, 160)] {
                    for tile in [ExpertStorage::Numbers, ExpertStorage::Packed]
                        .map(|stored| tile_rows(arch, stored, rows, top_k, experts))
                    {
                        for k in [768, 4096, 14336] {
                            let skinny = Skinny::of(rows, tile, [4096, k], Keep::All)
                                .is_some_and(|skinny| tile <= 8 * skinny.halves);
                            let wgmma = arch == HOPPER && Wgmma::of(tile).is_some();
                            assert!(skinny || wgmma, "{rows} rows of {k}, tiles of {tile} on {arch}");
                        }
                    }
                }
            }
        }
    }
}
