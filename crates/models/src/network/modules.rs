//! What a network is made of: weights on a device, ready to run.

use kernels::ops::{Entries, LoraSite, Norm, SavedSite, Table};
use model_spec::{HeadActivation, Residual};

use crate::feed_forward::FeedForward;
use crate::linear::Linear;
use crate::lora::{LoraLayer, SavedLayer};
use crate::mixer::Mixer;

/// Some layers of a model, and what comes before and after them where they are the first and the last.
pub(crate) struct Modules {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Absent where another stage embeds tokens.
    pub input: Option<Embedding>,
    pub layers: Vec<Layer>,
    /// Absent where another stage has the head.
    pub output: Option<Output>,
    /// The layers that take adapters.
    pub lora: Vec<LoraLayer>,
    /// The modules that adapters may have in place of the model's.
    pub saved: Vec<SavedLayer>,
}

/// From tokens to the residual stream.
pub(crate) struct Embedding {
    pub table: Table,
    /// Which tokens its rows are.
    pub entries: Entries,
    /// Where its adapters are, if it takes some, and what they have in its place.
    pub lora: Option<LoraSite>,
    pub saved: Option<SavedSite>,
    pub project: Option<Linear>,
    /// Learned types of tokens.
    pub token_types: Option<Table>,
    /// Learned positions, and the row of position 0.
    pub positions: Option<(Table, usize)>,
    pub norm: Option<Norm>,
}

pub(crate) struct Layer {
    pub mixer: Box<dyn Mixer>,
    /// From what the mixer puts out to the residual stream.
    pub output: Linear,
    /// Absent where the mixer is the whole layer.
    pub feed_forward: Option<Box<dyn FeedForward>>,
    pub before_attention: Option<Norm>,
    pub after_attention: Option<Norm>,
    pub before_mlp: Option<Norm>,
    pub after_mlp: Option<Norm>,
    pub residual: Residual,
    pub residual_scale: f32,
}

impl Layer {
    /// Whether its parts are computed side by side, each of a norm of its own.
    pub(crate) fn has_two_norms(&self) -> bool {
        self.residual == Residual::Parallel && self.before_mlp.is_some()
    }
}

/// From the residual stream to what the network gives.
pub(crate) struct Output {
    pub norm: Option<Norm>,
    pub head: Head,
    /// Tokens that logits are of: the model's, and those that adapters may have behind them.
    pub vocab: usize,
}

/// What is computed of a normed row.
pub(crate) enum Head {
    /// A number for each token of the vocabulary.
    Logits(LogitsHead),
    /// Nothing more: the row is what is wanted.
    Hidden,
    /// A score for each class; every rank has all of them.
    Classes(ClassesHead),
    /// What these make of the row, one after the other; every rank has all of it.
    Projected(Vec<ProjectedLinear>),
    /// The row and, side by side behind it, what each of these makes of it; every rank has all of it.
    HiddenWith(Vec<ProjectedLinear>),
}

/// From a normed row to class scores.
pub(crate) struct ClassesHead {
    pub dense: Option<DenseHead>,
    pub linear: Linear,
    pub count: usize,
}

/// A linear layer of a head that embeds.
pub(crate) struct ProjectedLinear {
    pub linear: Linear,
    pub activation: Option<HeadActivation>,
    /// Columns of what it gives.
    pub width: usize,
}

/// What stands before a classifier.
pub(crate) struct DenseHead {
    pub linear: Linear,
    pub activation: HeadActivation,
    pub norm: Option<Norm>,
}

/// From a normed row to logits; each rank has some of the columns.
pub(crate) struct LogitsHead {
    pub project: Option<Linear>,
    pub linear: Linear,
    /// Columns of this rank, padding included.
    pub width: usize,
    /// How logits have columns for tokens that adapters add to the vocabulary.
    pub wide: Option<WideLogits>,
    /// Multiplies logits; 1 otherwise.
    pub scale: f32,
    pub soft_cap: Option<f32>,
}

/// Columns of logits behind those of the model's own tokens: of rows without such adapters they are -inf.
#[derive(Clone, Copy)]
pub(crate) struct WideLogits {
    /// Where adapters have their heads.
    pub site: SavedSite,
    /// Columns of this rank that the model's own head gives.
    pub own: usize,
}
