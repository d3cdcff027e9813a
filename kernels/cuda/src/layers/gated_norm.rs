//! Launches `kernels/cuda/csrc/layers/gate.cu` and `gated_norm.cu`.

use cudarc::driver::sys::CUdeviceptr;

use super::elementwise::Function;
use super::norm;
use crate::fusion::op::{ColumnGate, HeadNorm};
use crate::jit::layouts::twin;
use crate::runtime::device::{Device, Name, Shape, args};

/// Elements that threads read at once, and most of a head that a block keeps: `EACH`, `WIDE` of norm.cuh.
const EACH: usize = 4;
const MOST_DIM: usize = 2 * norm::KEPT * norm::MOST_THREADS;

/// `struct Gate` of gated_norm.cu.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Gate {
    first: CUdeviceptr,
    width: u32,
    activation: Function,
}

twin!(Gate = "GateColumns" { first, width, activation });

/// `x *= activation(gate)`.
pub(crate) fn gate(device: &mut Device, ColumnGate { x, first, width, activation }: ColumnGate) {
    let name = Name::of("gate", &[x.dtype]);
    let (function, columns) = (Function::from(activation), x.width as u32);
    device.launch(name, Shape::rows(x.rows, x.width), args![x.ptr, first, function, columns, width as u32]);
}

/// The same, and the norm of heads that are all columns.
pub(crate) fn gated_norm(device: &mut Device, gate: ColumnGate, heads: HeadNorm) {
    let ColumnGate { x, first, width, activation } = gate;
    let HeadNorm { heads: count, dim, params, stride, .. } = heads;
    let fours = [dim, width, x.width].iter().all(|columns| columns.is_multiple_of(EACH));
    if !fours || !first.is_multiple_of((EACH * x.dtype.size()) as u64) || dim > MOST_DIM {
        self::gate(device, gate);
        return norm::head_norm(device, heads);
    }
    let gate = Gate { first, width: width as u32, activation: activation.into() };
    let shape = Shape { grid: [x.rows, count], ..norm::shape(1, dim) };
    let name = Name::in_file("gated_norm", norm::by_width(dim, "gated_norm", "gated_norm_wide"), &[x.dtype]);
    let [dim, width, stride] = [dim, x.width, stride].map(|number| number as u32);
    device.launch_early(name, shape, args![x.ptr, gate, params, dim, width, stride]);
}
