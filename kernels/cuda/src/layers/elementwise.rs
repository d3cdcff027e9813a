//! Launches the kernels that work on single elements: `activate.cu`, `gated.cu`, `add.cu`, `clamp.cu`, `scale.cu`,
//! `soft_cap.cu`.

use crate::jit::layouts::twin;
use crate::runtime::activations::View;
use crate::runtime::device::{Device, Name, Shape, args};
use kernels::ops::Activation;

/// `struct Activation` of kernels/cuda/csrc/include/activation.cuh.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Function {
    pub(crate) number: u32,
    pub(crate) limit: f32,
}

twin!(Function = "Activation" { number: "function", limit });

impl From<Activation> for Function {
    fn from(activation: Activation) -> Self {
        Self { number: activation.number(), limit: activation.limit() }
    }
}

pub(crate) fn activate(device: &mut Device, x: View, activation: Activation) {
    /// Bytes of a piece, which a thread has at a time.
    const PIECE: usize = 16;
    let count = x.elements();
    let shape = Shape::elements(count.div_ceil(PIECE / x.dtype.size()));
    device.launch_early(
        Name::of("activate", &[x.dtype]),
        shape,
        args![x.ptr, Function::from(activation), count as u64],
    );
}

/// Rows `[gate | up]`, twice as wide as `out`.
pub(crate) fn gated(device: &mut Device, gate_up: View, activation: Activation, out: View) {
    const BLOCK: usize = 256;
    let shape = Shape { grid: [out.rows, out.width.div_ceil(8 * BLOCK)], block: BLOCK, shared: 0 };
    device.launch_early(
        Name::of("gated", &[gate_up.dtype, out.dtype]),
        shape,
        args![gate_up.ptr, out.ptr, Function::from(activation), out.width as u32],
    );
}

pub(crate) fn add(device: &mut Device, x: View, y: View) {
    let count = x.elements();
    device.launch(Name::of("add", &[x.dtype, y.dtype]), Shape::elements(count), args![x.ptr, y.ptr, count as u64]);
}

pub(crate) fn clamp(device: &mut Device, x: View, limit: f32) {
    let count = x.elements();
    device.launch(Name::of("clamp", &[x.dtype]), Shape::elements(count), args![x.ptr, limit, count as u64]);
}

pub(crate) fn scale(device: &mut Device, x: View, factor: f32) {
    let count = x.elements();
    device.launch(Name::of("scale", &[x.dtype]), Shape::elements(count), args![x.ptr, factor, count as u64]);
}

pub(crate) fn soft_cap(device: &mut Device, x: View, cap: f32) {
    let count = x.elements();
    device.launch(Name::of("soft_cap", &[x.dtype]), Shape::elements(count), args![x.ptr, cap, count as u64]);
}
