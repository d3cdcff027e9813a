//! An operation of a step, with addresses in the place of handles: what fusion rules, launchers and the one-kernel step
//! read.

use cudarc::driver::sys::CUdeviceptr;

use crate::attention::kv::Kv;
use crate::attention::layer::Params;
use crate::fusion::head_norms::QkNorms;
use crate::fusion::prepared_rows::Maker;
use crate::fusion::split_norm::SplitNorm;
use crate::gemm::prepared::{InputForm, Prepared};
use crate::layers::lora::Lora;
use crate::layers::norm;
use crate::runtime::activations::View;
use crate::weights::Weights;
use kernels::ops::{self, Activation, DType, Epilogue, Heads, KvLayer, KvScales, KvShape, Matrix, Vector};

/// An operation. Those from [`Op::GatedGemm`] on are what rules make of several.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Op {
    Embed {
        table: Stored,
        first_entry: u32,
        scale: f32,
        out: View,
    },
    Norm(Norm),
    AddNorm(AddNorm),
    HeadNorm(HeadNorm),
    Gate(ColumnGate),
    Gemm(Gemm),
    Gated(Gated),
    /// `x = activation(x)`.
    Activate(View, Activation),
    Rope(Rope),
    Attention(Attention),
    Lora(Lora),
    /// A sum over ranks, whose parts may be rounded to a type on their way.
    AllReduce(View, DType),
    /// One that no rule knows, by its name: it is launched by its own code, after all before it.
    Opaque(&'static str),
    /// `out = activation(gate) * up` of a GEMM's columns `[gate | up]`, which are not written.
    GatedGemm(Gemm, Gated),
    /// The same of each output: `out = activation(x w^T + bias)`.
    ActivatedGemm(Gemm, Activation),
    /// A GEMM and what adapters add to it, shrunk before it.
    AdaptedGemm(Gemm, Lora),
    /// The same of `[gate | up]`, gated.
    AdaptedGatedGemm(Gemm, Lora, Gated),
    /// A GEMM whose outputs are added to the norm's residual instead of being written.
    AddNormGemm(Gemm, AddNorm, NormBy),
    /// A sum over ranks of what is added, and the norm of the residual; parts may be rounded to a type on their way.
    AllReduceAddNorm(AddNorm, DType),
    /// A norm in place of what is added, and the norm of the sum; the addend is left in any state.
    NormAddNorm(Norm, AddNorm),
    /// Two norms of the same rows, which differ in weights and biases alone.
    TwoNorms(Norm, Norm),
    /// A gate, and the norm of all that it gates.
    GatedNorm(ColumnGate, HeadNorm),
    /// Rows that are also written as the product reads them that follows.
    Prepared(Maker, Gemm),
}

/// `out = norm(x)`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Norm {
    pub(crate) x: View,
    pub(crate) params: norm::Params,
    pub(crate) out: View,
}

/// `residual += delta; out = norm(residual)`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct AddNorm {
    pub(crate) residual: View,
    pub(crate) delta: View,
    pub(crate) params: norm::Params,
    pub(crate) out: View,
}

/// Who norms the sum that a GEMM was added to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NormBy {
    /// A kernel of its own.
    Kernel,
    /// The GEMM, as far as weights and squares go, and those that read `out` the rest: see `split_norm`.
    Gemms,
}

/// A norm of `heads` heads of `dim` columns, the first from `first_col` on, in place.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct HeadNorm {
    pub(crate) x: View,
    pub(crate) first_col: usize,
    pub(crate) heads: usize,
    pub(crate) dim: usize,
    pub(crate) params: norm::Params,
    /// From one head's parameters to the next one's; 0 where all share theirs.
    pub(crate) stride: usize,
}

/// `x *= activation(gate)`, where a gate's row begins `width` elements after the one before, the first at `first`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct ColumnGate {
    pub(crate) x: View,
    pub(crate) first: CUdeviceptr,
    pub(crate) width: usize,
    pub(crate) activation: Activation,
}

/// `out = x w^T + bias`, or added to `out`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Gemm {
    pub(crate) x: View,
    /// The norm of which `x` has the first half only.
    pub(crate) before: Option<SplitNorm>,
    pub(crate) w: Matrix,
    pub(crate) weights: Stored,
    pub(crate) bias: Option<Vector>,
    /// Where the bias lies; null for none.
    pub(crate) bias_at: CUdeviceptr,
    pub(crate) epilogue: Epilogue,
    pub(crate) out: View,
    pub(crate) fits: Fits,
    /// The step has rows with adapters, whose deltas may follow.
    pub(crate) adapted: bool,
    /// Its input is there as it reads it.
    pub(crate) prepared: Option<Prepared>,
}

/// What the kernels for a GEMM of this shape could do in the same launch. None of it where it is added to its output.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Fits {
    /// Gate its outputs.
    pub(crate) gate: bool,
    /// Take an activation of each output.
    pub(crate) activate: bool,
    /// Add its outputs to a residual, for less than a launch of its own takes.
    pub(crate) add: bool,
    /// The same, and the first half of a norm of the sum.
    pub(crate) split_norm: bool,
    /// The second half of a norm of its input.
    pub(crate) end_norm: bool,
    /// Whether it may be a part that ranks add up: it is stored in f32, and there are other ranks.
    pub(crate) all_reduce: bool,
    /// Write its gated outputs in any form that is piecewise, too.
    pub(crate) prepare: bool,
    /// How it reads its input, where not as it is.
    pub(crate) reads: Option<InputForm>,
}

/// `out = activation(gate) * up`, rows `[gate | up]` of `gate_up`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Gated {
    pub(crate) gate_up: View,
    pub(crate) activation: Activation,
    pub(crate) out: View,
}

/// Rotates queries and keys, and writes keys and values to the cache.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Rope {
    pub(crate) qkv: View,
    pub(crate) heads: Heads,
    /// With the address of its frequencies.
    pub(crate) rope: Option<(ops::Rope, CUdeviceptr)>,
    pub(crate) kv: KvLayer,
    pub(crate) cache: Cache,
    /// Whether its kernel could norm heads first.
    pub(crate) takes_norms: bool,
    /// Norms that it does first.
    pub(crate) norms: Option<QkNorms>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Attention {
    pub(crate) qkv: View,
    pub(crate) attention: ops::Attention,
    /// The same with vectors looked up.
    pub(crate) params: Params,
    pub(crate) kv: KvLayer,
    pub(crate) cache: Cache,
    /// The rows that are looked at later, if not all are.
    pub(crate) only: Option<Selected>,
    pub(crate) out: View,
}

/// Rows that the host picked, kept beside the list: see [`Pass::keep_rows`].
///
/// [`Pass::keep_rows`]: crate::fusion::pass::Pass::keep_rows
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Selected {
    pub(crate) first: usize,
    pub(crate) count: usize,
}

/// A matrix or table `[rows, cols]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stored {
    pub(crate) ptr: CUdeviceptr,
    pub(crate) dtype: DType,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

impl From<&Weights> for Stored {
    fn from(weights: &Weights) -> Self {
        Self { ptr: weights.ptr(), dtype: weights.dtype, rows: weights.rows, cols: weights.cols }
    }
}

/// A layer's keys and values, and where its block tables begin.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Cache {
    pub(crate) keys: CUdeviceptr,
    pub(crate) values: CUdeviceptr,
    pub(crate) shape: KvShape,
    pub(crate) scales: KvScales,
    /// Which of the batch's `first_block`.
    pub(crate) first_block: u64,
}

impl Cache {
    pub(crate) fn new(kv: &Kv, first_block: u64, scales: KvScales) -> Self {
        let (keys, values) = kv.pointers();
        Self { keys, values, shape: kv.shape, scales, first_block }
    }
}

/// What an operation reads and writes beside weights and caches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// Any buffer.
    Any,
    /// These two.
    Only { read: CUdeviceptr, written: CUdeviceptr },
}

impl Op {
    /// As [`Access::Any`] where no rule has to know better.
    pub(crate) fn access(&self) -> Access {
        let only = |read: View, written: View| Access::Only { read: read.ptr, written: written.ptr };
        match self {
            Self::HeadNorm(norm) => only(norm.x, norm.x),
            Self::Gemm(gemm) => only(gemm.x, gemm.out),
            Self::Gated(gated) => only(gated.gate_up, gated.out),
            Self::Activate(x, _) => only(*x, *x),
            Self::Rope(rope) => only(rope.qkv, rope.qkv),
            Self::Attention(attention) => only(attention.qkv, attention.out),
            _ => Access::Any,
        }
    }
}
