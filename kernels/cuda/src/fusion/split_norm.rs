//! A norm by the root of the mean square that the products around it do, so that no kernel of its own stands between them
//! (`kernels/cuda/csrc/fusion/split_norm.cuh`). Whoever else reads its rows, or writes what they are made of, has it done in full first.

use cudarc::driver::sys::CUdeviceptr;

use crate::CudaBackend;
use crate::gemm::product::Product;
use crate::layers::norm;
use crate::runtime::activations::View;
use crate::runtime::context::Memory;
use crate::runtime::device::Device;
use kernels::ops::{Act, DType, Epilogue};

/// Columns whose squares are added first, in one block. Rows have pairs of them.
pub(crate) const PIECE: usize = 16;
/// Sums of squares that there is memory for.
const MOST_SUMS: usize = 1 << 18;

/// `struct NormBefore` of the kernels: what is to be done to rows that a product reads. All zeros: nothing.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Before {
    squares: CUdeviceptr,
    pairs: u32,
    eps: f32,
}

/// `struct NormAfter` of the kernels: what a product leaves beside its sums. All zeros: nothing.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct After {
    scaled: CUdeviceptr,
    weight: CUdeviceptr,
    squares: CUdeviceptr,
}

/// A norm whose first part is done: `out` holds rows of the residual times the norm's weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Split {
    pub(crate) out: (Act, View),
    residual: View,
    params: norm::Params,
    pub(crate) before: Before,
}

/// Where sums of squares lie, and the norm whose second part is not done by everybody yet.
#[derive(Default)]
pub(crate) struct SplitNorms {
    squares: Option<Memory>,
    pub(crate) current: Option<Split>,
}

/// Whether a product, of whole pieces a block, could do the first part of a norm.
pub(crate) fn may_precede(product: &Product<'_>) -> bool {
    let Product { x, w, epilogue, out, .. } = product;
    // Numbers times a weight, not divided yet, may be more than f16 holds.
    w.dtype == DType::Bf16
        && out.dtype == DType::F32
        && *epilogue == Epilogue::Store
        && x.rows > 0
        && w.rows.is_multiple_of(2 * PIECE)
        && x.rows * (w.rows / PIECE) <= MOST_SUMS
}

impl SplitNorms {
    /// A norm of `residual` into `out` as two parts, after a product that [`may_precede`] it; none where it cannot be.
    pub(crate) fn split(
        &mut self,
        device: &mut Device,
        residual: View,
        params: norm::Params,
        out: (Act, View),
    ) -> Option<(Split, After)> {
        if params.subtract_mean != 0 || params.bias != 0 || out.1.dtype != DType::Bf16 {
            return None;
        }
        if self.squares.is_none() {
            self.squares = device.allocate(MOST_SUMS * size_of::<f32>(), "sums of squares");
        }
        let squares = self.squares.as_ref()?.ptr;
        let before = Before { squares, pairs: (residual.width / (2 * PIECE)) as u32, eps: params.eps };
        let after = After { scaled: out.1.ptr, weight: params.weight, squares };
        Some((Split { out, residual, params, before }, after))
    }

    /// What is left to do of the rows of a buffer.
    pub(crate) fn before(&self, x: Act) -> Option<Before> {
        self.current.filter(|split| split.out.0 == x).map(|split| split.before)
    }

    /// Whether an operation that writes there overwrites what a norm reads or has written.
    pub(crate) fn is_touched_by(&self, written: CUdeviceptr) -> bool {
        self.current.is_some_and(|split| [split.residual.ptr, split.out.1.ptr].contains(&written))
    }

    /// Does what is under way in full.
    pub(crate) fn finish(&mut self, device: &mut Device) {
        if let Some(Split { out, residual, params, .. }) = self.current.take() {
            norm::norm(device, residual, params, out.1);
        }
    }
}

impl CudaBackend {
    /// Before an operation that reads one buffer and writes to another (or the same): as `settle`, but a norm that concerns neither stays split.
    pub(crate) fn settle_for(&mut self, read: Act, written: Act) {
        self.collector.begin();
        self.acts.settle(&mut self.device);
        self.multiply();
        self.norm_heads();
        self.norm_for(read, written);
    }

    /// Before a sum of `delta` is normed into `out`, which may complete a product that waits: a split norm stays so only where `out` replaces it.
    pub(crate) fn settle_for_sum(&mut self, delta: Act, out: Act) {
        self.collector.begin();
        self.acts.settle(&mut self.device);
        self.norm_heads();
        if self.norms.current.is_some_and(|split| split.out.0 != out || split.out.0 == delta) {
            self.catch_up();
        }
    }

    /// Does the split norm in full if such an operation needs that.
    pub(crate) fn norm_for(&mut self, read: Act, written: Act) {
        if self.norms.before(read).is_some() || self.norms.is_touched_by(self.acts.address(written)) {
            self.norms.finish(&mut self.device);
        }
    }
}
