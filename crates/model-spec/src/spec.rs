//! [`ModelSpec`]: an architecture with its sizes, as plain data.
//!
//! Where two families differ, a field says how; the decoder never asks for a name. A layer reads as
//!
//! ```text
//! sequential: x += s * after_attention(mixer(before_attention(x)));  x += s * after_mlp(mlp(before_mlp(x)))
//! parallel:   x += s * (mixer(before_attention(x)) + mlp(before_mlp(x), or the same norm where before_mlp is absent))
//! ```
//!
//! where an absent norm is the identity, `s` is `residual_scale`, and `mlp` is the layer's [`FeedForwardSpec`]; without
//! one the second sum is left out.

use crate::feed_forward::FeedForwardSpec;
use crate::latent::LatentSpec;
use crate::mask::Mask;
use crate::mlp::Activation;
use crate::norm::NormSpec;
use crate::recurrent::{DeltaSpec, Mamba2Spec, MambaSpec};
use crate::relative::RelativeBias;
use crate::rope::RopeSpec;

/// Everything that the decoder needs to know about a model beside its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Class name in `config.json`, e.g. `LlamaForCausalLM`.
    pub architecture: String,
    /// Rows of the embedding and of the logits; may exceed the tokenizer's vocabulary (padding).
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Longest sequence (prompt and output) that the model was made for, in tokens.
    pub context_len: usize,
    /// Element type that `config.json` asks for, if it says.
    pub dtype: Option<DType>,
    /// Tokens that end a sequence, from `generation_config.json` and `config.json`, sorted.
    pub eos_token_ids: Vec<u32>,
    /// From tokens to the residual stream.
    pub embedding: EmbeddingSpec,
    /// The layers in order; they may differ from one another.
    pub layers: Vec<LayerSpec>,
    /// Norm before the head.
    pub final_norm: Option<NormSpec>,
    /// From the residual stream to what the model gives.
    pub head: HeadSpec,
}

/// Element type of numbers: of weights as `config.json` names it, of buffers, and what is computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// As kernels and people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }

    /// From the name that PyTorch uses.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "float32" | "float" => Some(Self::F32),
            "bfloat16" => Some(Self::Bf16),
            "float16" | "half" => Some(Self::F16),
            _ => None,
        }
    }
}

/// From tokens to the residual stream:
/// `norm(project_in(scale * table[token]) + token_types[type] + positions[position + offset])`.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingSpec {
    /// Width of the table, and of the head's rows. Where it is not `hidden_size`, a projection without bias stands
    /// after the table and one before the head (OPT 350m).
    pub width: usize,
    /// Multiplies the looked-up row (Gemma: `sqrt(hidden)`); 1 otherwise.
    pub scale: f32,
    /// Learned types of tokens, added: as many rows (BERT: which text of a pair).
    pub token_types: Option<usize>,
    /// Learned positions, added.
    pub positions: Option<PositionTable>,
    /// Norm at the end (BLOOM).
    pub norm: Option<NormSpec>,
}

impl EmbeddingSpec {
    /// A table of rows as wide as the residual stream, and nothing else.
    pub fn plain(hidden_size: usize) -> Self {
        Self { width: hidden_size, scale: 1.0, token_types: None, positions: None, norm: None }
    }
}

/// Learned positions: a row of `hidden_size` for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionTable {
    /// Rows.
    pub rows: usize,
    /// Row of position 0 (OPT: 2).
    pub offset: usize,
}

/// What is computed of the residual stream after the last norm.
#[derive(Clone, Debug, PartialEq)]
pub enum HeadSpec {
    /// A number for each token of the vocabulary: causal language models.
    Logits(LogitsSpec),
    /// Nothing: hidden states are what the model gives (embedding models).
    Hidden,
    /// A score for each class (sequence classification).
    Classes(ClassesSpec),
    /// What linear layers make of them, one after the other: embeddings of another width (ColBERT, the `Dense` modules
    /// of sentence-transformers).
    Projected(Vec<ProjectionSpec>),
    /// They themselves and, side by side behind them, what each of these layers makes of them (bge-m3).
    HiddenWith(Vec<ProjectionSpec>),
}

impl HeadSpec {
    /// Logits by a matrix, and nothing else.
    pub fn plain(tied: bool) -> Self {
        Self::Logits(LogitsSpec { tied, bias: false, unit_rows: false, scale: 1.0, soft_cap: None })
    }

    /// How logits are computed, if that is what it does.
    pub fn logits(&self) -> Option<&LogitsSpec> {
        match self {
            Self::Logits(logits) => Some(logits),
            Self::Hidden | Self::Classes(_) | Self::Projected(_) | Self::HiddenWith(_) => None,
        }
    }

    /// Changes how logits are computed: for architectures that differ from [`Self::plain`] in a field.
    pub fn change_logits(&mut self, change: impl FnOnce(&mut LogitsSpec)) {
        if let Self::Logits(logits) = self {
            change(logits);
        }
    }
}

/// A linear layer of a head that embeds: `activation(W x + b)`.
#[derive(Clone, Debug, PartialEq)]
pub struct ProjectionSpec {
    /// The file that holds it, relative to the model's folder; absent: those of the model's other weights.
    pub file: Option<String>,
    /// Width of what it takes.
    pub inputs: usize,
    /// Width of what it gives.
    pub outputs: usize,
    /// There is a bias.
    pub bias: bool,
    /// Non-linearity, if there is one.
    pub activation: Option<HeadActivation>,
}

/// From the residual stream to logits.
#[derive(Clone, Debug, PartialEq)]
pub struct LogitsSpec {
    /// The embedding's matrix is the head's too.
    pub tied: bool,
    /// There is a bias.
    pub bias: bool,
    /// The matrix's rows are scaled to length one (Baichuan 2).
    pub unit_rows: bool,
    /// Multiplies logits (Cohere, MiniCPM, Granite); 1 otherwise.
    pub scale: f32,
    /// `cap * tanh(logit / cap)` (Gemma 2).
    pub soft_cap: Option<f32>,
}

/// From the residual stream to class scores: `classifier(dense(row))`, the classifier a matrix `[count, hidden]`.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassesSpec {
    /// Classes.
    pub count: usize,
    /// The classifier has a bias.
    pub bias: bool,
    /// What stands before the classifier.
    pub dense: Option<DenseSpec>,
    /// What is scored.
    pub of: ScoredTokens,
    /// The classifier's rows are these tokens' of the causal head; absent: it has its own.
    pub tokens: Option<TokenClasses>,
}

/// Tokens whose logits are class scores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenClasses {
    /// The tokens, by class.
    pub tokens: Vec<u32>,
    /// The head is the embedding's matrix.
    pub tied: bool,
}

/// A linear layer as wide as the residual stream: `norm(activation(W x + b))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DenseSpec {
    /// Non-linearity.
    pub activation: HeadActivation,
    /// There is a bias.
    pub bias: bool,
    /// Norm at the end.
    pub norm: Option<NormSpec>,
}

/// Non-linearities of heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HeadActivation {
    /// Hyperbolic tangent.
    Tanh,
    /// One that MLPs have.
    Of(Activation),
}

/// Which tokens class scores are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoredTokens {
    /// The first.
    First,
    /// The last.
    Last,
    /// The mean over all.
    Mean,
    /// Each for itself.
    Each,
    /// All of them, whose scores of the vocabulary's tokens become one sparse vector (SPLADE).
    AllSparse,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// The part that mixes tokens.
    pub mixer: MixerSpec,
    /// The part that works on each token.
    pub feed_forward: FeedForwardSpec,
    /// Where norms stand.
    pub norms: LayerNorms,
    /// How both parts join the residual stream.
    pub residual: Residual,
    /// Multiplies each part's output before it is added; 1 otherwise.
    pub residual_scale: f32,
}

/// Norms of a layer; absent ones are the identity.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct LayerNorms {
    /// On attention's input.
    pub before_attention: Option<NormSpec>,
    /// On attention's output, before the residual add.
    pub after_attention: Option<NormSpec>,
    /// On the MLP's input. In a parallel layer, absent means: the same input as attention.
    pub before_mlp: Option<NormSpec>,
    /// On the MLP's output, before the residual add.
    pub after_mlp: Option<NormSpec>,
}

impl LayerNorms {
    /// On the input of both parts.
    pub fn before(norm: NormSpec) -> Self {
        Self { before_attention: Some(norm), before_mlp: Some(norm), ..Self::default() }
    }

    /// On the output of both parts.
    pub fn after(norm: NormSpec) -> Self {
        Self { after_attention: Some(norm), after_mlp: Some(norm), ..Self::default() }
    }

    /// On the input and the output of both parts.
    pub fn around(norm: NormSpec) -> Self {
        Self { after_attention: Some(norm), after_mlp: Some(norm), ..Self::before(norm) }
    }

    /// One for both parts of a parallel layer.
    pub fn shared(norm: NormSpec) -> Self {
        Self { before_attention: Some(norm), ..Self::default() }
    }
}

/// How attention and MLP join the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// The MLP sees attention's result.
    Sequential,
    /// Both see the layer's input (GPT-J, Falcon, Phi, Cohere).
    Parallel,
    /// The MLP sees attention's result, and what each part's output is added to is its normed input: `x = norm(x); x +=
    /// part(x)`. Models that norm after the add (OPT 350m) are the same with each norm counted to the part after it.
    Normed,
}

/// The part of a layer that mixes tokens; layers of one model may differ in it.
#[derive(Clone, Debug, PartialEq)]
pub enum MixerSpec {
    /// Attention over cached keys and values.
    Attention(AttentionSpec),
    /// A state-space model, a state for each channel.
    Mamba(MambaSpec),
    /// A state-space model, heads that share a decay.
    Mamba2(Mamba2Spec),
    /// Linear attention by the gated delta rule.
    Delta(DeltaSpec),
    /// Attention over cached latent vectors (DeepSeek).
    Latent(LatentSpec),
}

impl MixerSpec {
    /// Whether it carries a state from token to token, beside or instead of a cache of them.
    pub fn is_recurrent(&self) -> bool {
        matches!(self, Self::Mamba(_) | Self::Mamba2(_) | Self::Delta(_))
    }

    /// Attention, if that is what it is: for architectures that change one field of another's.
    pub fn attention_mut(&mut self) -> Option<&mut AttentionSpec> {
        match self {
            Self::Attention(attention) => Some(attention),
            _ => None,
        }
    }
}

impl From<AttentionSpec> for MixerSpec {
    fn from(attention: AttentionSpec) -> Self {
        Self::Attention(attention)
    }
}

/// Attention over cached keys and values.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of query and key heads.
    pub head_dim: usize,
    /// Width of value heads.
    pub v_head_dim: usize,
    /// Multiplies scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Where a token stands.
    pub position: Position,
    /// Which tokens a token sees, as far as the window reaches.
    pub mask: Mask,
    /// A token sees itself and `window - 1` tokens before it, and as many after it where it sees those; absent: all.
    pub window: Option<usize>,
    /// `cap * tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// One learned extra logit a head that takes weight but no value (gpt-oss).
    pub sinks: bool,
    /// Norm of queries and keys before they rotate.
    pub qk_norm: Option<QkNorm>,
    /// Queries, keys and values are cut to this size either way, after their norm and before they rotate (MPT, OLMo,
    /// DBRX).
    pub clip: Option<f32>,
    /// Which projections have a bias.
    pub bias: Biases,
    /// The result is multiplied by the sigmoid of another projection of the input (Qwen3-Next).
    pub gated: bool,
}

/// How attention knows where a token stands.
#[derive(Clone, Debug, PartialEq)]
pub enum Position {
    /// Rotary embedding of queries and keys.
    Rope(RopeSpec),
    /// A bias linear in the distance; one slope a query head.
    Alibi(Vec<f32>),
    /// A learned bias by the distance; all layers share one table (T5, MPNet).
    Relative(RelativeBias),
    /// Not at all (global layers of Cohere 2, EXAONE 4).
    None,
}

/// Norm of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QkNorm {
    /// Each head alone, one weight `[head_dim]` for all heads (Qwen 3, Gemma 3).
    PerHead(NormSpec),
    /// Each head alone, with a weight of its own (Command R+, StableLM 2 12B).
    EachHead(NormSpec),
    /// All heads' queries as one row, and all keys (OLMo 2).
    Whole(NormSpec),
}

/// Biases of a layer's attention projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Biases {
    /// On q, k and v.
    pub qkv: bool,
    /// On the output projection.
    pub output: bool,
}
