//! Events as messages that fit a link.

use proto::{Delta, DeltaDetails, Event, EventBatch, event::Kind};

use crate::error;

/// The batch as messages of at most `limit` bytes, in order. An event that never fits becomes its request's failure,
/// and `unfit` hears of it.
pub(crate) fn split(batch: EventBatch, limit: usize, mut unfit: impl FnMut(u64)) -> Vec<EventBatch> {
    link::split(batch, limit, |mut batch, bytes| {
        if batch.events.len() > 1 {
            let second = batch.events.split_off(batch.events.len() / 2);
            return (batch, Some(EventBatch { events: second }));
        }
        let Some(Event { number, kind }) = batch.events.pop() else { return (batch, None) };
        let one = |kind| EventBatch { events: vec![Event { number, kind: Some(kind) }] };
        if let Some(Kind::Delta(delta)) = kind
            && let Some((first, second)) = halves(delta)
        {
            return (one(Kind::Delta(first)), Some(one(Kind::Delta(second))));
        }
        unfit(number);
        (one(Kind::Failure(error::too_large(bytes, limit))), None)
    })
}

/// The delta as two parts, in order: log-probabilities of the prompt, then tokens with theirs and their text. How the
/// choice ended comes last. Absent where it cannot be divided.
fn halves(mut delta: Delta) -> Option<(Delta, Delta)> {
    let mut first = Delta { choice: delta.choice, more: true, ..Delta::default() };
    let mut details = delta.details.take().unwrap_or_default();
    if details.pooled.len() > 1 {
        let second = details.pooled.split_off(details.pooled.len() / 2);
        first.details_mut().pooled = std::mem::replace(&mut details.pooled, second);
        delta.details = Some(details);
        return Some((first, delta));
    }
    if !details.prompt_logprobs.is_empty() {
        let all = details.prompt_logprobs.len();
        first.details_mut().prompt_logprobs = details.prompt_logprobs.drain(..all.div_ceil(2)).collect();
        delta.details = (*details != DeltaDetails::default()).then_some(details);
        let has_more = delta != Delta { choice: delta.choice, more: delta.more, ..Delta::default() };
        return has_more.then_some((first, delta));
    }
    let mid = middle(&delta.text);
    if mid == 0 && delta.token_ids.len() < 2 && details.logprobs.len() < 2 {
        return None;
    }
    first.text = delta.text.drain(..mid).collect();
    first.token_ids = delta.token_ids.drain(..delta.token_ids.len() / 2).collect();
    if details.logprobs.len() > 1 {
        first.details_mut().logprobs = details.logprobs.drain(..details.logprobs.len() / 2).collect();
    }
    delta.details = (*details != DeltaDetails::default()).then_some(details);
    first.token_count = delta.token_count / 2;
    delta.token_count -= first.token_count;
    Some((first, delta))
}

/// Where text can be cut: near its middle, between two characters; 0 where it has less than two.
fn middle(text: &str) -> usize {
    (text.len() / 2..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use proto::{FinishReason, TextLogprobs, TopLogprob};

    use super::*;

    fn event(number: u64, delta: Delta) -> Event {
        Event { number, kind: Some(Kind::Delta(delta)) }
    }

    fn text(bytes: usize) -> Delta {
        Delta { text: "x".repeat(bytes), ..Delta::default() }
    }

    fn logprobs(count: u32, top: usize) -> Vec<TextLogprobs> {
        let one = TopLogprob { token: " word".into(), token_bytes: " word".into(), token_id: 1 << 17, logprob: -1.5 };
        let of = |index| TextLogprobs { text_offset: index, top: vec![one.clone(); top], ..TextLogprobs::default() };
        (0..count).map(of).collect()
    }

    /// The parts of a delta, all of which fit.
    fn parts(delta: Delta, limit: usize) -> Vec<Delta> {
        let messages = split(EventBatch { events: vec![event(3, delta)] }, limit, |_| panic!("it can be divided"));
        assert!(messages.iter().all(|message| message.encoded_len() <= limit));
        let events = messages.into_iter().flat_map(|message| message.events);
        let delta = |event: Event| match (event.number, event.kind) {
            (3, Some(Kind::Delta(delta))) => delta,
            other => panic!("{other:?}"),
        };
        events.map(delta).collect()
    }

    #[test]
    fn large_batches_are_split_in_order() {
        let events: Vec<Event> = (1..=9).map(|number| event(number, text(100))).collect();
        let messages = split(EventBatch { events: events.clone() }, 300, |number| panic!("{number} fits"));
        assert!(messages.len() > 3 && messages.iter().all(|message| message.encoded_len() <= 300));
        let joined: Vec<Event> = messages.into_iter().flat_map(|message| message.events).collect();
        assert_eq!(joined, events);
    }

    /// Log-probabilities of three alternatives for `prompt` positions and `tokens` tokens, and the rest.
    fn details(prompt: u32, tokens: u32, pooled: &[f32], stop_text: &str) -> Option<Box<DeltaDetails>> {
        let stop_text = (!stop_text.is_empty()).then(|| stop_text.to_owned());
        let (prompt_logprobs, logprobs) = (logprobs(prompt, 3), logprobs(tokens, 3));
        Some(DeltaDetails { prompt_logprobs, logprobs, pooled: pooled.to_vec(), stop_text, stop_token: None }.into())
    }

    /// Log-probabilities of a prompt.
    fn prompt(tokens: u32, top: usize) -> Delta {
        let prompt_logprobs = logprobs(tokens, top);
        Delta { details: Some(DeltaDetails { prompt_logprobs, ..DeltaDetails::default() }.into()), ..Delta::default() }
    }

    #[test]
    fn parts_of_a_delta_are_the_delta() {
        let full = Delta {
            choice: 2,
            text: "grüße, 你好 ".repeat(40),
            token_count: 77,
            token_ids: (0..77).collect(),
            details: details(90, 77, &[], "end"),
            ..Delta::default()
        };
        let mut ended = full.clone();
        ended.set_finish(FinishReason::Stop);
        let prompt_only = Delta { choice: 1, details: details(50, 0, &[], ""), ..Delta::default() };
        let values: Vec<f32> = (0..500_u16).map(f32::from).collect();
        let pooled = Delta { details: details(0, 0, &values, ""), finish: ended.finish, ..Delta::default() };
        for whole in [ended, full, prompt_only, pooled] {
            let parts = parts(whole.clone(), 400);
            let (last, others) = parts.split_last().expect("parts");
            assert!(others.len() > 5 && others.iter().all(|part| part.more && part.finish == 0) && !last.more);
            let mut joined = Delta { text: String::new(), token_count: 0, ..last.clone() };
            joined.token_ids.clear();
            let mut all = DeltaDetails::default();
            for part in parts {
                let details = part.details.unwrap_or_default();
                assert!(details.prompt_logprobs.is_empty() || all.logprobs.is_empty(), "prompts come before tokens");
                assert_eq!(part.choice, whole.choice);
                joined.text += &part.text;
                joined.token_count += part.token_count;
                joined.token_ids.extend(part.token_ids);
                all.pooled.extend(details.pooled);
                all.logprobs.extend(details.logprobs);
                all.prompt_logprobs.extend(details.prompt_logprobs);
                all.stop_text = details.stop_text.or(all.stop_text);
            }
            joined.details = Some(all.into());
            assert_eq!(joined, whole);
        }
    }

    #[test]
    fn log_probabilities_of_the_longest_prompts_fit_a_link_in_parts() {
        let limit = link::LinkOptions::default().message_limit();
        // 2^17 tokens with 20 each; and a few with as many as a vocabulary has.
        for (tokens, top) in [(1 << 17, 20), (5, 1 << 17)] {
            let count = parts(prompt(tokens, top), limit).len();
            assert!(count > 2, "{count} parts");
        }
    }

    #[test]
    fn what_cannot_be_divided_is_a_failure() {
        let alone = prompt(1, 100);
        let mut unfit = Vec::new();
        let batch = EventBatch { events: vec![event(1, text(10)), event(2, alone), event(3, text(10))] };
        let messages = split(batch, 400, |number| unfit.push(number));
        assert_eq!(unfit, [2]);
        let of_two = messages.iter().flat_map(|message| &message.events).find(|event| event.number == 2);
        assert!(matches!(of_two, Some(Event { kind: Some(Kind::Failure(_)), .. })));
    }
}
