//! How large the shapes may be that a device computes, where its kernels have a bound.

/// Largest shapes that a device computes. Layers beyond them are refused when a model is loaded, before its weights
/// are; an operation may count on them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShapeLimits {
    /// Width of query and key heads, in latent attention that of what is cached for a token.
    pub head_dim: usize,
    /// Width of value heads, in latent attention that of the latent vector.
    pub v_head_dim: usize,
    /// Values that a channel of a [`Scan`](super::Scan) remembers.
    pub state_dim: usize,
    /// Width of the keys of a [`DeltaRule`](super::DeltaRule).
    pub key_dim: usize,
    /// Experts that rows choose among.
    pub experts: usize,
    /// Experts that a row chooses.
    pub top_k: usize,
}

impl ShapeLimits {
    /// Any shape.
    pub const NONE: Self = Self {
        head_dim: usize::MAX,
        v_head_dim: usize::MAX,
        state_dim: usize::MAX,
        key_dim: usize::MAX,
        experts: usize::MAX,
        top_k: usize::MAX,
    };
}
