//! A multi-layer perceptron: up, a non-linearity, down.

use kernels::ops::{Act, Backend, Epilogue};
use model_spec::{Activation, MlpKind, MlpSpec};

use super::FeedForward;
use crate::builder::Builder;
use crate::error::LoadError;
use crate::linear::Linear;
use crate::weights::{LayerParam, MlpParam};

/// An MLP's weights and buffers.
pub(super) struct Mlp {
    kind: MlpKind,
    activation: Activation,
    /// Gated: `[gate | up]` in each row.
    up: Linear,
    down: Linear,
    /// What `up` gives, and what goes into `down`; one and the same without a gate.
    raised: Act,
    inner: Act,
}

impl FeedForward for Mlp {
    fn run(&self, input: Act, epilogue: Epilogue, out: Act, backend: &mut dyn Backend) {
        match self.kind {
            MlpKind::Gated => {
                self.up.run(input, Epilogue::Store, self.raised, backend);
                backend.gated(self.raised, self.activation, self.inner);
            }
            MlpKind::Plain => self.up.run_activated(input, self.activation, self.inner, backend),
        }
        self.down.run(self.inner, epilogue, out, backend);
    }
}

/// The parts of an MLP that is a layer's feed-forward part.
pub(super) fn alone(piece: MlpParam) -> LayerParam {
    match piece {
        MlpParam::Gate => LayerParam::Gate,
        MlpParam::Up => LayerParam::Up,
        MlpParam::Down => LayerParam::Down,
    }
}

/// `part` says which weights of the layer are the MLP's.
pub(super) fn build(
    builder: &mut Builder<'_>,
    index: usize,
    spec: &MlpSpec,
    part: fn(MlpParam) -> LayerParam,
) -> Result<Mlp, LoadError> {
    let (inner, rows) = (spec.intermediate_size, builder.shard.part(spec.intermediate_size));
    let [gate, up, down] =
        [MlpParam::Gate, MlpParam::Up, MlpParam::Down].map(|param| part(param).of(inner, rows.clone()));
    let up = match spec.kind {
        MlpKind::Gated => builder.by_rows(index, &[gate, up], spec.bias.up)?,
        MlpKind::Plain => builder.by_rows(index, &[up], spec.bias.up)?,
    };
    let down = builder.by_cols(index, down, spec.bias.down)?;
    let inner = builder.store.buffer("inner", rows.len());
    let raised = match spec.kind {
        MlpKind::Gated => builder.store.buffer("gate_up", 2 * rows.len()),
        MlpKind::Plain => inner,
    };
    Ok(Mlp { kind: spec.kind, activation: spec.activation, up, down, raised, inner })
}
