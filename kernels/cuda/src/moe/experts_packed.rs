//! Launches products of rows with experts whose weights have 4 or 8 bits: `expert_matmul_packed.cu` for experts of few
//! rows, `expert_matmul_packed_wgmma.cu` for those of many on Hopper, `expert_matmul_packed_plain.cu` for every type
//! and shape.

use cudarc::driver::sys::CUdeviceptr;
use kernels::ops::{DType, InputRounding};

use crate::gemm::{matmul_packed, matmul_packed_wgmma};
use crate::jit::specialization::{HOPPER, LOWEST, Special};
use crate::layers::groups::OUTPUTS;
use crate::moe::experts::{Call, ExpertShape, Keep};
use crate::moe::experts_codes::{self, Codes};
use crate::moe::routing::Chosen;
use crate::runtime::activations::View;
use crate::runtime::arch::Arch;
use crate::runtime::context::Memory;
use crate::runtime::device::{Device, Name, Shape, args};
use crate::weights::packed::{CHUNK, Code, Kind, LEAST_GROUP, Packed, TILE};
use crate::weights::{Staging, Weights};

/// What rows of inputs and outputs must be a multiple of: elements of 16 bytes.
const PIECE: usize = 8;
/// Rows of a half of a tile.
const HALF: usize = 8;
/// Columns of `w` from which on eight warps share them.
const MUCH: usize = 8192;
/// Rows of `w` of each of the two tiles of a block of the Hopper kernel, its threads, and the stages that it has.
const BOX: usize = 128;
const HOPPER_THREADS: usize = 384;
const DEPTH: usize = 8;

/// The experts' packed matrices.
pub(crate) struct PackedExperts {
    kind: Kind,
    /// Where each lies, on the device.
    arguments: Memory,
    compute: DType,
    /// Columns of each.
    cols: usize,
    /// How inputs are rounded.
    pub(crate) input: InputRounding,
    /// Whether the rows of each tile share their scales.
    tiles_share: bool,
}

impl PackedExperts {
    /// Absent where members are numbers, or the device has failed.
    pub(crate) fn load(device: &mut Device, staging: &mut Staging, members: &[&Weights]) -> Option<Self> {
        let packed: Vec<&Packed> = members.iter().map(|member| member.packed.as_ref()).collect::<Option<_>>()?;
        let first = packed.first()?;
        let format = |packed: &Packed| (packed.kind, packed.input);
        assert!(packed.iter().all(|packed| format(packed) == format(first)), "experts of one layer differ in format");
        let bytes: Vec<u8> = packed.iter().flat_map(|packed| packed.argument().bytes()).collect();
        let (compute, cols) = (members[0].compute, members[0].cols);
        let tiles_share = packed.iter().all(|packed| packed.tiles_share);
        let arguments = staging.load(device, &bytes)?;
        Some(Self { kind: first.kind, arguments, compute, cols, input: first.input, tiles_share })
    }

    /// Whether products of many rows may be ones of codes with codes.
    pub(crate) fn has_code_blocks(&self) -> bool {
        let group = if self.kind.group == 0 { self.cols } else { self.kind.group };
        self.input == experts_codes::ROUNDING
            && self.kind.code == Code::E4m3
            && group == experts_codes::GROUP
            && self.cols.is_multiple_of(group)
            && self.tiles_share
    }

    /// Where each lies, on the device.
    pub(crate) fn arguments(&self) -> CUdeviceptr {
        self.arguments.ptr
    }

    /// What steps are likely to need.
    pub(crate) fn specials(&self, arch: Arch, keep: Keep) -> impl Iterator<Item = Special> {
        let (kind, dtype, cols) = (self.kind, self.compute, self.cols);
        let is_short = arch >= LOWEST && dtype.size() == 2;
        let skinny = [HALF, 2 * HALF, 4 * HALF].into_iter().filter_map(move |rows| Skinny::of(rows, cols));
        let skinny = skinny.map(move |skinny| skinny.special(kind, dtype, keep));
        let has_codes = self.has_code_blocks();
        let codes = Codes::ALL
            .into_iter()
            .filter(move |_| has_codes)
            .map(move |codes| codes.special(dtype, keep, keep.columns() == 2));
        let wgmma =
            Wgmma::ALL.into_iter().filter(move |_| !has_codes).map(move |wgmma| wgmma.special(kind, dtype, keep));
        let many = (self.kind.pieces() == 1).then(|| Many::special(kind, dtype, keep, keep.columns() == 2));
        skinny.chain(codes.chain(wgmma).chain(many).filter(move |_| arch == HOPPER)).filter(move |_| is_short)
    }
}

/// How `expert_matmul_packed.cu` is compiled: see `packed_skinny.cuh`.
#[derive(Clone, Copy, Debug)]
struct Skinny {
    warps: usize,
    halves: usize,
    depth: usize,
}

impl Skinny {
    const TILES: usize = 2;
    const ALL: [Self; 5] = [
        Self { warps: 4, halves: 1, depth: 2 },
        Self { warps: 8, halves: 1, depth: 2 },
        Self { warps: 4, halves: 2, depth: 2 },
        Self { warps: 8, halves: 2, depth: 2 },
        Self { warps: 8, halves: 4, depth: 1 },
    ];

    /// The one for tiles of `tile_rows` rows. Where k is large blocks are few, and have more warps to share it;
    /// elsewhere more of them read while others begin.
    fn of(tile_rows: usize, k: usize) -> Option<Self> {
        let halves = tile_rows.div_ceil(HALF).next_power_of_two();
        Self::ALL.into_iter().find(|skinny| skinny.halves == halves && (skinny.warps == 8 || k < MUCH))
    }

    fn special(self, kind: Kind, dtype: DType, keep: Keep) -> Special {
        let own = [("WARPS", self.warps), ("HALVES", self.halves), ("TILES", Self::TILES), ("DEPTH", self.depth)];
        let sizes: Vec<_> = kind.macros().into_iter().chain(own).chain([keep.macro_value()]).collect();
        Special::new("expert_matmul_packed", dtype, &sizes)
    }
}

/// How `expert_matmul_packed_wgmma.cu` is compiled: rows of a block, of which a tile may have several.
#[derive(Clone, Copy, Debug)]
struct Wgmma {
    rows: usize,
}

impl Wgmma {
    const ALL: [Self; 3] = [Self { rows: 32 }, Self { rows: 64 }, Self { rows: 128 }];

    fn of(tile_rows: usize) -> Option<Self> {
        Self::ALL.into_iter().rfind(|wgmma| tile_rows >= wgmma.rows && tile_rows.is_multiple_of(wgmma.rows))
    }

    fn special(self, kind: Kind, dtype: DType, keep: Keep) -> Special {
        let own = [("ROWS", self.rows), ("DEPTH", DEPTH)];
        let sizes: Vec<_> = kind.macros().into_iter().chain(own).chain([keep.macro_value()]).collect();
        Special::new("expert_matmul_packed_wgmma", dtype, &sizes)
    }

    /// Stages, two barriers each, sums and pairs of rows, and room to align them.
    fn shared(self) -> usize {
        let barriers = (DEPTH * 2 * size_of::<u64>()).next_multiple_of(128);
        let line = (BOX + 4) * size_of::<f32>() + size_of::<u32>();
        1024 + DEPTH * self.rows * CHUNK * 2 + barriers + self.rows * line
    }
}

/// `expert_matmul_packed_many.cu`: rows of its tiles, its stages, and rows whose sums are in shared memory at once.
pub(crate) struct Many;

impl Many {
    const ROWS: usize = 256;
    const DEPTH: usize = 5;
    const HELD: usize = 64;

    /// `prepares`: whether what is kept is in the order of codes, too.
    fn special(kind: Kind, dtype: DType, keep: Keep, prepares: bool) -> Special {
        let own = [("DEPTH", Self::DEPTH), keep.macro_value(), ("ORDERED", usize::from(prepares))];
        let sizes: Vec<_> = kind.macros().into_iter().chain(own).collect();
        Special::new("expert_matmul_packed_many", dtype, &sizes)
    }

    /// Stages, two barriers each, sums, pairs of rows, and room to align them.
    fn shared() -> usize {
        let barriers = (Self::DEPTH * 2 * size_of::<u64>()).next_multiple_of(128);
        let sums = Self::HELD * (BOX + 4) * size_of::<f32>() + Self::ROWS * size_of::<u32>();
        1024 + Self::DEPTH * Self::ROWS * CHUNK * 2 + barriers + sums
    }

    /// Columns of `out` of a block.
    fn columns(keep: Keep) -> usize {
        BOX / keep.columns()
    }
}

/// Queues the products; false, and nothing happens, where they cannot be gated at once.
pub(crate) fn run(device: &mut Device, call: &Call<'_>, experts: &PackedExperts, shape: ExpertShape) -> bool {
    let chosen = call.choices.chosen();
    if call.codes_wgmma(device, experts, chosen, shape) {
        return true;
    }
    let call = &Call { x: input(device, call, experts), ..*call };
    if call.takes_tensor_cores(device, experts)
        && (call.packed_many(device, experts, chosen, shape)
            || call.packed_wgmma(device, experts, chosen, shape)
            || call.packed_skinny(device, experts, chosen, shape))
    {
        return true;
    }
    if let Keep::Gated(_) = call.keep {
        return false;
    }
    let Call { x, group, bias, choices, out, .. } = call;
    let grid = [choices.most_tiles(), group.n.div_ceil(OUTPUTS)];
    let launch = Shape { grid, block: 32 * OUTPUTS, shared: 0 };
    let name = Name::of("expert_matmul_packed_plain", &[x.dtype, out.dtype]);
    device.launch_early(name, launch, args![x.ptr, experts.arguments.ptr, *bias, chosen, out.ptr, shape]);
    true
}

/// The input of a product of numbers, rounded where it is to be.
fn input(device: &mut Device, call: &Call<'_>, experts: &PackedExperts) -> View {
    if !call.rounds_numbers(experts) {
        return call.x;
    }
    let to = View { ptr: call.room, ..call.x };
    matmul_packed::round(device, experts.input, call.x, to);
    to
}

impl Call<'_> {
    pub(crate) fn takes_tensor_cores(&self, device: &Device, experts: &PackedExperts) -> bool {
        let Self { x, group, keep, out, .. } = self;
        device.context.arch >= LOWEST
            && x.dtype.size() == 2
            && [DType::F32, x.dtype].contains(&out.dtype)
            && group.k.is_multiple_of(PIECE)
            && experts.kind.group.is_multiple_of(LEAST_GROUP)
            && (keep.columns() == 1 || group.n.is_multiple_of(2 * TILE))
    }

    /// Queues the kernel for tiles of few rows; false where it is not for these.
    fn packed_skinny(&self, device: &mut Device, experts: &PackedExperts, chosen: Chosen, shape: ExpertShape) -> bool {
        let Self { x, group, bias, choices, keep, out, .. } = self;
        let Some(skinny) = Skinny::of(choices.tile_rows, group.k) else { return false };
        let grid = [choices.most_tiles(), out.width.div_ceil(TILE * Skinny::TILES / keep.columns())];
        let launch = Shape { grid, block: 32 * skinny.warps, shared: 0 };
        let special = skinny.special(experts.kind, x.dtype, *keep);
        device.launch_special(special, launch, args![out.ptr, x.ptr, experts.arguments.ptr, *bias, chosen, shape])
    }

    /// Whether tiles are those of the kernel for hundreds of rows, which reads `x` in the order of codes.
    pub(crate) fn has_many_rows(&self, device: &Device, experts: &PackedExperts) -> bool {
        device.context.arch == HOPPER
            && self.choices.tile_rows == Many::ROWS
            && experts.kind.pieces() == 1
            && self.group.n.is_multiple_of(PIECE)
            && self.takes_tensor_cores(device, experts)
            && Many::shared() <= device.context.shared_of_block
    }

    /// That kernel, if it is for these and can be compiled.
    pub(crate) fn many(&self, device: &mut Device, experts: &PackedExperts) -> Option<Special> {
        let special = Many::special(experts.kind, self.x.dtype, self.keep, self.prepares);
        let shape = Shape { grid: [1, 1], block: HOPPER_THREADS, shared: Many::shared() };
        let runs = self.has_many_rows(device, experts) && device.blocks_at_once(special, shape) == Some(1);
        runs.then_some(special)
    }

    /// Queues that kernel, after what puts its input in order; false where it is not for these.
    fn packed_many(&self, device: &mut Device, experts: &PackedExperts, chosen: Chosen, shape: ExpertShape) -> bool {
        let Self { x, bias, choices, keep, out, room, .. } = self;
        let Some(special) = self.many(device, experts) else { return false };
        let ordered = if self.is_prepared { x.ptr } else { *room };
        if !self.is_prepared {
            matmul_packed_wgmma::reorder(device, *x, *room);
        }
        let parts = choices.most_tiles() * out.width.div_ceil(Many::columns(*keep));
        let grid = [parts.min(device.context.multiprocessors), 1];
        let launch = Shape { grid, block: HOPPER_THREADS, shared: Many::shared() };
        device.launch_special(special, launch, args![out.ptr, ordered, experts.arguments.ptr, *bias, chosen, shape])
    }

    /// Queues the kernel for tiles of many rows; false where it is not for these.
    fn packed_wgmma(&self, device: &mut Device, experts: &PackedExperts, chosen: Chosen, shape: ExpertShape) -> bool {
        let Self { x, group, bias, choices, keep, out, .. } = self;
        let Some(wgmma) = Wgmma::of(choices.tile_rows) else { return false };
        if device.context.arch != HOPPER
            || !group.n.is_multiple_of(PIECE)
            || wgmma.shared() > device.context.shared_of_block
        {
            return false;
        }
        let parts = choices.most_tiles() * out.width.div_ceil(2 * BOX / keep.columns());
        let grid = [parts.min(device.context.multiprocessors), 1];
        let launch = Shape { grid, block: HOPPER_THREADS, shared: wgmma.shared() };
        let special = wgmma.special(experts.kind, x.dtype, *keep);
        device.launch_special(special, launch, args![out.ptr, x.ptr, experts.arguments.ptr, *bias, chosen, shape])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moe::routing::{ExpertStorage, tile_rows};

    #[test]
    fn tiles_have_a_kernel() {
        for arch in [LOWEST, HOPPER, Arch::new(10, 0)] {
            for rows in [1, 2, 8, 64, 256, 2048, 8192] {
                for (top_k, experts) in [(2, 8), (8, 128), (1, 16), (4, 32)] {
                    let tile = tile_rows(arch, ExpertStorage::Packed, rows, top_k, experts);
                    let wgmma = arch == HOPPER && Wgmma::of(tile).is_some();
                    assert!(
                        [64, MUCH].into_iter().all(|k| Skinny::of(tile, k).is_some()) || wgmma,
                        "{rows} rows, tiles of {tile} on {arch}"
                    );
                }
            }
        }
    }

    #[test]
    fn stages_and_sums_fit() {
        for wgmma in Wgmma::ALL {
            assert!(wgmma.shared() <= 226 << 10, "{wgmma:?}");
        }
    }
}
