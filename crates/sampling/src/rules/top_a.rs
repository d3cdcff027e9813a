//! `top_a`: only tokens at least as likely as a times the square of the likeliest one's probability: the surer the
//! model, the fewer (KoboldAI's rule).

use kernels::sample::SampleParams;

use super::{Cut, Request};
use crate::candidates::Candidates;

struct TopA {
    a: f64,
}

pub(super) fn compile(request: &Request<'_>) -> Option<Box<dyn Cut>> {
    let a = f64::from(request.sampling.top_a);
    (a > 0.0).then(|| Box::new(TopA { a }) as Box<dyn Cut>)
}

impl Cut for TopA {
    /// Probabilities are those among the candidates that the cuts before it left.
    fn apply(&self, candidates: &mut Candidates) {
        let weights = || candidates.as_slice().iter().map(|candidate| f64::from(candidate.weight));
        let (total, best) = (weights().sum::<f64>(), weights().fold(0.0, f64::max));
        let least = self.a * best * best / total;
        // The likeliest stays, whatever a is.
        candidates.retain(|candidate| f64::from(candidate.weight) >= least.min(best));
    }

    /// No device has it: the host samples.
    fn describe(&self, _: &mut SampleParams) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use proto::Sampling;

    use crate::rules::check::kept;

    #[test]
    fn the_surer_the_fewer() {
        let check = |top_a, of: [f32; 4], want: &[u32]| {
            assert_eq!(kept(Sampling { top_a, ..Default::default() }, &of), want);
        };
        check(0.0, [0.1, 0.5, 0.15, 0.25], &[0, 1, 2, 3]); // unset: off
        // 0.5 squared is 0.25: half of it is 0.125.
        check(0.5, [0.1, 0.5, 0.15, 0.25], &[1, 2, 3]);
        check(1.0, [0.1, 0.5, 0.16, 0.24], &[1]);
        check(0.5, [0.05, 0.85, 0.05, 0.05], &[1]);
        check(0.5, [0.25, 0.25, 0.25, 0.25], &[0, 1, 2, 3]);
    }
}
