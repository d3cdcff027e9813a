//! Mamba 2's mixer: a convolution, then heads whose channels share a decay. Heads, and the groups they form, are split
//! over ranks.

use kernels::ops::{Act, Activation, Cols, Conv, Epilogue, Norm, NormKind, Scan, ScanInput};
use model_spec::Mamba2Spec;

use super::recurrent::{NOT_YET, StoredVector, decay, taps, vector};
use super::{CacheBinding, Mixer};
use crate::builder::Builder;
use crate::cache::{CacheSpec, states};
use crate::error::{ForwardError, LoadError};
use crate::linear::Linear;
use crate::ranks::Run;
use crate::tp::{Shard, head_rows};
use crate::weights::{LayerParam, ParamKind, Role};

struct Mamba2Mixer {
    /// Gives `[gate | x | b | c | dt]`.
    input: Linear,
    /// Of `[x | b | c]`.
    conv: Conv,
    scan: Scan,
    norm: Norm,
    /// `[rows, 2 * inner + 2 * groups * state_size + heads]`.
    projected: Act,
    /// `[rows, inner + 2 * groups * state_size]`.
    convolved: Act,
    /// `[rows, inner]`.
    mixed: Act,
}

impl Mixer for Mamba2Mixer {
    fn width(&self) -> usize {
        self.scan.heads * self.scan.head_dim
    }

    fn bind_cache(&mut self, cache: CacheBinding) {
        (self.conv.state, self.scan.state) = (cache.states[0], cache.states[1]);
    }

    fn project(&self, input: Act, Run { backend, .. }: &mut Run<'_>) -> Result<(), ForwardError> {
        let (inner, groups) = (self.width(), self.scan.groups);
        let projected = |first| Cols { act: self.projected, first };
        let convolved = |first| Cols { act: self.convolved, first };
        self.input.run(input, Epilogue::Store, self.projected, *backend);
        backend.causal_conv(projected(inner), self.conv, self.convolved);
        let (x, dt) = (convolved(0), projected(inner + self.conv.channels));
        let (b, c) = (convolved(inner), convolved(inner + groups * self.scan.state_dim));
        backend.selective_scan(ScanInput { x, dt, b, c }, self.scan, self.mixed);
        backend.gate(self.mixed, projected(0), Activation::Silu);
        backend.head_norm(self.mixed, 0, groups, inner / groups, self.norm);
        Ok(())
    }

    fn attend(&self, _: Option<kernels::ops::RowSelection<'_>>, _: &mut dyn kernels::ops::Backend) -> Act {
        self.mixed
    }
}

/// The convolution's last inputs, and a state for each of this rank's heads.
pub(super) fn cache_spec(spec: &Mamba2Spec, shard: Shard) -> CacheSpec {
    let Mamba2Spec { heads, head_dim, groups, state_size, conv_kernel, .. } = *spec;
    let inner = shard.part(heads).len() * head_dim;
    let channels = inner + 2 * shard.part(groups).len() * state_size;
    CacheSpec { tokens: None, states: states(conv_kernel, channels, inner * state_size) }
}

pub(super) fn build(
    builder: &mut Builder<'_>,
    index: usize,
    spec: &Mamba2Spec,
) -> Result<(Box<dyn Mixer>, Linear), LoadError> {
    let Mamba2Spec { heads, head_dim, groups, state_size, conv_kernel: kernel, bias, .. } = *spec;
    let (inner, shared) = (heads * head_dim, groups * state_size);
    let (my_heads, my_groups) = (builder.shard.part(heads), builder.shard.part(groups));
    let (mine, my_shared) = (head_rows(&my_heads, head_dim), head_rows(&my_groups, state_size));
    let stack = [
        LayerParam::MixerGate.of(inner, mine.clone()),
        LayerParam::ScanInput.of(inner, mine.clone()),
        LayerParam::StateInput.of(shared, my_shared.clone()),
        LayerParam::StateOutput.of(shared, my_shared.clone()),
        LayerParam::Step.of(heads, my_heads.clone()),
    ];
    let input = builder.by_rows(index, &stack, bias)?;
    // The convolution's channels are [x | b | c] of all ranks.
    let behind = |first: usize| first + my_shared.start..first + my_shared.end;
    let convolved = [mine.clone(), behind(inner), behind(inner + shared)];
    let channels = inner + 2 * shared;
    let taps_bias = StoredVector { param: LayerParam::Taps, kind: ParamKind::Bias, len: channels, role: Role::Shift };
    let conv = Conv {
        channels: mine.len() + 2 * my_shared.len(),
        kernel,
        taps: taps(builder, index, kernel, channels, &convolved)?,
        bias: match spec.conv_bias {
            true => Some(vector(builder, index, taps_bias, &convolved)?),
            false => None,
        },
        state: NOT_YET,
    };
    let of_heads = |builder: &mut Builder<'_>, param, role| {
        let stored = StoredVector { param, kind: ParamKind::Weight, len: heads, role };
        vector(builder, index, stored, std::slice::from_ref(&my_heads))
    };
    let scan = Scan {
        heads: my_heads.len(),
        head_dim,
        groups: my_groups.len(),
        state_dim: state_size,
        decay: decay(builder, index, heads, my_heads.clone())?,
        skip: of_heads(builder, LayerParam::Skip, Role::Scale)?,
        dt_bias: Some(of_heads(builder, LayerParam::StepBias, Role::Shift)?),
        dt_limit: spec.step_limit,
        state: NOT_YET,
    };
    let weight = StoredVector { param: LayerParam::MixerNorm, kind: ParamKind::Weight, len: inner, role: Role::Scale };
    let weight = vector(builder, index, weight, std::slice::from_ref(&mine))?;
    let norm = Norm { kind: NormKind::Rms, weight: Some(weight), bias: None, eps: spec.norm_eps };
    let projected = builder.store.buffer("projected", mine.len() + conv.channels + my_heads.len());
    let convolved = builder.store.buffer("convolved", conv.channels);
    let mixed = builder.store.buffer("mixed", mine.len());
    let output = builder.by_cols(index, LayerParam::Output.of(inner, mine), bias)?;
    Ok((Box::new(Mamba2Mixer { input, conv, scan, norm, projected, convolved, mixed }), output))
}
