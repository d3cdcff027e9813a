//! Launches `expert_matmul_codes_wgmma.cu`: products of rows with experts whose weights are 8-bit floats in blocks of
//! 128 columns, where inputs are rounded alike and experts have many rows. A pass rounds the inputs first
//! (`csrc/gemm/prepare_input.cu`).

use cudarc::driver::sys::CUdeviceptr;
use kernels::ops::{DType, InputRounding, WeightFormat};

use crate::jit::specialization::{HOPPER, Special};
use crate::moe::experts::{Call, ExpertShape, HOPPER_THREADS, Keep, LEAVING_LINES};
use crate::moe::experts_packed::PackedExperts;
use crate::moe::routing::Chosen;
use crate::runtime::activations::View;
use crate::runtime::device::{Device, Name, Shape, args};
use crate::weights::packed::CHUNK;

/// Columns that share a scale, on both sides.
pub(crate) const GROUP: usize = 128;
/// What inputs are rounded to.
pub(crate) const ROUNDING: InputRounding = InputRounding::Dynamic { cols: GROUP };
/// Columns of `out` of a tile where none are gated.
const COLUMNS: usize = 256;

/// Whether products of many rows with experts of this format, `cols` in a row, are ones of codes.
pub(crate) fn takes(format: WeightFormat, cols: usize) -> bool {
    format == WeightFormat::ScaledE4m3 { scale_cols: GROUP, input: ROUNDING } && cols.is_multiple_of(GROUP)
}

/// How the kernel is compiled: rows of a block's tile, blocks of a cluster, stages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codes {
    rows: usize,
    blocks: usize,
    depth: usize,
}

impl Codes {
    pub(crate) const ALL: [Self; 3] = [
        Self { rows: 64, blocks: 1, depth: 5 },
        Self { rows: 128, blocks: 1, depth: 4 },
        Self { rows: 128, blocks: 2, depth: 4 },
    ];

    /// The one whose clusters' tiles have `tile_rows` rows.
    fn of(tile_rows: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|codes| tile_rows == codes.rows * codes.blocks)
    }

    /// `prepares`: whether what is gated becomes codes.
    pub(crate) fn special(self, dtype: DType, keep: Keep, prepares: bool) -> Special {
        let Self { rows, blocks, depth } = self;
        let coded = ("CODED", usize::from(prepares));
        let sizes = [("ROWS", rows), ("BLOCKS", blocks), ("DEPTH", depth), coded, keep.macro_value()];
        Special::new("expert_matmul_codes_wgmma", dtype, &sizes)
    }

    fn cluster(self) -> Shape {
        Shape { grid: [self.blocks, 1], block: HOPPER_THREADS, shared: self.shared() }
    }

    /// Stages of weights, inputs and their scales, two barriers each, what is on its way out, and room to align them.
    fn shared(self) -> usize {
        let stage = (COLUMNS + self.rows) * GROUP + self.rows * size_of::<f32>() + 2 * size_of::<u64>();
        1024 + self.depth * stage + LEAVING_LINES + 2 * self.rows * size_of::<u32>()
    }
}

/// Bytes of rows as codes and scales, the codes first.
fn input_bytes(rows: usize, width: usize) -> usize {
    rows * (width + width / GROUP * size_of::<f32>())
}

impl Call<'_> {
    /// The kernel for these, where there is one.
    fn codes(&self, device: &Device, experts: &PackedExperts) -> Option<Codes> {
        let codes = Codes::of(self.choices.tile_rows)?;
        let fits = device.context.arch == HOPPER
            && experts.has_code_blocks()
            && self.takes_tensor_cores(device, experts)
            && self.out.width.is_multiple_of(8)
            && codes.shared() <= device.context.shared_of_block;
        fits.then_some(codes)
    }

    /// Whether there is one, and it can be compiled.
    pub(crate) fn multiplies_codes(&self, device: &mut Device, experts: &PackedExperts) -> bool {
        self.codes(device, experts).is_some_and(|codes| {
            let special = codes.special(self.x.dtype, self.keep, self.prepares);
            device.clusters_at_once(special, codes.cluster()).is_some_and(|clusters| clusters > 0)
        })
    }

    /// Bytes that inputs take beside themselves in the largest step: rounded as the experts ask for, as codes or as
    /// numbers.
    pub(crate) fn room_bytes(&self, device: &Device) -> usize {
        let Some(experts) = &self.group.packed else { return 0 };
        match self.codes(device, experts) {
            Some(_) if self.is_prepared => 0,
            Some(_) => input_bytes(self.x.most_rows, self.x.width),
            None if self.has_many_rows(device, experts) && !self.is_prepared => {
                self.x.most_rows * self.x.width.next_multiple_of(CHUNK) * self.x.dtype.size()
            }
            None if self.rounds_numbers(experts) => self.x.most_rows * self.x.width * self.x.dtype.size(),
            None => 0,
        }
    }

    /// Whether inputs are rounded that are multiplied as numbers: those of 16 bits of few rows are left as they are.
    pub(crate) fn rounds_numbers(&self, experts: &PackedExperts) -> bool {
        let many = self.x.dtype == DType::F32 || Codes::of(self.choices.tile_rows).is_some();
        experts.input != InputRounding::None && many
    }

    /// Queues the rounding of inputs and the product; false where it is not for these.
    pub(crate) fn codes_wgmma(
        &self,
        device: &mut Device,
        experts: &PackedExperts,
        chosen: Chosen,
        shape: ExpertShape,
    ) -> bool {
        let Self { x, bias, choices, keep, out, room, .. } = self;
        let Some(codes) = self.codes(device, experts) else { return false };
        let special = codes.special(x.dtype, *keep, self.prepares);
        let cluster = codes.cluster();
        let clusters = match device.clusters_at_once(special, cluster) {
            Some(0) => return false,
            Some(clusters) => clusters,
            None => return device.fault().is_some(),
        };
        let input = if self.is_prepared { x.ptr } else { *room };
        if !self.is_prepared {
            quantize(device, *x, input);
        }
        let (scales, weights) = (scales_of(*x, input), experts.arguments());
        let work = choices.most_tiles() * out.width.div_ceil(COLUMNS / keep.columns());
        let launch = Shape { grid: [codes.blocks * work.min(clusters), 1], ..cluster };
        let arguments = args![out.ptr, input, scales, weights, *bias, chosen, shape];
        device.launch_special(special, launch, arguments)
    }
}

/// Queues the rounding of rows.
fn quantize(device: &mut Device, x: View, to: CUdeviceptr) {
    const THREADS: usize = 256;
    let (scales, groups) = (scales_of(x, to), x.rows * (x.width / GROUP));
    let shape = Shape { grid: [groups.div_ceil(THREADS / 32), 1], block: THREADS, shared: 0 };
    let name = Name::in_file("prepare_input", "quantize_groups", &[x.dtype]);
    device.launch_early(name, shape, args![x.ptr, to, scales, groups as u32]);
}

/// Where the scales of rows are whose codes lie at `codes`.
fn scales_of(x: View, codes: CUdeviceptr) -> CUdeviceptr {
    codes + x.elements() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moe::routing::{ExpertStorage, tile_rows};

    #[test]
    fn experts_of_many_rows_multiply_codes() {
        for rows in [1024, 2048, 8192] {
            let tile = tile_rows(HOPPER, ExpertStorage::Packed, rows, 8, 128);
            assert!(Codes::of(tile).is_some(), "{rows} rows, tiles of {tile}");
        }
        let tile = tile_rows(HOPPER, ExpertStorage::Packed, 256, 8, 128);
        assert!(Codes::of(tile).is_none(), "tiles of {tile}");
    }

    #[test]
    fn stages_and_sums_fit() {
        for codes in Codes::ALL {
            assert!(codes.shared() <= 226 << 10, "{codes:?}");
        }
    }
}
