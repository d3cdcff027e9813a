//! `min_p`: a token must be at least this fraction as likely as the best one.

use kernels::sample::SampleParams;

use super::{Cut, Request};
use crate::candidates::Candidates;

struct MinP {
    min_p: f32,
}

pub(super) fn compile(request: &Request<'_>) -> Option<Box<dyn Cut>> {
    let min_p = request.sampling.min_p.min(1.0);
    (min_p > 0.0).then(|| Box::new(MinP { min_p }) as Box<dyn Cut>)
}

impl Cut for MinP {
    fn apply(&self, candidates: &mut Candidates) {
        candidates.retain(|candidate| candidate.weight >= self.min_p);
    }

    fn describe(&self, params: &mut SampleParams) -> bool {
        params.min_p = self.min_p;
        true
    }
}

#[cfg(test)]
mod tests {
    use proto::Sampling;

    use crate::rules::check::kept;

    #[test]
    fn is_relative_to_the_best() {
        let check = |min_p, want: &[u32]| {
            assert_eq!(kept(Sampling { min_p, ..Default::default() }, &[0.1, 0.5, 0.15, 0.25]), want);
        };
        check(0.0, &[0, 1, 2, 3]);
        check(0.25, &[1, 2, 3]);
        check(0.45, &[1, 3]);
        check(1.0, &[1]);
        check(7.0, &[1]);
    }
}
