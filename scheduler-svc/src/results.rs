//! Results of steps, put together of the parts that a link took.

use proto::{Pooled, StepResult};

/// The parts of one result that came so far.
#[derive(Default)]
pub(crate) struct Parts(Option<StepResult>);

/// More outputs than any step has positions.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error(
    "log-probabilities, pooled outputs and candidates of {given} positions in the result of step {step}, which has \
     {most} at most"
)]
pub(crate) struct TooMany {
    step: u64,
    given: usize,
    most: usize,
}

impl Parts {
    /// Takes a part, and gives the result when it was the last one. What there is of another step is dropped. `most`:
    /// positions of a step.
    pub(crate) fn add(&mut self, mut part: StepResult, most: usize) -> Result<Option<StepResult>, TooMany> {
        let (epoch, step) = (part.epoch, part.step);
        if let Some(held) = self.0.take().filter(|held| (held.epoch, held.step) == (epoch, step)) {
            part.logprobs.splice(..0, held.logprobs);
            part.prompt_logprobs.splice(..0, held.prompt_logprobs);
            part.pooled.splice(..0, held.pooled);
            part.candidates.splice(..0, held.candidates);
        }
        if !part.more {
            part.pooled = joined(part.pooled);
            return Ok(Some(part));
        }
        let given = part.logprobs.len() + part.prompt_logprobs.len() + part.pooled.len() + part.candidates.len();
        if given > most {
            return Err(TooMany { step, given, most });
        }
        self.0 = Some(part);
        Ok(None)
    }
}

/// Outputs that came in parts, whole.
fn joined(parts: Vec<Pooled>) -> Vec<Pooled> {
    let mut whole: Vec<Pooled> = Vec::with_capacity(parts.len());
    for part in parts {
        match whole.last_mut().filter(|last| last.more && last.sequence == part.sequence) {
            Some(last) => {
                last.values.extend(part.values);
                last.more = part.more;
            }
            None => whole.push(part),
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use proto::TokenLogprobs;

    use super::*;

    fn part(step: u64, positions: std::ops::Range<u32>, more: bool) -> StepResult {
        let logprobs = |index| TokenLogprobs { index, ..TokenLogprobs::default() };
        let prompt_logprobs = positions.clone().map(logprobs).collect();
        StepResult { step, prompt_logprobs, logprobs: positions.map(logprobs).collect(), more, ..StepResult::default() }
    }

    #[test]
    fn parts_go_on_with_what_came_before() {
        let mut parts = Parts::default();
        assert_eq!(parts.add(part(1, 0..3, true), 100), Ok(None));
        assert_eq!(parts.add(part(1, 3..4, true), 100), Ok(None));
        let last = StepResult { token: vec![7], ..part(1, 4..9, false) };
        let whole = StepResult { token: vec![7], ..part(1, 0..9, false) };
        assert_eq!(parts.add(last, 100), Ok(Some(whole)));
        assert_eq!(parts.add(part(2, 0..2, false), 100), Ok(Some(part(2, 0..2, false))));
    }

    #[test]
    fn outputs_in_parts_are_joined() {
        let of = |sequence, values: &[f32], more| Pooled { sequence, values: values.to_vec(), more };
        let mut parts = Parts::default();
        let first = StepResult { pooled: vec![of(1, &[1.0], false), of(2, &[2.0], true)], ..part(1, 0..0, true) };
        assert_eq!(parts.add(first, 100), Ok(None));
        let last = StepResult { pooled: vec![of(2, &[3.0], false), of(3, &[4.0], false)], ..part(1, 0..0, false) };
        let whole = parts.add(last, 100).expect("few").expect("the last part");
        assert_eq!(whole.pooled, [of(1, &[1.0], false), of(2, &[2.0, 3.0], false), of(3, &[4.0], false)]);
    }

    #[test]
    fn a_step_without_an_end_leaves_nothing_behind() {
        let mut parts = Parts::default();
        assert_eq!(parts.add(part(1, 0..3, true), 100), Ok(None));
        assert_eq!(parts.add(part(2, 0..1, false), 100), Ok(Some(part(2, 0..1, false))));
    }

    #[test]
    fn parts_have_a_bound() {
        let mut parts = Parts::default();
        assert_eq!(parts.add(part(1, 0..2, true), 5), Ok(None));
        let refusal = parts.add(part(1, 2..4, true), 5).unwrap_err();
        assert_eq!(refusal, TooMany { step: 1, given: 8, most: 5 });
    }
}
