//! What attention is told: rotation, heads, what it does beside softmax, and the shape of the memory it reads.

use super::{
    Act, DType, HeadColumns, KvDType, KvLayer, Mask, Matrix, MatrixGroup, Ops, RopeStyle, RowSelection, Vector,
};

/// Rotary embedding parameters of a layer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rope {
    /// Inverse frequencies `[rotary_dim / 2]`; scaling (linear, llama3, yarn, ...) is already in them.
    pub inv_freq: Vector,
    /// Elements of each head that rotate.
    pub rotary_dim: usize,
    /// Pairing.
    pub style: RopeStyle,
    /// Scales cos and sin (yarn, longrope); 1 otherwise.
    pub mscale: f32,
}

/// Head counts of an attention layer on this rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heads {
    /// Query heads.
    pub q: usize,
    /// Key/value heads.
    pub kv: usize,
    /// Width of query and key heads.
    pub dim: usize,
    /// Width of value heads.
    pub v_dim: usize,
}

/// What attention does beside softmax(q k^T * scale) v.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Attention {
    /// Head counts.
    pub heads: Heads,
    /// Score scale.
    pub scale: f32,
    /// A token sees itself and `window - 1` tokens before it, and as many after it where it sees those; absent: all.
    pub window: Option<usize>,
    /// `cap * tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// One extra logit a query head that takes weight but no value.
    pub sinks: Option<Vector>,
    /// ALiBi slope of each query head `[heads.q]`.
    pub alibi: Option<Vector>,
    /// Learned bias of each query head, by distance.
    pub relative: Option<RelativeBias>,
    /// Which tokens a token sees, as far as the window reaches.
    pub mask: Mask,
}

impl Attention {
    /// A token sees itself and all before it; nothing else changes its scores.
    pub const fn causal(heads: Heads, scale: f32) -> Self {
        let (window, soft_cap, sinks, alibi, relative) = (None, None, None, None, None);
        Self { heads, scale, window, soft_cap, sinks, alibi, relative, mask: Mask::Causal }
    }
}

/// Latent attention of rows whose keys are in the cache.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LatentAttention {
    /// In the latent space: all heads have one key, the end of which is its value.
    pub attention: Attention,
    /// The cache.
    pub kv: KvLayer,
    /// Heads `[rest | what rotates]` as they are projected, not rotated.
    pub queries: Act,
    /// As [`Ops::attention`] takes them: heads `[rotated | rest in the latent space]`, then the key.
    pub absorbed: Act,
    /// Room for values in the latent space.
    pub attended: Act,
    /// Brings them out of it.
    pub restore: MatrixGroup,
    /// Elements of a head's value outside the latent space.
    pub value_dim: usize,
    /// What [`Load::join_heads`](super::Load::join_heads) gave.
    pub joined: Option<Matrix>,
}

impl LatentAttention {
    /// Attention in the latent space, whose values are brought out of it.
    pub fn absorbed_form<O: Ops + ?Sized>(self, ops: &mut O, only: Option<RowSelection<'_>>, out: Act) {
        ops.attention(self.absorbed, self.attention, self.kv, only, self.attended);
        self.restore_values(ops, out);
    }

    /// Brings values out of the latent space.
    pub fn restore_values<O: Ops + ?Sized>(self, ops: &mut O, out: Act) {
        let at = |stride| HeadColumns { first: 0, stride };
        ops.head_matmul(self.attended, at(self.attention.heads.v_dim), self.restore, out, at(self.value_dim));
    }
}

/// A learned bias that is added to scores.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RelativeBias {
    /// `[heads.q, 2 * reach + 1]`: of the key `reach` tokens before the query first.
    pub table: Vector,
    /// Keys farther away have the bias of those at this distance.
    pub reach: usize,
}

/// Attention of layers that are still to be loaded.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedAttention {
    /// Head counts.
    pub heads: Heads,
    /// Width of the residual stream.
    pub hidden: usize,
    /// What rows are computed in.
    pub compute: DType,
    /// Element type of keys and values.
    pub cache: KvDType,
    /// Tokens of a block of the cache.
    pub block_size: usize,
    /// Values are a part of keys ([`KvShape::shared`]).
    pub shared: bool,
    /// What is done to scores.
    pub scores: ScoreMods,
}

/// Which of the things that a layer may do to products of queries and keys, before they are weights, it does.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ScoreMods {
    /// [`Attention::soft_cap`].
    pub soft_cap: bool,
    /// [`Attention::alibi`].
    pub alibi: bool,
    /// [`Attention::relative`].
    pub relative: bool,
}

/// The kernels by which a device attends, by the names that `--attention-backend` has for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttentionKernels {
    /// Of sequences with several rows in a step.
    pub prefill: &'static str,
    /// Of sequences with one row.
    pub decode: &'static str,
}

/// Shape of one layer's KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Blocks in the pool.
    pub num_blocks: usize,
    /// Tokens a block.
    pub block_size: usize,
    /// K/V heads on this rank.
    pub kv_heads: usize,
    /// Width of a K head.
    pub head_dim: usize,
    /// Width of a V head.
    pub v_head_dim: usize,
    /// Values are the last `v_head_dim` elements of keys, and not stored again; a row then has no columns for V (latent
    /// attention).
    pub shared: bool,
    /// Element type.
    pub dtype: KvDType,
}

/// What a layer's keys and values are divided by before they are stored, and multiplied by when they are read: for
/// caches of [`KvDType::E4m3`], whose numbers end at 448. Where values are a part of keys, both are the same.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct KvScales {
    /// Of keys.
    pub key: f32,
    /// Of values.
    pub value: f32,
}

impl Default for KvScales {
    fn default() -> Self {
        Self { key: 1.0, value: 1.0 }
    }
}

impl KvScales {
    /// What keys and values are multiplied by before they are stored.
    pub fn inverse(self) -> Self {
        Self { key: 1.0 / self.key, value: 1.0 / self.value }
    }
}
