//! What mixes tokens in a layer: one kind a file, and one line in [`build`].
//!
//! A mixer owns its weights and names its buffers and its part of the cache. It runs in two halves: [`Mixer::project`]
//! computes queries, keys and values and writes to the cache what later tokens need; [`Mixer::attend`] computes the
//! rows that go into the output projection. The decoder leaves out the second half where a step needs no output of the
//! layer.

mod attention;
mod delta;
mod latent;
mod mamba;
mod mamba2;
mod recurrent;

use kernels::ops::{Act, Backend, KvLayer, RowSelection, State};
use model_spec::MixerSpec;

use crate::builder::Builder;
use crate::cache::CacheSpec;
use crate::error::{ForwardError, LoadError};
use crate::linear::Linear;
use crate::ranks::Run;
use crate::tp::Shard;

/// What mixes tokens, on this rank.
pub(crate) trait Mixer: Send {
    /// Columns of what [`Self::attend`] returns.
    fn width(&self) -> usize;

    /// Is given the cache that [`cache_spec`] asked for. Called once, before the first step.
    fn bind_cache(&mut self, cache: CacheBinding);

    /// Projects a step's rows `[rows, hidden]` and updates the cache: keys and values, or recurrent states.
    fn project(&self, input: Act, step: &mut Run<'_>) -> Result<(), ForwardError>;

    /// Output rows of the rows just projected: `[rows, width]`. With `only`, the other rows may hold anything.
    fn attend(&self, only: Option<RowSelection<'_>>, backend: &mut dyn Backend) -> Act;
}

/// A layer's part of the cache, as [`cache_spec`] asked for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct CacheBinding {
    pub kv: Option<KvLayer>,
    pub states: Vec<State>,
}

/// The cache that a layer's mixer needs on a rank.
pub(crate) fn cache_spec(spec: &MixerSpec, shard: Shard) -> CacheSpec {
    match spec {
        MixerSpec::Attention(spec) => attention::cache_spec(spec, shard),
        MixerSpec::Delta(spec) => delta::cache_spec(spec, shard),
        MixerSpec::Mamba(spec) => mamba::cache_spec(spec, shard),
        MixerSpec::Mamba2(spec) => mamba2::cache_spec(spec, shard),
        MixerSpec::Latent(spec) => latent::cache_spec(spec),
    }
}

/// Loads a layer's mixer and its output projection.
pub(crate) fn build(
    builder: &mut Builder<'_>,
    index: usize,
    spec: &MixerSpec,
) -> Result<(Box<dyn Mixer>, Linear), LoadError> {
    match spec {
        MixerSpec::Attention(spec) => attention::build(builder, index, spec),
        MixerSpec::Delta(spec) => delta::build(builder, index, spec),
        MixerSpec::Mamba(spec) => mamba::build(builder, index, spec),
        MixerSpec::Mamba2(spec) => mamba2::build(builder, index, spec),
        MixerSpec::Latent(spec) => latent::build(builder, index, spec),
    }
}
