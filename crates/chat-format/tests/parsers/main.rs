//! The formats of calls and reasoning: an example of each, every cut of each, and hostile text.

mod cuts;
mod examples;
mod play;

use std::sync::Arc;

use chat_format::parsers::{Message, ReasoningFormat, Setup, ToolFormat, Tools};
use serde_json::{Value, json};

/// The tools that all examples offer.
pub(crate) fn offered() -> Arc<Tools> {
    let weather = json!({"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "metric": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
    }});
    Arc::new(Tools::new(&[
        json!({"type": "function", "function": {"name": "get_weather", "parameters": weather}}),
        json!({"type": "function", "function": {"name": "get_time"}}),
    ]))
}

/// Formats by name; empty names none.
pub(crate) fn setup(tools: &str, reasoning: &str) -> Setup {
    let tools = Some(tools).filter(|name| !name.is_empty()).map(|name| ToolFormat::named(name).expect(name));
    let reasoning = Some(reasoning).filter(|name| !name.is_empty());
    let reasoning = reasoning.map(|name| ReasoningFormat::named(name).expect(name));
    Setup::new(tools, reasoning, offered())
}

/// A message in which the arguments of calls are read.
pub(crate) fn shown(message: &Message) -> Value {
    let calls = message.calls.iter().map(|call| {
        let arguments = serde_json::from_str(&call.arguments).unwrap_or(Value::String(call.arguments.clone()));
        json!([call.name, arguments])
    });
    json!([message.content, message.reasoning, calls.collect::<Vec<_>>()])
}
