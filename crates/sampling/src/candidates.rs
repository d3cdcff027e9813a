//! The tokens that may still be drawn, and the search for the shortest prefix of their ranking, without sorting them
//! all.
//!
//! The ranking is by weight, then by lower id. Min-p, top-k and top-p keep a prefix of it; typical-p does not.

use std::cmp::Ordering;

/// A token that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub token: u32,
    /// Unnormalised probability, in (0, 1]; the best token's is 1.
    pub weight: f32,
}

impl Candidate {
    fn rank(&self, other: &Self) -> Ordering {
        other.weight.total_cmp(&self.weight).then(self.token.cmp(&other.token))
    }
}

/// Candidates in token order.
#[derive(Default)]
pub(crate) struct Candidates {
    kept: Vec<Candidate>,
    buckets: Vec<f64>,
    border: Vec<Candidate>,
}

/// Buckets of the ranking; weights fall by a factor of `e` every `BUCKETS / SPAN` of them.
const BUCKETS: usize = 2048;
const SPAN: f32 = 32.0;

impl Candidates {
    /// Takes every token whose weight is above 0: the rest cannot be drawn.
    pub fn fill(&mut self, weights: &[f32]) {
        self.kept.clear();
        let all = weights.iter().zip(0..).map(|(&weight, token)| Candidate { token, weight });
        self.kept.extend(all.filter(|candidate| candidate.weight > 0.0));
    }

    /// The candidates, in token order.
    pub fn as_slice(&self) -> &[Candidate] {
        &self.kept
    }

    /// Keeps what `wanted` says.
    pub fn retain(&mut self, wanted: impl FnMut(&Candidate) -> bool) {
        self.kept.retain(wanted);
    }

    /// Keeps the shortest prefix of the ranking whose `measure` adds up to at least `target(total)`; all when it never
    /// does.
    ///
    /// Two passes over the candidates instead of a sort: the first adds the measures up in buckets of similar weight,
    /// the second gathers the one bucket in which the target is reached; only that one is sorted.
    pub fn keep_prefix(&mut self, measure: impl Fn(&Candidate) -> f64, target: impl FnOnce(f64) -> f64) {
        self.buckets.clear();
        self.buckets.resize(BUCKETS, 0.0);
        for candidate in &self.kept {
            self.buckets[bucket(candidate.weight)] += measure(candidate);
        }
        let target = target(self.buckets.iter().sum());
        let mut before = 0.0;
        let Some(at) = self.buckets.iter().position(|&sum| {
            let reached = before + sum >= target;
            before += if reached { 0.0 } else { sum };
            reached
        }) else {
            return;
        };
        self.border.clear();
        self.border.extend(self.kept.iter().filter(|candidate| bucket(candidate.weight) == at));
        self.border.sort_unstable_by(Candidate::rank);
        let last = self.border.iter().find(|candidate| {
            before += measure(candidate);
            before >= target
        });
        // Rounding can leave the sum a hair below the bucket's: then the whole bucket stays.
        let Some(&last) = last.or(self.border.last()) else { return };
        self.kept.retain(|candidate| match bucket(candidate.weight).cmp(&at) {
            Ordering::Equal => candidate.rank(&last).is_le(),
            order => order.is_lt(),
        });
    }
}

/// Grows as the weight falls: the bits of a float are a piecewise linear logarithm, and monotonic.
fn bucket(weight: f32) -> usize {
    const STEP: u32 = ((SPAN * std::f32::consts::LOG2_E * (1u32 << 23) as f32) / BUCKETS as f32) as u32;
    let below_one = 1.0f32.to_bits().saturating_sub(weight.to_bits());
    ((below_one / STEP) as usize).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn candidates(logits: &[f32]) -> Candidates {
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f32> = logits.iter().map(|&logit| crate::math::exp(logit - best)).collect();
        let mut candidates = Candidates::default();
        candidates.fill(&weights);
        candidates
    }

    /// The plain way: sort, add up, cut.
    fn naive(logits: &[f32], measure: impl Fn(&Candidate) -> f64, share: impl FnOnce(f64) -> f64) -> (Vec<u32>, f64) {
        let mut sorted = candidates(logits).kept;
        sorted.sort_by(Candidate::rank);
        let total = sorted.iter().map(&measure).sum();
        let (target, mut sum, mut closest) = (share(total), 0.0, f64::INFINITY);
        let mut kept = Vec::new();
        for candidate in &sorted {
            if sum < target {
                kept.push(candidate.token);
            }
            sum += measure(candidate);
            closest = closest.min(((sum - target) / total).abs());
        }
        kept.sort_unstable();
        (kept, closest)
    }

    fn tokens(candidates: &Candidates) -> Vec<u32> {
        candidates.kept.iter().map(|candidate| candidate.token).collect()
    }

    fn logits() -> impl Strategy<Value = Vec<f32>> {
        // Coarse values make ties; fine ones make full buckets.
        prop_oneof![
            prop::collection::vec((-40i32..40).prop_map(|x| x as f32 / 2.0), 1..400),
            prop::collection::vec(-3.0f32..3.0, 1..400),
            prop::collection::vec(-60.0f32..60.0, 1..400),
        ]
    }

    proptest! {
        #[test]
        fn count_prefix_equals_sorting(logits in logits(), k in 1usize..450) {
            let mut fast = candidates(&logits);
            fast.keep_prefix(|_| 1.0, |_| k as f64);
            prop_assert_eq!(tokens(&fast), naive(&logits, |_| 1.0, |_| k as f64).0);
        }

        #[test]
        fn mass_prefix_equals_sorting(logits in logits(), p in 0.01f64..1.0) {
            let mut fast = candidates(&logits);
            fast.keep_prefix(|c| f64::from(c.weight), |total| p * total);
            let (want, closest) = naive(&logits, |c| f64::from(c.weight), |total| p * total);
            // Where a sum meets the target to the last bits, the order of addition decides; both answers are right.
            prop_assume!(closest > 1e-12);
            prop_assert_eq!(tokens(&fast), want);
        }
    }

    #[test]
    fn buckets_fall_with_the_weight() {
        let mut last = 0;
        for i in 0..10_000 {
            let now = bucket(crate::math::exp(-(i as f32) / 100.0));
            assert!(now >= last);
            last = now;
        }
        assert_eq!(last, BUCKETS - 1);
        assert!(bucket(crate::math::exp(-1.0)) > 32);
    }
}
