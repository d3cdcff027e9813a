//! What mixes tokens in a layer: one kind a file, and one line in [`build`].
//!
//! A mixer owns its weights, its buffers and what it keeps of past tokens. It runs in two halves, so that the decoder can leave out the
//! second one where nobody looks at a step's rows again: [`Mixer::remember`] puts down what later tokens need, [`Mixer::recall`]
//! computes the rows that go into the output projection.

mod attention;
mod latent;

use kernels::ops::{Act, Backend, DType};
use model_spec::MixerSpec;

use crate::error::LoadError;
use crate::network::{Builder, Linear};

/// What mixes tokens, on this rank.
pub(crate) trait Mixer: Send {
    /// Columns of what [`Self::recall`] returns.
    fn width(&self) -> usize;

    /// Elements that a token takes in the paged cache.
    fn cached_per_token(&self) -> usize;

    /// Takes the cache's memory. Called once, before the first step.
    fn allocate(&mut self, pool: Pool, backend: &mut dyn Backend);

    /// Copies cache block `from[i]` to `to[i]`.
    fn copy_blocks(&self, from: &[u32], to: &[u32], backend: &mut dyn Backend);

    /// Takes a step's rows `[rows, hidden]` and puts down what later tokens need of them.
    fn remember(&self, input: Act, backend: &mut dyn Backend);

    /// Mixes the rows just remembered: `[rows, width]`.
    fn recall(&self, backend: &mut dyn Backend) -> Act;
}

/// The cache's memory, the same in every layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool {
    pub num_blocks: usize,
    /// Tokens a block.
    pub block_size: usize,
    pub dtype: DType,
}

/// Loads a layer's mixer and its output projection.
pub(crate) fn build(
    builder: &mut Builder<'_>,
    index: usize,
    spec: &MixerSpec,
) -> Result<(Box<dyn Mixer>, Linear), LoadError> {
    match spec {
        MixerSpec::Attention(spec) => attention::build(builder, index, spec),
        MixerSpec::Latent(spec) => latent::build(builder, index, spec),
    }
}
