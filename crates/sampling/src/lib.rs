//! Choosing the next token: one file per rule, one order of application.
//!
//! A request's `proto::Sampling` is compiled once into a [`SamplingPlan`]; [`sample`] then turns one row of logits into
//! a token. Pure: no clock, no global randomness. The random number of an output position comes from (seed, position)
//! alone, and every sum is added in token order, so a request gives the same tokens whatever else is in its batch, and
//! again after a preemption.
//!
//! Order, as in vLLM: log-probabilities of the untouched row; what a grammar allows; then the rewrites (allowed tokens,
//! bad words, min tokens, logit bias, penalties); then, unless greedy, temperature and the cuts (min-p, top-k, top-p,
//! typical-p); then the draw.
//!
//! A plan may also be told to a device ([`SamplingPlan::device_params`]), which then chooses by itself; this crate is
//! what it is checked against.
//!
//! Logits that are no numbers: NaN and -inf can never be chosen, +inf counts as the largest finite number. When nothing
//! is left (all masked), the first allowed token is chosen, or token 0. No input makes this crate panic.

mod allowed;
mod candidates;
mod continuations;
mod draw;
mod history;
mod logprobs;
mod math;
mod plan;
mod random;
mod rules;

pub use allowed::Allowed;
pub use continuations::continuations;
pub use history::History;
pub use kernels::sample::{Logprobs, Sampled};
pub use logprobs::{FLOOR, token_logprobs};
pub use plan::SamplingPlan;
pub use random::uniform;

use candidates::Candidates;

/// Buffers that rows share, one set a thread: after the first rows nothing is allocated any more.
#[derive(Default)]
pub struct Scratch {
    raw: Vec<f32>,
    weights: Vec<f32>,
    candidates: Candidates,
}

/// Where a token is chosen.
#[derive(Clone, Copy)]
pub struct Next<'a> {
    /// What comes before it.
    pub history: &'a History,
    /// What it may be.
    pub allowed: Allowed<'a>,
}

/// Chooses the token that follows `history` from its row of logits `[vocab]`, which is rewritten on the way.
///
/// The caller appends the token to the history.
pub fn sample(row: &mut [f32], plan: &SamplingPlan, history: &History, scratch: &mut Scratch) -> Sampled {
    sample_allowed(row, plan, Next { history, allowed: Allowed::All }, scratch)
}

/// The same among the tokens that are allowed next. Log-probabilities are those of all tokens.
pub fn sample_allowed(row: &mut [f32], plan: &SamplingPlan, next: Next<'_>, scratch: &mut Scratch) -> Sampled {
    let Some(top) = plan.logprobs() else {
        return Sampled { token: choose(row, plan, next, scratch), logprobs: None };
    };
    if plan.keeps_row(next.history) && next.allowed.is_all() {
        let token = choose(row, plan, next, scratch);
        return Sampled { token, logprobs: Some(plan.score(row, token, top)) };
    }
    let mut raw = std::mem::take(&mut scratch.raw);
    raw.clear();
    raw.extend_from_slice(row);
    let token = choose(row, plan, next, scratch);
    let logprobs = plan.score(&raw, token, top);
    scratch.raw = raw;
    Sampled { token, logprobs: Some(logprobs) }
}

fn choose(row: &mut [f32], plan: &SamplingPlan, Next { history, allowed }: Next<'_>, scratch: &mut Scratch) -> u32 {
    allowed::apply(allowed, row);
    plan.rewrite(row, history);
    let best = match math::argmax(row) {
        Some(token) => token,
        // A rule may forbid all that a grammar allows (its end before `min_tokens`): the grammar goes first.
        None => return allowed.first(row.len()).unwrap_or_else(|| plan.fallback(row.len())),
    };
    match plan.temperature() {
        None => best,
        Some(temperature) => {
            temperature.weigh(row, &mut scratch.weights);
            scratch.candidates.fill(&scratch.weights);
            plan.cut(&mut scratch.candidates);
            draw::draw(&scratch.candidates, plan.uniform(history)).unwrap_or(best)
        }
    }
}
