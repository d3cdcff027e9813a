//! Splits a step's result into messages that fit a link.

use proto::{FromWorker, Pooled, StepResult, from_worker::Event};

/// The message as messages of at most `limit` bytes, in order. Only results of steps can be divided; another message
/// stays whole, and the link refuses it.
pub(crate) fn split(message: FromWorker, limit: usize) -> Vec<FromWorker> {
    let message_of = |result| FromWorker { event: Some(Event::Result(result)) };
    link::split(message, limit, |message, _| match message.event {
        Some(Event::Result(result)) => {
            let (first, second) = halves(result);
            (message_of(first), second.map(message_of))
        }
        event => (FromWorker { event }, None),
    })
}

/// The result in two parts: log-probabilities of prompts come first, then those of tokens, then pooled outputs, then
/// candidates; all other fields go with the last.
fn halves(mut result: StepResult) -> (StepResult, Option<StepResult>) {
    let (prompts, tokens) = (result.prompt_logprobs.len(), result.logprobs.len());
    let pooled = result.pooled.len();
    let all = prompts + tokens + pooled + result.candidates.len();
    let StepResult { epoch, step, .. } = result;
    if all == 1
        && let Some(rest) = result.pooled.first_mut()
        && let Some(beginning) = beginning(rest)
    {
        let first = StepResult { epoch, step, more: true, pooled: vec![beginning], ..StepResult::default() };
        return (first, Some(result));
    }
    if all == 0 || (all == 1 && result.token.is_empty()) {
        return (result, None);
    }
    let left = all.div_ceil(2);
    let mut first = StepResult { epoch, step, more: true, ..StepResult::default() };
    first.prompt_logprobs = result.prompt_logprobs.drain(..left.min(prompts)).collect();
    first.logprobs = result.logprobs.drain(..left.saturating_sub(prompts).min(tokens)).collect();
    first.pooled = result.pooled.drain(..left.saturating_sub(prompts + tokens).min(pooled)).collect();
    first.candidates = result.candidates.drain(..left.saturating_sub(prompts + tokens + pooled)).collect();
    (first, Some(result))
}

/// Takes the first half of a pooled output, if it has two.
fn beginning(rest: &mut Pooled) -> Option<Pooled> {
    let half = rest.values.len() / 2;
    (half > 0).then(|| Pooled { sequence: rest.sequence, values: rest.values.drain(..half).collect(), more: true })
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use proto::{TokenLogprobs, WorkerFailed};

    use super::*;

    fn logprobs(index: u32, top: u32, prompt_of_sequence: Option<u64>) -> TokenLogprobs {
        let (top_ids, top_logprobs) = ((0..top).collect(), vec![-1.5; top as usize]);
        TokenLogprobs { index, prompt_of_sequence, top_ids, top_logprobs, ..TokenLogprobs::default() }
    }

    fn result(prompts: u32, tokens: u32, top: u32) -> StepResult {
        StepResult {
            epoch: 3,
            step: 9,
            slot: (0..tokens).collect(),
            token: (100..100 + tokens).collect(),
            logprobs: (0..tokens).map(|index| logprobs(index, top, None)).collect(),
            prompt_logprobs: (1..=prompts).map(|index| logprobs(index, top, Some(5))).collect(),
            compute_us: 77,
            candidates: vec![
                proto::Candidates { slot: 1, token: vec![4; 9], logprob: vec![-0.5; 9] };
                tokens as usize / 3
            ],
            pooled: (0..tokens / 2)
                .map(|at| Pooled { sequence: at.into(), values: vec![0.5; 20], more: false })
                .collect(),
            ..StepResult::default()
        }
    }

    fn split_result(whole: StepResult, limit: usize) -> Vec<StepResult> {
        let messages = split(FromWorker { event: Some(Event::Result(whole)) }, limit);
        let part = |message: FromWorker| {
            assert!(message.encoded_len() <= limit, "{} bytes of {limit}", message.encoded_len());
            let Some(Event::Result(part)) = message.event else { panic!("a result") };
            part
        };
        messages.into_iter().map(part).collect()
    }

    #[test]
    fn parts_fit_and_are_the_result() {
        for (prompts, tokens) in [(60, 40), (100, 0), (0, 100), (3, 1)] {
            let whole = result(prompts, tokens, 20);
            let parts = split_result(whole.clone(), 350);
            let (last, others) = parts.split_last().expect("parts");
            assert!(!others.is_empty() && others.iter().all(|part| part.more && part.token.is_empty()) && !last.more);
            let mut joined = last.clone();
            (joined.logprobs, joined.prompt_logprobs, joined.pooled, joined.candidates) = Default::default();
            for part in parts {
                assert_eq!((part.epoch, part.step), (3, 9));
                joined.prompt_logprobs.extend(part.prompt_logprobs);
                joined.logprobs.extend(part.logprobs);
                joined.pooled.extend(part.pooled);
                joined.candidates.extend(part.candidates);
            }
            assert_eq!(joined, whole);
        }
    }

    #[test]
    fn the_largest_vocabulary_fits_a_link_position_by_position() {
        let limit = link::LinkOptions::default().message_limit();
        let parts = split_result(result(12, 2, 1 << 18), limit);
        assert!(parts.len() > 2, "{} parts", parts.len());
    }

    #[test]
    fn an_output_larger_than_a_message_is_divided() {
        let values: Vec<f32> = (0..1000_u16).map(f32::from).collect();
        let large = Pooled { sequence: 3, values: values.clone(), more: false };
        let parts = split_result(StepResult { pooled: vec![large], ..result(0, 0, 0) }, 350);
        assert!(parts.len() > 10, "{} parts", parts.len());
        let entries: Vec<Pooled> = parts.into_iter().flat_map(|part| part.pooled).collect();
        let (last, others) = entries.split_last().expect("parts");
        assert!(!last.more && others.iter().all(|entry| entry.more && entry.sequence == 3));
        assert_eq!(entries.into_iter().flat_map(|entry| entry.values).collect::<Vec<f32>>(), values);
    }

    #[test]
    fn what_cannot_be_divided_stays_whole() {
        let whole = |result| vec![FromWorker { event: Some(Event::Result(result)) }];
        let alone = result(1, 0, 20);
        assert_eq!(split(whole(alone.clone()).remove(0), 10), whole(alone));
        let tokens = StepResult { logprobs: Vec::new(), pooled: Vec::new(), candidates: Vec::new(), ..result(0, 9, 0) };
        assert_eq!(split(whole(tokens.clone()).remove(0), 10), whole(tokens));
        let failed = FromWorker { event: Some(Event::Failed(WorkerFailed { reason: "x".repeat(100) })) };
        assert_eq!(split(failed.clone(), 10), [failed]);
    }
}
