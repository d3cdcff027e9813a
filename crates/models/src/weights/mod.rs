//! Weights: what a model needs of them ([`Slot`]), and the readers that fetch slices of it.

mod cast;
mod checkpoint;
mod dummy;
mod gguf;
mod map;
mod safetensors;
mod store;
mod torch;

use std::borrow::Cow;
use std::ops::Range;

use kernels::ops::DType;

use crate::error::LoadError;

pub(crate) use checkpoint::Checkpoint;
pub(crate) use dummy::Dummy;
pub(crate) use store::{Loader, Measure, Store};

/// One weight of a model, whatever its file calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// `[vocab, hidden]`.
    Embedding,
    /// Norm after the embedding.
    EmbeddingNorm,
    /// Norm before the head.
    FinalNorm,
    /// `[vocab, hidden]`; not asked for when tied.
    Head,
    /// Of a layer, counted from 0.
    Layer(usize, Part),
}

/// One weight of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
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
    /// Norm of query heads.
    QueryNorm,
    /// Norm of key heads.
    KeyNorm,
    /// `[heads]`.
    Sinks,
    /// `[intermediate, hidden]`.
    Gate,
    /// `[intermediate, hidden]`.
    Up,
    /// `[hidden, intermediate]`.
    Down,
}

/// The matrix (or norm scale) of a slot, or its bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Matrix or scale.
    Weight,
    /// Bias or shift.
    Bias,
}

/// What an architecture calls its weights: the tensor's name in the files.
pub type Names = Box<dyn Fn(Slot, Kind) -> String + Send>;

/// The part of a weight that a rank needs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slice {
    /// Name in the files.
    pub tensor: String,
    /// Shape of the whole weight: `[rows, cols]`, or `[n]` for vectors (then `cols` is `0..1`).
    pub shape: Vec<usize>,
    pub rows: Range<usize>,
    pub cols: Range<usize>,
    /// Random weights differ by role.
    pub role: Role,
}

/// What a tensor does, as far as making one up is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Matrix,
    /// Multiplies; neutral is 1.
    Scale,
    /// Added, or added to 1; neutral is 0.
    Shift,
}

impl Slice {
    fn elements(&self) -> usize {
        self.rows.len() * self.cols.len()
    }

    fn width(&self) -> usize {
        self.shape.get(1).copied().unwrap_or(1)
    }
}

/// A slice's elements, row-major, little-endian, unaligned.
pub(crate) struct Chunk<'a> {
    pub dtype: DType,
    pub bytes: Cow<'a, [u8]>,
}

/// Something to read weights from.
pub(crate) trait Weights {
    /// Checks that the slice is there and has the right shape; its element type.
    fn check(&self, slice: &Slice) -> Result<DType, LoadError>;
    /// Fetches the slice, touching nothing else.
    fn fetch(&self, slice: &Slice) -> Result<Chunk<'_>, LoadError>;
}
