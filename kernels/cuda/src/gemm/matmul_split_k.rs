//! Launches `kernels/cuda/csrc/gemm/matmul_split_k.cu`: products of 17 to 128 rows on Hopper, with parts of `k` for the
//! blocks of a cluster, what gates their outputs, and parts of norms before and after them.

use cudarc::driver::sys::{CUdeviceptr, CUtensorMap};

use crate::fusion::split_norm::{After, Before, may_precede};
use crate::gemm::matmul_wgmma::{ALL, HopperShape};
use crate::gemm::product::{Activated, Gate, OutputFunction, Product};
use crate::gemm::table::{Facts, Fused};
use crate::jit::specialization::{HOPPER, Special};
use crate::layers::lora_mma::{GateAdapters, Half};
use crate::runtime::activations::View;
use crate::runtime::device::{Device, Shape, args};
use crate::runtime::tensor_map::{tensor_map, tensor_map_of_groups};
use crate::weights::Weights;
use kernels::ops::{Activation, DType, Epilogue};

/// Rows of `x` that the kernel is compiled for.
const ROWS: [usize; 5] = [32, 48, 64, 96, 128];
/// Fewer rows are `matmul_skinny`'s.
const LEAST_ROWS: usize = 17;
/// Rows of a box of `w`, columns of `k` in a chunk.
const BOX: usize = 64;
const CHUNK: usize = 64;
/// Rows of a group that a box of `w` consists of.
const GROUP: usize = 8;
/// Shared memory of a multiprocessor, what it keeps of that for each block, and what aligns stages.
const SHARED: usize = 228 << 10;
const KEPT: usize = 1 << 10;
const MARGIN: usize = 1 << 10;
/// Bytes of what rows are multiplied by.
const FACTORS: usize = ROWS[ROWS.len() - 1] * size_of::<f32>();
/// Stages at most, and at least.
const MOST_STAGES: usize = 10;
const LEAST_STAGES: usize = 2;
/// Rows of `x` up to which reading `w` alone counts, and how that meets what is read before and after it; columns of
/// `k` from which on blocks may share a multiprocessor for that.
const FEW_ROWS: usize = 64;
const DEEP: usize = 2048;
/// Warpgroups and parts of wide tiles.
const WIDE_GROUPS: usize = 3;
const WIDE_PARTS: usize = 4;
/// Ranks up to which adapters' deltas are made by a gated product itself: `RANKS` of adapter_rows.cuh.
const MOST_RANK: usize = 16;
/// Rows of a matrix, and of `x`, up to which a norm after it is a part of the product: beyond, the norm takes less than
/// what it hides.
const SMALL: usize = 2048;
const MOST_NORMED_ROWS: usize = 96;

/// How the kernel is compiled: rows of `x` at most, warpgroups that multiply, parts of `k`, chunks of a stage, and
/// stages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Config {
    rows: usize,
    groups: usize,
    parts: usize,
    chunks: usize,
    depth: usize,
}

impl Config {
    /// For a product with a matrix `[n, k]`.
    fn of(rows: usize, [n, k]: [usize; 2], gated: bool, multiprocessors: usize) -> Option<Self> {
        let rows = ROWS.into_iter().find(|most| *most >= rows)?;
        let few = rows <= FEW_ROWS;
        let share = few && k >= DEEP;
        // Blocks of a wave: halves of few rows' k may be numerous enough that two share a multiprocessor; gated, parts
        // are worth it for few tiles only.
        let wave = |parts| match parts {
            _ if few && gated => multiprocessors / 2,
            1 | 2 if share => 2 * multiprocessors,
            _ => multiprocessors,
        };
        // Halves of few rows of `w`, where they fit: more of them make the sums of parts dearer.
        let groups = if gated || 2 * n.div_ceil(BOX) > wave(2) { 2 } else { 1 };
        let tiles = n.div_ceil(groups * BOX);
        // Clusters of more than two blocks do not fill the device where each block has a multiprocessor. Of two blocks
        // that share one, one reads while the other begins or ends.
        let ring = |parts| match parts {
            4.. => (1, 2),
            _ if share && tiles * parts > multiprocessors => (2, 2),
            _ => (2, 1),
        };
        let steps = |parts| k.div_ceil(ring(parts).0 * CHUNK);
        let fits = |parts: &usize| *parts == 1 || (tiles * parts <= wave(*parts) && steps(*parts) >= *parts);
        let parts = [8, 4, 2, 1].into_iter().find(fits)?;
        if !gated && Self::are_wide_better([n, k], tiles * parts, multiprocessors) && (!few || share) {
            return Some(Self::wide(rows, k));
        }
        let (chunks, blocks) = ring(parts);
        let config = Self { rows, groups, parts, chunks, depth: 0 };
        Some(Self { depth: config.depth(blocks, steps(parts).div_ceil(parts)), ..config })
    }

    /// Tiles of three boxes in four parts.
    fn wide(rows: usize, k: usize) -> Self {
        let config = Self { rows, groups: WIDE_GROUPS, parts: WIDE_PARTS, chunks: 1, depth: 0 };
        Self { depth: config.depth(1, k.div_ceil(CHUNK).div_ceil(WIDE_PARTS)), ..config }
    }

    /// Whether wide tiles keep more multiprocessors busy than `blocks` other blocks do, or have one block on each where
    /// some had two of those. Of clusters of four blocks that have a multiprocessor each, an H200 with 132 of them has
    /// room for 30.
    fn are_wide_better([n, k]: [usize; 2], blocks: usize, multiprocessors: usize) -> bool {
        let tiles = n.div_ceil(WIDE_GROUPS * BOX);
        let busier = tiles * WIDE_PARTS > blocks || blocks > multiprocessors;
        busier && tiles <= multiprocessors * 10 / 11 / WIDE_PARTS && k.div_ceil(CHUNK) >= WIDE_PARTS
    }

    fn special(&self, dtype: DType, function: Option<OutputFunction>) -> Special {
        let Self { rows, groups, parts, chunks, depth } = *self;
        let function = function.map_or(ALL, |function| function.number() as usize);
        let sizes = [
            ("FUNCTION", function),
            ("ROWS", rows),
            ("GROUPS", groups),
            ("PARTS", parts),
            ("CHUNKS", chunks),
            ("DEPTH", depth),
        ];
        Special::new("matmul_split_k", dtype, &sizes)
    }

    /// Bytes of a stage, with its two barriers.
    fn stage(&self) -> usize {
        (self.groups * BOX + self.rows) * self.chunks * CHUNK * 2 + 2 * size_of::<u64>()
    }

    /// Stages: as many as blocks that share a multiprocessor have room for, of what there is to fill them with.
    fn depth(&self, blocks: usize, steps: usize) -> usize {
        let room = ((SHARED / blocks - KEPT - MARGIN - FACTORS) / self.stage()).min(MOST_STAGES);
        // Sums lie where stages were.
        let sums = self.rows * (self.groups * BOX + 4) * size_of::<f32>();
        let least = sums.div_ceil(self.stage() - 2 * size_of::<u64>()).max(LEAST_STAGES);
        if self.rows <= FEW_ROWS { steps.clamp(least, room) } else { room }
    }

    fn shared(&self) -> usize {
        MARGIN + self.depth * self.stage() + FACTORS
    }

    /// Threads that multiply, and a warp that feeds them.
    fn threads(&self) -> usize {
        self.groups * 128 + 32
    }
}

/// Whether the kernel can do a product.
pub(crate) fn fits(facts: Facts, Product { x, w, epilogue, out, .. }: &Product<'_>) -> bool {
    let adds = *epilogue == Epilogue::Accumulate;
    facts.arch == HOPPER
        && facts.shared_of_block >= SHARED - KEPT
        && w.dtype.size() == 2
        && x.dtype == w.dtype
        && (out.dtype == DType::F32 || (out.dtype == w.dtype && !adds))
        && (LEAST_ROWS..=ROWS[ROWS.len() - 1]).contains(&x.rows)
        && w.cols.is_multiple_of(CHUNK)
        && w.rows.is_multiple_of(GROUP)
}

/// Whether a product is this kernel's without being measured, so that it may be added to a residual, and do a part of
/// the norm that follows.
pub(crate) fn is_small(facts: Facts, product: &Product<'_>) -> bool {
    let Product { x, w, out, .. } = product;
    w.rows <= SMALL && x.rows <= MOST_NORMED_ROWS && out.dtype == DType::F32 && fits(facts, product)
}

/// Whether reading the weights takes so long that what this kernel begins with is little beside it. On an H100 such
/// products take 93 to 97 % of the time of cuBLASLt's choice.
pub(crate) fn is_long(Product { x, w, .. }: &Product<'_>) -> bool {
    /// Rows up to which half as many weights are enough.
    const FEWEST_ROWS: usize = 32;
    let least = if x.rows <= FEWEST_ROWS { 24 << 20 } else { 48 << 20 };
    w.rows * w.cols >= least
}

/// Whether such a product could be added to a residual.
pub(crate) fn may_add(facts: Facts, product: &Product<'_>) -> bool {
    is_small(facts, product) && may_precede(product)
}

/// The kernel for a product that [`fits`].
pub(crate) fn special(facts: Facts, product: &Product<'_>, function: Option<OutputFunction>) -> Option<Special> {
    Some(config(facts, product, function)?.special(product.w.dtype, function))
}

fn config(facts: Facts, Product { x, w, .. }: &Product<'_>, function: Option<OutputFunction>) -> Option<Config> {
    let gated = function.is_some_and(|function| function.of == Activated::Gates);
    Config::of(x.rows, [w.rows, w.cols], gated, facts.multiprocessors)
}

/// Queues a product that [`fits`]; with a gate, one that `matmul_wgmma::takes`, of which what that makes alone is
/// written; with parts of the norms before it and, where it is not gated, after it. False where it cannot be done.
pub(crate) fn run_between(device: &mut Device, product: &Product<'_>, fused: &Fused) -> bool {
    let (before, after) = (fused.before.unwrap_or_default(), fused.after.unwrap_or_default());
    let (function, out) = (fused.function(), fused.gate.map_or(product.out, |gate| gate.out));
    let Some(call) = Call::new(device, product, function, out) else { return false };
    let Call { special, launch, maps: [x_map, w_map], bias, shape } = call;
    device.launch_special(special, launch, args![out.ptr, x_map, w_map, bias, shape, before, after])
}

/// Queues a product of few rows with its gate, and what adapters of low ranks add before that; false where it cannot be
/// done.
pub(crate) fn run_adapted(device: &mut Device, product: &Product<'_>, gate: Gate, adapters: GateAdapters) -> bool {
    let GateAdapters { half, splits, slots } = adapters;
    let Half { rows, weights, shrunk, .. } = half;
    if product.x.rows > FEW_ROWS || rows.max_rank as usize > MOST_RANK {
        return false;
    }
    let Some(call) = Call::new(device, product, Some(gate.function()), gate.out) else { return false };
    let Call { special, launch, maps: [x_map, w_map], bias, shape } = call;
    let (before, after, splits) = (Before::default(), After::default(), splits as u32);
    let arguments = args![gate.out.ptr, x_map, w_map, bias, shape, before, after, shrunk, splits, weights, rows, slots];
    device.launch_special(special.with("ADAPTED", 1), launch, arguments)
}

/// What a launch is given beside what it is fused with.
struct Call {
    special: Special,
    launch: Shape,
    /// Of `x` and `w`.
    maps: [CUtensorMap; 2],
    bias: CUdeviceptr,
    shape: HopperShape,
}

impl Call {
    fn new(device: &Device, product: &Product<'_>, function: Option<OutputFunction>, out: View) -> Option<Self> {
        let Product { x, w, bias, .. } = product;
        let [n, k] = [w.rows, w.cols];
        let config = config(Facts::of(device), product, function)?;
        let x_map = tensor_map(x.ptr, w.dtype, [x.rows, k], config.rows).ok()?;
        let w_map = tensor_map_of_groups(w.ptr(), w.dtype, [n, k], [BOX, config.chunks * CHUNK]).ok()?;
        let grid = [n.div_ceil(config.groups * BOX) * config.parts, 1];
        Some(Self {
            special: config.special(w.dtype, function),
            launch: Shape { grid, block: config.threads(), shared: config.shared() },
            maps: [x_map, w_map],
            bias: bias.as_ref().map_or(0, |bias| bias.ptr()),
            shape: HopperShape::new(product, out, function),
        })
    }
}

/// Kernels for products with a matrix whose outputs adapters add to before they are gated by SiLU.
pub(crate) fn adapted_specials(facts: Facts, [n, k]: [usize; 2], dtype: DType) -> Vec<Special> {
    if facts.arch != HOPPER || !k.is_multiple_of(CHUNK) || !n.is_multiple_of(2 * GROUP) {
        return Vec::new();
    }
    let silu = OutputFunction::gate(Activation::Silu);
    let few = ROWS.into_iter().filter(|rows| *rows <= FEW_ROWS);
    let configs = few.filter_map(|rows| Config::of(rows, [n, k], true, facts.multiprocessors));
    configs.map(|config| config.special(dtype, Some(silu)).with("ADAPTED", 1)).collect()
}

/// Kernels that steps of few rows wait for, since no other does parts of norms: before products whose input is narrow,
/// and after those whose output is. Those of the fewest rows, which a first prompt has, come first.
pub(crate) fn normed_specials(facts: Facts, w: &Weights) -> Vec<Special> {
    let (is_small, shape) = (w.rows <= SMALL || w.cols <= SMALL, [w.rows, w.cols]);
    if !is_small || facts.arch != HOPPER || !w.cols.is_multiple_of(CHUNK) || !w.rows.is_multiple_of(2 * GROUP) {
        return Vec::new();
    }
    // Wider ones by far are gated, up to a head's, of which a prompt asks one row.
    let is_gated = w.rows >= 4 * w.cols;
    if w.rows > 16 * w.cols {
        return Vec::new();
    }
    let function = is_gated.then(|| OutputFunction::gate(Activation::Silu));
    let few = ROWS.into_iter().filter(|rows| *rows <= MOST_NORMED_ROWS);
    let configs = few.filter_map(|rows| Config::of(rows, shape, is_gated, facts.multiprocessors));
    configs.map(|config| config.special(w.dtype, function)).collect()
}

/// What is compiled ahead: the products of usual layers, and gates are nearly always SiLU.
pub(crate) fn usual(dtype: DType) -> impl Iterator<Item = Special> {
    const LAYERS: [[usize; 2]; 7] =
        [[6144, 4096], [4096, 4096], [4096, 14336], [4096, 1024], [1024, 2048], [6144, 1024], [1024, 3072]];
    const MULTIPROCESSORS: usize = 132;
    let silu = OutputFunction::gate(Activation::Silu);
    ROWS.into_iter().flat_map(move |rows| {
        let plain = LAYERS.map(|shape| (shape, None)).into_iter();
        let gated = [[28672, 4096], [6144, 1024]].map(|shape| (shape, Some(silu)));
        plain.chain(gated).flat_map(move |(shape, function)| {
            let config = Config::of(rows, shape, function.is_some(), MULTIPROCESSORS);
            let special = config.map(|config| config.special(dtype, function));
            let adapted = special.filter(|_| function.is_some() && rows <= FEW_ROWS);
            special.into_iter().chain(adapted.map(|special| special.with("ADAPTED", 1)))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configs() -> impl Iterator<Item = Config> {
        let shapes = [
            [16, 64],
            [1024, 128],
            [1024, 3072],
            [4096, 4096],
            [6144, 4096],
            [28672, 4096],
            [128_256, 4096],
            [5120, 12800],
        ];
        let config = |rows, shape, gated| Config::of(rows, shape, gated, 132).expect("few rows");
        let all = ROWS.into_iter().flat_map(move |rows| shapes.map(|shape| (rows, shape)));
        all.flat_map(move |(rows, shape)| [false, true].map(|gated| config(rows, shape, gated)))
    }

    #[test]
    fn stages_fit_and_have_room_for_the_sums() {
        const H100: usize = 227 << 10;
        for config in configs() {
            assert!(config.shared() <= H100, "{config:?}");
            let sums = config.rows * (config.groups * BOX + 4) * size_of::<f32>();
            assert!(config.depth >= 2 && sums <= config.depth * (config.stage() - 16), "{config:?}");
        }
    }

    #[test]
    fn small_matrices_are_cut_into_as_many_parts_as_there_are_multiprocessors_for() {
        let cut = |rows, shape, gated| {
            let config = Config::of(rows, shape, gated, 132).expect("few rows");
            (config.groups, config.parts)
        };
        let small = [[1024, 3072], [2048, 2048], [4096, 14336]];
        for rows in [32, 128] {
            assert_eq!(small.map(|shape| cut(rows, shape, false)), [(1, 8), (1, 4), (1, 2)]);
            assert_eq!(cut(rows, [28672, 4096], true), (2, 1));
            assert_eq!(cut(rows, [28672, 4096], false), (2, 1));
            // Each part has a step.
            assert_eq!([64, 128, 192, 576].map(|k| cut(rows, [1024, k], false).1), [1, 1, 2, 8]);
        }
        assert_eq!([64, 128].map(|rows| cut(rows, [6144, 4096], false)), [(1, 2), (2, 2)]);
        assert_eq!([64, 128].map(|rows| cut(rows, [6144, 1024], true)), [(2, 1), (2, 2)]);
    }

    #[test]
    fn tiles_are_wide_where_that_keeps_more_multiprocessors_busy() {
        let cut = |rows, shape, gated| {
            let config = Config::of(rows, shape, gated, 132).expect("few rows");
            (config.groups, config.parts, config.depth)
        };
        // 108 blocks in place of 80; of few rows in place of 160, of which some share a multiprocessor.
        let down = [32, 64, 96, 128].map(|rows| cut(rows, [5120, 12800], false));
        assert_eq!(down, [(3, 4, 8), (3, 4, 7), (3, 4, 6), (3, 4, 5)]);
        assert_eq!(cut(32, [4808, 2048], false), (3, 4, 8));
        // More than 30 clusters, fewer blocks, fewer steps than parts, gates, and few rows of a short k.
        for (rows, shape, gated) in [
            (128, [6144, 4096], false),
            (128, [4096, 4096], false),
            (64, [6144, 4096], false),
            (64, [4096, 4096], false),
            (128, [5120, 192], false),
            (128, [5120, 12800], true),
            (64, [5120, 1024], false),
        ] {
            assert!(cut(rows, shape, gated).0 < WIDE_GROUPS, "{rows} rows of {shape:?}");
        }
    }

    #[test]
    fn blocks_of_few_rows_share_multiprocessors_where_there_are_more_of_them() {
        let taken = |shape, gated| {
            let config = Config::of(32, shape, gated, 132).expect("few rows");
            (SHARED / (config.shared() + KEPT), config.depth)
        };
        assert_eq!([[6144, 4096], [4096, 14336]].map(|shape| taken(shape, false)), [(2, 4), (1, 9)]);
        assert_eq!(taken([28672, 4096], true), (2, 2));
        // No more stages than there are steps.
        assert_eq!([[1024, 2048], [1024, 3072], [4096, 1024]].map(|shape| taken(shape, false).1), [4, 6, 4]);
    }

    #[test]
    fn usual_kernels_are_apart() {
        let ahead: Vec<Special> = usual(DType::Bf16).collect();
        let gated = Config::of(64, [28672, 4096], true, 132).expect("few rows");
        assert!(ahead.contains(&gated.special(DType::Bf16, Some(OutputFunction::gate(Activation::Silu)))));
        assert!(!ahead.contains(&gated.special(DType::Bf16, Some(OutputFunction::gate(Activation::Relu)))));
    }

    #[test]
    fn more_rows_than_the_kernel_has_room_for_are_refused() {
        assert_eq!(Config::of(129, [4096, 4096], false, 132), None);
    }
}
