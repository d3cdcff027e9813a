//! Launches `kernels/cuda/matmul_hopper.cu`: products of many rows on Hopper, and what gates their outputs or adds them to others.

use cudarc::driver::sys::{CUdeviceptr, CUtensorMap};

use super::acts::View;
use super::device::{Device, Shape, args};
use super::elementwise::Function;
use super::matmul::Product;
use super::special::{HOPPER, Special};
use super::tensor_map::tensor_map;
use kernels::ops::{Activation, DType, Epilogue};

/// Rows of a box of `x` and of `w`, columns of `k` in a stage, stages.
const BOX: usize = 128;
const STEP: usize = 64;
const DEPTH: usize = 4;
/// Boxes of a stage: one of `x`, two of `w`.
const BOXES: usize = 3;
/// Blocks of a cluster, and their threads.
const BLOCKS: usize = 2;
const THREADS: usize = 384;
/// Elements of 16 bytes, which rows are a multiple of.
const PIECE: usize = 8;
/// Rows from which on it can be the fastest way: it takes 256 at a time.
const LEAST_ROWS: usize = 129;
/// `ALL` of the kernel: no function.
const ALL: usize = 7;

/// Stages, two barriers each, and room to align them.
const SHARED: usize = 1024 + DEPTH * (BOXES * BOX * STEP * 2 + 2 * size_of::<u64>());

/// `struct HopperShape` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct HopperShape {
    rows: u32,
    n: u32,
    k: u32,
    accumulate: u32,
    wide: u32,
    limit: f32,
}

fn special(dtype: DType, function: Option<Function>) -> Special {
    let function = function.map_or(ALL, |function| function.number as usize);
    Special::new("matmul_hopper", dtype, &[("FUNCTION", function)])
}

/// What is compiled ahead: gates are nearly always SiLU.
pub(crate) fn usual(dtype: DType) -> [Special; 2] {
    [special(dtype, None), special(dtype, Some(Activation::Silu.into()))]
}

/// Whether the kernel can do a product.
pub(crate) fn fits(device: &Device, Product { x, w, epilogue, out, .. }: &Product<'_>) -> bool {
    let adds = *epilogue == Epilogue::Accumulate;
    device.context.arch == HOPPER
        && device.context.shared_of_block >= SHARED
        && w.dtype.size() == 2
        && x.dtype == w.dtype
        && (out.dtype == DType::F32 || (out.dtype == w.dtype && !adds))
        && x.rows >= LEAST_ROWS
        && w.cols.is_multiple_of(PIECE)
        && w.rows.is_multiple_of(PIECE)
}

/// Whether it can gate its outputs too.
pub(crate) fn may_gate(device: &Device, product: &Product<'_>) -> bool {
    let Product { w, epilogue, out, .. } = product;
    fits(device, product) && *epilogue == Epilogue::Store && out.dtype == w.dtype && w.rows.is_multiple_of(2 * PIECE)
}

/// Queues a product that [`fits`]; with a function one that [`may_gate`], gated and written to `out` alone. False where it cannot be done.
pub(crate) fn run(device: &mut Device, product: &Product<'_>, function: Option<Function>, out: View) -> bool {
    let Product { x, w, bias, epilogue, .. } = product;
    let map = |ptr, rows| tensor_map(ptr, w.dtype, [rows, w.cols], BOX);
    let (Ok(x_map), Ok(w_map)) = (map(x.ptr, x.rows), map(w.ptr(), w.rows)) else { return false };
    let shape = HopperShape {
        rows: x.rows as u32,
        n: w.rows as u32,
        k: w.cols as u32,
        accumulate: u32::from(*epilogue == Epilogue::Accumulate),
        wide: u32::from(out.dtype == DType::F32),
        limit: function.map_or(0.0, |function| function.limit),
    };
    let columns = if function.is_some() { BOX } else { 2 * BOX };
    let work = x.rows.div_ceil(BLOCKS * BOX) * out.width.div_ceil(columns);
    let grid = [work.min(device.context.multiprocessors / BLOCKS) * BLOCKS, 1];
    let launch = Shape { grid, block: THREADS, shared: SHARED };
    let bias: CUdeviceptr = bias.as_ref().map_or(0, |bias| bias.ptr());
    let maps: [CUtensorMap; 2] = [x_map, w_map];
    device.launch_special(special(w.dtype, function), launch, args![out.ptr, maps[0], maps[1], bias, shape])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_fit_into_a_block() {
        const H100: usize = 227 << 10;
        const { assert!(SHARED <= H100) };
    }

    #[test]
    fn each_function_is_compiled_apart() {
        let [all, silu] = usual(DType::Bf16);
        assert_ne!(all, silu);
        assert_eq!(special(DType::Bf16, Some(Activation::Silu.into())), silu);
    }
}
