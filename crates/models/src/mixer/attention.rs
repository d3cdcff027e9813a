//! Softmax attention over cached keys and values.

use std::ops::Range;

use kernels::ops::{
    Act, Activation, Attention, Backend, Cols, Epilogue, HeadColumns, Heads, KvLayer, Norm, Rope, RowSelection, Vector,
};
use model_spec::{AttentionSpec, Mask, Position, QkNorm};

use super::{CacheBinding, Mixer};
use crate::builder::Builder;
use crate::cache::{CacheSpec, TokenCache};
use crate::error::{ForwardError, LoadError};
use crate::linear::Linear;
use crate::ranks::Run;
use crate::tp::{Shard, head_rows};
use crate::weights::{LayerParam, ParamId, ParamKind, Role};

struct AttentionMixer {
    /// `[q | k | v]` in each row.
    qkv: Linear,
    attention: Attention,
    rope: Option<Rope>,
    /// Where queries, keys and values are projected and normed: `projected`, unless one norm goes over the heads of all
    /// ranks. Then all queries and keys are projected here, and this rank's are picked out.
    normed: Act,
    norms: Vec<ColumnNorm>,
    picked: Vec<Columns>,
    clip: Option<f32>,
    /// `[rows, (q + kv) * dim + kv * v_dim]`.
    projected: Act,
    /// `[rows, q * v_dim]`.
    attended: Act,
    /// What gates the result, `[rows, q * v_dim]`.
    gate: Option<(Linear, Act)>,
    kv: Option<KvLayer>,
}

/// A norm of some columns of `normed`, `width` after `width`.
struct ColumnNorm {
    first_col: usize,
    heads: usize,
    width: usize,
    norm: Norm,
}

/// Columns of `normed` that are copied to `projected`.
struct Columns {
    from: usize,
    to: usize,
    width: usize,
}

impl AttentionMixer {
    fn kv(&self) -> KvLayer {
        self.kv.expect("a step comes after the cache was allocated")
    }
}

impl Mixer for AttentionMixer {
    fn width(&self) -> usize {
        self.attention.heads.q * self.attention.heads.v_dim
    }

    fn bind_cache(&mut self, cache: CacheBinding) {
        self.kv = cache.kv;
    }

    fn project(&self, input: Act, Run { backend, .. }: &mut Run<'_>) -> Result<(), ForwardError> {
        let heads = self.attention.heads;
        self.qkv.run(input, Epilogue::Store, self.normed, *backend);
        for ColumnNorm { first_col, heads, width, norm } in &self.norms {
            backend.head_norm(self.normed, *first_col, *heads, *width, *norm);
        }
        for Columns { from, to, width } in &self.picked {
            let at = |first| HeadColumns { first, stride: 0 };
            backend.copy_columns(self.normed, at(*from), self.projected, at(*to), 1, *width);
        }
        if let Some(limit) = self.clip {
            backend.clamp(self.projected, limit);
        }
        backend.rope_and_cache(self.projected, heads, self.rope, self.kv());
        if let Some((linear, gate)) = &self.gate {
            linear.run(input, Epilogue::Store, *gate, *backend);
        }
        Ok(())
    }

    fn attend(&self, only: Option<RowSelection<'_>>, backend: &mut dyn Backend) -> Act {
        backend.attention(self.projected, self.attention, self.kv(), only, self.attended);
        if let Some((_, gate)) = self.gate {
            backend.gate(self.attended, Cols { act: gate, first: 0 }, Activation::Sigmoid);
        }
        self.attended
    }
}

/// Keys and values of this rank's heads.
pub(super) fn cache_spec(spec: &AttentionSpec, shard: Shard) -> CacheSpec {
    let AttentionSpec { head_dim, v_head_dim, window, .. } = *spec;
    let kv_heads = shard.kv_heads(spec.kv_heads).len();
    // A prompt whose tokens see those after them is computed in one step, window or not.
    let scratch = spec.mask == Mask::Bidirectional;
    let window = window.filter(|_| !scratch);
    let tokens = TokenCache { kv_heads, head_dim, v_head_dim, shared: false, window, scratch };
    CacheSpec { tokens: Some(tokens), states: Vec::new() }
}

pub(super) fn build(
    builder: &mut Builder<'_>,
    index: usize,
    spec: &AttentionSpec,
) -> Result<(Box<dyn Mixer>, Linear), LoadError> {
    let (qkv, output) = projections(builder, index, spec)?;
    let attention = attention(builder, index, spec)?;
    let norms = norms(builder, index, spec)?;
    let rope = builder.rope(&spec.position);
    let Heads { q, kv, dim, v_dim } = attention.heads;
    let projected = builder.store.buffer("qkv", (q + kv) * dim + kv * v_dim);
    let attended = builder.store.buffer("attended", q * v_dim);
    let gate = match spec.gated {
        true => {
            let rows = head_rows(&builder.shard.part(spec.heads), spec.v_head_dim);
            let linear = builder.by_rows(
                index,
                &[LayerParam::MixerGate.of(spec.heads * spec.v_head_dim, rows)],
                spec.bias.qkv,
            )?;
            Some((linear, builder.store.buffer("gate", q * v_dim)))
        }
        false => None,
    };
    let (picked, width) = picked(builder, spec);
    let normed = if picked.is_empty() { projected } else { builder.store.buffer("all qkv", width) };
    let clip = spec.clip;
    let mixer =
        AttentionMixer { qkv, attention, rope, normed, norms, picked, clip, projected, attended, gate, kv: None };
    Ok((Box::new(mixer), output))
}

/// Query and key heads that this rank projects: its own, or all where one norm goes over all.
fn projected_heads(builder: &Builder<'_>, spec: &AttentionSpec) -> (Range<usize>, Range<usize>) {
    match spec.qk_norm {
        Some(QkNorm::Whole(_)) => (0..spec.heads, 0..spec.kv_heads),
        _ => (builder.shard.part(spec.heads), builder.shard.kv_heads(spec.kv_heads)),
    }
}

/// What this rank needs of what it projects, and the width of that; nothing where it needs all.
fn picked(builder: &Builder<'_>, spec: &AttentionSpec) -> (Vec<Columns>, usize) {
    let (queries, keys) = (builder.shard.part(spec.heads), builder.shard.kv_heads(spec.kv_heads));
    let (all_queries, all_keys) = projected_heads(builder, spec);
    let dim = spec.head_dim;
    let (first_key, first_value) = (all_queries.len() * dim, (all_queries.len() + all_keys.len()) * dim);
    let values = keys.len() * spec.v_head_dim;
    if all_queries == queries && all_keys == keys {
        return (Vec::new(), first_value + values);
    }
    let (q, k) = (queries.len() * dim, keys.len() * dim);
    let pieces = vec![
        Columns { from: queries.start * dim, to: 0, width: q },
        Columns { from: first_key + keys.start * dim, to: q, width: k },
        Columns { from: first_value, to: q + k, width: values },
    ];
    (pieces, first_value + values)
}

/// Queries, or keys.
struct Side {
    first_col: usize,
    /// Those that this rank projects.
    heads: Range<usize>,
    /// Width of a head.
    dim: usize,
    norm: LayerParam,
    head_norm: fn(usize) -> LayerParam,
}

/// Norms of this rank's queries and keys.
fn norms(builder: &mut Builder<'_>, index: usize, spec: &AttentionSpec) -> Result<Vec<ColumnNorm>, LoadError> {
    let Some(qk_norm) = spec.qk_norm else { return Ok(Vec::new()) };
    let (queries, keys) = projected_heads(builder, spec);
    let first_col = queries.len() * spec.head_dim;
    let (norm, head_norm) = (LayerParam::QueryNorm, LayerParam::QueryHeadNorm as fn(usize) -> LayerParam);
    let dim = spec.head_dim;
    let queries = Side { first_col: 0, heads: queries, dim, norm, head_norm };
    let keys = Side { first_col, heads: keys, dim, norm: LayerParam::KeyNorm, head_norm: LayerParam::KeyHeadNorm };
    [queries, keys].into_iter().map(|side| column_norm(builder, index, qk_norm, side)).collect()
}

fn column_norm(builder: &mut Builder<'_>, index: usize, norm: QkNorm, side: Side) -> Result<ColumnNorm, LoadError> {
    let (first_col, heads, dim) = (side.first_col, side.heads.len(), side.dim);
    let id = |part| ParamId::Layer(index, part);
    Ok(match norm {
        QkNorm::PerHead(norm) => {
            ColumnNorm { first_col, heads, width: dim, norm: builder.norms(norm, &[id(side.norm)], dim)? }
        }
        QkNorm::EachHead(norm) => {
            let ids: Vec<ParamId> = side.heads.map(|head| id((side.head_norm)(head))).collect();
            ColumnNorm { first_col, heads, width: dim, norm: builder.norms(norm, &ids, dim)? }
        }
        QkNorm::Whole(norm) => {
            let width = heads * dim;
            ColumnNorm { first_col, heads: 1, width, norm: builder.norms(norm, &[id(side.norm)], width)? }
        }
    })
}

fn projections(builder: &mut Builder<'_>, index: usize, spec: &AttentionSpec) -> Result<(Linear, Linear), LoadError> {
    let (queries, kv) = (builder.shard.part(spec.heads), builder.shard.kv_heads(spec.kv_heads));
    let (projected, keys) = projected_heads(builder, spec);
    let stack = [
        LayerParam::Query.of(spec.heads * spec.head_dim, head_rows(&projected, spec.head_dim)),
        LayerParam::Key.of(spec.kv_heads * spec.head_dim, head_rows(&keys, spec.head_dim)),
        LayerParam::Value.of(spec.kv_heads * spec.v_head_dim, head_rows(&kv, spec.v_head_dim)),
    ];
    let qkv = builder.by_rows(index, &stack, spec.bias.qkv)?;
    let cols = head_rows(&queries, spec.v_head_dim);
    let output = builder.by_cols(index, LayerParam::Output.of(spec.heads * spec.v_head_dim, cols), spec.bias.output)?;
    Ok((qkv, output))
}

fn attention(builder: &mut Builder<'_>, index: usize, spec: &AttentionSpec) -> Result<Attention, LoadError> {
    let queries = builder.shard.part(spec.heads);
    let sinks = if spec.sinks { Some(sinks(builder, index, spec.heads)?) } else { None };
    let alibi = match &spec.position {
        Position::Alibi(slopes) => Some(builder.store.constants(&slopes[queries.clone()])),
        _ => None,
    };
    let relative = builder.relative_bias(spec)?;
    let kv = builder.shard.kv_heads(spec.kv_heads).len();
    let heads = Heads { q: queries.len(), kv, dim: spec.head_dim, v_dim: spec.v_head_dim };
    let AttentionSpec { scale, mask, window, soft_cap, .. } = *spec;
    Ok(Attention { heads, scale, mask, window, soft_cap, sinks, alibi, relative })
}

fn sinks(builder: &mut Builder<'_>, index: usize, heads: usize) -> Result<Vector, LoadError> {
    let mine = builder.shard.part(heads);
    let slice =
        builder.vector_slice(ParamId::Layer(index, LayerParam::Sinks), ParamKind::Weight, heads, mine, Role::Shift);
    builder.store.vector(&[slice], 0.0)
}
