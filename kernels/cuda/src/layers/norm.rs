//! Launches `kernels/cuda/csrc/layers/norm.cu`, and norms with what is fused with them: `two_norms.cu`, `add_norm.cu`
//! and `norm_add_norm.cu` of `kernels/cuda/csrc/fusion`.

use cudarc::driver::sys::CUdeviceptr;

use crate::fusion::op::{AddNorm, HeadNorm, Norm};
use crate::jit::layouts::twin;
use crate::runtime::activations::View;
use crate::runtime::device::{Device, Name, Shape, args};

/// `struct Norm` of the kernel: null for no weight or bias.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Params {
    pub(crate) weight: CUdeviceptr,
    pub(crate) bias: CUdeviceptr,
    pub(crate) eps: f32,
    pub(crate) subtract_mean: u32,
}

twin!(Params = "Norm" { weight, bias, eps, subtract_mean });

impl Params {
    /// Of no norm.
    pub(crate) const NONE: Self = Self { weight: 0, bias: 0, eps: 0.0, subtract_mean: 0 };
}

/// Elements of a row that a thread keeps: `EACH * USUAL` of the kernel. Twice as many in functions for wide rows.
pub(crate) const KEPT: usize = 8;
/// Threads of a block at most.
pub(crate) const MOST_THREADS: usize = 1024;

/// A block for each row, its threads a multiple of 32 that depends on the width alone.
pub(crate) fn shape(rows: usize, width: usize) -> Shape {
    Shape { grid: [rows, 1], block: width.div_ceil(KEPT).next_multiple_of(32).min(MOST_THREADS), shared: 0 }
}

/// One function or the other, by the width of a row.
pub(crate) fn by_width(width: usize, usual: &'static str, wide: &'static str) -> &'static str {
    if width <= KEPT * MOST_THREADS { usual } else { wide }
}

pub(crate) fn norm(device: &mut Device, x: View, params: Params, out: View) {
    let shape = shape(x.rows, x.width);
    let name = Name::in_file("norm", by_width(x.width, "norm", "norm_wide"), &[x.dtype, out.dtype]);
    device.launch_early(name, shape, args![x.ptr, params, out.ptr, x.width as u32]);
}

/// Two norms of the same rows, which are f32, to one type; they differ in weights and biases alone.
pub(crate) fn two_norms(device: &mut Device, first: Norm, second: Norm) {
    let (Norm { x, params, out }, other) = (first, second.out);
    let name = Name::in_file("two_norms", by_width(x.width, "two_norms", "two_norms_wide"), &[x.dtype, out.dtype]);
    let shape = shape(x.rows, x.width);
    device.launch_early(name, shape, args![x.ptr, params, second.params, out.ptr, other.ptr, x.width as u32]);
}

/// The residual is f32.
pub(crate) fn add_norm(device: &mut Device, residual: View, delta: View, params: Params, out: View) {
    let function = by_width(residual.width, "add_norm", "add_norm_wide");
    let name = Name::in_file("add_norm", function, &[delta.dtype, out.dtype]);
    let shape = shape(residual.rows, residual.width);
    device.launch_early(name, shape, args![residual.ptr, delta.ptr, params, out.ptr, residual.width as u32]);
}

/// `first`: a norm of the sum's addend, f32 too, which is left in any state.
pub(crate) fn norm_add_norm(device: &mut Device, first: Params, sum: AddNorm) {
    let AddNorm { residual, delta, params, out } = sum;
    let function = by_width(residual.width, "norm_add_norm", "norm_add_norm_wide");
    let name = Name::in_file("norm_add_norm", function, &[delta.dtype, out.dtype]);
    let shape = shape(residual.rows, residual.width);
    device.launch_early(name, shape, args![residual.ptr, delta.ptr, first, params, out.ptr, residual.width as u32]);
}

/// Norm of `heads` heads of `dim` columns from `first_col` on, in place.
pub(crate) fn head_norm(device: &mut Device, norm: HeadNorm) {
    /// A warp for each.
    const HEADS_A_BLOCK: usize = 4;
    let HeadNorm { x, first_col, heads, dim, params, stride } = norm;
    let name = Name::in_file("norm", "head_norm", &[x.dtype]);
    let shape = Shape { grid: [x.rows, heads.div_ceil(HEADS_A_BLOCK)], block: 32 * HEADS_A_BLOCK, shared: 0 };
    let [first_col, heads, dim, width, stride] = [first_col, heads, dim, x.width, stride].map(|number| number as u32);
    device.launch_early(name, shape, args![x.ptr, params, first_col, heads, dim, width, stride]);
}
