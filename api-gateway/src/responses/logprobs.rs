//! Log-probabilities of the tokens of a message.

use proto::TextLogprobs;
use serde_json::Value;

use crate::{
    engine::mailbox::ChoiceUpdate,
    openai::{logprobs::chat, plan::Plan},
};

/// Those of the tokens that a piece of content consists of, as objects.
pub fn of_content(growth: &ChoiceUpdate, content: &str, plan: &Plan) -> Vec<Value> {
    let entries = entries_of(growth, content);
    let mut out = Vec::new();
    chat(&mut out, entries, plan);
    let mut written: Value = serde_json::from_slice(&out).unwrap_or_default();
    match written["content"].take() {
        Value::Array(entries) => entries,
        _ => Vec::new(),
    }
}

/// The tokens that overlap `content` in the text that came. Where it is not found there, because a part of it was held
/// back, all of them.
fn entries_of<'a>(growth: &'a ChoiceUpdate, content: &str) -> &'a [TextLogprobs] {
    let all = &growth.details().logprobs[..];
    let Some(start) = growth.text.find(content) else { return all };
    let end = start + content.len();
    let mut at = 0;
    let mut bounds = (all.len(), 0);
    for (index, entry) in all.iter().enumerate() {
        let from = at;
        at += entry.token.len();
        if from < end && at > start {
            bounds = (bounds.0.min(index), index + 1);
        }
    }
    all.get(bounds.0..bounds.1).unwrap_or(all)
}

#[cfg(test)]
mod tests {
    use proto::DeltaDetails;

    use super::*;

    fn growth(tokens: &[&str]) -> ChoiceUpdate {
        let logprobs = tokens.iter().map(|token| TextLogprobs { token: (*token).into(), ..TextLogprobs::default() });
        let details = DeltaDetails { logprobs: logprobs.collect(), ..DeltaDetails::default() };
        ChoiceUpdate { text: tokens.concat(), details: Some(details.into()), ..ChoiceUpdate::default() }
    }

    #[test]
    fn only_the_tokens_of_the_content_count() {
        let growth = growth(&["hm", "</think>", "\n", "Ro", "me", "<call>"]);
        let tokens = |content: &str| -> Vec<&str> {
            entries_of(&growth, content).iter().map(|entry| entry.token.as_str()).collect()
        };
        assert_eq!(tokens("Rome"), ["Ro", "me"]);
        assert_eq!(tokens("me"), ["me"]);
        assert_eq!(tokens("elsewhere").len(), 6);
    }
}
