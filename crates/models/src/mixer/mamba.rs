//! Mamba's mixer: a convolution, then a state for each channel.
//!
//! Channels are split over ranks; the small projections that all channels feed are summed over them.

use kernels::ops::{Act, Activation, Cols, Conv, Epilogue, Scan, ScanInput};
use model_spec::MambaSpec;

use super::recurrent::{NOT_YET, decay, taps};
use super::{CacheBinding, Mixer};
use crate::builder::{Builder, LinearPart};
use crate::cache::{CacheSpec, states};
use crate::error::{ForwardError, LoadError};
use crate::linear::{Linear, Split};
use crate::ranks::Run;
use crate::tp::Shard;
use crate::weights::{LayerParam, ParamId, ParamKind, Role};

struct MambaMixer {
    /// Gives `[x | gate]`.
    input: Linear,
    conv: Conv,
    /// From x to what steps are projected from, and from that to the channels' steps.
    step_down: Linear,
    step: Linear,
    /// From x to `[b | c]`.
    state: Linear,
    scan: Scan,
    buffers: Buffers,
}

struct Buffers {
    /// `[rows, 2 * inner]`.
    projected: Act,
    /// `[rows, inner]`.
    convolved: Act,
    /// `[rows, step_rank]`.
    step_down: Act,
    /// `[rows, inner]`.
    step: Act,
    /// `[rows, 2 * state_size]`.
    state: Act,
    /// `[rows, inner]`.
    mixed: Act,
}

impl Mixer for MambaMixer {
    fn width(&self) -> usize {
        self.scan.heads
    }

    fn bind_cache(&mut self, cache: CacheBinding) {
        (self.conv.state, self.scan.state) = (cache.states[0], cache.states[1]);
    }

    fn project(&self, input: Act, run: &mut Run<'_>) -> Result<(), ForwardError> {
        let Buffers { projected, convolved, step_down, step, state, mixed } = self.buffers;
        let cols = |act, first| Cols { act, first };
        self.input.run(input, Epilogue::Store, projected, run.backend);
        run.backend.causal_conv(cols(projected, 0), self.conv, convolved);
        self.step_down.run_reduced(convolved, step_down, run)?;
        self.state.run_reduced(convolved, state, run)?;
        self.step.run(step_down, Epilogue::Store, step, run.backend);
        let (x, dt) = (cols(convolved, 0), cols(step, 0));
        let (b, c) = (cols(state, 0), cols(state, self.scan.state_dim));
        run.backend.selective_scan(ScanInput { x, dt, b, c }, self.scan, mixed);
        run.backend.gate(mixed, cols(projected, self.scan.heads), Activation::Silu);
        Ok(())
    }

    fn attend(&self, _: Option<kernels::ops::RowSelection<'_>>, _: &mut dyn kernels::ops::Backend) -> Act {
        self.buffers.mixed
    }
}

/// The convolution's last inputs, and a state for each of this rank's channels.
pub(super) fn cache_spec(spec: &MambaSpec, shard: Shard) -> CacheSpec {
    let channels = shard.part(spec.inner).len();
    CacheSpec { tokens: None, states: states(spec.conv_kernel, channels, channels * spec.state_size) }
}

pub(super) fn build(
    builder: &mut Builder<'_>,
    index: usize,
    spec: &MambaSpec,
) -> Result<(Box<dyn Mixer>, Linear), LoadError> {
    let MambaSpec { inner, state_size, conv_kernel: kernel, step_rank, conv_bias, bias } = *spec;
    let mine = builder.shard.part(inner);
    let channels = mine.len();
    let id = |part| ParamId::Layer(index, part);
    let stack = [LayerParam::ScanInput.of(inner, mine.clone()), LayerParam::MixerGate.of(inner, mine.clone())];
    let input = builder.by_rows(index, &stack, bias)?;
    let conv = Conv {
        channels,
        kernel,
        taps: taps(builder, index, kernel, inner, std::slice::from_ref(&mine))?,
        bias: match conv_bias {
            true => {
                let slice =
                    builder.vector_slice(id(LayerParam::Taps), ParamKind::Bias, inner, mine.clone(), Role::Shift);
                Some(builder.store.vector(&[slice], 0.0)?)
            }
            false => None,
        },
        state: NOT_YET,
    };
    let from_channels =
        |param, size| LinearPart { id: id(param), shape: [size, inner], rows: 0..size, cols: mine.clone() };
    let step_down = builder.linear(&[from_channels(LayerParam::StepDown, step_rank)], false, Split::Inputs)?;
    let state = [LayerParam::StateInput, LayerParam::StateOutput].map(|param| from_channels(param, state_size));
    let state = builder.linear(&state, false, Split::Inputs)?;
    let step =
        LinearPart { id: id(LayerParam::Step), shape: [inner, step_rank], rows: mine.clone(), cols: 0..step_rank };
    let step = builder.linear(&[step], true, Split::Outputs)?;
    let decay_rows = mine.start * state_size..mine.end * state_size;
    let skip = builder.vector_slice(id(LayerParam::Skip), ParamKind::Weight, inner, mine.clone(), Role::Scale);
    let scan = Scan {
        heads: channels,
        head_dim: 1,
        groups: 1,
        state_dim: state_size,
        decay: decay(builder, index, inner * state_size, decay_rows)?,
        skip: builder.store.vector(&[skip], 0.0)?,
        dt_bias: None,
        dt_limit: (0.0, f32::INFINITY),
        state: NOT_YET,
    };
    let output = builder.by_cols(index, LayerParam::Output.of(inner, mine), bias)?;
    let buffers = Buffers {
        projected: builder.store.buffer("projected", 2 * channels),
        convolved: builder.store.buffer("convolved", channels),
        step_down: builder.store.buffer("step down", step_rank),
        step: builder.store.buffer("step", channels),
        state: builder.store.buffer("state", 2 * state_size),
        mixed: builder.store.buffer("mixed", channels),
    };
    Ok((Box::new(MambaMixer { input, conv, step_down, step, state, scan, buffers }), output))
}
