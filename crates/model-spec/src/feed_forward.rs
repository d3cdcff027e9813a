//! The part of a layer that works on each token alone: an MLP, a mixture of them, or nothing.

use crate::mixture::MixtureSpec;
use crate::mlp::MlpSpec;

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
