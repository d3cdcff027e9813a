//! One norm: which it is, and what it multiplies by.

/// A norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSpec {
    /// Which norm.
    pub kind: NormKind,
    /// How it scales.
    pub scale: NormScale,
    /// It has a stored shift.
    pub bias: bool,
    /// Epsilon.
    pub eps: f32,
}

impl NormSpec {
    /// Root-mean-square norm with a stored weight.
    pub fn rms(eps: f32) -> Self {
        Self { kind: NormKind::Rms, scale: NormScale::Weight, bias: false, eps }
    }

    /// Layer norm with stored weight and bias.
    pub fn layer(eps: f32) -> Self {
        Self { kind: NormKind::Layer, scale: NormScale::Weight, bias: true, eps }
    }
}

/// Normalisation over a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Divides by the root of the mean square: `x / sqrt(mean(x^2) + eps) * w`.
    Rms,
    /// Subtracts the mean and divides by the standard deviation: `(x - mean) / sqrt(var + eps) * w + b`.
    Layer,
}

/// What a norm multiplies by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormScale {
    /// The stored weight.
    Weight,
    /// One plus the stored weight (Gemma, Nemotron).
    OnePlusWeight,
    /// Nothing; no weight is stored (OLMo 1).
    None,
}
