//! `top_n_sigma`: only tokens whose logit is at most n standard deviations below the largest one, however flat the
//! temperature makes the distribution (Tang et al. 2024; llama.cpp has it under this name).

use kernels::sample::SampleParams;

use super::{Request, Rewrite};
use crate::{History, math};

struct TopNSigma {
    n: f64,
}

pub(super) fn compile(request: &Request<'_>) -> Option<Box<dyn Rewrite>> {
    let n = f64::from(request.sampling.top_n_sigma);
    (n > 0.0 && n.is_finite()).then(|| Box::new(TopNSigma { n }) as Box<dyn Rewrite>)
}

impl Rewrite for TopNSigma {
    /// Tokens that are masked already do not count towards the deviation.
    fn apply(&self, row: &mut [f32], _: &History) {
        let finite = || row.iter().filter(|logit| logit.is_finite()).map(|logit| f64::from(*logit));
        let count = finite().count() as f64;
        let mean = finite().sum::<f64>() / count;
        let variance = finite().map(|logit| (logit - mean).powi(2)).sum::<f64>() / count;
        let least = f64::from(math::max(row)) - self.n * variance.sqrt();
        row.iter_mut().filter(|logit| f64::from(**logit) < least).for_each(|logit| *logit = f32::NEG_INFINITY);
    }

    /// No device has it: the host samples.
    fn describe(&self, _: &mut SampleParams) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use proto::Sampling;

    use crate::rules::check::{MASKED, rewritten};

    #[test]
    fn keeps_what_is_near_the_largest() {
        let check = |n, want: [f32; 4]| {
            let sampling = Sampling { top_n_sigma: n, ..Default::default() };
            assert_eq!(rewritten(&sampling, &[1], &[], &[4.0, 3.0, 1.0, 0.0]), want);
        };
        // A standard deviation of 1.58.
        check(0.0, [4.0, 3.0, 1.0, 0.0]); // unset: off
        check(0.5, [4.0, MASKED, MASKED, MASKED]);
        check(1.0, [4.0, 3.0, MASKED, MASKED]);
        check(2.0, [4.0, 3.0, 1.0, MASKED]);
        check(3.0, [4.0, 3.0, 1.0, 0.0]);
    }

    #[test]
    fn masked_tokens_do_not_count() {
        let sampling = Sampling { top_n_sigma: 1.0, allowed_token_ids: vec![0, 1], ..Default::default() };
        assert_eq!(rewritten(&sampling, &[1], &[], &[4.0, 3.0, 1.0, 0.0]), [4.0, MASKED, MASKED, MASKED]);
        let none = [f32::NAN, f32::NEG_INFINITY];
        assert!(rewritten(&Sampling { top_n_sigma: 1.0, ..Default::default() }, &[1], &[], &none)[0].is_nan());
    }
}
