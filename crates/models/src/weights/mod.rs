//! Weights: what a model needs of them ([`ParamId`]), and the readers that fetch slices of it.

mod beside;
pub(crate) mod cache_scales;
mod cast;
mod checkpoint;
mod dummy;
mod dummy_codes;
mod files;
mod gguf;
mod location;
mod random_tensor;
mod safetensors;
mod save;
mod spread;
mod store;
mod stored;
mod torch;

use std::collections::BTreeMap;
use std::ops::Range;

use kernels::ops::{DType, NoiseRows};

use crate::error::LoadError;

pub(crate) use cast::{narrow, narrow_into, widen};
pub(crate) use checkpoint::Checkpoint;
pub(crate) use dummy::Dummy;
pub(crate) use dummy_codes::DummyFormat;
pub(crate) use files::{Code, Element, Tensor, Tensors};
pub(crate) use location::{FusedShard, StackedExpert, TensorLocation};
pub(crate) use random_tensor::{Content, Made, RandomTensor, RandomWeight, integers};
pub use save::save_random;
pub(crate) use spread::{spread, spread_rows};
pub(crate) use store::{Loader, Measure, Resident, Store};
pub(crate) use stored::{BlocksPart, Chunk, Decoding, Fetched, GroupedPart, ScaledPart, Stored};

/// Tensors of a file.
pub(crate) type OpenFiles = Box<dyn files::Files>;

/// Opens one file of tensors, safetensors or PyTorch's, by its ending.
pub(crate) fn open_files(path: &std::path::Path) -> Result<OpenFiles, LoadError> {
    let files = [path.to_owned()];
    match is_safetensors(path) {
        true => Ok(Box::new(safetensors::SafetensorsFiles::open(&files)?)),
        false => Ok(Box::new(torch::TorchFiles::open(&files)?)),
    }
}

/// The same of a file that may be overwritten meanwhile; `bytes` are what is in it. Of PyTorch's, tensors are
/// read from the file when they are asked for.
pub(crate) fn files_of(path: &std::path::Path, bytes: Vec<u8>) -> Result<OpenFiles, LoadError> {
    match is_safetensors(path) {
        true => Ok(Box::new(safetensors::SafetensorsFiles::of_bytes(path.to_owned(), bytes)?)),
        false => open_files(path),
    }
}

fn is_safetensors(path: &std::path::Path) -> bool {
    path.extension().is_some_and(|extension| extension == "safetensors")
}

/// One weight of a model, whatever its file calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamId {
    /// `[vocab, embedding width]`.
    Embedding,
    /// `[hidden, embedding width]`.
    ProjectIn,
    /// One row a position.
    Positions,
    /// One row a type of tokens.
    TokenTypes,
    /// Norm after the embedding.
    EmbeddingNorm,
    /// Norm before the head.
    FinalNorm,
    /// `[embedding width, hidden]`.
    ProjectOut,
    /// `[vocab, embedding width]`; not asked for when tied.
    Head,
    /// `[hidden, hidden]`, before the head of a model that scores classes.
    HeadDense,
    /// Norm of what it gives.
    HeadNorm,
    /// A linear layer after pooling, counted from 0.
    Projection(usize),
    /// Biases of attention by distance, `[buckets, heads]`, which all layers share.
    RelativeBias,
    /// Of a layer, counted from 0.
    Layer(usize, LayerParam),
}

/// One weight of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerParam {
    /// Norm on attention's input.
    BeforeAttention,
    /// Norm on attention's output.
    AfterAttention,
    /// Norm on the MLP's input.
    BeforeMlp,
    /// Norm on the MLP's output.
    AfterMlp,
    /// `[heads * head_dim, hidden]`.
    Query,
    /// `[kv_heads * head_dim, hidden]`.
    Key,
    /// `[kv_heads * v_head_dim, hidden]`.
    Value,
    /// `[hidden, heads * v_head_dim]`.
    Output,
    /// Norm of all query heads, alike or together.
    QueryNorm,
    /// Norm of all key heads, alike or together.
    KeyNorm,
    /// Norm of one query head.
    QueryHeadNorm(usize),
    /// Norm of one key head.
    KeyHeadNorm(usize),
    /// `[heads]`.
    Sinks,
    /// What gates a mixer's output: `[width of the output, hidden]`.
    MixerGate,
    /// Norm of a recurrent mixer's output.
    MixerNorm,
    /// Weights of a convolution, `[channels, 1, kernel]`, and its bias.
    Taps,
    /// What goes through a state-space model: `[inner, hidden]`.
    ScanInput,
    /// What a state takes in: `[groups * state_size, ...]`.
    StateInput,
    /// What is read out of it: `[groups * state_size, ...]`.
    StateOutput,
    /// Step sizes: `[heads, hidden]`, or `[inner, step rank]` with a bias.
    Step,
    /// `[step rank, inner]`.
    StepDown,
    /// `[heads]`.
    StepBias,
    /// How much of the new a delta rule takes: `[heads, hidden]`.
    Beta,
    /// Logarithms of rates: `[heads]` or `[inner, state_size]`.
    Decay,
    /// `[heads]` or `[inner]`.
    Skip,
    /// `[intermediate, hidden]`.
    Gate,
    /// `[intermediate, hidden]`.
    Up,
    /// `[hidden, intermediate]`.
    Down,
    /// `[experts, hidden]`.
    Router,
    /// `[experts]`.
    RouterCorrection,
    /// Of one expert of an MoE layer.
    Expert(usize, MlpParam),
    /// Of the MLP that all tokens share beside their experts.
    Shared(MlpParam),
    /// `[1, hidden]`.
    SharedGate,
    /// `[query rank, hidden]`.
    QueryDown,
    /// Norm of compressed queries.
    QueryDownNorm,
    /// `[heads * head_dim, query rank]`.
    QueryUp,
    /// `[kv rank + rope_dim, hidden]`.
    KvDown,
    /// Norm of the latent vector.
    KvDownNorm,
    /// `[heads * (nope_dim + v_head_dim), kv rank]`.
    KvUp,
}

/// One projection of an MLP that is a part of something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlpParam {
    /// `[intermediate, hidden]`.
    Gate,
    /// `[intermediate, hidden]`.
    Up,
    /// `[hidden, intermediate]`.
    Down,
}

/// The matrix (or norm scale) of a slot, or its bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// Matrix or scale.
    Weight,
    /// Bias or shift.
    Bias,
}

impl ParamKind {
    /// How names end.
    pub(crate) fn ending(self) -> &'static str {
        match self {
            Self::Weight => "weight",
            Self::Bias => "bias",
        }
    }
}

/// Where an architecture's files hold its weights.
pub type Names = Box<dyn Fn(ParamId, ParamKind) -> TensorLocation + Send>;

/// The part of a weight that a rank needs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slice {
    /// Where the whole weight lies.
    pub location: TensorLocation,
    /// Shape of the whole weight: `[rows, cols]`, or `[n]` for vectors (then `cols` is `0..1`).
    pub shape: Vec<usize>,
    pub rows: Range<usize>,
    pub cols: Range<usize>,
    /// Random weights differ by role.
    pub role: Role,
}

/// What a tensor does, as far as making one up, or making it ready, is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Matrix,
    /// A matrix of attention, an MLP or an expert, which may be quantised while it loads.
    Projection,
    /// A matrix whose rows are scaled to length one as it is loaded.
    UnitRows,
    /// Multiplies; neutral is 1.
    Scale,
    /// Added, or added to 1; neutral is 0.
    Shift,
}

impl Slice {
    pub(crate) fn elements(&self) -> usize {
        self.rows.len() * self.cols.len()
    }

    fn width(&self) -> usize {
        self.shape.get(1).copied().unwrap_or(1)
    }
}

/// Something to read weights from.
pub(crate) trait Weights: Sync {
    /// Checks that the slice is there and has the right shape; how it is stored.
    fn check(&self, slice: &Slice) -> Result<Stored, LoadError>;
    /// Fetches the slice, touching nothing else.
    fn fetch(&self, slice: &Slice) -> Result<Fetched<'_>, LoadError>;
    /// What the slice's elements are drawn from, if they are random; then they need not be fetched. Their values have
    /// the type `dtype`.
    fn random(&self, slice: &Slice, dtype: DType) -> Option<Random> {
        let _ = (slice, dtype);
        None
    }
    /// The numbers of tensors whose names end so, where weights come from files.
    fn numbers(&self, ends: &[&str]) -> Result<BTreeMap<String, Vec<f32>>, LoadError> {
        let _ = ends;
        Ok(BTreeMap::new())
    }
}

/// What the elements of a random matrix are drawn from: see [`NoiseRows`].
pub(crate) struct Random {
    pub key: u64,
    pub levels: Vec<u8>,
}

impl Random {
    /// The slice's rows.
    fn rows(&self, slice: &Slice) -> NoiseRows<'_> {
        let FusedShard { offset, size, period } = slice.location.rows;
        let (rows, first_col) = (slice.rows.clone(), slice.cols.start);
        NoiseRows { key: self.key, rows, size, period, offset, first_col, levels: &self.levels }
    }
}
