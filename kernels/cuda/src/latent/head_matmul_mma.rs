//! Launches `kernels/cuda/csrc/latent/head_matmul_mma.cu`: products of heads with their matrices on tensor cores.

use crate::jit::specialization::{LOWEST, Special};
use crate::layers::groups::{Group, HeadPieces};
use crate::runtime::device::{Device, Shape, args};
use kernels::ops::DType;

/// A block's tile of rows and outputs, that of each of its warps, and steps of inputs in shared memory.
#[derive(Clone, Copy)]
struct Config {
    rows: usize,
    cols: usize,
    warp: [usize; 2],
    stages: usize,
}

/// For a decode step's rows, and some more: all inputs of usual heads on their way at once.
const FEW: Config = Config { rows: 16, cols: 32, warp: [16, 16], stages: 9 };
const SOME: Config = Config { rows: 64, cols: 32, warp: [32, 16], stages: 9 };
const MANY: Config = Config { rows: 128, cols: 128, warp: [64, 32], stages: 3 };
/// Columns begin at multiples of this, and are as many.
const PIECE: u32 = 8;
/// Inputs of a step, in bytes.
const STEP_BYTES: usize = 128;

impl Config {
    fn special(self, dtype: DType) -> Special {
        let Self { rows, cols, warp, stages } = self;
        let [warp_rows, warp_cols] = warp;
        let sizes =
            [("ROWS", rows), ("COLS", cols), ("WARP_ROWS", warp_rows), ("WARP_COLS", warp_cols), ("STAGES", stages)];
        Special::new("head_matmul_mma", dtype, &sizes)
    }

    fn blocks(self, rows: usize, group: &Group) -> [usize; 2] {
        [group.count * group.n.div_ceil(self.cols), rows.div_ceil(self.rows)]
    }

    /// The largest tiles that keep all multiprocessors busy.
    fn of(device: &Device, rows: usize, group: &Group) -> Self {
        let [across, down] = MANY.blocks(rows, group);
        match rows {
            _ if rows > SOME.rows && across * down >= device.context.multiprocessors => MANY,
            _ if rows > FEW.rows => SOME,
            _ => FEW,
        }
    }

    fn shape(self, rows: usize, group: &Group) -> Shape {
        let threads = 32 * (self.rows / self.warp[0]) * (self.cols / self.warp[1]);
        let shared = self.stages * (self.rows + self.cols) * STEP_BYTES;
        Shape { grid: self.blocks(rows, group), block: threads, shared }
    }
}

/// All kernels for a type.
pub(crate) fn specials(dtype: DType) -> [Special; 3] {
    [FEW, SOME, MANY].map(|config| config.special(dtype))
}

/// Queues the product; false where it is not for tensor cores.
pub(crate) fn run(device: &mut Device, from: HeadPieces, group: &Group, to: HeadPieces) -> bool {
    let (HeadPieces { view: x, columns: from }, HeadPieces { view: out, columns: to }) = (from, to);
    let dtype = x.dtype;
    let fits = device.context.arch >= LOWEST
        && dtype.size() == 2
        && [group.dtype, out.dtype] == [dtype; 2]
        && [group.n, group.k].iter().all(|size| size.is_multiple_of(PIECE as usize))
        && from.are_multiples_of(PIECE)
        && to.are_multiples_of(PIECE);
    let config = Config::of(device, x.rows, group);
    let [heads, rows, n, k] = [group.count, x.rows, group.n, group.k].map(|number| number as u32);
    fits && device.launch_special(
        config.special(dtype),
        config.shape(x.rows, group),
        args![x.ptr, from, group.ptr(), out.ptr, to, heads, rows, n, k],
    )
}
