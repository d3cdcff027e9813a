//! What mixes tokens in a layer: one kind a file, and one line in [`build`].
//!
//! A mixer owns its weights, its buffers and what it keeps of past tokens. It runs in two halves, so that the decoder can leave out the
//! second one where nobody looks at a step's rows again: [`Mixer::remember`] puts down what later tokens need, [`Mixer::recall`]
//! computes the rows that go into the output projection.

mod attention;
mod delta;
mod latent;
mod mamba;
mod mamba2;
mod recurrent;

use kernels::ops::{Act, Backend, KvLayer, RowSelection, State};
use model_spec::MixerSpec;

use crate::builder::{Builder, Linear};
use crate::cache::Keeps;
use crate::error::{ForwardError, LoadError};
use crate::ranks::Ranks;

/// What mixes tokens, on this rank.
pub(crate) trait Mixer: Send {
    /// Columns of what [`Self::recall`] returns.
    fn width(&self) -> usize;

    /// What it keeps of past tokens.
    fn keeps(&self) -> Keeps;

    /// Is given memory for that. Called once, before the first step.
    fn take(&mut self, kept: Kept);

    /// Takes a step's rows `[rows, hidden]` and puts down what later tokens need of them.
    fn remember(&self, input: Act, step: &mut Run<'_>) -> Result<(), ForwardError>;

    /// Mixes the rows just remembered: `[rows, width]`. Where only some of them are looked at, the others may be anything.
    fn recall(&self, only: Option<RowSelection<'_>>, backend: &mut dyn Backend) -> Act;
}

/// Memory for what [`Mixer::keeps`] named.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    pub kv: Option<KvLayer>,
    pub states: Vec<State>,
}

/// What a step runs on.
pub(crate) struct Run<'a> {
    pub backend: &'a mut dyn Backend,
    pub ranks: Ranks<'a>,
}

impl Run<'_> {
    /// Adds up a buffer over the ranks of the group.
    pub(crate) fn sum_over_ranks(&mut self, act: Act) -> Result<(), ForwardError> {
        self.ranks.sum(self.backend, act)
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
