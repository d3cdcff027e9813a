//! Latent attention: one short vector a token stands for the keys and values of all heads.
//!
//! No layer keeps keys: `q (W_k c)` is `(q W_k) c`, so queries are brought into the latent space and attend there, all
//! heads to one key, and what they gather is brought back by the values' part of the projection (the absorbed form of
//! arXiv 2405.04434). For prompts a device may make keys and values of each head instead, and leave them again
//! (`Ops::latent_attention`). A cached key is `[rope | latent]`, its value its latent part; that is all a cache
//! holds, and every rank holds the same.

use kernels::ops::{
    Act, Attention, Backend, Epilogue, HeadColumns, Heads, KvLayer, LatentAttention, Matrix, MatrixGroup, MatrixUse,
    Norm, Rope, RowSelection,
};
use model_spec::{LatentSpec, Position};

use super::{CacheBinding, Mixer};
use crate::builder::{Builder, LinearPart};
use crate::cache::{CacheSpec, TokenCache};
use crate::error::{ForwardError, LoadError};
use crate::linear::{self, HeadLinear, Linear, Split};
use crate::ranks::Run;
use crate::tp::head_rows;
use crate::weights::{LayerParam, ParamId, Slice};

struct LatentMixer {
    queries: Queries,
    /// Gives `[rope | latent]`.
    down: Linear,
    norm: Option<Norm>,
    /// By head: from the part of a query that does not rotate to the latent space, `[kv_rank, nope_dim]`.
    absorb: HeadLinear,
    /// What attends, but for its cache.
    attention: Attention,
    /// By head: from the latent space to a value, `[v_head_dim, kv_rank]`.
    restore: MatrixGroup,
    /// What makes keys and values of all heads, where the device may attend to such.
    joined: Option<Matrix>,
    rope: Option<Rope>,
    nope_dim: usize,
    rope_dim: usize,
    v_head_dim: usize,
    buffers: Buffers,
    kv: Option<KvLayer>,
}

/// From the residual stream to heads of `[nope | rope]`.
enum Queries {
    Direct(Linear),
    Compressed { down: Linear, norm: Option<Norm>, up: Linear, compressed: Act },
}

struct Buffers {
    /// `[rows, heads * (nope_dim + rope_dim)]`.
    queries: Act,
    /// `[rows, rope_dim + kv_rank]`.
    latent: Act,
    /// `[rows, (heads + 1) * (rope_dim + kv_rank)]`: queries in the latent space, and the key.
    qk: Act,
    /// `[rows, heads * kv_rank]`.
    attended: Act,
    /// `[rows, heads * v_head_dim]`.
    restored: Act,
}

impl LatentMixer {
    fn kv(&self) -> KvLayer {
        self.kv.expect("a step comes after the cache was allocated")
    }

    fn project_queries(&self, input: Act, backend: &mut dyn Backend) {
        let (up, from) = match &self.queries {
            Queries::Direct(linear) => (linear, input),
            Queries::Compressed { down, norm, up, compressed } => {
                down.run(input, Epilogue::Store, *compressed, backend);
                if let Some(norm) = norm {
                    backend.norm(*compressed, *norm, *compressed);
                }
                (up, *compressed)
            }
        };
        up.run(from, Epilogue::Store, self.buffers.queries, backend);
    }

    /// Queries and the key side by side, as attention takes them.
    fn assemble(&self, backend: &mut dyn Backend) {
        let Self { rope_dim, nope_dim, ref buffers, attention: Attention { heads, .. }, .. } = *self;
        let at = |first, stride| HeadColumns { first, stride };
        let stride = nope_dim + rope_dim;
        let queries = linear::Heads { act: buffers.queries, columns: at(0, stride) };
        let absorbed = linear::Heads { act: buffers.qk, columns: at(rope_dim, heads.dim) };
        self.absorb.run(queries, absorbed, backend);
        backend.copy_columns(buffers.queries, at(nope_dim, stride), buffers.qk, at(0, heads.dim), heads.q, rope_dim);
        backend.copy_columns(buffers.latent, at(0, 0), buffers.qk, at(heads.q * heads.dim, 0), 1, heads.dim);
    }
}

impl Mixer for LatentMixer {
    fn width(&self) -> usize {
        self.attention.heads.q * self.v_head_dim
    }

    fn bind_cache(&mut self, cache: CacheBinding) {
        self.kv = cache.kv;
    }

    fn project(&self, input: Act, run: &mut Run<'_>) -> Result<(), ForwardError> {
        let (latent, backend) = (self.buffers.latent, &mut *run.backend);
        self.project_queries(input, backend);
        self.down.run(input, Epilogue::Store, latent, backend);
        if let Some(norm) = self.norm {
            backend.head_norm(latent, self.rope_dim, 1, self.attention.heads.v_dim, norm);
        }
        self.assemble(backend);
        backend.rope_and_cache(self.buffers.qk, self.attention.heads, self.rope, self.kv());
        Ok(())
    }

    fn attend(&self, only: Option<RowSelection<'_>>, backend: &mut dyn Backend) -> Act {
        let Buffers { queries, qk, attended, restored, .. } = self.buffers;
        let latent = LatentAttention {
            attention: self.attention,
            kv: self.kv(),
            queries,
            absorbed: qk,
            attended,
            restore: self.restore,
            value_dim: self.v_head_dim,
            joined: self.joined,
        };
        backend.latent_attention(latent, only, restored);
        restored
    }
}

/// One key for all heads, whose values are a part of it, on every rank.
pub(super) fn cache_spec(spec: &LatentSpec) -> CacheSpec {
    let (head_dim, v_head_dim) = (spec.rope_dim + spec.kv_rank, spec.kv_rank);
    let tokens = TokenCache { kv_heads: 1, head_dim, v_head_dim, shared: true, window: None, scratch: false };
    CacheSpec { tokens: Some(tokens), states: Vec::new() }
}

pub(super) fn build(
    builder: &mut Builder<'_>,
    index: usize,
    spec: &LatentSpec,
) -> Result<(Box<dyn Mixer>, Linear), LoadError> {
    let LatentSpec { heads, kv_rank, nope_dim, rope_dim, v_head_dim, bias, .. } = *spec;
    let (mine, dim) = (builder.shard.part(heads), rope_dim + kv_rank);
    let queries = build_queries(builder, index, spec)?;
    // Stored as [latent | rope].
    let stack = [LayerParam::KvDown.of(dim, kv_rank..dim), LayerParam::KvDown.of(dim, 0..kv_rank)];
    let down = builder.by_rows(index, &stack, bias)?;
    let norm = builder.norm(Some(spec.norm), ParamId::Layer(index, LayerParam::KvDownNorm), kv_rank)?;
    let (mut absorb, mut restore) = (Vec::new(), Vec::new());
    for head in mine.clone() {
        let [key, value] = key_and_value(builder, index, spec, head);
        absorb.push(builder.store.matrix(&[key], 0, MatrixUse::Heads)?);
        restore.push(builder.store.matrix(&[value], 0, MatrixUse::Heads)?);
    }
    let [absorb, restore] = [absorb, restore].map(|heads| builder.store.group(&heads, MatrixUse::Heads));
    let output =
        builder.by_cols(index, LayerParam::Output.of(heads * v_head_dim, head_rows(&mine, v_head_dim)), bias)?;
    let heads = Heads { q: mine.len(), kv: 1, dim, v_dim: kv_rank };
    let attention = Attention::causal(heads, spec.scale);
    let rope = builder.rope(&Position::Rope(spec.rope.clone()));
    let buffers = Buffers {
        queries: builder.store.buffer("latent queries", heads.q * (nope_dim + rope_dim)),
        latent: builder.store.buffer("latent", dim),
        qk: builder.store.buffer("qkv", (heads.q + 1) * dim),
        attended: builder.store.buffer("latent attended", heads.q * kv_rank),
        restored: builder.store.buffer("attended", heads.q * v_head_dim),
    };
    // The device makes room by what buffers hold.
    let joined = builder.store.joined(absorb, restore);
    let mixer = LatentMixer {
        queries,
        down,
        norm,
        absorb: HeadLinear::new(absorb),
        attention,
        restore,
        joined,
        rope,
        nope_dim,
        rope_dim,
        v_head_dim,
        buffers,
        kv: None,
    };
    Ok((Box::new(mixer), output))
}

fn build_queries(builder: &mut Builder<'_>, index: usize, spec: &LatentSpec) -> Result<Queries, LoadError> {
    let dim = spec.nope_dim + spec.rope_dim;
    let (all, rows) = (spec.heads * dim, head_rows(&builder.shard.part(spec.heads), dim));
    let Some(rank) = spec.query_rank else {
        return Ok(Queries::Direct(builder.by_rows(index, &[LayerParam::Query.of(all, rows)], false)?));
    };
    let down = builder.by_rows(index, &[LayerParam::QueryDown.of(rank, 0..rank)], spec.bias)?;
    let norm = builder.norm(Some(spec.norm), ParamId::Layer(index, LayerParam::QueryDownNorm), rank)?;
    let up = LinearPart { id: ParamId::Layer(index, LayerParam::QueryUp), shape: [all, rank], rows, cols: 0..rank };
    let up = builder.linear(&[up], false, Split::Outputs)?;
    let compressed = builder.store.buffer("compressed queries", rank);
    Ok(Queries::Compressed { down, norm, up, compressed })
}

/// A head's parts of the projection from the latent space to keys and values: the former turned around.
fn key_and_value(builder: &Builder<'_>, index: usize, spec: &LatentSpec, head: usize) -> [Slice; 2] {
    let (rank, each) = (spec.kv_rank, spec.nope_dim + spec.v_head_dim);
    let (id, all, first) = (ParamId::Layer(index, LayerParam::KvUp), spec.heads * each, head * each);
    let value = builder.matrix_slice(id, [all, rank], first + spec.nope_dim..first + each, 0..rank);
    let mut key = builder.matrix_slice(id, [rank, all], 0..rank, first..first + spec.nope_dim);
    key.location.transposed = !key.location.transposed;
    [key, value]
}
