//! Linear attention by the gated delta rule: a convolution over queries, keys and values, then a matrix for each value
//! head. Heads are split over ranks.

use kernels::ops::{Act, Activation, Cols, Conv, DeltaInput, DeltaRule, Epilogue, Norm, NormKind};
use model_spec::DeltaSpec;

use super::recurrent::{NOT_YET, StoredVector, decay, taps, vector};
use super::{CacheBinding, Mixer};
use crate::builder::Builder;
use crate::cache::{CacheSpec, states};
use crate::error::{ForwardError, LoadError};
use crate::linear::Linear;
use crate::ranks::Run;
use crate::tp::{Shard, head_rows};
use crate::weights::{LayerParam, ParamKind, Role};

struct DeltaMixer {
    /// Gives `[q | k | v | gate]`.
    input: Linear,
    /// Gives `[beta | dt]`.
    rates: Linear,
    /// Of `[q | k | v]`.
    conv: Conv,
    rule: DeltaRule,
    /// Of each value head.
    norm: Norm,
    buffers: Buffers,
}

struct Buffers {
    /// `[rows, 2 * key_heads * key_dim + 2 * value_heads * value_dim]`.
    projected: Act,
    /// `[rows, 2 * value_heads]`.
    rates: Act,
    /// `[rows, 2 * key_heads * key_dim + value_heads * value_dim]`.
    convolved: Act,
    /// `[rows, value_heads * value_dim]`.
    mixed: Act,
}

impl Mixer for DeltaMixer {
    fn width(&self) -> usize {
        self.rule.value_heads * self.rule.value_dim
    }

    fn bind_cache(&mut self, cache: CacheBinding) {
        (self.conv.state, self.rule.state) = (cache.states[0], cache.states[1]);
    }

    fn project(&self, input: Act, Run { backend, .. }: &mut Run<'_>) -> Result<(), ForwardError> {
        let Buffers { projected, rates, convolved, mixed } = self.buffers;
        let cols = |act, first| Cols { act, first };
        self.input.run(input, Epilogue::Store, projected, *backend);
        self.rates.run(input, Epilogue::Store, rates, *backend);
        backend.causal_conv(cols(projected, 0), self.conv, convolved);
        let input = DeltaInput { qkv: convolved, beta: cols(rates, 0), dt: cols(rates, self.rule.value_heads) };
        backend.delta_rule(input, self.rule, mixed);
        Ok(())
    }

    fn attend(&self, _: Option<kernels::ops::RowSelection<'_>>, backend: &mut dyn kernels::ops::Backend) -> Act {
        let Buffers { projected, mixed, .. } = self.buffers;
        backend.head_norm(mixed, 0, self.rule.value_heads, self.rule.value_dim, self.norm);
        backend.gate(mixed, Cols { act: projected, first: self.conv.channels }, Activation::Silu);
        mixed
    }
}

/// The convolution's last inputs, and a matrix for each of this rank's value heads.
pub(super) fn cache_spec(spec: &DeltaSpec, shard: Shard) -> CacheSpec {
    let DeltaSpec { key_heads, value_heads, key_dim, value_dim, conv_kernel, .. } = *spec;
    let values = shard.part(value_heads).len() * value_dim;
    let channels = 2 * shard.part(key_heads).len() * key_dim + values;
    CacheSpec { tokens: None, states: states(conv_kernel, channels, values * key_dim) }
}

pub(super) fn build(
    builder: &mut Builder<'_>,
    index: usize,
    spec: &DeltaSpec,
) -> Result<(Box<dyn Mixer>, Linear), LoadError> {
    let DeltaSpec { key_heads, value_heads, key_dim, value_dim, conv_kernel: kernel, norm_eps } = *spec;
    let (keys, values) = (key_heads * key_dim, value_heads * value_dim);
    let (my_key_heads, my_value_heads) = (builder.shard.part(key_heads), builder.shard.part(value_heads));
    let (my_keys, my_values) = (head_rows(&my_key_heads, key_dim), head_rows(&my_value_heads, value_dim));
    let stack = [
        LayerParam::Query.of(keys, my_keys.clone()),
        LayerParam::Key.of(keys, my_keys.clone()),
        LayerParam::Value.of(values, my_values.clone()),
        LayerParam::MixerGate.of(values, my_values.clone()),
    ];
    let input = builder.by_rows(index, &stack, false)?;
    let heads = my_value_heads.clone();
    let stack = [LayerParam::Beta.of(value_heads, heads.clone()), LayerParam::Step.of(value_heads, heads.clone())];
    let rates = builder.by_rows(index, &stack, false)?;
    // The convolution's channels are [q | k | v] of all ranks.
    let behind = |first: usize, mine: &std::ops::Range<usize>| first + mine.start..first + mine.end;
    let convolved = [my_keys.clone(), behind(keys, &my_keys), behind(2 * keys, &my_values)];
    let conv = Conv {
        channels: 2 * my_keys.len() + my_values.len(),
        kernel,
        taps: taps(builder, index, kernel, 2 * keys + values, &convolved)?,
        bias: None,
        state: NOT_YET,
    };
    let dt_bias =
        StoredVector { param: LayerParam::StepBias, kind: ParamKind::Weight, len: value_heads, role: Role::Shift };
    let rule = DeltaRule {
        key_heads: my_key_heads.len(),
        value_heads: heads.len(),
        key_dim,
        value_dim,
        rate: decay(builder, index, value_heads, heads.clone())?,
        dt_bias: vector(builder, index, dt_bias, &[heads])?,
        state: NOT_YET,
    };
    let all = 0..value_dim;
    let weight =
        StoredVector { param: LayerParam::MixerNorm, kind: ParamKind::Weight, len: value_dim, role: Role::Scale };
    let weight = vector(builder, index, weight, std::slice::from_ref(&all))?;
    let norm = Norm { kind: NormKind::Rms, weight: Some(weight), bias: None, eps: norm_eps };
    let buffers = Buffers {
        projected: builder.store.buffer("projected", conv.channels + my_values.len()),
        rates: builder.store.buffer("rates", 2 * rule.value_heads),
        convolved: builder.store.buffer("convolved", conv.channels),
        mixed: builder.store.buffer("mixed", my_values.len()),
    };
    let output = builder.by_cols(index, LayerParam::Output.of(values, my_values), false)?;
    Ok((Box::new(DeltaMixer { input, rates, conv, rule, norm, buffers }), output))
}
