//! The part of a layer that works on each token alone: an MLP, a mixture of them, or nothing.

use crate::mixture::MixtureSpec;

/// A layer's feed-forward part.
#[derive(Clone, Debug, PartialEq)]
pub enum FeedForwardSpec {
    /// One MLP for every token.
    Dense(MlpSpec),
    /// Many MLPs, of which each token chooses a few.
    Mixture(MixtureSpec),
    /// None: the mixer is the whole layer (Mamba).
    None,
}

impl FeedForwardSpec {
    /// Inner widths, each with a name for messages: what tensor parallelism divides.
    pub fn inner_sizes(&self) -> Vec<(&'static str, usize)> {
        match self {
            Self::Dense(mlp) => vec![("intermediate_size", mlp.intermediate_size)],
            Self::Mixture(MixtureSpec { expert, shared, .. }) => {
                let shared =
                    shared.map(|shared| ("intermediate size of the shared expert", shared.mlp.intermediate_size));
                std::iter::once(("intermediate size of experts", expert.intermediate_size)).chain(shared).collect()
            }
            Self::None => Vec::new(),
        }
    }
}

impl From<MixtureSpec> for FeedForwardSpec {
    fn from(mixture: MixtureSpec) -> Self {
        Self::Mixture(mixture)
    }
}

impl From<MlpSpec> for FeedForwardSpec {
    fn from(mlp: MlpSpec) -> Self {
        Self::Dense(mlp)
    }
}

/// An MLP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MlpSpec {
    /// Its form.
    pub kind: MlpKind,
    /// Inner width.
    pub intermediate_size: usize,
    /// Non-linearity.
    pub activation: Activation,
    /// All its projections have a bias.
    pub bias: bool,
}

/// Form of an MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlpKind {
    /// `down(activation(gate(x)) * up(x))`.
    Gated,
    /// `down(activation(up(x)))`.
    Plain,
}

/// Non-linearities.
#[derive(Clone, Copy, Debug, PartialEq)]
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
    /// `y * sigmoid(1.702 y)` with `y = min(x, limit)`; where it gates, the other half counts as `clamp(up, -limit, limit) + 1` (gpt-oss).
    ClampedSwiGlu {
        /// Bound.
        limit: f32,
    },
}

impl Activation {
    /// From the name in `hidden_act`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "silu" | "swish" => Some(Self::Silu),
            "gelu" => Some(Self::Gelu),
            "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" => Some(Self::GeluTanh),
            "relu" => Some(Self::Relu),
            "relu2" => Some(Self::ReluSquared),
            _ => None,
        }
    }
}
