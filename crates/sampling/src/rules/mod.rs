//! The rules, one file each, and their order of application.
//!
//! A *rewrite* changes logits and applies to greedy requests too; a *cut* takes candidates out of the draw. Between the
//! two stands the temperature, which every draw has.

use kernels::sample::SampleParams;
use proto::Sampling;

use crate::{History, candidates::Candidates};

mod allowed_token_ids;
mod bad_words;
mod logit_bias;
mod min_p;
mod min_tokens;
mod penalties;
pub(crate) mod temperature;
mod tfs;
mod top_a;
mod top_k;
mod top_n_sigma;
mod top_p;
mod typical_p;

/// What rules are compiled from.
pub(crate) struct Request<'a> {
    pub sampling: &'a Sampling,
    /// The model's end-of-text tokens.
    pub end_tokens: &'a [u32],
}

/// Changes a row of logits.
pub(crate) trait Rewrite: Send + Sync {
    /// Whether the rule does anything for the next token.
    fn acts(&self, _history: &History) -> bool {
        true
    }
    /// Whether the history must count tokens.
    fn needs_counts(&self) -> bool {
        false
    }
    fn apply(&self, row: &mut [f32], history: &History);
    /// Tells a device to do the same; false when no setting of its says that.
    fn describe(&self, params: &mut SampleParams) -> bool;
}

/// Takes candidates out.
pub(crate) trait Cut: Send + Sync {
    fn apply(&self, candidates: &mut Candidates);
    /// Tells a device to do the same; false when no setting of its says that.
    fn describe(&self, params: &mut SampleParams) -> bool;
}

/// A line of a table: makes the rule from a request, or nothing where the request does not use it.
pub(crate) struct Rule<R: ?Sized> {
    pub compile: fn(&Request<'_>) -> Option<Box<R>>,
}

/// In order of application (vLLM's; then llama.cpp's top-n-sigma).
pub(crate) const REWRITES: [Rule<dyn Rewrite>; 6] = [
    Rule { compile: allowed_token_ids::compile },
    Rule { compile: bad_words::compile },
    Rule { compile: min_tokens::compile },
    Rule { compile: logit_bias::compile },
    Rule { compile: penalties::compile },
    Rule { compile: top_n_sigma::compile },
];

/// In order of application, after the temperature (vLLM's; typical-p last, as in transformers).
pub(crate) const CUTS: [Rule<dyn Cut>; 6] = [
    Rule { compile: min_p::compile },
    Rule { compile: top_k::compile },
    Rule { compile: top_p::compile },
    Rule { compile: top_a::compile },
    Rule { compile: tfs::compile },
    Rule { compile: typical_p::compile },
];

/// Forbids a token; ids outside the vocabulary are forbidden anyway.
fn forbid(row: &mut [f32], token: u32) {
    if let Some(logit) = row.get_mut(token as usize) {
        *logit = f32::NEG_INFINITY;
    }
}

#[cfg(test)]
mod check {
    //! One row of the rules' tests: settings and history in, logits out.

    use super::*;
    use crate::SamplingPlan;

    pub(super) const MASKED: f32 = f32::NEG_INFINITY;

    /// Rewrites `row` under `sampling`, after `prompt` and `output`, with end-of-text token 0.
    pub(super) fn rewritten(sampling: &Sampling, prompt: &[u32], output: &[u32], row: &[f32]) -> Vec<f32> {
        let plan = SamplingPlan::compile(sampling, 0, &[0]);
        let mut history = History::new(prompt.to_vec(), prompt.len(), &plan);
        output.iter().for_each(|&token| history.push(token));
        let mut row = row.to_vec();
        plan.rewrite(&mut row, &history);
        // A sequence that comes back after a preemption must be treated alike.
        let again = History::new(history.tokens().to_vec(), prompt.len(), &plan);
        assert_eq!(history.counts().collect::<std::collections::BTreeMap<_, _>>(), again.counts().collect());
        row
    }

    /// Tokens that may be drawn from these probabilities under `sampling` (temperature 1).
    pub(super) fn kept(sampling: Sampling, probabilities: &[f32]) -> Vec<u32> {
        let plan = SamplingPlan::compile(&Sampling { temperature: 1.0, ..sampling }, 0, &[]);
        let row: Vec<f32> = probabilities.iter().map(|p| p.ln()).collect();
        let (mut weights, mut candidates) = (Vec::new(), Candidates::default());
        plan.temperature().expect("not greedy").weigh(&row, &mut weights);
        candidates.fill(&weights);
        plan.cut(&mut candidates);
        candidates.as_slice().iter().map(|candidate| candidate.token).collect()
    }
}
