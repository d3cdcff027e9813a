//! The operations of a step under recording, in order, as far as a whole step in one kernel knows them.

use cudarc::driver::sys::CUdeviceptr;

use crate::attention::kv::Kv;
use crate::layers::norm;
use crate::runtime::activations::View;
use crate::weights::Weights;
use kernels::ops::{self, Activation, DType, Epilogue, Heads, KvScales, KvShape, Rope};

/// An operation with addresses in the place of handles.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Embed {
        table: Stored,
        first_entry: u32,
        scale: f32,
        out: View,
    },
    /// `added` is added to `x` first.
    Norm {
        x: View,
        added: Option<View>,
        params: norm::Params,
        out: View,
    },
    HeadNorm {
        x: View,
        first_col: usize,
        heads: usize,
        dim: usize,
        params: norm::Params,
    },
    Product {
        x: View,
        w: Stored,
        bias: CUdeviceptr,
        epilogue: Epilogue,
        out: View,
    },
    Gated {
        gate_up: View,
        activation: Activation,
        out: View,
    },
    Rotation {
        qkv: View,
        heads: Heads,
        rope: Option<(Rope, CUdeviceptr)>,
        cache: Cache,
    },
    Attention {
        qkv: View,
        attention: ops::Attention,
        cache: Cache,
        out: View,
    },
}

/// A matrix or table `[rows, cols]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stored {
    pub(super) ptr: CUdeviceptr,
    pub(super) dtype: DType,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl From<&Weights> for Stored {
    fn from(weights: &Weights) -> Self {
        Self { ptr: weights.ptr(), dtype: weights.dtype, rows: weights.rows, cols: weights.cols }
    }
}

/// A layer's keys and values, and where its block tables begin.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Cache {
    pub(super) keys: CUdeviceptr,
    pub(super) values: CUdeviceptr,
    pub(super) shape: KvShape,
    pub(super) scales: KvScales,
    /// Which of the batch's `first_block`.
    pub(super) first_block: u64,
}

impl Cache {
    pub(crate) fn new(kv: &Kv, first_block: u64, scales: KvScales) -> Self {
        let (keys, values) = kv.pointers();
        Self { keys, values, shape: kv.shape, scales, first_block }
    }
}

/// What was asked for since a recording began. Every operation says that it begins, and those that are known say what they are: so one that is not
/// known can't be overlooked.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    collecting: bool,
    begun: usize,
    ops: Vec<Op>,
}

impl Collector {
    /// A step begins that is to be collected, or one that is not.
    pub(crate) fn start(&mut self, collecting: bool) {
        *self = Self { collecting, ..Self::default() };
    }

    /// An operation begins.
    pub(crate) fn begin(&mut self) {
        self.begun += 1;
    }

    /// It is this one.
    pub(crate) fn note(&mut self, op: Op) {
        if self.collecting {
            self.ops.push(op);
        }
    }

    /// All operations of the step, which is over; none where one of them is not known, or nothing was collected.
    pub(crate) fn end(&mut self) -> Option<Vec<Op>> {
        let Self { collecting, begun, ops } = std::mem::take(self);
        (collecting && begun == ops.len()).then_some(ops)
    }
}
