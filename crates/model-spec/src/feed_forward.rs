//! The part of a layer that works on each token alone: an MLP, a mixture of experts, or nothing.

use crate::mlp::MlpSpec;
use crate::moe::MoeSpec;

/// A layer's feed-forward part.
#[derive(Clone, Debug, PartialEq)]
pub enum FeedForwardSpec {
    /// One MLP for every token.
    Dense(MlpSpec),
    /// Many MLPs, of which each token chooses a few.
    Moe(MoeSpec),
    /// None: the mixer is the whole layer (Mamba).
    None,
}

impl FeedForwardSpec {
    /// Inner widths, each with a name for messages: what tensor parallelism divides.
    pub fn inner_sizes(&self) -> Vec<(&'static str, usize)> {
        match self {
            Self::Dense(mlp) => vec![("intermediate_size", mlp.intermediate_size)],
            Self::Moe(MoeSpec { expert, shared, .. }) => {
                let shared =
                    shared.map(|shared| ("intermediate size of the shared expert", shared.mlp.intermediate_size));
                std::iter::once(("intermediate size of experts", expert.intermediate_size)).chain(shared).collect()
            }
            Self::None => Vec::new(),
        }
    }
}

impl From<MoeSpec> for FeedForwardSpec {
    fn from(moe: MoeSpec) -> Self {
        Self::Moe(moe)
    }
}

impl From<MlpSpec> for FeedForwardSpec {
    fn from(mlp: MlpSpec) -> Self {
        Self::Dense(mlp)
    }
}
