//! Launches `kernels/cuda/csrc/layers/norm_prepared.cu`: norms that also write their rows as a product with quantized
//! weights reads them.

use cudarc::driver::sys::CUdeviceptr;

use crate::fusion::op::{AddNorm, Norm};
use crate::gemm::prepared::PreparedRows;
use crate::jit::specialization::Special;
use crate::layers::norm::{self, KEPT, MOST_THREADS, Params};
use crate::runtime::activations::View;
use crate::runtime::device::{Device, args};
use kernels::ops::DType;

/// What is normed (`KIND`).
#[derive(Clone, Copy)]
enum Kind {
    Plain,
    Sum,
    SumWithNorm,
}

/// What the kernel is given beside what it writes.
struct Call {
    kind: Kind,
    x: View,
    /// What is added to it.
    delta: Option<View>,
    /// The norm of that.
    first: Params,
    params: Params,
    out: View,
}

/// Whether norms of rows, or of sums with them, can be written in two ways. `x`: what is read that is no residual.
pub(crate) fn fits(x: View, out: View) -> bool {
    /// Elements that a thread takes at a time, and columns that a block keeps.
    const EACH: usize = 4;
    const MOST_COLUMNS: usize = 2 * KEPT * MOST_THREADS;
    out.dtype.size() == 2
        && [DType::F32, out.dtype].contains(&x.dtype)
        && out.width.is_multiple_of(EACH)
        && out.width <= MOST_COLUMNS
}

/// Queues a norm; false where it cannot be compiled.
pub(crate) fn norm(device: &mut Device, norm: Norm, to: PreparedRows) -> bool {
    let Norm { x, params, out } = norm;
    run(device, &Call { kind: Kind::Plain, x, delta: None, first: Params::NONE, params, out }, to)
}

/// The same for a sum, of which `first` may norm the addend.
pub(crate) fn add_norm(device: &mut Device, first: Option<Params>, sum: AddNorm, to: PreparedRows) -> bool {
    let AddNorm { residual, delta, params, out } = sum;
    let kind = if first.is_some() { Kind::SumWithNorm } else { Kind::Sum };
    let first = first.unwrap_or(Params::NONE);
    run(device, &Call { kind, x: residual, delta: Some(delta), first, params, out }, to)
}

fn run(device: &mut Device, call: &Call, to: PreparedRows) -> bool {
    let &Call { kind, x, delta, first, params, out } = call;
    let special = special(kind, delta.unwrap_or(x).dtype, out);
    let delta: CUdeviceptr = delta.map_or(0, |delta| delta.ptr);
    let shape = norm::shape(out.rows, out.width);
    device.launch_special(special, shape, args![x.ptr, delta, first, params, out.ptr, to, out.width as u32])
}

fn special(kind: Kind, read: DType, out: View) -> Special {
    let fours = if out.width <= KEPT * MOST_THREADS { 2 } else { 4 };
    let sizes = [("KIND", kind as usize), ("SHORT", usize::from(read != DType::F32)), ("FOURS", fours)];
    Special::new("norm_prepared", out.dtype, &sizes)
}

/// Kernels for rows that a matrix of `width` columns multiplies.
pub(crate) fn specials(dtype: DType, width: usize) -> [Special; 2] {
    let out = View { ptr: 0, dtype, rows: 0, width, most_rows: 0 };
    [Kind::Plain, Kind::Sum].map(|kind| special(kind, DType::F32, out))
}

/// What is compiled ahead.
pub(crate) fn usual(dtype: DType) -> impl Iterator<Item = Special> {
    const WIDTH: usize = KEPT * MOST_THREADS;
    let out = View { ptr: 0, dtype, rows: 0, width: WIDTH, most_rows: 0 };
    [Kind::Plain, Kind::Sum, Kind::SumWithNorm].into_iter().map(move |kind| special(kind, DType::F32, out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_a_block_keeps_are_written_in_two_ways() {
        let view = |dtype, width| View { ptr: 0, dtype, rows: 1, width, most_rows: 1 };
        let fits = |x: DType, out: DType, width| fits(view(x, width), view(out, width));
        assert!(fits(DType::F32, DType::Bf16, 4096) && fits(DType::F16, DType::F16, 16_384));
        assert!(!fits(DType::F32, DType::F32, 4096) && !fits(DType::F16, DType::Bf16, 4096));
        assert!(!fits(DType::F32, DType::Bf16, 16_388) && !fits(DType::F32, DType::Bf16, 4098));
    }
}
