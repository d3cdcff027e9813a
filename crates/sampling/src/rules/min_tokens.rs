//! `min_tokens`: end of text and stop tokens are forbidden until that many tokens are out.

use kernels::sample::SampleParams;

use super::{Request, Rewrite, forbid};
use crate::History;

struct MinTokens {
    min_tokens: usize,
    stopping: Vec<u32>,
}

pub(super) fn compile(request: &Request<'_>) -> Option<Box<dyn Rewrite>> {
    let min_tokens = request.sampling.min_tokens as usize;
    let stopping = [request.end_tokens, &request.sampling.stop_token_ids].concat();
    (min_tokens > 0 && !stopping.is_empty()).then(|| Box::new(MinTokens { min_tokens, stopping }) as Box<dyn Rewrite>)
}

impl Rewrite for MinTokens {
    fn acts(&self, history: &History) -> bool {
        history.output().len() < self.min_tokens
    }

    fn apply(&self, row: &mut [f32], _history: &History) {
        self.stopping.iter().for_each(|&token| forbid(row, token));
    }

    /// Whether they are held back is said row by row (`SamplingPlan::holds_stops`).
    fn describe(&self, params: &mut SampleParams) -> bool {
        params.stops.clone_from(&self.stopping);
        true
    }
}

#[cfg(test)]
mod tests {
    use proto::Sampling;

    use crate::rules::check::{MASKED, rewritten};

    #[test]
    fn holds_stops_back() {
        let check = |min_tokens, output: &[u32], want: &[f32]| {
            let sampling = Sampling { min_tokens, stop_token_ids: vec![2, 7], ..Default::default() };
            assert_eq!(rewritten(&sampling, &[1, 1, 1], output, &[1.0, 2.0, 3.0]), want);
        };
        check(0, &[], &[1.0, 2.0, 3.0]);
        check(2, &[], &[MASKED, 2.0, MASKED]);
        check(2, &[1], &[MASKED, 2.0, MASKED]);
        check(2, &[1, 1], &[1.0, 2.0, 3.0]);
    }
}
