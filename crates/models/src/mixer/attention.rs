//! Softmax attention over cached keys and values.

use kernels::ops::{Act, Attention, Backend, Epilogue, Heads, KvLayer, KvShape, Norm, Rope, Vector};
use model_spec::{AttentionSpec, Position, QkNorm};

use super::{Mixer, Pool};
use crate::error::LoadError;
use crate::network::{Builder, Linear};
use crate::tp::head_rows;
use crate::weights::{Kind, Part, Role, Slot};

struct AttentionMixer {
    /// `[q | k | v]` in each row.
    qkv: Linear,
    attention: Attention,
    rope: Option<Rope>,
    query_norm: Option<Norm>,
    key_norm: Option<Norm>,
    /// `[rows, (q + kv) * dim + kv * v_dim]`.
    projected: Act,
    /// `[rows, q * v_dim]`.
    attended: Act,
    kv: Option<KvLayer>,
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

    fn cached_per_token(&self) -> usize {
        let Heads { kv, dim, v_dim, .. } = self.attention.heads;
        kv * (dim + v_dim)
    }

    fn allocate(&mut self, pool: Pool, backend: &mut dyn Backend) {
        let (heads, Pool { num_blocks, block_size, dtype }) = (self.attention.heads, pool);
        let (kv_heads, head_dim, v_head_dim) = (heads.kv, heads.dim, heads.v_dim);
        self.kv = Some(backend.new_kv(KvShape {
            num_blocks,
            block_size,
            kv_heads,
            head_dim,
            v_head_dim,
            shared: false,
            dtype,
        }));
    }

    fn copy_blocks(&self, from: &[u32], to: &[u32], backend: &mut dyn Backend) {
        backend.copy_blocks(self.kv(), from, to);
    }

    fn remember(&self, input: Act, backend: &mut dyn Backend) {
        let heads = self.attention.heads;
        backend.matmul(input, self.qkv.matrix, self.qkv.bias, Epilogue::Store, self.projected);
        if let Some(norm) = self.query_norm {
            backend.head_norm(self.projected, 0, heads.q, heads.dim, norm);
        }
        if let Some(norm) = self.key_norm {
            backend.head_norm(self.projected, heads.q * heads.dim, heads.kv, heads.dim, norm);
        }
        backend.rope_and_cache(self.projected, heads, self.rope, self.kv());
    }

    fn recall(&self, backend: &mut dyn Backend) -> Act {
        backend.attention(self.projected, self.attention, self.kv(), self.attended);
        self.attended
    }
}

pub(super) fn build(
    builder: &mut Builder<'_>,
    index: usize,
    spec: &AttentionSpec,
) -> Result<(Box<dyn Mixer>, Linear), LoadError> {
    let (qkv, output) = projections(builder, index, spec)?;
    let norm = spec.qk_norm.map(|QkNorm::PerHead(norm)| norm);
    let query_norm = builder.norm(norm, Slot::Layer(index, Part::QueryNorm), spec.head_dim)?;
    let key_norm = builder.norm(norm, Slot::Layer(index, Part::KeyNorm), spec.head_dim)?;
    let attention = attention(builder, index, spec)?;
    let rope = builder.rope(&spec.position);
    let Heads { q, kv, dim, v_dim } = attention.heads;
    let projected = builder.store.buffer("qkv", (q + kv) * dim + kv * v_dim);
    let attended = builder.store.buffer("attended", q * v_dim);
    let mixer = AttentionMixer { qkv, attention, rope, query_norm, key_norm, projected, attended, kv: None };
    Ok((Box::new(mixer), output))
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
