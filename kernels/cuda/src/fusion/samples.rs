//! Operations of a decode step of Qwen3-0.6B, for tests of rules.

use cudarc::driver::sys::CUdeviceptr;

use super::head_norms::QkNorms;
use super::op::{AddNorm, Attention, Cache, Fits, Gated, Gemm, HeadNorm, NormBy, Op, Rope, Stored};
use super::split_norm::SplitNorm;
use crate::attention::layer::{HeadScales, Params};
use crate::layers::norm;
use crate::runtime::activations::View;
use kernels::ops::{
    self, Activation, DType, Epilogue, Heads, KvDType, KvLayer, KvScales, KvShape, Matrix, RopeStyle, Vector,
};

pub(crate) const T: DType = DType::Bf16;
pub(crate) const HIDDEN: usize = 1024;
pub(crate) const HEADS: Heads = Heads { q: 16, kv: 8, dim: 128, v_dim: 128 };
pub(crate) const NORM: norm::Params = norm::Params { weight: 7, bias: 0, eps: 1e-6, subtract_mean: 0 };

/// The residual stream, its norm, what is added to it, qkv, what attention gives, inside the MLP twice, logits, and
/// none of these.
pub(crate) const X: View = View { ptr: 1, dtype: DType::F32, rows: 1, width: HIDDEN, most_rows: 1 };
pub(crate) const NORMED: View = View { ptr: 2, dtype: T, ..X };
pub(crate) const DELTA: View = View { ptr: 3, ..X };
pub(crate) const QKV: View = View { ptr: 4, width: 4096, ..NORMED };
pub(crate) const ATTENDED: View = View { ptr: 5, width: 2048, ..NORMED };
pub(crate) const GATE_UP: View = View { ptr: 6, width: 6144, ..NORMED };
pub(crate) const INNER: View = View { ptr: 7, width: 3072, ..NORMED };
pub(crate) const LOGITS: View = View { ptr: 8, width: 151_936, ..X };
pub(crate) const OTHER: View = View { ptr: 9, ..X };

const KV: KvLayer = KvLayer { memory: 0, table: 0, scales: SCALES, head_scales: None };
const SCALES: KvScales = KvScales { key: 1.0, value: 1.0 };
const SHAPE: KvShape = KvShape {
    num_blocks: 9,
    block_size: 16,
    kv_heads: 8,
    head_dim: 128,
    v_head_dim: 128,
    shared: false,
    dtype: KvDType::Float(T),
};
const CACHE: Cache = Cache { keys: 100, values: 101, shape: SHAPE, scales: SCALES, first_block: 102 };

/// What kernels for few rows can do: end a norm and gate 16-bit outputs, or begin a norm of f32 sums.
const GATES: Fits = Fits { gate: true, activate: true, end_norm: true, ..NOTHING };
const NOTHING: Fits = Fits {
    gate: false,
    activate: false,
    add: false,
    split_norm: false,
    end_norm: false,
    all_reduce: false,
    prepare: false,
    reads: None,
};
const SPLITS: Fits = Fits { split_norm: true, end_norm: true, ..NOTHING };

pub(crate) const fn gemm(x: View, weights: CUdeviceptr, out: View) -> Op {
    let weights = Stored { ptr: weights, dtype: T, rows: out.width, cols: x.width };
    let fits = if matches!(out.dtype, DType::F32) { SPLITS } else { GATES };
    let (w, epilogue) = (Matrix(0), Epilogue::Store);
    let (bias, bias_at, adapted, prepared) = (None, 0, false, None);
    Op::Gemm(Gemm { x, before: None, w, weights, bias, bias_at, epilogue, out, fits, adapted, prepared })
}

pub(crate) const QKV_GEMM: Op = gemm(NORMED, 60, QKV);
pub(crate) const O_GEMM: Op = gemm(ATTENDED, 61, DELTA);
pub(crate) const GATE_UP_GEMM: Op = gemm(NORMED, 62, GATE_UP);
pub(crate) const DOWN_GEMM: Op = gemm(INNER, 63, DELTA);
pub(crate) const GATE: Op = Op::Gated(Gated { gate_up: GATE_UP, activation: Activation::Silu, out: INNER });
pub(crate) const ADD_NORM: Op = Op::AddNorm(AddNorm { residual: X, delta: DELTA, params: NORM, out: NORMED });
pub(crate) const SPLIT: SplitNorm = SplitNorm { residual: X, params: NORM, out: NORMED };

const fn head_norm(first_col: usize, heads: usize) -> Op {
    Op::HeadNorm(HeadNorm { x: QKV, first_col, heads, dim: HEADS.dim, params: NORM, stride: 0 })
}
pub(crate) const Q_NORM: Op = head_norm(0, HEADS.q);
pub(crate) const K_NORM: Op = head_norm(HEADS.q * HEADS.dim, HEADS.kv);

const ROTATION: ops::Rope = ops::Rope { inv_freq: Vector(0), rotary_dim: 128, style: RopeStyle::Halves, mscale: 1.0 };
const ROPED: Rope =
    Rope { qkv: QKV, heads: HEADS, rope: Some((ROTATION, 103)), kv: KV, cache: CACHE, takes_norms: true, norms: None };
pub(crate) const ROPE: Op = Op::Rope(ROPED);

const NO_SCALES: HeadScales = HeadScales { key: 0, value: 0 };
pub(crate) const LAYER: ops::Attention = ops::Attention::causal(HEADS, 0.1);
pub(crate) const ATTENTION: Op = attention(LAYER);

pub(crate) const fn attention(attention: ops::Attention) -> Op {
    let params = Params { layer: attention, value_scale: 1.0, sinks: 0, alibi: 0, relative: 0, head_scales: NO_SCALES };
    Op::Attention(Attention { qkv: QKV, attention, params, kv: KV, cache: CACHE, only: None, out: ATTENDED })
}

/// The GEMM with the norm of its input that it ends.
pub(crate) fn before(op: Op, norm: Option<SplitNorm>) -> Op {
    let Op::Gemm(gemm) = op else { unreachable!("a GEMM") };
    Op::Gemm(Gemm { before: norm, ..gemm })
}

/// A GEMM and [`GATE`] as one.
pub(crate) fn gated_gemm(op: Op) -> Op {
    let (Op::Gemm(gemm), Op::Gated(gate)) = (op, GATE) else { unreachable!("a GEMM") };
    Op::GatedGemm(gemm, gate)
}

/// A GEMM and [`ADD_NORM`] as one, which begins the norm.
pub(crate) fn add_norm_gemm(op: Op) -> Op {
    let (Op::Gemm(gemm), Op::AddNorm(norm)) = (op, ADD_NORM) else { unreachable!("a GEMM") };
    Op::AddNormGemm(gemm, norm, NormBy::Gemms)
}

/// [`ROPE`] with the norms before it.
pub(crate) fn normed_rope() -> Op {
    Op::Rope(Rope { norms: Some(QkNorms { q: NORM, k: NORM }), ..ROPED })
}
