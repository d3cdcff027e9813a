//! What works on each token alone in a layer: one kind a file, and one line in [`build`].

mod mlp;
mod moe;

use kernels::ops::{Act, Backend, Epilogue};
use model_spec::FeedForwardSpec;

use crate::builder::Builder;
use crate::error::LoadError;

/// What works on each token, on this rank. It owns its weights and its buffers.
pub(crate) trait FeedForward: Send {
    /// This rank's part of the result for rows `input` `[rows, hidden]`, stored to `out` or added to it.
    fn run(&self, input: Act, epilogue: Epilogue, out: Act, backend: &mut dyn Backend);
}

/// Loads a layer's feed-forward part, if it has one.
pub(crate) fn build(
    builder: &mut Builder<'_>,
    index: usize,
    spec: &FeedForwardSpec,
) -> Result<Option<Box<dyn FeedForward>>, LoadError> {
    match spec {
        FeedForwardSpec::Dense(spec) => Ok(Some(Box::new(mlp::build(builder, index, spec, mlp::alone)?))),
        FeedForwardSpec::Moe(spec) => Ok(Some(Box::new(moe::build(builder, index, spec)?))),
        FeedForwardSpec::None => Ok(None),
    }
}
