//! A whole answer as a message of blocks.

use serde_json::{Value, json};

use super::Stop;
use crate::{
    engine::mailbox::Update,
    metrics::finish_name,
    openai::{
        logprobs::PromptFacts,
        message::{ChoiceParser, Pieces},
        plan::Plan,
    },
};

/// The body of an answer whose choice has finished.
pub fn write(plan: &Plan, update: Update) -> Vec<u8> {
    let prompt: PromptFacts = update.admitted.into_iter().next().map(|(_, facts)| facts.into()).unwrap_or_default();
    let growth = update.grown.into_iter().next().map(|(_, growth)| growth).unwrap_or_default();
    let mut parser = ChoiceParser::new(plan, &prompt.tail);
    let pieces = parser.as_mut().map_or_else(|| Pieces::plain(&growth.text), |parser| parser.take(&growth));
    let finish = growth.finish.map_or("stop", |reason| match &parser {
        Some(parser) => parser.finish(reason),
        None => finish_name(reason),
    });
    let stop = Stop::of(&growth, finish);
    let body = json!({
        "id": plan.id, "type": "message", "role": "assistant", "model": plan.model, "content": blocks(pieces),
        "stop_reason": stop.reason, "stop_sequence": stop.sequence, "usage": usage(&prompt, growth.tokens),
    });
    body.to_string().into_bytes()
}

fn blocks(pieces: Pieces) -> Vec<Value> {
    let mut blocks = Vec::new();
    if !pieces.reasoning.is_empty() {
        blocks.push(json!({"type": "thinking", "thinking": pieces.reasoning, "signature": ""}));
    }
    if !pieces.content.is_empty() || (blocks.is_empty() && pieces.calls.is_empty()) {
        blocks.push(json!({"type": "text", "text": pieces.content}));
    }
    blocks.extend(pieces.calls.into_iter().map(|call| {
        let (id, name) = call.begin.unwrap_or_default();
        // What is no JSON object was cut off: it is shown as it stands.
        let input = serde_json::from_str::<Value>(&call.arguments).ok().filter(Value::is_object);
        let input = input.unwrap_or_else(|| json!({"arguments": call.arguments}));
        json!({"type": "tool_use", "id": id, "name": name, "input": input})
    }));
    blocks
}

/// Tokens read and written; those found in the prefix cache are counted apart.
pub(super) fn usage(prompt: &PromptFacts, written: u32) -> Value {
    json!({
        "input_tokens": prompt.tokens.saturating_sub(prompt.cached), "output_tokens": written,
        "cache_read_input_tokens": prompt.cached, "cache_creation_input_tokens": 0,
    })
}
