//! What may continue a beam: the most likely tokens of a row, none of them drawn.
//!
//! Rewrites apply to log-probabilities here, not to logits, and nothing is normalised after them: so does Hugging
//! Face's beam search, and scores of beams are sums of what comes out. Temperature and cuts have no part in it.

use crate::{History, SamplingPlan, logprobs};

/// The `most` tokens that most likely follow `history`, most likely first, with their log-probabilities after the
/// plan's rewrites; lower ids first among equals. Tokens that may not come are not among them. `row` holds the logits
/// `[vocab]`, and is rewritten on the way.
pub fn continuations(row: &mut [f32], plan: &SamplingPlan, history: &History, most: usize) -> Vec<(u32, f32)> {
    let normalizer = logprobs::log_sum_exp(row);
    row.iter_mut().for_each(|logit| *logit = (f64::from(*logit) - normalizer) as f32);
    plan.rewrite(row, history);
    let best = logprobs::best(row, most).into_iter().map(|token| (token, row[token as usize]));
    best.filter(|(_, logprob)| logprob.is_finite()).collect()
}

#[cfg(test)]
mod tests {
    use proto::{LogitBias, Sampling};

    use super::*;

    fn of(row: &[f32], sampling: &Sampling, most: usize) -> Vec<(u32, f32)> {
        let plan = SamplingPlan::compile(sampling, 0, &[0]);
        let history = History::new(vec![1, 1], 1, &plan);
        continuations(&mut row.to_vec(), &plan, &history, most)
    }

    #[test]
    fn the_most_likely_come_first() {
        let row = [0.0, 1.0, 3.0, 1.0, 2.0];
        let found = of(&row, &Sampling::default(), 4);
        assert_eq!(found.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [2, 4, 1, 3]);
        let total: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
        assert!((f64::from(found[0].1) - (3.0 - total.ln())).abs() < 1e-6);
        assert_eq!(of(&row, &Sampling::default(), 9).len(), 5);
    }

    /// Of Hugging Face's processors, the repetition penalty multiplies what is negative, as all log-probabilities are.
    #[test]
    fn rewrites_change_log_probabilities() {
        let row = [0.0, 4.0, 3.0];
        let plain = of(&row, &Sampling::default(), 3);
        let penalty = Sampling { repetition_penalty: 2.0, ..Sampling::default() };
        let halved = of(&row, &penalty, 3);
        assert_eq!(plain[0].0, 1);
        assert!(halved.iter().any(|(token, logprob)| *token == 1 && *logprob == 2.0 * plain[0].1));
        let bias = Sampling { logit_bias: vec![LogitBias { token: 0, bias: 9.0 }], ..Sampling::default() };
        assert_eq!(of(&row, &bias, 1)[0].0, 0);
    }

    #[test]
    fn forbidden_tokens_are_no_continuations() {
        let sampling = Sampling { min_tokens: 5, allowed_token_ids: vec![0, 2], ..Sampling::default() };
        assert_eq!(of(&[5.0, 4.0, 3.0], &sampling, 3).iter().map(|(token, _)| *token).collect::<Vec<_>>(), [2]);
        assert!(of(&[f32::NAN; 3], &Sampling::default(), 3).is_empty());
        assert!(of(&[f32::NEG_INFINITY; 3], &Sampling::default(), 3).is_empty());
    }
}
