//! What a model is, as data: the facts that one decoder needs to run any architecture.
//!
//! [`ModelSpec`] and its parts are plain structs; an architecture is a function from [`ConfigFile`] to a [`ModelSpec`].
//! What is the same for all architectures is read here: rotary scaling ([`RopeSpec`]), end tokens ([`eos_token_ids`]),
//! and the [`fingerprint`] by which processes check that they serve the same folder.
//!
//! What a spec says and a device computes is one type: [`Activation`], [`NormKind`], [`RopeStyle`], [`RouterScore`],
//! [`ExpertGroups`] and [`DType`] are those of `kernels::ops`, too.

mod alibi;
mod config;
mod eos;
mod error;
mod feed_forward;
mod fingerprint;
mod gguf;
mod latent;
mod mask;
mod mlp;
mod moe;
mod nearest;
mod norm;
mod recurrent;
mod relative;
mod rope;
mod rope_config;
mod spec;

pub use alibi::alibi_slopes;
pub use config::ConfigFile;
pub use eos::eos_token_ids;
pub use error::ConfigError;
pub use feed_forward::FeedForwardSpec;
pub use fingerprint::fingerprint;
pub use gguf::GgufFamily;
pub use latent::LatentSpec;
pub use mask::Mask;
pub use mlp::{Activation, MlpBias, MlpKind, MlpSpec};
pub use moe::{ExpertGroups, MoeSpec, RouterScore, RoutingSpec, SharedExpertSpec};
pub use nearest::nearest;
pub use norm::{NormKind, NormScale, NormSpec};
pub use recurrent::{DeltaSpec, Mamba2Spec, MambaSpec};
pub use relative::RelativeBias;
pub use rope::{RopeScaling, RopeSpec, RopeStyle, RopeTable, YarnScaling};
pub use rope_config::{RopeDefaults, Ropes, context_len, context_len_opt, read_rope, read_ropes, rotary_dim};
pub use spec::{
    AttentionSpec, Biases, ClassesSpec, DType, DenseSpec, EmbeddingSpec, HeadActivation, HeadSpec, LayerNorms,
    LayerSpec, LogitsSpec, MixerSpec, ModelSpec, Position, PositionTable, ProjectionSpec, QkNorm, Residual,
    ScoredTokens, TokenClasses,
};
