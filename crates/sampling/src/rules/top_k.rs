//! `top_k`: only the k most likely tokens stay; of equals, the lower ids.

use kernels::sample::SampleParams;

use super::{Cut, Request};
use crate::candidates::Candidates;

struct TopK {
    k: usize,
}

pub(super) fn compile(request: &Request<'_>) -> Option<Box<dyn Cut>> {
    let k = request.sampling.top_k as usize;
    (k > 0).then(|| Box::new(TopK { k }) as Box<dyn Cut>)
}

impl Cut for TopK {
    fn apply(&self, candidates: &mut Candidates) {
        if self.k < candidates.as_slice().len() {
            candidates.keep_prefix(|_| 1.0, |_| self.k as f64);
        }
    }

    fn describe(&self, params: &mut SampleParams) -> bool {
        params.top_k = self.k as u32;
        true
    }
}

#[cfg(test)]
mod tests {
    use proto::Sampling;

    use crate::rules::check::kept;

    #[test]
    fn keeps_exactly_k() {
        let check = |top_k, want: &[u32]| {
            assert_eq!(kept(Sampling { top_k, ..Default::default() }, &[0.1, 0.3, 0.2, 0.3, 0.1]), want);
        };
        check(0, &[0, 1, 2, 3, 4]);
        check(1, &[1]);
        check(2, &[1, 3]);
        check(4, &[0, 1, 2, 3]);
        check(9, &[0, 1, 2, 3, 4]);
    }
}
