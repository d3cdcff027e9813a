//! What operations with a recurrent state are told: causal convolution, selective scan, gated delta rule.
//!
//! All three walk a sequence's rows in order from the state that its last step left, and leave theirs. Where a
//! sequence's part of a step starts at position 0, the state before it is zero, whatever lies there: so a slot needs no
//! clearing between sequences. In f32 every row's arithmetic is that of a step of one row, so cutting a sequence into
//! steps changes no bit. With 16 bits a backend may scan many rows of a sequence at once, to the accuracy of these;
//! what else is in the batch changes no bit.
//!
//! A state may be kept in 16 bits, whatever rows are in. It is widened where a step begins and rounded to nearest where
//! the step ends: between, arithmetic is the same. So where a sequence is cut into steps matters then. What is too
//! large for f16 becomes the largest number that is not.

use super::{Act, DType, Vector};

/// Per-sequence memory of a layer: `[slots, len]`. A sequence's row is [`super::Sequence::slot`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State(pub u32);

/// Neighbouring columns of a buffer, from `first` on; the operation knows how many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cols {
    /// The buffer.
    pub act: Act,
    /// The first column.
    pub first: usize,
}

/// A causal convolution of each channel alone, and SiLU:
/// `out[t][c] = silu(bias[c] + sum_j taps[j][c] * x[t - (kernel - 1) + j][c])`.
#[derive(Clone, Copy, Debug)]
pub struct Conv {
    /// Columns of input and output.
    pub channels: usize,
    /// Rows that a row sees, itself included; at least 2.
    pub kernel: usize,
    /// `[kernel, channels]`; the last tap is the row's own.
    pub taps: Vector,
    /// `[channels]`.
    pub bias: Option<Vector>,
    /// `len` = `(kernel - 1) * channels`: the inputs of the last rows, oldest first.
    pub state: State,
}

/// The selective state-space recurrence of Mamba 1 and 2. For head `h`, with `g = h / (heads / groups)` and
/// `dt = clamp(softplus(dt[t][h] + dt_bias[h]))`:
///
/// ```text
/// state[h][p][n] = exp(dt * decay[h][n]) * state[h][p][n] + dt * x[t][h][p] * b[t][g][n]
/// out[t][h][p]   = sum_n state[h][p][n] * c[t][g][n] + skip[h] * x[t][h][p]
/// ```
///
/// Mamba 1 is the case of heads one channel wide.
#[derive(Clone, Copy, Debug)]
pub struct Scan {
    /// Heads.
    pub heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Groups of heads that share `b` and `c`; divides `heads`.
    pub groups: usize,
    /// Values that a channel remembers.
    pub state_dim: usize,
    /// Negative: `[heads]`, or `[heads, state_dim]` where each value has its own.
    pub decay: Vector,
    /// `[heads]`.
    pub skip: Vector,
    /// `[heads]`.
    pub dt_bias: Option<Vector>,
    /// Least and largest `dt`.
    pub dt_limit: (f32, f32),
    /// `len` = `heads * head_dim * state_dim`, in this order.
    pub state: State,
}

/// What a [`Scan`] reads.
#[derive(Clone, Copy, Debug)]
pub struct ScanInput {
    /// `heads * head_dim` columns.
    pub x: Cols,
    /// `heads` columns, before bias and softplus.
    pub dt: Cols,
    /// `groups * state_dim` columns.
    pub b: Cols,
    /// `groups * state_dim` columns.
    pub c: Cols,
}

/// The gated delta rule (Yang, Kautz, Hatamizadeh 2024). For value head `h` and its key head, with `q` and `k` divided
/// by their lengths (`x / sqrt(sum x^2 + 1e-6)`), `q` also by `sqrt(key_dim)`, and `decay = exp(rate[h] *
/// softplus(dt[t][h] + dt_bias[h]))`:
///
/// ```text
/// state[h]   = decay * state[h]                                        [key_dim, value_dim]
/// state[h]  += k outer (sigmoid(beta[t][h]) * (v - k state[h]))
/// out[t][h]  = q state[h]
/// ```
#[derive(Clone, Copy, Debug)]
pub struct DeltaRule {
    /// Heads of q and k; divides `value_heads`.
    pub key_heads: usize,
    /// Heads of v.
    pub value_heads: usize,
    /// Width of a q or k head.
    pub key_dim: usize,
    /// Width of a v head.
    pub value_dim: usize,
    /// Negative, `[value_heads]`.
    pub rate: Vector,
    /// `[value_heads]`.
    pub dt_bias: Vector,
    /// `len` = `value_heads * key_dim * value_dim`, in this order.
    pub state: State,
}

/// The delta rule of layers that are still to be loaded.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedDeltaRule {
    /// Heads of v.
    pub value_heads: usize,
    /// Width of a q or k head.
    pub key_dim: usize,
    /// Width of a v head.
    pub value_dim: usize,
    /// What rows are computed in.
    pub compute: DType,
    /// What states are kept in.
    pub kept: DType,
    /// Most rows of a step.
    pub max_rows: usize,
}

/// What a [`DeltaRule`] reads.
#[derive(Clone, Copy, Debug)]
pub struct DeltaInput {
    /// `[q | k | v]` in each row, head after head.
    pub qkv: Act,
    /// `value_heads` columns, before the sigmoid.
    pub beta: Cols,
    /// `value_heads` columns, before bias and softplus.
    pub dt: Cols,
}
