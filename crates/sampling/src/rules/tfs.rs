//! `tfs`: tail free sampling. The ranked probabilities are cut off where their curve has become flat: behind the first
//! tokens that have z of all its curvature, the absolute second differences (Phénix and Egan 2019).

use kernels::sample::SampleParams;

use super::{Cut, Request};
use crate::candidates::Candidates;

struct TailFree {
    z: f64,
}

pub(super) fn compile(request: &Request<'_>) -> Option<Box<dyn Cut>> {
    let z = f64::from(request.sampling.tfs);
    (z > 0.0 && z < 1.0).then(|| Box::new(TailFree { z }) as Box<dyn Cut>)
}

impl Cut for TailFree {
    fn apply(&self, candidates: &mut Candidates) {
        let mut ranked: Vec<f64> = candidates.as_slice().iter().map(|candidate| candidate.weight.into()).collect();
        ranked.sort_by(|a, b| b.total_cmp(a));
        let curvature = |at: usize| ((ranked[at] - ranked[at + 1]) - (ranked[at + 1] - ranked[at + 2])).abs();
        let places = ranked.len().saturating_sub(2);
        let total: f64 = (0..places).map(curvature).sum();
        // Without curvature there is no tail.
        if total <= 0.0 {
            return;
        }
        let mut sum = 0.0;
        let last = (0..places).position(|at| {
            sum += curvature(at);
            sum > self.z * total
        });
        // The tokens before the place where the sum is exceeded stay; the likeliest one does in any case.
        let kept = last.unwrap_or(places).max(1);
        candidates.keep_prefix(|_| 1.0, |_| kept as f64);
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

    /// Ranked 0.5, 0.25, 0.15, 0.06, 0.04; second differences 0.15, 0.01, 0.07, of 0.23: shares 0.65, 0.70, 1.
    #[test]
    fn cuts_the_flat_tail_off() {
        let check = |tfs, want: &[u32]| {
            assert_eq!(kept(Sampling { tfs, ..Default::default() }, &[0.15, 0.5, 0.04, 0.25, 0.06]), want);
        };
        check(0.0, &[0, 1, 2, 3, 4]); // unset: off
        check(1.0, &[0, 1, 2, 3, 4]);
        check(0.99, &[1, 3]);
        check(0.68, &[1]);
        check(0.1, &[1]);
    }

    #[test]
    fn a_straight_line_has_no_tail() {
        let half = Sampling { tfs: 0.5, ..Default::default() };
        assert_eq!(kept(half.clone(), &[0.25, 0.25, 0.25, 0.25]), [0, 1, 2, 3]);
        assert_eq!(kept(half, &[0.7, 0.3]), [0, 1]);
    }
}
