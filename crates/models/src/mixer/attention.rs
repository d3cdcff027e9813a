//! Softmax attention over cached keys and values.

use std::ops::Range;

use kernels::ops::{Act, Activation, Attention, Backend, Cols, Epilogue, Heads, KvLayer, Norm, Rope, Vector};
use model_spec::{AttentionSpec, Position, QkNorm};

use super::{Kept, Mixer, Run};
use crate::cache::{Keeps, TokenCache};
use crate::error::{ForwardError, LoadError};
use crate::network::{Builder, Linear};
use crate::tp::head_rows;
use crate::weights::{Kind, Part, Role, Slot};

struct AttentionMixer {
    /// `[q | k | v]` in each row.
    qkv: Linear,
    attention: Attention,
    rope: Option<Rope>,
    norms: Vec<ColumnNorm>,
    clip: Option<f32>,
    /// `[rows, (q + kv) * dim + kv * v_dim]`.
    projected: Act,
    /// `[rows, q * v_dim]`.
    attended: Act,
    /// What gates the result, `[rows, q * v_dim]`.
    gate: Option<(Linear, Act)>,
    kv: Option<KvLayer>,
}

/// A norm of some columns of `projected`, `width` after `width`.
struct ColumnNorm {
    first_col: usize,
    heads: usize,
    width: usize,
    norm: Norm,
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

    fn keeps(&self) -> Keeps {
        let Attention { heads: Heads { kv: kv_heads, dim: head_dim, v_dim: v_head_dim, .. }, window, .. } =
            self.attention;
        let tokens = TokenCache { kv_heads, head_dim, v_head_dim, shared: false, window };
        Keeps { tokens: Some(tokens), states: Vec::new() }
    }

    fn take(&mut self, kept: Kept) {
        self.kv = kept.kv;
    }

    fn remember(&self, input: Act, Run { backend, .. }: &mut Run<'_>) -> Result<(), ForwardError> {
        let heads = self.attention.heads;
        backend.matmul(input, self.qkv.matrix, self.qkv.bias, Epilogue::Store, self.projected);
        for ColumnNorm { first_col, heads, width, norm } in &self.norms {
            backend.head_norm(self.projected, *first_col, *heads, *width, *norm);
        }
        if let Some(limit) = self.clip {
            backend.clamp(self.projected, limit);
        }
        backend.rope_and_cache(self.projected, heads, self.rope, self.kv());
        if let Some((linear, gate)) = &self.gate {
            backend.matmul(input, linear.matrix, linear.bias, Epilogue::Store, *gate);
        }
        Ok(())
    }

    fn recall(&self, backend: &mut dyn Backend) -> Act {
        backend.attention(self.projected, self.attention, self.kv(), self.attended);
        if let Some((_, gate)) = self.gate {
            backend.gate(self.attended, Cols { act: gate, first: 0 }, Activation::Sigmoid);
        }
        self.attended
    }
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
            let linear =
                builder.by_rows(index, &[(Part::MixerGate, spec.heads * spec.v_head_dim, rows)], spec.bias.qkv)?;
            Some((linear, builder.store.buffer("gate", q * v_dim)))
        }
        false => None,
    };
    let mixer = AttentionMixer { qkv, attention, rope, norms, clip: spec.clip, projected, attended, gate, kv: None };
    Ok((Box::new(mixer), output))
}

/// Queries, or keys.
struct Side {
    first_col: usize,
    /// Heads on this rank, of how many.
    mine: Range<usize>,
    all: usize,
    norm: Part,
    head_norm: fn(usize) -> Part,
}

/// Norms of this rank's queries and keys.
fn norms(builder: &mut Builder<'_>, index: usize, spec: &AttentionSpec) -> Result<Vec<ColumnNorm>, LoadError> {
    let Some(qk_norm) = spec.qk_norm else { return Ok(Vec::new()) };
    let (queries, keys) = (builder.shard.part(spec.heads), builder.shard.kv_heads(spec.kv_heads));
    let first_col = queries.len() * spec.head_dim;
    let (norm, head_norm) = (Part::QueryNorm, Part::QueryHeadNorm as fn(usize) -> Part);
    let queries = Side { first_col: 0, mine: queries, all: spec.heads, norm, head_norm };
    let keys = Side { first_col, mine: keys, all: spec.kv_heads, norm: Part::KeyNorm, head_norm: Part::KeyHeadNorm };
    [queries, keys].into_iter().map(|side| column_norm(builder, index, (qk_norm, spec.head_dim), side)).collect()
}

fn column_norm(
    builder: &mut Builder<'_>,
    index: usize,
    (norm, dim): (QkNorm, usize),
    side: Side,
) -> Result<ColumnNorm, LoadError> {
    let (first_col, heads) = (side.first_col, side.mine.len());
    let slot = |part| Slot::Layer(index, part);
    Ok(match norm {
        QkNorm::PerHead(norm) => {
            ColumnNorm { first_col, heads, width: dim, norm: builder.norms(norm, &[slot(side.norm)], dim)? }
        }
        QkNorm::EachHead(norm) => {
            let slots: Vec<Slot> = side.mine.map(|head| slot((side.head_norm)(head))).collect();
            ColumnNorm { first_col, heads, width: dim, norm: builder.norms(norm, &slots, dim)? }
        }
        QkNorm::Whole(norm) if heads == side.all => {
            let width = heads * dim;
            ColumnNorm { first_col, heads: 1, width, norm: builder.norms(norm, &[slot(side.norm)], width)? }
        }
        QkNorm::Whole(_) => {
            let remedy = "is 1, for one norm goes over all heads".to_owned();
            let (size, ranks) = (side.all, builder.shard.size);
            return Err(LoadError::Shard { what: "num_attention_heads", size, ranks, remedy });
        }
    })
}

fn projections(builder: &mut Builder<'_>, index: usize, spec: &AttentionSpec) -> Result<(Linear, Linear), LoadError> {
    let (queries, kv) = (builder.shard.part(spec.heads), builder.shard.kv_heads(spec.kv_heads));
    let stack = [
        (Part::Query, spec.heads * spec.head_dim, head_rows(&queries, spec.head_dim)),
        (Part::Key, spec.kv_heads * spec.head_dim, head_rows(&kv, spec.head_dim)),
        (Part::Value, spec.kv_heads * spec.v_head_dim, head_rows(&kv, spec.v_head_dim)),
    ];
    let qkv = builder.by_rows(index, &stack, spec.bias.qkv)?;
    let cols = head_rows(&queries, spec.v_head_dim);
    let output = builder.by_cols(index, (Part::Output, spec.heads * spec.v_head_dim, cols), spec.bias.output)?;
    Ok((qkv, output))
}

fn attention(builder: &mut Builder<'_>, index: usize, spec: &AttentionSpec) -> Result<Attention, LoadError> {
    let queries = builder.shard.part(spec.heads);
    let sinks = if spec.sinks { Some(sinks(builder, index, spec.heads)?) } else { None };
    let alibi = match &spec.position {
        Position::Alibi(slopes) => Some(builder.store.constants(&slopes[queries.clone()])),
        _ => None,
    };
    let kv = builder.shard.kv_heads(spec.kv_heads).len();
    let heads = Heads { q: queries.len(), kv, dim: spec.head_dim, v_dim: spec.v_head_dim };
    Ok(Attention { heads, scale: spec.scale, window: spec.window, soft_cap: spec.soft_cap, sinks, alibi })
}

fn sinks(builder: &mut Builder<'_>, index: usize, heads: usize) -> Result<Vector, LoadError> {
    let mine = builder.shard.part(heads);
    let slice = builder.vector_slice(Slot::Layer(index, Part::Sinks), Kind::Weight, heads, mine, Role::Shift);
    builder.store.vector(&[slice], 0.0)
}
