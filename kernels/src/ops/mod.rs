//! The seam between the decoder and a device: handles to device memory, and one method per fused operation.
//!
//! [`Backend`] is a device's whole; its parts have a trait each, by purpose: [`Device`], [`Load`], [`Ops`], [`Lora`],
//! [`Sample`], [`Capture`], [`Comm`]. Activations are row-major `[rows, width]`; a step's rows are the tokens of all
//! its sequences, one after the other (a ragged batch). Handles stand for device memory, so nothing above this module
//! owns any.

mod attention;
mod batch;
mod capture;
mod comm;
mod device;
mod handles;
mod host;
mod kv_dtype;
mod limits;
mod load;
mod lora;
mod moe;
mod noise;
mod operations;
mod recurrent;
mod sample;
mod shapes;
mod step_preference;

pub use attention::{
    Attention, AttentionKernels, ExpectedAttention, Heads, KvScales, KvShape, LatentAttention, RelativeBias, Rope,
    ScoreMods,
};
pub use batch::{Batch, RowMeans, RowSelection, Sequence};
pub use capture::{Capture, CaptureError, CaptureOwner, CaptureSize};
pub use comm::{Comm, CommError, Exchange, ExchangeFailed, RankPlacement, StageLink};
pub use device::{Device, DeviceMemory, Timing, Wait, WaitFor};
pub use handles::{Act, ExpertRouting, HeadScales, KvLayer, Matrix, MatrixGroup, Table, Vector};
pub use host::{
    ALL_COLUMNS, CodeBits, ColumnOrder, E2M1, Encoding, GgmlBlocks, GroupedCodes, GroupedFormat, HostMatrix,
    InputRounding, Levels, MatrixUse, PlainElements, ScaledCodes, StackedShape, WeightFormat, Zeros,
};
pub use kv_dtype::KvDType;
pub use limits::ShapeLimits;
pub use load::Load;
pub use lora::{Entries, Lora, LoraShape, LoraSite, LoraWeights, SavedShape, SavedSite, Taken, write_and_wait};
pub use model_files::{BlockShape, GgmlType};
pub use model_spec::{Activation, DType, ExpertGroups, Mask, NormKind, RopeStyle, RouterScore};
pub use moe::{GatedExperts, Routing};
pub use noise::{Noise, NoiseRows, mix};
pub use operations::Ops;
pub use recurrent::{Cols, Conv, DeltaInput, DeltaRule, ExpectedDeltaRule, Scan, ScanInput, State};
pub use sample::Sample;
pub use shapes::{check_experts, check_product};
pub use step_preference::StepPreference;

/// A device with all its parts: owns weights, activation buffers and KV memory, and runs a forward pass's operations in
/// order.
///
/// Guarantee: a row's results depend only on that row's inputs (and its sequence's cache), bit for bit: never on which
/// or how many other rows share the step, nor on how its sequence was cut into chunks.
pub trait Backend: Device + Load + Ops + Lora + Sample + Capture + Comm {}

impl<T: Device + Load + Ops + Lora + Sample + Capture + Comm + ?Sized> Backend for T {}

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
