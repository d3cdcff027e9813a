//! Mixers that remember in a state of fixed size instead of keys and values.

/// The first Mamba's mixer: a selective state-space model, each channel with its own state (Gu, Dao 2023).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MambaSpec {
    /// Channels.
    pub inner: usize,
    /// Values that a channel remembers.
    pub state_size: usize,
    /// Tokens that the convolution sees.
    pub conv_kernel: usize,
    /// Width from which the channels' steps are projected.
    pub step_rank: usize,
    /// The convolution has a bias.
    pub conv_bias: bool,
    /// Input and output projections have one.
    pub bias: bool,
}

/// The second Mamba's mixer: heads with one decay each (Dao, Gu 2024).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mamba2Spec {
    /// Heads.
    pub heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Groups of heads that share what goes into and comes out of the state; divides `heads`.
    pub groups: usize,
    /// Values that a channel remembers.
    pub state_size: usize,
    /// Tokens that the convolution sees.
    pub conv_kernel: usize,
    /// The convolution has a bias.
    pub conv_bias: bool,
    /// Input and output projections have one.
    pub bias: bool,
    /// Least and largest step.
    pub step_limit: (f32, f32),
    /// Epsilon of the norm over each group's channels, after the gate.
    pub norm_eps: f32,
}

/// The gated delta rule of Qwen3-Next's linear attention (Yang, Kautz, Hatamizadeh 2024).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaSpec {
    /// Heads of queries and keys; divides `value_heads`.
    pub key_heads: usize,
    /// Heads of values.
    pub value_heads: usize,
    /// Width of a query or key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Tokens that the convolution sees.
    pub conv_kernel: usize,
    /// Epsilon of the norm over each value head, before the gate.
    pub norm_eps: f32,
}
