//! Rotary embedding: the inverse frequencies of every scaling rule, computed in f64.
//!
//! The rules are those of Hugging Face transformers' `modeling_rope_utils` (yarn after Peng et al. 2023, longrope after
//! Ding et al. 2024), except `Dynamic`, which uses one base for all positions: rotated keys stay in the cache, so the
//! base cannot change as a sequence grows.

use std::f64::consts::PI;

/// Rotary embedding of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Base of the geometric series of wavelengths.
    pub theta: f64,
    /// Elements of each head that rotate; even.
    pub rotary_dim: usize,
    /// Which elements rotate together.
    pub style: RopeStyle,
    /// How the frequencies are stretched.
    pub scaling: RopeScaling,
}

/// Which elements of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Element i with i + dim/2 (Llama, NeoX).
    Halves,
    /// Element 2i with 2i + 1 (GPT-J, GLM).
    Interleaved,
}

/// A scaling rule.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// None.
    None,
    /// All frequencies divided by the factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// A larger base, fixed for the context stretched by the factor.
    Dynamic {
        /// The factor.
        factor: f64,
    },
    /// Long wavelengths divided, short ones kept, a ramp between.
    Llama3 {
        /// Divides long wavelengths' frequencies.
        factor: f64,
        /// Wavelengths above `original_len / low_freq_factor` are long.
        low_freq_factor: f64,
        /// Wavelengths below `original_len / high_freq_factor` are short.
        high_freq_factor: f64,
        /// Context of the pre-training.
        original_len: f64,
    },
    /// A ramp over dimensions, and a temperature on the scores.
    Yarn(YarnScaling),
    /// A learned factor for each frequency; one list for short contexts and one for long ones.
    Long {
        /// Up to `original_len` `[rotary_dim / 2]`.
        short: Vec<f64>,
        /// Beyond it `[rotary_dim / 2]`.
        long: Vec<f64>,
        /// Context of the pre-training.
        original_len: f64,
        /// Scales cos and sin with the short list.
        short_mscale: f64,
        /// Scales cos and sin with the long list.
        long_mscale: f64,
    },
}

/// Parameters of yarn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct YarnScaling {
    /// How much longer the context becomes.
    pub factor: f64,
    /// Context of the pre-training.
    pub original_len: f64,
    /// Rotations over the original context above which a dimension is kept.
    pub beta_fast: f64,
    /// Rotations below which it is divided by the factor.
    pub beta_slow: f64,
    /// Scales cos and sin.
    pub mscale: f64,
    /// The ramp's ends are rounded outwards to whole dimensions.
    pub truncate: bool,
}

/// What a device needs.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// `[rotary_dim / 2]`.
    pub inv_freq: Vec<f32>,
    /// Scales cos and sin.
    pub mscale: f32,
}

impl RopeSpec {
    /// The table for sequences of up to `max_len` tokens (which only longrope asks about).
    pub fn table(&self, max_len: usize) -> RopeTable {
        let inv_freq = self.frequencies(max_len).into_iter().map(|f| f as f32).collect();
        RopeTable { inv_freq, mscale: self.mscale(max_len) as f32 }
    }

    fn frequencies(&self, max_len: usize) -> Vec<f64> {
        let plain = geometric(self.theta, self.rotary_dim);
        match &self.scaling {
            RopeScaling::None => plain,
            RopeScaling::Linear { factor } => plain.into_iter().map(|f| f / factor).collect(),
            RopeScaling::Dynamic { factor } => {
                geometric(dynamic_base(self.theta, self.rotary_dim, *factor), self.rotary_dim)
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_len } => plain
                .into_iter()
                .map(|f| llama3(f, *factor, [*low_freq_factor, *high_freq_factor], *original_len))
                .collect(),
            RopeScaling::Yarn(yarn) => yarn.frequencies(&plain, self.theta, self.rotary_dim),
            RopeScaling::Long { short, long, original_len, .. } => {
                let factors = if max_len as f64 > *original_len { long } else { short };
                plain.into_iter().zip(factors).map(|(f, factor)| f / factor).collect()
            }
        }
    }

    fn mscale(&self, max_len: usize) -> f64 {
        match &self.scaling {
            RopeScaling::Yarn(yarn) => yarn.mscale,
            RopeScaling::Long { original_len, short_mscale, long_mscale, .. } => {
                if max_len as f64 > *original_len {
                    *long_mscale
                } else {
                    *short_mscale
                }
            }
            _ => 1.0,
        }
    }
}

/// `theta^(-2i / dim)`.
fn geometric(theta: f64, dim: usize) -> Vec<f64> {
    (0..dim / 2).map(|i| theta.powf(-2.0 * i as f64 / dim as f64)).collect()
}

/// The base at the stretched context `L' = f L`: `theta * (f L'/L - (f - 1))^(d / (d - 2))`.
fn dynamic_base(theta: f64, dim: usize, factor: f64) -> f64 {
    let dim = dim as f64;
    theta * (factor * factor - (factor - 1.0)).powf(dim / (dim - 2.0))
}

fn llama3(frequency: f64, factor: f64, [low, high]: [f64; 2], original_len: f64) -> f64 {
    let rotations = original_len * frequency / (2.0 * PI);
    if rotations > high {
        frequency
    } else if rotations < low {
        frequency / factor
    } else {
        let kept = (rotations - low) / (high - low);
        frequency * (kept + (1.0 - kept) / factor)
    }
}

impl YarnScaling {
    fn frequencies(&self, plain: &[f64], theta: f64, dim: usize) -> Vec<f64> {
        let (low, high) = self.ramp(theta, dim);
        let stretched = |i: usize| ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
        plain.iter().enumerate().map(|(i, f)| f * (1.0 - stretched(i)) + f / self.factor * stretched(i)).collect()
    }

    /// Dimensions between which frequencies go from kept to divided.
    fn ramp(&self, theta: f64, dim: usize) -> (f64, f64) {
        // The dimension that makes `rotations` rotations over the original context.
        let dimension =
            |rotations: f64| dim as f64 * (self.original_len / (rotations * 2.0 * PI)).ln() / (2.0 * theta.ln());
        let (mut low, mut high) = (dimension(self.beta_fast), dimension(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, high) = (low.max(0.0), high.min(dim as f64 - 1.0));
        if low == high { (low, high + 0.001) } else { (low, high) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(scaling: RopeScaling) -> RopeSpec {
        RopeSpec { theta: 10000.0, rotary_dim: 8, style: RopeStyle::Halves, scaling }
    }

    fn check(scaling: RopeScaling, max_len: usize, expected: [f64; 4], mscale: f64) {
        let table = spec(scaling.clone()).table(max_len);
        for (got, want) in table.inv_freq.iter().zip(expected) {
            assert!(
                (f64::from(*got) - want).abs() <= 1e-6 * want,
                "{scaling:?}: {:?} is not {expected:?}",
                table.inv_freq
            );
        }
        assert!((f64::from(table.mscale) - mscale).abs() < 1e-6);
    }

    // Worked out by hand from the rules' definitions: plain frequencies are 1, 0.1, 0.01, 0.001.
    #[test]
    fn each_rule() {
        check(RopeScaling::None, 99, [1.0, 0.1, 0.01, 0.001], 1.0);
        check(RopeScaling::Linear { factor: 4.0 }, 99, [0.25, 0.025, 0.0025, 0.00025], 1.0);
        // base' = 1e4 * 3^(4/3) for factor 2, whose fourth root is 10 * 3^(1/3).
        let root = 10.0 * 3f64.powf(1.0 / 3.0);
        check(RopeScaling::Dynamic { factor: 2.0 }, 99, [1.0, 1.0 / root, root.powi(-2), root.powi(-3)], 1.0);
        // Rotations over 2*pi*100 tokens: 100, 10, 1, 0.1. Kept above 20, divided below 0.5, a ramp between.
        let llama3 =
            RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 0.5, high_freq_factor: 20.0, original_len: 200.0 * PI };
        let ramp = |rotations: f64| (rotations - 0.5) / 19.5 + (1.0 - (rotations - 0.5) / 19.5) / 8.0;
        check(llama3, 99, [1.0, 0.1 * ramp(10.0), 0.01 * ramp(1.0), 0.001 / 8.0], 1.0);
    }

    #[test]
    fn yarn_ramps_over_dimensions() {
        // Dimension i makes 100 / 10^i rotations: 10 rotations at dimension 1, 0.1 at dimension 3.
        let yarn = YarnScaling {
            factor: 4.0,
            original_len: 200.0 * PI,
            beta_fast: 10.0,
            beta_slow: 0.1,
            mscale: 1.5,
            truncate: false,
        };
        check(RopeScaling::Yarn(yarn), 99, [1.0, 0.1, 0.01 * 0.625, 0.001 / 4.0], 1.5);
    }

    #[test]
    fn longrope_chooses_by_length() {
        let long = RopeScaling::Long {
            short: vec![1.0, 2.0, 2.0, 2.0],
            long: vec![1.0, 4.0, 4.0, 5.0],
            original_len: 64.0,
            short_mscale: 1.1,
            long_mscale: 1.2,
        };
        check(long.clone(), 64, [1.0, 0.05, 0.005, 0.0005], 1.1);
        check(long, 65, [1.0, 0.025, 0.0025, 0.0002], 1.2);
    }
}
