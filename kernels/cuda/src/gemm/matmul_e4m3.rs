//! Products of weights stored as 8-bit floats times scales: `matmul_e4m3.cu`, which decodes them on their way to the
//! tensor cores.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use kernels::ops::{ALL_COLUMNS, Encoding, Epilogue, HostMatrix, ScaledCodes};

use crate::gemm::product::Product;
use crate::jit::layouts::twin;
use crate::jit::specialization::LOWEST;
use crate::runtime::context::Memory;
use crate::runtime::device::{Device, Name, Shape, args};
use crate::weights::Staging;

const FILE: &str = "matmul_e4m3";
/// Most rows of the version for few, and its outputs (and warps) of a block.
const FEW_ROWS: usize = 8;
const OUTPUTS: usize = 8;
/// Codes that a thread reads at a time.
const PIECE: usize = 16;
/// Rows, columns and k of a tile.
const TILE: usize = 64;

/// Scales of a matrix, on the device. Clones share them.
#[derive(Clone)]
pub(crate) struct Scales {
    values: Arc<Memory>,
    rows: Arc<Memory>,
    /// Columns that share one, or [`ALL_COLUMNS`].
    cols: usize,
    /// Scales of a row.
    width: usize,
}

/// `struct Scales` of matmul_e4m3.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScalesArgument {
    values: CUdeviceptr,
    rows: CUdeviceptr,
    cols: u32,
    width: u32,
}

twin!(ScalesArgument = "Scales" { values, rows, cols, width });

impl Scales {
    /// Those of a matrix in pieces; absent where it has none.
    pub(crate) fn load(device: &mut Device, staging: &mut Staging, pieces: &[HostMatrix<'_>]) -> Option<Self> {
        let (mut values, mut rows, mut shape) = (Vec::new(), Vec::new(), None);
        for piece in pieces {
            let Encoding::Scaled(ScaledCodes { scales, scale_rows, scale_cols, .. }) = piece.encoding else { continue };
            let width = piece.cols.div_ceil(scale_cols);
            let first = (values.len() / size_of::<f32>() / width.max(1)) as u32;
            values.extend(scales.iter().flat_map(|scale| scale.to_ne_bytes()));
            rows.extend(scale_rows.iter().flat_map(|row| (first + row).to_ne_bytes()));
            shape = Some((scale_cols, width));
        }
        let (cols, width) = shape?;
        let [values, rows] = [values, rows].map(|bytes| staging.load(device, &bytes).map(Arc::new));
        Some(Self { values: values?, rows: rows?, cols, width })
    }

    fn argument(&self) -> ScalesArgument {
        let cols = u32::try_from(self.cols).unwrap_or(u32::MAX);
        ScalesArgument { values: self.values.ptr, rows: self.rows.ptr, cols, width: self.width as u32 }
    }

    /// Groups of columns that share a scale begin at multiples of `step`.
    fn changes_at(&self, step: usize) -> bool {
        self.width <= 1 || self.cols == ALL_COLUMNS || self.cols.is_multiple_of(step)
    }
}

/// Queues a product with such weights.
pub(crate) fn run(device: &mut Device, product: &Product<'_>, scales: &Scales) {
    let Product { x, w, bias, epilogue, out } = product;
    let (function, shape) = version(device, product, scales);
    let bias = bias.as_ref().map_or(0, |bias| bias.ptr());
    let [rows, n, k] = [x.rows, w.rows, w.cols].map(|number| number as u32);
    let accumulate = u32::from(*epilogue == Epilogue::Accumulate);
    let name = Name::in_file(FILE, function, &[x.dtype, out.dtype]);
    device.launch(name, shape, args![x.ptr, w.ptr(), scales.argument(), bias, out.ptr, rows, n, k, accumulate]);
}

/// The version that takes a product, and its grid.
fn version(device: &Device, product: &Product<'_>, scales: &Scales) -> (&'static str, Shape) {
    let Product { x, w, .. } = product;
    let tiles = |outputs: usize, rows: usize| [w.rows.div_ceil(outputs), x.rows.div_ceil(rows)];
    let is_short = device.context.arch >= LOWEST && x.dtype.size() == 2 && w.cols.is_multiple_of(PIECE);
    if is_short && x.rows <= FEW_ROWS && scales.changes_at(PIECE) {
        return ("matmul_e4m3_skinny", Shape { grid: tiles(OUTPUTS, FEW_ROWS), block: 32 * OUTPUTS, shared: 0 });
    }
    if is_short && scales.changes_at(TILE) {
        return ("matmul_e4m3_tiles", Shape { grid: tiles(TILE, TILE), block: 128, shared: 0 });
    }
    ("matmul_e4m3_plain", Shape { grid: tiles(TILE, TILE), block: 256, shared: 0 })
}
