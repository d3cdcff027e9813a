//! A request's sampling settings, compiled once: only the rules that do something are left, in their order.

use kernels::sample::{Logprobs, SampleParams};
use proto::Sampling;

use crate::{
    History,
    candidates::Candidates,
    logprobs::{listed_logprobs, token_logprobs},
    random,
    rules::{self, Cut, Rewrite, temperature::Temperature},
};

/// How a sequence's tokens are chosen.
///
/// Values out of range (the gateway refuses them earlier) count as "off", so compiling cannot fail and an empty message
/// means greedy.
pub struct SamplingPlan {
    rewrites: Vec<Box<dyn Rewrite>>,
    temperature: Option<Temperature>,
    cuts: Vec<Box<dyn Cut>>,
    seed: u64,
    logprobs: Option<usize>,
    logprob_tokens: Vec<u32>,
    allowed: Vec<u32>,
    min_tokens: usize,
}

impl SamplingPlan {
    /// Compiles a request's settings. `end_tokens` are the model's end-of-text tokens, which `min_tokens` holds back.
    pub fn compile(sampling: &Sampling, seed: u64, end_tokens: &[u32]) -> Self {
        let request = rules::Request { sampling, end_tokens };
        Self {
            rewrites: rules::REWRITES.iter().filter_map(|rule| (rule.compile)(&request)).collect(),
            temperature: Temperature::compile(sampling),
            cuts: rules::CUTS.iter().filter_map(|rule| (rule.compile)(&request)).collect(),
            seed,
            logprobs: sampling.logprobs.map(|top| usize::try_from(top).unwrap_or(usize::MAX)),
            logprob_tokens: sampling.logprob_token_ids.clone(),
            allowed: sampling.allowed_token_ids.clone(),
            min_tokens: sampling.min_tokens as usize,
        }
    }

    /// How many best tokens' log-probabilities are wanted beside the chosen one's.
    pub fn logprobs(&self) -> Option<usize> {
        self.logprobs
    }

    /// Log-probabilities of the chosen token and of those beside it, from a row as the model gave it.
    pub(crate) fn score(&self, row: &[f32], token: u32, top: usize) -> Logprobs {
        match self.logprob_tokens.as_slice() {
            [] => token_logprobs(row, token, top),
            listed => listed_logprobs(row, token, listed),
        }
    }

    /// Whether the most likely token is always taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature.is_none()
    }

    /// The same plan as settings for a device; `None` when only the host can follow it.
    pub fn device_params(&self) -> Option<SampleParams> {
        let mut params = SampleParams {
            inverse_temperature: self.temperature.map(Temperature::inverse),
            logprobs: self.logprobs,
            ..SampleParams::default()
        };
        if !self.logprob_tokens.is_empty() {
            return None;
        }
        let cuts = self.cuts.iter().all(|rule| rule.describe(&mut params));
        (cuts && self.rewrites.iter().all(|rule| rule.describe(&mut params))).then_some(params)
    }

    /// Whether stop tokens are forbidden at this output position.
    pub fn holds_stops(&self, position: usize) -> bool {
        position < self.min_tokens
    }

    /// The random number of an output position.
    pub fn uniform_at(&self, position: usize) -> f64 {
        random::uniform(self.seed, position as u64)
    }

    pub(crate) fn needs_counts(&self) -> bool {
        self.rewrites.iter().any(|rule| rule.needs_counts())
    }

    /// Whether `rewrite` would leave the row as it is.
    pub(crate) fn keeps_row(&self, history: &History) -> bool {
        !self.rewrites.iter().any(|rule| rule.acts(history))
    }

    pub(crate) fn rewrite(&self, row: &mut [f32], history: &History) {
        for rule in self.rewrites.iter().filter(|rule| rule.acts(history)) {
            rule.apply(row, history);
        }
    }

    pub(crate) fn temperature(&self) -> Option<Temperature> {
        self.temperature
    }

    pub(crate) fn cut(&self, candidates: &mut Candidates) {
        for rule in &self.cuts {
            rule.apply(candidates);
        }
    }

    /// The random number of the next output token.
    pub(crate) fn uniform(&self, history: &History) -> f64 {
        self.uniform_at(history.output().len())
    }

    /// The token when every logit is masked: the first allowed one of the vocabulary, or 0.
    pub(crate) fn fallback(&self, vocab: usize) -> u32 {
        self.allowed.iter().copied().find(|&token| (token as usize) < vocab).unwrap_or(0)
    }
}
