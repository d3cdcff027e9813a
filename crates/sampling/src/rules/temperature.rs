//! `temperature`: logits become weights, `e^((logit - best) / temperature)`. Zero is greedy and has no weights.

use proto::Sampling;

use crate::math;

/// A temperature above zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Temperature {
    inverse: f32,
}

/// Below this a request is greedy (vLLM's bound).
const GREEDY_BELOW: f32 = 1e-5;

impl Temperature {
    pub fn compile(sampling: &Sampling) -> Option<Self> {
        // NaN is greedy too.
        (sampling.temperature >= GREEDY_BELOW).then(|| Self { inverse: 1.0 / sampling.temperature })
    }

    /// What differences of logits are multiplied with.
    pub fn inverse(self) -> f32 {
        self.inverse
    }

    /// Writes a weight for each logit, 1 for the best, 0 for what can never be drawn.
    pub fn weigh(self, row: &[f32], weights: &mut Vec<f32>) {
        // Keeps NaN, which weighs 0.
        let clamp = |logit: f32| if logit > f32::MAX { f32::MAX } else { logit };
        let best = clamp(math::max(row));
        weights.clear();
        weights.extend(row.iter().map(|&logit| math::exp((clamp(logit) - best) * self.inverse)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(temperature: f32, row: &[f32]) -> Option<Vec<f32>> {
        let mut weights = Vec::new();
        Temperature::compile(&Sampling { temperature, ..Default::default() })?.weigh(row, &mut weights);
        Some(weights)
    }

    #[test]
    fn divides_the_distance_to_the_best() {
        for temperature in [0.25, 1.0, 1.7] {
            let got = weights(temperature, &[1.0, 3.0, 2.5]).unwrap();
            for (got, distance) in got.iter().zip([-2.0f32, 0.0, -0.5]) {
                assert!((got - (distance / temperature).exp()).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn zero_and_nonsense_are_greedy() {
        for temperature in [0.0, -1.0, 1e-6, f32::NAN] {
            assert_eq!(weights(temperature, &[1.0]), None);
        }
    }

    #[test]
    fn odd_logits_have_defined_weights() {
        assert_eq!(weights(0.01, &[f32::NAN, f32::NEG_INFINITY, 2.0]), Some(vec![0.0, 0.0, 1.0]));
        assert_eq!(weights(1.0, &[f32::INFINITY, 5.0, f32::MAX]), Some(vec![1.0, 0.0, 1.0]));
        assert_eq!(weights(f32::INFINITY, &[1.0, 2.0, f32::NEG_INFINITY]), Some(vec![1.0, 1.0, 0.0]));
    }
}
