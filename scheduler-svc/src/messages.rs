//! A step's output as messages that fit a link.

use std::collections::HashSet;

use proto::{Finished, Pooled, TokenBatch, TokenLogprobs};

/// The batch as messages of at most `limit` bytes, in order. What cannot be divided stays whole, and is the link's to
/// refuse.
pub(crate) fn split(batch: TokenBatch, limit: usize) -> Vec<TokenBatch> {
    link::split(batch, limit, |batch, _| halves(batch))
}

/// The batch as two, the parts in their order: what started, log-probabilities of prompts, tokens with their own ones,
/// pooled outputs, what finished, what failed. A sequence that finishes does so in the message with its last token,
/// which is no text if it is a stop token.
fn halves(batch: TokenBatch) -> (TokenBatch, Option<TokenBatch>) {
    let of_prompt = |logprobs: &TokenLogprobs| logprobs.prompt_of_sequence.is_some();
    let grown: HashSet<u64> = batch.sequence.iter().copied().collect();
    let has_token = |finished: &Finished| grown.contains(&finished.sequence);
    let prompts = batch.logprobs.iter().filter(|one| of_prompt(one)).count();
    let alone = batch.finished.iter().filter(|one| !has_token(one)).count();
    let parts = batch.started.len() + prompts + batch.token.len() + batch.pooled.len() + alone + batch.failed.len();
    if parts == 1 && batch.pooled.first().is_some_and(|pooled| pooled.values.len() > 1) {
        return halves_of_output(batch);
    }
    if parts < 2 {
        return (batch, None);
    }
    let mut left = parts / 2;
    let TokenBatch { mut started, mut sequence, mut token, logprobs, finished, mut failed, mut pooled, tokenizers } =
        batch;
    let (mut prompts, logprobs): (Vec<_>, Vec<_>) = logprobs.into_iter().partition(of_prompt);
    let (with_token, mut alone): (Vec<_>, Vec<_>) = finished.into_iter().partition(has_token);
    let mut second = TokenBatch { started: beyond(&mut started, &mut left), ..TokenBatch::default() };
    second.logprobs = beyond(&mut prompts, &mut left);
    second.sequence = sequence.split_off(left.min(sequence.len()));
    second.token = beyond(&mut token, &mut left);
    second.pooled = beyond(&mut pooled, &mut left);
    second.finished = beyond(&mut alone, &mut left);
    second.failed = beyond(&mut failed, &mut left);
    let finished = alone;
    let mut first = TokenBatch { started, sequence, token, logprobs: prompts, finished, failed, pooled, tokenizers };
    let kept = first.token.len() as u32;
    for one in logprobs {
        match one.index.checked_sub(kept) {
            None => first.logprobs.push(one),
            Some(index) => second.logprobs.push(TokenLogprobs { index, ..one }),
        }
    }
    for one in with_token {
        let message = if second.sequence.contains(&one.sequence) { &mut second } else { &mut first };
        message.finished.push(one);
    }
    (first, Some(second))
}

/// The one pooled output of a batch as two.
fn halves_of_output(mut batch: TokenBatch) -> (TokenBatch, Option<TokenBatch>) {
    let Some(rest) = batch.pooled.first_mut() else { return (batch, None) };
    let values = rest.values.drain(..rest.values.len() / 2).collect();
    let pooled = vec![Pooled { sequence: rest.sequence, values, more: true }];
    (TokenBatch { pooled, ..TokenBatch::default() }, Some(batch))
}

/// Takes what lies beyond the first `left` of a list, and counts down by those that stay.
fn beyond<T>(list: &mut Vec<T>, left: &mut usize) -> Vec<T> {
    let kept = list.len().min(*left);
    *left -= kept;
    list.split_off(kept)
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use proto::{AdapterTokenizer, Failed, Started};

    use super::*;

    fn logprobs(index: u32, prompt_of_sequence: Option<u64>) -> TokenLogprobs {
        TokenLogprobs { index, prompt_of_sequence, top_ids: vec![index; 20], ..TokenLogprobs::default() }
    }

    /// 40 sequences with a token each, half of which end with it, and all else that a batch can have.
    fn batch() -> TokenBatch {
        let finished = |sequence| Finished { sequence, ..Finished::default() };
        let failed = |number: usize| Failed { request_id: "x".repeat(number), ..Failed::default() };
        TokenBatch {
            started: (0..9).map(|n| Started { prompt_ids: vec![n; 50], ..Started::default() }).collect(),
            sequence: (100..140).collect(),
            token: (1000..1040).collect(),
            logprobs: (0..30).map(|n| logprobs(n, Some(7))).chain((0..40).map(|n| logprobs(n, None))).collect(),
            finished: (100..140).step_by(2).chain(500..520).map(finished).collect(),
            failed: (0..9).map(failed).collect(),
            // The first of those that end without a token.
            pooled: (500..510).map(|sequence| Pooled { sequence, values: vec![0.5; 30], more: false }).collect(),
            tokenizers: vec![AdapterTokenizer { dir: "/a".into(), ..AdapterTokenizer::default() }],
        }
    }

    #[test]
    fn messages_fit_and_are_the_batch() {
        let (whole, limit) = (batch(), 200);
        let messages = split(whole.clone(), limit);
        assert!(messages.len() > 10 && messages.iter().all(|message| message.encoded_len() <= limit));
        let (mut joined, mut ends) = (TokenBatch::default(), HashSet::new());
        for message in messages {
            let base = joined.token.len() as u32;
            let moved = |one: TokenLogprobs| match one.prompt_of_sequence {
                Some(_) => one,
                None => TokenLogprobs { index: one.index + base, ..one },
            };
            for one in message.finished.iter().filter(|one| one.sequence < 500) {
                assert!(message.sequence.contains(&one.sequence), "{} ends with its token", one.sequence);
            }
            for one in &message.pooled {
                assert!(!ends.contains(&one.sequence), "{} ends before its output", one.sequence);
            }
            assert!(message.started.is_empty() || joined.token.is_empty(), "starts come before tokens");
            ends.extend(message.finished.iter().map(|one| one.sequence));
            joined.started.extend(message.started);
            joined.sequence.extend(message.sequence);
            joined.token.extend(message.token);
            joined.logprobs.extend(message.logprobs.into_iter().map(moved));
            joined.failed.extend(message.failed);
            joined.pooled.extend(message.pooled);
            joined.tokenizers.extend(message.tokenizers);
        }
        assert_eq!(ends, whole.finished.iter().map(|one| one.sequence).collect());
        assert_eq!(TokenBatch { finished: whole.finished.clone(), ..joined }, whole);
    }

    #[test]
    fn an_output_larger_than_a_message_is_divided() {
        let pooled = vec![Pooled { sequence: 7, values: vec![0.5; 1000], more: false }];
        let finished = vec![Finished { sequence: 7, ..Finished::default() }];
        let messages = split(TokenBatch { pooled, finished, ..TokenBatch::default() }, 200);
        assert!(messages.len() > 20 && messages.iter().all(|message| message.encoded_len() <= 200));
        let (last, others) = messages.split_last().expect("messages");
        assert!(others.iter().all(|message| message.finished.is_empty()) && last.finished.len() == 1);
        assert_eq!(
            messages.iter().flat_map(|message| &message.pooled).map(|one| one.values.len()).sum::<usize>(),
            1000
        );
    }

    #[test]
    fn what_cannot_be_divided_stays_whole() {
        let whole =
            TokenBatch { sequence: vec![1], token: vec![2], logprobs: vec![logprobs(0, None)], ..Default::default() };
        assert_eq!(split(whole.clone(), 10), [whole]);
    }
}
