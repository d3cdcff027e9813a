//! Events as messages that fit a link.

use proto::{Delta, Event, EventBatch, event::Kind};

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
    if delta.pooled.len() > 1 {
        first.pooled = delta.pooled.drain(..delta.pooled.len() / 2).collect();
        return Some((first, delta));
    }
    if !delta.prompt_logprobs.is_empty() {
        let all = delta.prompt_logprobs.len();
        first.prompt_logprobs = delta.prompt_logprobs.drain(..all.div_ceil(2)).collect();
        let has_more = all > 1 || delta != Delta { choice: delta.choice, more: delta.more, ..Delta::default() };
        return has_more.then_some((first, delta));
    }
    let mid = middle(&delta.text);
    if mid == 0 && delta.token_ids.len() < 2 && delta.logprobs.len() < 2 {
        return None;
    }
    first.text = delta.text.drain(..mid).collect();
    first.token_ids = delta.token_ids.drain(..delta.token_ids.len() / 2).collect();
    first.logprobs = delta.logprobs.drain(..delta.logprobs.len() / 2).collect();
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

    #[test]
    fn parts_of_a_delta_are_the_delta() {
        let full = Delta {
            choice: 2,
            text: "grüße, 你好 ".repeat(40),
            token_count: 77,
            token_ids: (0..77).collect(),
            logprobs: logprobs(77, 3),
            stop_text: Some("end".into()),
            prompt_logprobs: logprobs(90, 3),
            ..Delta::default()
        };
        let mut ended = full.clone();
        ended.set_finish(FinishReason::Stop);
        let prompt_only = Delta { choice: 1, prompt_logprobs: logprobs(50, 5), ..Delta::default() };
        let pooled = Delta { pooled: (0..500_u16).map(f32::from).collect(), ..ended.clone() };
        let pooled = Delta { text: String::new(), prompt_logprobs: vec![], logprobs: vec![], ..pooled };
        for whole in [ended, full, prompt_only, Delta { token_ids: vec![], token_count: 0, ..pooled }] {
            let parts = parts(whole.clone(), 400);
            let (last, others) = parts.split_last().expect("parts");
            assert!(others.len() > 5 && others.iter().all(|part| part.more && part.finish == 0) && !last.more);
            let mut joined = Delta { text: String::new(), token_count: 0, ..last.clone() };
            (joined.token_ids, joined.logprobs, joined.prompt_logprobs) = Default::default();
            joined.pooled.clear();
            for part in parts {
                assert!(part.prompt_logprobs.is_empty() || joined.logprobs.is_empty(), "prompts come before tokens");
                assert_eq!(part.choice, whole.choice);
                joined.text += &part.text;
                joined.token_count += part.token_count;
                joined.token_ids.extend(part.token_ids);
                joined.pooled.extend(part.pooled);
                joined.logprobs.extend(part.logprobs);
                joined.prompt_logprobs.extend(part.prompt_logprobs);
            }
            assert_eq!(joined, whole);
        }
    }

    #[test]
    fn log_probabilities_of_the_longest_prompts_fit_a_link_in_parts() {
        let limit = link::LinkOptions::default().message_limit();
        // 2^17 tokens with 20 each; and a few with as many as a vocabulary has.
        for (tokens, top) in [(1 << 17, 20), (5, 1 << 17)] {
            let count = parts(Delta { prompt_logprobs: logprobs(tokens, top), ..Delta::default() }, limit).len();
            assert!(count > 2, "{count} parts");
        }
    }

    #[test]
    fn what_cannot_be_divided_is_a_failure() {
        let alone = Delta { prompt_logprobs: logprobs(1, 100), ..Delta::default() };
        let mut unfit = Vec::new();
        let batch = EventBatch { events: vec![event(1, text(10)), event(2, alone), event(3, text(10))] };
        let messages = split(batch, 400, |number| unfit.push(number));
        assert_eq!(unfit, [2]);
        let of_two = messages.iter().flat_map(|message| &message.events).find(|event| event.number == 2);
        assert!(matches!(of_two, Some(Event { kind: Some(Kind::Failure(_)), .. })));
    }
}
