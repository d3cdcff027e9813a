//! `typical_p`: the smallest set of tokens whose probability reaches p, the most typical first: those whose surprise
//! is closest to the entropy of the distribution (locally typical sampling, as in Hugging Face's transformers).

use kernels::sample::SampleParams;

use super::{Cut, Request};
use crate::candidates::Candidates;

struct TypicalP {
    mass: f64,
}

pub(super) fn compile(request: &Request<'_>) -> Option<Box<dyn Cut>> {
    let mass = f64::from(request.sampling.typical_p);
    (mass > 0.0 && mass < 1.0).then(|| Box::new(TypicalP { mass }) as Box<dyn Cut>)
}

impl Cut for TypicalP {
    /// Probabilities are those among the candidates that the other cuts left. Tokens as typical as the last one stay,
    /// too.
    fn apply(&self, candidates: &mut Candidates) {
        let weights = || candidates.as_slice().iter().map(|candidate| f64::from(candidate.weight));
        let total: f64 = weights().sum();
        let surprise = |weight: f64| (total / weight).ln();
        let entropy: f64 = weights().map(|weight| weight / total * surprise(weight)).sum();
        let distance = |weight: f64| (surprise(weight) - entropy).abs();
        let mut ranked: Vec<(f64, f64)> = weights().map(|weight| (distance(weight), weight)).collect();
        // Equally typical tokens stay in token order, so that sums are the same everywhere.
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut sum = 0.0;
        let last = ranked.iter().find(|(_, weight)| {
            sum += weight;
            sum >= self.mass * total
        });
        let Some(&(least_typical, _)) = last.or(ranked.last()) else { return };
        candidates.retain(|candidate| distance(f64::from(candidate.weight)) <= least_typical);
    }

    /// No device has it: the host samples.
    fn describe(&self, _: &mut SampleParams) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use proto::Sampling;

    use crate::{SamplingPlan, rules::check::kept};

    /// Entropy 1.21 nats; surprises 2.30, 0.69, 1.90, 1.39, so the order is 3 (0.18 off), 1 (0.51), 2 (0.69), 0 (1.09).
    #[test]
    fn keeps_the_most_typical() {
        let check = |typical_p, want: &[u32]| {
            assert_eq!(kept(Sampling { typical_p, ..Default::default() }, &[0.1, 0.5, 0.15, 0.25]), want);
        };
        check(0.0, &[0, 1, 2, 3]); // unset: off
        check(1.0, &[0, 1, 2, 3]);
        check(0.95, &[0, 1, 2, 3]);
        check(0.89, &[1, 2, 3]);
        check(0.7, &[1, 3]);
        check(0.2, &[3]);
        check(1e-9, &[3]);
    }

    #[test]
    fn counts_what_other_cuts_left() {
        // Of 0.5 and 0.25 that top-k leaves, entropy 0.64 nats: surprises 0.41 and 1.10.
        let both = Sampling { typical_p: 0.6, top_k: 2, ..Default::default() };
        assert_eq!(kept(both, &[0.1, 0.5, 0.15, 0.25]), [1]);
    }

    #[test]
    fn equally_typical_tokens_stay_together() {
        let half = Sampling { typical_p: 0.5, ..Default::default() };
        assert_eq!(kept(half, &[0.25, 0.25, 0.25, 0.25]), [0, 1, 2, 3]);
    }

    #[test]
    fn is_the_hosts_alone() {
        let plan =
            |typical_p| SamplingPlan::compile(&Sampling { temperature: 1.0, typical_p, ..Default::default() }, 0, &[]);
        assert!(plan(1.0).device_params().is_some());
        assert!(plan(0.9).device_params().is_none());
    }
}
