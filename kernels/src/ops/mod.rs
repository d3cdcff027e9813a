//! The seam between the decoder and a device: handles to device memory, and one method per fused operation.
//!
//! [`Backend`] is a device's whole; its parts have a trait each, by purpose: [`Device`], [`Load`], [`Ops`], [`Sample`],
//! [`Capture`], [`Comm`]. Activations are row-major `[rows, width]`; a step's rows are the tokens of all its sequences, one
//! after the other (a ragged batch). Handles stand for device memory, so nothing above this module owns any.

mod attention;
mod batch;
mod capture;
mod comm;
mod device;
mod handles;
mod host;
mod limits;
mod load;
mod moe;
mod noise;
mod operations;
mod recurrent;
mod sample;
mod shapes;
mod step_preference;

pub use attention::{Attention, ExpectedAttention, Heads, KvScales, KvShape, Rope, RopeStyle};
pub use batch::{Batch, RowSelection, Sequence};
pub use capture::{Capture, CaptureError, CaptureSize};
pub use comm::{Comm, CommError, Exchange, ExchangeFailed, RankPlacement};
pub use device::{Device, DeviceMemory, Timing};
pub use handles::{Act, ExpertRouting, KvLayer, Matrix, MatrixGroup, Table, Vector};
pub use host::{
    ALL_COLUMNS, Encoding, HostMatrix, InputRounding, MatrixUse, PlainElements, ScaledCodes, StackedShape, WeightFormat,
};
pub use limits::ShapeLimits;
pub use load::Load;
pub use moe::{ExpertGroups, GatedExperts, RouterScore, Routing};
pub use noise::{Noise, NoiseRows, mix};
pub use operations::Ops;
pub use recurrent::{Cols, Conv, DeltaInput, DeltaRule, Scan, ScanInput, State};
pub use sample::Sample;
pub use shapes::{check_experts, check_product};
pub use step_preference::StepPreference;

/// A device with all its parts: owns weights, activation buffers and KV memory, and runs a forward pass's operations in
/// order.
///
/// Guarantee: a row's results depend only on that row's inputs (and its sequence's cache), bit for bit: never on which or
/// how many other rows share the step, nor on how its sequence was cut into chunks.
pub trait Backend: Device + Load + Ops + Sample + Capture + Comm {}

impl<T: Device + Load + Ops + Sample + Capture + Comm + ?Sized> Backend for T {}

/// Element type of buffers, and what is computed in. What a weight matrix is stored as is a [`WeightFormat`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum DType {
    /// IEEE single.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
    /// [`crate::e4m3`]: of KV caches, and the codes of [`WeightFormat::ScaledE4m3`].
    E4m3,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::E4m3 => 1,
        }
    }

    /// As kernels and people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::E4m3 => "e4m3",
        }
    }
}

/// Normalisation over the width of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps) * w`.
    Rms,
    /// `(x - mean) / sqrt(var + eps) * w + b`.
    Layer,
}

/// A norm's parameters.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// Which norm.
    pub kind: NormKind,
    /// Scale; absent: 1. (`1 + w` conventions are folded in at load.)
    pub weight: Option<Vector>,
    /// Shift; absent: 0.
    pub bias: Option<Vector>,
    /// Epsilon.
    pub eps: f32,
}

/// Gate functions of MLPs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// Gaussian error linear unit, exact.
    Gelu,
    /// Its tanh approximation.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2`.
    ReluSquared,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `y * sigmoid(1.702 y)` with `y = min(x, limit)`; where it gates, the other half counts as `clamp(up, -limit, limit) + 1` (gpt-oss).
    ClampedSwiGlu {
        /// Bound.
        limit: f32,
    },
}

/// Where heads lie in a row: the first from column `first` on, each `stride` columns after the one before.
#[derive(Clone, Copy, Debug)]
pub struct HeadColumns {
    /// First column.
    pub first: usize,
    /// Columns from one head to the next.
    pub stride: usize,
}

/// What happens to a product before it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Epilogue {
    /// `out = x w^T (+ bias)`.
    Store,
    /// `out += x w^T (+ bias)`: the residual add.
    Accumulate,
}
