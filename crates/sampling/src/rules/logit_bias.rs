//! `logit_bias`: a number added to a token's logit.

use kernels::sample::SampleParams;

use super::{Request, Rewrite};
use crate::History;

struct LogitBias {
    biases: Vec<(u32, f32)>,
}

pub(super) fn compile(request: &Request<'_>) -> Option<Box<dyn Rewrite>> {
    let biases: Vec<(u32, f32)> = request.sampling.logit_bias.iter().map(|entry| (entry.token, entry.bias)).collect();
    (!biases.is_empty()).then(|| Box::new(LogitBias { biases }) as Box<dyn Rewrite>)
}

impl Rewrite for LogitBias {
    fn apply(&self, row: &mut [f32], _history: &History) {
        for &(token, bias) in &self.biases {
            if let Some(logit) = row.get_mut(token as usize) {
                *logit += bias;
            }
        }
    }

    fn describe(&self, params: &mut SampleParams) -> bool {
        params.bias.clone_from(&self.biases);
        true
    }
}

#[cfg(test)]
mod tests {
    use proto::{LogitBias, Sampling};

    use crate::rules::check::{MASKED, rewritten};

    #[test]
    fn adds() {
        let logit_bias = [(1, 5.0), (2, -3.5), (64, 1.0)].map(|(token, bias)| LogitBias { token, bias }).to_vec();
        let sampling = Sampling { logit_bias, ..Default::default() };
        assert_eq!(rewritten(&sampling, &[1], &[], &[1.0, 2.0, 3.0]), [1.0, 7.0, -0.5]);
    }

    #[test]
    fn does_not_revive_a_masked_token() {
        let logit_bias = vec![LogitBias { token: 1, bias: 100.0 }];
        let sampling = Sampling { logit_bias, allowed_token_ids: vec![0], ..Default::default() };
        assert_eq!(rewritten(&sampling, &[1], &[], &[1.0, 2.0]), [1.0, MASKED]);
    }
}
