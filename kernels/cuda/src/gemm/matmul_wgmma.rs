//! Launches `kernels/cuda/csrc/gemm/matmul_wgmma.cu`: products of many rows on Hopper, and what gates or activates
//! their outputs, or adds them to others.

use cudarc::driver::sys::CUdeviceptr;

use crate::gemm::codes::CodedInput;
use crate::gemm::matmul_packed_wgmma;
use crate::gemm::product::{Activated, Gate, GemmShape, MANY_ROWS, OutputFunction, Product};
use crate::gemm::table::Facts;
use crate::jit::layouts::twin;
use crate::jit::specialization::{HOPPER, Special};
use crate::runtime::activations::View;
use crate::runtime::device::{Device, Shape, args};
use crate::runtime::tensor_map::tensor_map;
use crate::weights::packed::{Code, CodedRows};
use kernels::ops::{Activation, DType, Epilogue};

/// Rows of a box of `w`: whichever leaves fewer multiprocessors idle.
const BOXES_ROWS: [usize; 2] = [128, 112];
/// Boxes of a tile, columns of `k` in a stage.
const BOXES: usize = 2;
const STEP: usize = 64;
/// Elements of 16 bytes, which rows are a multiple of.
const PIECE: usize = 8;
/// Rows that a warp hands to the copy engine at once, their bytes, and places it has for them.
const PLACE_ROWS: usize = 16;
const PLACE_BYTES: usize = PLACE_ROWS * 128;
const PLACES: usize = 2;
/// Fewer rows are `matmul_skinny`'s.
const LEAST_ROWS: usize = 17;
/// `ALL` of activation.cuh: no function.
pub(crate) const ALL: usize = 7;

/// How the kernel is compiled: rows of `x` in a tile, blocks of a cluster, stages, rows of a box of `w`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Config {
    rows: usize,
    blocks: usize,
    depth: usize,
    columns: usize,
}

impl Config {
    fn all() -> impl Iterator<Item = Self> {
        BOXES_ROWS
            .into_iter()
            .flat_map(|columns| [17, 65, 193].map(|rows| Self::with(rows, columns)))
            .chain([Self::TALL])
    }

    /// For rows that would leave much of two blocks' tiles empty. Three warpgroups have registers for the narrower
    /// boxes.
    const TALL: Self = Self { rows: 192, blocks: 1, depth: 4, columns: 112 };

    fn with(rows: usize, columns: usize) -> Self {
        match rows {
            ..=64 => Self { rows: 64, blocks: 1, depth: 5, columns },
            65..=128 => Self { rows: 128, blocks: 1, depth: 4, columns },
            _ => Self { rows: 128, blocks: 2, depth: 4, columns },
        }
    }

    /// For `rows` rows of `x` and tiles of a box of the output's columns, or of two.
    fn of(rows: usize, width: usize, boxes: usize, multiprocessors: usize) -> Self {
        let usual = BOXES_ROWS.map(|columns| Self::with(rows, columns));
        let tall = (129..=Self::TALL.rows).contains(&rows).then_some(Self::TALL);
        let time = |config: &Self| {
            let tiles = rows.div_ceil(config.rows * config.blocks) * width.div_ceil(boxes * config.columns);
            tiles.div_ceil(multiprocessors / config.blocks) * config.rows * config.columns
        };
        usual.into_iter().chain(tall).min_by_key(time).unwrap_or(usual[0])
    }

    fn special(&self, dtype: DType, function: Option<OutputFunction>, code: Option<Code>) -> Special {
        let Self { rows, blocks, depth, columns } = *self;
        let function = function.map_or(ALL, |function| function.number() as usize);
        let sizes = [("FUNCTION", function), ("ROWS", rows), ("BLOCKS", blocks), ("DEPTH", depth), ("BOX", columns)];
        let codes = code.map(|code| ("CODES", code as usize));
        Special::new("matmul_wgmma", dtype, &sizes.into_iter().chain(codes).collect::<Vec<_>>())
    }

    /// One warpgroup that feeds, and those that multiply.
    fn threads(&self) -> usize {
        128 + 2 * self.rows
    }

    /// Stages, two barriers each, places for outputs, and room to align them.
    fn shared(&self) -> usize {
        let stage = (self.rows + BOXES * self.columns) * STEP * 2;
        // `STAGED` of the kernel.
        let places = if self.columns == BOXES_ROWS[0] { self.rows / PLACE_ROWS * PLACES * PLACE_BYTES } else { 0 };
        1024 + self.depth * (stage + 2 * size_of::<u64>()) + places
    }
}

/// `struct HopperShape` of hopper_gemm.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct HopperShape {
    product: GemmShape,
    limit: f32,
}

twin!(HopperShape = "HopperShape" { product: "rows", limit });

impl HopperShape {
    /// Of a product whose outputs, or what the function leaves of them, go to `out`.
    pub(crate) fn new(product: &Product<'_>, out: View, function: Option<OutputFunction>) -> Self {
        Self { product: product.shape(out), limit: function.map_or(0.0, |function| function.limit()) }
    }

    /// Of rows of `columns` numbers of 16 bits.
    fn with_columns(self, columns: usize) -> Self {
        Self { product: self.product.with_columns(columns), ..self }
    }
}

/// `struct CodeScales` of the kernel: of the rows of `x` and of `w`, where those are codes.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct CodeScales {
    x: CUdeviceptr,
    w: CUdeviceptr,
}

twin!(CodeScales = "CodeScales" { x, w });

/// What the copy engine brings: matrices of 16-bit numbers, or of codes, two of which it takes for such a number.
struct Operands {
    x: CUdeviceptr,
    w: CUdeviceptr,
    /// Numbers of a row.
    columns: usize,
    dtype: DType,
    code: Option<Code>,
    scales: CodeScales,
}

/// What is compiled ahead: gates are nearly always SiLU, and only products of many rows are done without one.
pub(crate) fn usual(dtype: DType) -> impl Iterator<Item = Special> {
    let gated =
        Config::all().map(move |config| config.special(dtype, Some(OutputFunction::gate(Activation::Silu)), None));
    let plain = BOXES_ROWS.map(|columns| Config::with(MANY_ROWS + 1, columns).special(dtype, None, None));
    gated.chain(plain)
}

/// Whether the kernel can do a product.
pub(crate) fn fits(facts: Facts, Product { x, w, epilogue, out, .. }: &Product<'_>) -> bool {
    let adds = *epilogue == Epilogue::Accumulate;
    has_room(facts, x.rows)
        && w.dtype.size() == 2
        && x.dtype == w.dtype
        && (out.dtype == DType::F32 || (out.dtype == w.dtype && !adds))
        && x.rows >= LEAST_ROWS
        && w.cols.is_multiple_of(PIECE)
        && w.rows.is_multiple_of(PIECE)
}

/// Whether the device has the instructions, and blocks for `rows` rows have their memory.
pub(crate) fn has_room(facts: Facts, rows: usize) -> bool {
    facts.arch == HOPPER && facts.shared_of_block >= Config::with(rows, BOXES_ROWS[0]).shared()
}

/// Whether it can gate its outputs too.
pub(crate) fn may_gate(facts: Facts, product: &Product<'_>) -> bool {
    may_activate(facts, product) && product.w.rows.is_multiple_of(2 * PIECE)
}

/// Whether it can take an activation of its outputs too.
pub(crate) fn may_activate(facts: Facts, product: &Product<'_>) -> bool {
    let Product { w, epilogue, out, .. } = product;
    fits(facts, product) && *epilogue == Epilogue::Store && out.dtype == w.dtype
}

/// Whether it can do what an activation makes of its outputs too.
pub(crate) fn takes(facts: Facts, product: &Product<'_>, gate: &Gate) -> bool {
    let may = match gate.of {
        Activated::Gates => may_gate,
        Activated::Each => may_activate,
    };
    may(facts, product) && gate.out.dtype == product.w.dtype
}

/// Whether tiles of a gated product are nearly full. An H100 gates up to 256 rows by this kernel in 85 to 95 % of the
/// time of cuBLASLt's choice and a gate after it, however full they are; more rows wherever little of them is empty.
pub(crate) fn wastes_little(facts: Facts, product: &Product<'_>, gate: Gate) -> bool {
    const FEW_ROWS: usize = 256;
    let rows = product.x.rows;
    let (_, config) = config(facts, product, Some(gate.function()), gate.out);
    rows <= FEW_ROWS || 5 * rows >= 4 * rows.next_multiple_of(config.rows * config.blocks)
}

/// The kernel for a product that [`fits`].
pub(crate) fn special(facts: Facts, product: &Product<'_>, function: Option<OutputFunction>, out: View) -> Special {
    config(facts, product, function, out).1.special(product.w.dtype, function, None)
}

/// Boxes of a tile, and how the kernel is compiled.
fn config(facts: Facts, product: &Product<'_>, function: Option<OutputFunction>, out: View) -> (usize, Config) {
    let boxes = if function.is_some_and(|function| function.of == Activated::Gates) { BOXES / 2 } else { BOXES };
    (boxes, Config::of(product.x.rows, out.width, boxes, facts.multiprocessors))
}

/// The kernel for products of many rows of codes.
pub(crate) fn special_of_codes(dtype: DType, function: Option<OutputFunction>, code: Code) -> Special {
    Config::with(matmul_packed_wgmma::MOST_ROWS + 1, BOXES_ROWS[0]).special(dtype, function, Some(code))
}

/// Queues a product that [`fits`]; with a function one that this [`takes`], of which that alone is written, to `out`.
/// False where it cannot be done.
pub(crate) fn run(device: &mut Device, product: &Product<'_>, function: Option<OutputFunction>, out: View) -> bool {
    let Product { x, w, .. } = product;
    let (columns, dtype, scales) = (w.cols, w.dtype, CodeScales::default());
    let operands = Operands { x: x.ptr, w: w.ptr(), columns, dtype, code: None, scales };
    launch(device, product, &operands, &Kept { function, out })
}

/// The same for rows of codes and for weights that are such, whatever `product` has.
pub(crate) fn run_codes(
    device: &mut Device,
    product: &Product<'_>,
    gate: Option<Gate>,
    x: &CodedInput,
    w: CodedRows,
) -> bool {
    let scales = CodeScales { x: x.rows.scales, w: w.scales };
    let (columns, dtype, code) = (w.pitch / 2, x.dtype, Some(x.code));
    let operands = Operands { x: x.rows.codes, w: w.codes, columns, dtype, code, scales };
    let kept = Kept { function: gate.map(|gate| gate.function()), out: gate.map_or(product.out, |gate| gate.out) };
    launch(device, product, &operands, &kept)
}

/// What is kept of a product's outputs, and where.
struct Kept {
    function: Option<OutputFunction>,
    out: View,
}

fn launch(device: &mut Device, product: &Product<'_>, operands: &Operands, kept: &Kept) -> bool {
    let (Product { x, w, bias, .. }, &Kept { function, out }) = (product, kept);
    let &Operands { columns, dtype, code, scales, .. } = operands;
    let (boxes, config) = config(Facts::of(device), product, function, out);
    let map = |ptr, rows, box_rows| tensor_map(ptr, dtype, [rows, columns], box_rows);
    let maps = (map(operands.x, x.rows, config.rows), map(operands.w, w.rows, config.columns));
    let to_map = tensor_map(out.ptr, out.dtype, [x.rows, out.width], PLACE_ROWS);
    let ((Ok(x_map), Ok(w_map)), Ok(to_map)) = (maps, to_map) else { return false };
    let shape = HopperShape::new(product, out, function).with_columns(columns);
    let work = x.rows.div_ceil(config.blocks * config.rows) * out.width.div_ceil(boxes * config.columns);
    let grid = [work.min(device.context.multiprocessors / config.blocks) * config.blocks, 1];
    let launch = Shape { grid, block: config.threads(), shared: config.shared() };
    let bias: CUdeviceptr = bias.as_ref().map_or(0, |bias| bias.ptr());
    let special = config.special(dtype, function, code);
    device.launch_special(special, launch, args![out.ptr, x_map, w_map, to_map, bias, shape, scales])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_fit_into_a_block() {
        const H100: usize = 227 << 10;
        assert!(Config::all().all(|config| config.shared() <= H100));
    }

    #[test]
    fn every_kernel_is_compiled_ahead_and_apart() {
        let ahead: Vec<Special> = usual(DType::Bf16).collect();
        let once = |rows, function: Option<OutputFunction>, boxes| {
            let special = Config::of(rows, 14336, boxes, 132).special(DType::Bf16, function, None);
            assert_eq!(ahead.iter().filter(|known| **known == special).count(), 1, "{rows} rows");
        };
        [17, 64, 65, 128, 129, 192, 193, 8192]
            .into_iter()
            .for_each(|rows| once(rows, Some(OutputFunction::gate(Activation::Silu)), 1));
        [MANY_ROWS + 1, 8192].into_iter().for_each(|rows| once(rows, None, 2));
    }

    #[test]
    fn boxes_are_as_wide_as_keeps_all_multiprocessors_busy() {
        let columns = |rows| Config::of(rows, 14336, 1, 132).columns;
        // 128 tiles for 132 multiprocessors, 2 x 128 for 2 x 132; and of many rows the widest.
        assert_eq!([64, 128, 192, 256, 8192].map(columns), [112, 112, 112, 112, 128]);
    }

    #[test]
    fn tall_tiles_are_taken_where_they_are_the_shorter_way() {
        let tall = |rows, width| Config::of(rows, width, 1, 132) == Config::TALL;
        assert_eq!([128, 129, 192, 193].map(|rows| tall(rows, 14336)), [false, true, true, false]);
        // 28 tiles are fewer than multiprocessors either way.
        assert!(!tall(160, 3072));
    }
}
