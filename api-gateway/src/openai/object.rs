//! What whole and streamed answers have alike: how they begin, why a choice ended, and what they used.

use std::time::Duration;

use proto::FinishReason;

use super::{
    logprobs::PromptFacts,
    plan::{Api, Plan},
};
use crate::{
    engine::{mailbox::ChoiceUpdate, timings::Timings},
    json,
    metrics::finish_name,
};

/// The beginning that all answers and chunks share: `{"id":…,"object":…,"created":…,"model":…,"system_fingerprint":…`.
pub fn head(out: &mut Vec<u8>, plan: &Plan) {
    let object = match (&plan.api, plan.streaming.on) {
        (Api::Chat { .. }, true) => "chat.completion.chunk",
        (Api::Chat { .. }, false) => "chat.completion",
        (Api::Completion { .. }, _) => "text_completion",
    };
    json::raw(out, "{\"id\":");
    json::string(out, &plan.id);
    json::raw(out, ",\"object\":\"");
    json::raw(out, object);
    json::raw(out, "\",\"created\":");
    json::number(out, plan.created);
    json::raw(out, ",\"model\":");
    json::string(out, &plan.model);
    json::raw(out, concat!(",\"system_fingerprint\":\"quire-", env!("CARGO_PKG_VERSION"), "\""));
}

/// Tokens of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens; once per prompt, however many choices share it.
    pub prompt: u32,
    /// Those of them that were found in the prefix cache.
    pub cached: u32,
    /// Generated tokens of all choices.
    pub completion: u32,
    /// Those of them that are reasoning, where that is told apart.
    pub reasoning: Option<u32>,
}

impl Usage {
    /// The usage of a whole answer.
    pub fn total<'a>(prompts: impl Iterator<Item = &'a PromptFacts>, generated: impl Iterator<Item = u32>) -> Self {
        let empty = Self { completion: generated.sum(), ..Self::default() };
        prompts.fold(empty, |sum, facts| Self {
            prompt: sum.prompt + facts.tokens,
            cached: sum.cached + facts.cached,
            ..sum
        })
    }

    /// The `usage` object.
    pub fn write(self, out: &mut Vec<u8>, plan: &Plan) {
        json::raw(out, "{\"prompt_tokens\":");
        json::number(out, self.prompt);
        json::raw(out, ",\"total_tokens\":");
        json::number(out, u64::from(self.prompt) + u64::from(self.completion));
        json::raw(out, ",\"completion_tokens\":");
        json::number(out, self.completion);
        json::raw(out, ",\"prompt_tokens_details\":");
        if plan.prompt_tokens_details {
            json::raw(out, "{\"cached_tokens\":");
            json::number(out, self.cached);
            json::raw(out, "}");
        } else {
            json::raw(out, "null");
        }
        if let Some(reasoning) = self.reasoning {
            json::raw(out, ",\"completion_tokens_details\":{\"reasoning_tokens\":");
            json::number(out, reasoning);
            json::raw(out, "}");
        }
        json::raw(out, "}");
    }
}

/// `,"metrics":{…}` of an answer of one choice, where the server tells them. Times are in milliseconds.
pub fn request_metrics(out: &mut Vec<u8>, plan: &Plan, timings: Option<&Timings>) {
    let Some(timings) = timings.filter(|_| plan.request_metrics && plan.choices() == 1) else { return };
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let rows = [
        ("queue_time_ms", Some(millis(timings.queue))),
        ("time_to_first_token_ms", Some(millis(timings.first_token))),
        ("generation_time_ms", Some(millis(timings.generation))),
        ("mean_itl_ms", timings.mean_inter_token().map(millis)),
        ("tokens_per_second", timings.tokens_per_second()),
    ];
    let rows = rows.into_iter().filter_map(|(name, value)| value.map(|value| (name, value)));
    json::raw(out, ",\"metrics\":{");
    for (index, (name, value)) in rows.enumerate() {
        json::raw(out, if index == 0 { "\"" } else { ",\"" });
        json::raw(out, name);
        json::raw(out, "\":");
        json::raw(out, &format!("{value:.3}"));
    }
    json::raw(out, "}");
}

/// `,"finish_reason":…,"stop_reason":…`
pub fn finish(out: &mut Vec<u8>, growth: &ChoiceUpdate) {
    finish_as(out, growth, growth.finish.map(finish_name));
}

/// The same under another name.
pub fn finish_as(out: &mut Vec<u8>, growth: &ChoiceUpdate, reason: Option<&str>) {
    json::raw(out, ",\"finish_reason\":");
    match reason {
        None => json::raw(out, "null"),
        Some(reason) => json::string(out, reason),
    }
    json::raw(out, ",\"stop_reason\":");
    let details = growth.details();
    match (&details.stop_text, details.stop_token) {
        _ if growth.finish != Some(FinishReason::Stop) => json::raw(out, "null"),
        (Some(text), _) => json::string(out, text),
        (None, Some(token)) => json::number(out, token),
        (None, None) => json::raw(out, "null"),
    }
}
