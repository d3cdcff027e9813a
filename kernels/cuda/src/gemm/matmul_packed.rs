//! Products with weights of 4 or 8 bits: `matmul_packed.cu`, which reads them once for few rows, and
//! `matmul_packed_plain.cu`, for every type and shape. Those of many rows are decoded first (`gemm/matmul.rs`).

use cudarc::driver::sys::CUdeviceptr;
use kernels::ops::{DType, Epilogue, InputRounding};

use crate::gemm::product::{Gate, Product};
use crate::gemm::table::Facts;
use crate::jit::layouts::twin;
use crate::jit::specialization::{LOWEST, Special};
use crate::layers::elementwise::Function;
use crate::runtime::activations::View;
use crate::runtime::device::{Device, Name, Shape, args};
use crate::weights::Weights;
use crate::weights::packed::{CHUNK, Kind, LEAST_GROUP, Packed, TILE};

/// Most rows of `x`, of which a block takes up to 32: with more, decoding the matrix first pays.
const MOST_ROWS: usize = 128;
/// Rows of a half, and most halves of a block; elements of 16 bytes.
const HALF: usize = 8;
const MOST_HALVES: usize = 4;
/// Rows of `w` of large matrices, and of small ones.
const LARGE: usize = 16384;
const SMALL: usize = 4224;
const PIECE: usize = 8;
/// Tile of the plain kernel, and its threads.
const PLAIN_TILE: usize = 64;
const PLAIN_THREADS: usize = 256;

/// How the kernel is compiled: warps of a block, which share `k`; halves of rows of `x`; tiles of `w` of a block; loads
/// under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Config {
    warps: usize,
    halves: usize,
    tiles: usize,
    depth: usize,
}

impl Config {
    /// As measured on an H100 for the shapes of Llama-8B.
    fn choose(rows: usize, n: usize, kind: Kind) -> Self {
        let halves = rows.div_ceil(HALF).next_power_of_two().min(MOST_HALVES);
        let (warps, tiles) = match halves {
            1 if n < LARGE || kind.pieces() == 2 => (16, 1),
            2 if n <= SMALL => (16, 2),
            _ => (8, 2),
        };
        let depth = match halves {
            MOST_HALVES => 1,
            // What small matrices have of k is under way at once.
            1 if tiles == 1 && kind.pieces() == 1 && kind.group.is_multiple_of(CHUNK) => 4,
            _ => 2,
        };
        Self { warps, halves, tiles, depth }
    }

    /// Rows of `x` of a block.
    fn rows(&self) -> usize {
        self.halves * HALF
    }

    fn special(&self, kind: Kind, dtype: DType, gated: bool) -> Special {
        let Self { warps, halves, tiles, depth } = *self;
        let own = [("WARPS", warps), ("HALVES", halves), ("TILES", tiles), ("DEPTH", depth)];
        let gated = [("GATED", usize::from(gated))];
        let sizes: Vec<_> = kind.macros().into_iter().chain(own).chain(gated).collect();
        Special::new("matmul_packed", dtype, &sizes)
    }
}

/// Whether the kernel for few rows computes a product.
pub(crate) fn fits(facts: Facts, Product { x, w, out, .. }: &Product<'_>) -> bool {
    w.packed.as_ref().is_some_and(|packed| {
        facts.arch >= LOWEST
            && x.rows <= MOST_ROWS
            && x.dtype.size() == 2
            && [DType::F32, x.dtype].contains(&out.dtype)
            && w.cols.is_multiple_of(PIECE)
            && packed.kind.group.is_multiple_of(LEAST_GROUP)
    })
}

/// The same for one whose columns are gated.
pub(crate) fn may_gate(facts: Facts, product: &Product<'_>) -> bool {
    let Product { x, w, out, epilogue, .. } = product;
    fits(facts, product)
        && out.dtype == x.dtype
        && *epilogue == Epilogue::Store
        && x.rows > 0
        && w.rows.is_multiple_of(2 * TILE)
}

/// Queues a product that [`fits`], and the gate of its outputs; false where the kernel cannot be compiled.
pub(crate) fn run(device: &mut Device, product: &Product<'_>, gate: Option<Gate>) -> bool {
    let Product { x, w, bias, out, .. } = product;
    let Some(packed) = &w.packed else { return false };
    let mut config = Config::choose(x.rows, w.rows, packed.kind);
    if gate.is_some() {
        config.tiles = 2;
    }
    let to = gate.map_or(*out, |gate| gate.out);
    let special = config.special(packed.kind, x.dtype, gate.is_some());
    let grid = [w.rows.div_ceil(TILE).div_ceil(config.tiles), x.rows.div_ceil(config.rows())];
    let shape = Shape { grid, block: 32 * config.warps, shared: 0 };
    let bias: CUdeviceptr = bias.as_ref().map_or(0, |bias| bias.ptr());
    let few = product.shape(to);
    let function = gate.map_or(Function { number: 0, limit: 0.0 }, |gate| gate.activation.into());
    device.launch_special(special, shape, args![to.ptr, x.ptr, packed.argument(), bias, few, function])
}

/// Queues a product of any type and shape.
pub(crate) fn plain(device: &mut Device, product: &Product<'_>) -> bool {
    let Product { x, w, bias, epilogue, out, .. } = product;
    let Some(packed) = &w.packed else { return false };
    let grid = [w.rows.div_ceil(PLAIN_TILE), x.rows.div_ceil(PLAIN_TILE)];
    let shape = Shape { grid, block: PLAIN_THREADS, shared: 0 };
    let bias = bias.as_ref().map_or(0, |bias| bias.ptr());
    let (rows, accumulate) = (x.rows as u32, u32::from(*epilogue == Epilogue::Accumulate));
    let name = Name::of("matmul_packed_plain", &[x.dtype, out.dtype]);
    device.launch(name, shape, args![x.ptr, packed.argument(), bias, out.ptr, rows, accumulate]);
    true
}

/// All kernels for products of few rows with a matrix.
pub(crate) fn specials(w: &Weights, dtype: DType) -> Vec<Special> {
    let Some(packed) = &w.packed else { return Vec::new() };
    let mut all = Vec::new();
    for rows in [1, HALF + 1, 2 * HALF + 1] {
        let special = Config::choose(rows, w.rows, packed.kind).special(packed.kind, dtype, false);
        if w.cols.is_multiple_of(PIECE) && packed.kind.group.is_multiple_of(LEAST_GROUP) && !all.contains(&special) {
            all.push(special);
        }
    }
    all
}

/// `struct InputShape` of prepare_input.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct InputShape {
    columns: CUdeviceptr,
    k: u32,
    to: u32,
    group: u32,
    scale: f32,
    outliers: f32,
}

twin!(InputShape = "InputShape" { columns, k, to, group, scale, outliers });

/// Whether a product's input has to be prepared before it is multiplied as numbers of this type, rounded like this.
pub(crate) fn needs_input(packed: &Packed, rounding: InputRounding, x: View, dtype: DType) -> bool {
    packed.columns.is_some() || rounding != InputRounding::None || x.dtype != dtype
}

impl InputShape {
    /// Of nothing.
    pub(crate) const NONE: Self = Self { columns: 0, k: 0, to: 0, group: 0, scale: 0.0, outliers: 0.0 };

    /// Of a product of `x`, rounded like this, with a packed matrix.
    pub(crate) fn of(packed: &Packed, rounding: InputRounding, x: View) -> Self {
        let columns = packed.columns.as_ref().map_or(0, |columns| columns.ptr);
        Self { columns, ..Self::in_order(rounding, x) }
    }

    /// Of `x`, rounded like this, its columns in order.
    fn in_order(rounding: InputRounding, x: View) -> Self {
        const ALL: u32 = u32::MAX;
        let (to, group, scale, outliers) = match rounding {
            InputRounding::None => (0, 0, 0.0, 0.0),
            InputRounding::Static(scale) => (1, 0, scale, 0.0),
            InputRounding::Dynamic { cols } => (1, u32::try_from(cols).unwrap_or(ALL), 0.0, f32::INFINITY),
            InputRounding::StaticInt8(scale) => (2, 0, scale, 0.0),
            InputRounding::DynamicInt8 { outliers } => (2, ALL, 0.0, outliers),
        };
        Self { columns: 0, k: x.width as u32, to, group, scale, outliers }
    }
}

/// A block for each row: where rows do not fill the device, with enough threads to keep the row in registers.
pub(crate) fn rows_shape(x: View) -> Shape {
    const MANY_ROWS: usize = 512;
    let threads = if x.rows > MANY_ROWS { 256 } else { (x.width / 8).next_power_of_two().clamp(128, 1024) };
    Shape { grid: [x.rows, 1], block: threads, shared: 0 }
}

/// Queues the preparation of a product's input, to `to`, rounded like this.
pub(crate) fn prepare(device: &mut Device, packed: &Packed, rounding: InputRounding, x: View, to: View) {
    prepare_as(device, InputShape::of(packed, rounding, x), x, to);
}

/// Queues the rounding of rows, to `to`, their columns in order.
pub(crate) fn round(device: &mut Device, rounding: InputRounding, x: View, to: View) {
    prepare_as(device, InputShape::in_order(rounding, x), x, to);
}

fn prepare_as(device: &mut Device, input: InputShape, x: View, to: View) {
    let name = Name::of("prepare_input", &[x.dtype, to.dtype]);
    device.launch_early(name, rows_shape(x), args![x.ptr, to.ptr, input]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::packed::{Code, Zeros};

    #[test]
    fn every_choice_is_ordered_and_has_room_for_its_rows() {
        for (code, group) in [(Code::Int4, 128), (Code::Int8, 0), (Code::E4m3, 0), (Code::Levels, 64)] {
            let kind = Kind { code, scale: DType::F16, zeros: Zeros::Middle, group };
            for n in [64, 1024, 4096, 6144, 28672] {
                let ordered = [1, HALF + 1, 2 * HALF + 1].map(|rows| Config::choose(rows, n, kind));
                for rows in 1..=MOST_ROWS {
                    let config = Config::choose(rows, n, kind);
                    assert!(ordered.contains(&config), "{rows} rows of {n}: {config:?}");
                    assert!(config.rows() >= rows.min(MOST_HALVES * HALF), "{rows} rows of {n}: {config:?}");
                    // Sums of all warps are put together in what any block may have of shared memory.
                    let sums = config.warps * config.rows() * (config.tiles * TILE + 1) * size_of::<f32>();
                    assert!(sums <= 46 << 10, "{config:?}");
                }
            }
        }
    }
}
