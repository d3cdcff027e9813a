//! `top_p`: the smallest set of most likely tokens whose probability reaches p (the nucleus).

use kernels::sample::SampleParams;

use super::{Cut, Request};
use crate::candidates::Candidates;

struct TopP {
    p: f64,
}

pub(super) fn compile(request: &Request<'_>) -> Option<Box<dyn Cut>> {
    let p = request.sampling.top_p;
    (p > 0.0 && p < 1.0).then(|| Box::new(TopP { p: f64::from(p) }) as Box<dyn Cut>)
}

impl Cut for TopP {
    /// Probabilities are those among the candidates that min-p and top-k left.
    fn apply(&self, candidates: &mut Candidates) {
        candidates.keep_prefix(|candidate| f64::from(candidate.weight), |total| self.p * total);
    }

    fn describe(&self, params: &mut SampleParams) -> bool {
        params.top_p = self.p;
        true
    }
}

#[cfg(test)]
mod tests {
    use proto::Sampling;

    use crate::rules::check::kept;

    #[test]
    fn keeps_the_nucleus() {
        let check = |top_p, top_k, want: &[u32]| {
            assert_eq!(kept(Sampling { top_p, top_k, ..Default::default() }, &[0.1, 0.5, 0.15, 0.25]), want);
        };
        check(1.0, 0, &[0, 1, 2, 3]);
        check(0.0, 0, &[0, 1, 2, 3]); // unset: off
        check(0.95, 0, &[0, 1, 2, 3]);
        check(0.89, 0, &[1, 2, 3]);
        check(0.7, 0, &[1, 3]);
        check(0.4, 0, &[1]);
        check(1e-9, 0, &[1]);
        // Of the two that top-k leaves, the best has 2/3.
        check(0.6, 2, &[1]);
        check(0.7, 2, &[1, 3]);
    }
}
