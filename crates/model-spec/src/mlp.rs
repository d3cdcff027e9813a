//! One MLP: its form, width and non-linearity.

/// An MLP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MlpSpec {
    /// Its form.
    pub kind: MlpKind,
    /// Inner width.
    pub intermediate_size: usize,
    /// Non-linearity.
    pub activation: Activation,
    /// Which projections have a bias.
    pub bias: MlpBias,
}

/// Biases of an MLP's projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MlpBias {
    /// On gate and up.
    pub up: bool,
    /// On down.
    pub down: bool,
}

impl From<bool> for MlpBias {
    /// On all or none.
    fn from(all: bool) -> Self {
        Self { up: all, down: all }
    }
}

/// Form of an MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlpKind {
    /// `down(activation(gate(x)) * up(x))`.
    Gated,
    /// `down(activation(up(x)))`.
    Plain,
}

/// Non-linearities. A new one is a line here, its name in [`Self::from_name`], its formula in
/// `kernels/src/cpu/layers/activate.rs` and in `kernels/cuda/csrc/include/activation.cuh`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// Gaussian error linear unit, exact.
    Gelu,
    /// Its tanh approximation.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2`.
    ReluSquared,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `y * sigmoid(1.702 y)` with `y = min(x, limit)`; where it gates, the other half counts as
    /// `clamp(up, -limit, limit) + 1` (gpt-oss).
    ClampedSwiGlu {
        /// Bound.
        limit: f32,
    },
}

impl Activation {
    /// The number that kernels know it by: the place in `Function` of `activation.cuh`.
    pub const fn number(self) -> u32 {
        match self {
            Self::Silu => 0,
            Self::Gelu => 1,
            Self::GeluTanh => 2,
            Self::Relu => 3,
            Self::ReluSquared => 4,
            Self::ClampedSwiGlu { .. } => 5,
            Self::Sigmoid => 6,
        }
    }

    /// What bounds it; 0 where nothing does.
    pub const fn limit(self) -> f32 {
        match self {
            Self::ClampedSwiGlu { limit } => limit,
            _ => 0.0,
        }
    }

    /// From the name in `hidden_act`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "silu" | "swish" => Some(Self::Silu),
            "gelu" => Some(Self::Gelu),
            "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" => Some(Self::GeluTanh),
            "relu" => Some(Self::Relu),
            "relu2" => Some(Self::ReluSquared),
            _ => None,
        }
    }
}
