//! A body of `/v1/messages` as one of `/v1/chat/completions`.

use serde_json::{Map, Value, json};

use crate::{
    anthropic::strict,
    error::ApiError,
    openai::{
        chat::{self, Conversation},
        completion::{Envelope, Ready},
        fields::Fields,
        params::{Limits, check_model},
        plan::Dialect,
    },
};

/// Fields that say the same in both APIs.
const ALIKE: [&str; 8] =
    ["cache_salt", "chat_template_kwargs", "max_tokens", "model", "priority", "stream", "temperature", "top_p"];

/// Reads a body of `/v1/messages`.
pub fn read(body: &[u8], limits: &Limits, envelope: &Envelope) -> Result<Ready, ApiError> {
    let mut fields = Fields::parse(body)?;
    if fields.raw("max_tokens").is_none() {
        return Err(ApiError::field("max_tokens", "`max_tokens` must be provided."));
    }
    let chat = chat_body(&mut fields)?;
    strict::refuse_unread(&mut fields)?;
    let mut ready = chat::read(chat.to_string().as_bytes(), limits, envelope)?;
    ready.plan.dialect = Dialect::Anthropic;
    ready.plan.id = format!("msg_{}", envelope.fresh_id);
    for request in &mut ready.requests {
        request.request_id.clone_from(&ready.plan.id);
    }
    Ok(ready)
}

/// Reads a body of `/v1/messages/count_tokens`.
pub fn read_prompt(body: &[u8], limits: &Limits) -> Result<proto::TokenizeRequest, ApiError> {
    let chat = chat_body(&mut Fields::parse(body)?)?.to_string();
    let mut fields = Fields::parse(chat.as_bytes())?;
    let adapter_tokenizer = check_model(&mut fields, limits)?.tokenizer;
    let prompt = Some(Conversation::read(&mut fields, limits)?.prompt);
    Ok(proto::TokenizeRequest { prompt, return_token_strs: false, adapter_tokenizer })
}

/// The body of a chat that says the same.
pub fn chat_body(fields: &mut Fields<'_>) -> Result<Value, ApiError> {
    let mut chat = Map::new();
    for name in ALIKE {
        chat.extend(fields.value::<Value>(name, "JSON")?.map(|value| (name.to_owned(), value)));
    }
    for (name, renamed) in [("top_k", "top_k"), ("stop_sequences", "stop")] {
        chat.extend(fields.value::<Value>(name, "JSON")?.map(|value| (renamed.to_owned(), value)));
    }
    let mut messages = Vec::new();
    if let Some(system) = fields.value::<Value>("system", "a string or a list of text blocks")? {
        messages.push(json!({"role": "system", "content": texts("system", &system)?}));
    }
    let turns: Vec<Map<String, Value>> = fields
        .value("messages", "a list of message objects")?
        .ok_or_else(|| ApiError::field("messages", "`messages` must be provided."))?;
    for turn in &turns {
        add_turn(turn, &mut messages)?;
    }
    chat.insert("messages".into(), messages.into());
    tools(fields, &mut chat)?;
    thinking(fields, &mut chat)?;
    strict::output(fields, &mut chat)?;
    strict::context(fields)?;
    Ok(Value::Object(chat))
}

/// One turn: its blocks become a message, results of tools one each.
fn add_turn(turn: &Map<String, Value>, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let role = turn.get("role").and_then(Value::as_str).unwrap_or_default();
    if !matches!(role, "user" | "assistant" | "system") {
        return Err(ApiError::field("messages", "`role` must be \"user\" or \"assistant\"."));
    }
    let blocks = match turn.get("content") {
        Some(Value::String(text)) => {
            messages.push(json!({"role": role, "content": text}));
            return Ok(());
        }
        Some(Value::Array(blocks)) => blocks,
        _ => return Err(ApiError::field("messages", "`content` must be a string or a list of blocks.")),
    };
    let mut said = Said::default();
    for block in blocks {
        said.add(block, messages)?;
    }
    let mut message = json!({"role": role, "content": said.texts.join("\n")});
    if !said.calls.is_empty() {
        message["tool_calls"] = said.calls.into();
    } else if said.texts.is_empty() {
        // Nothing but results of tools, which are messages already.
        return Ok(());
    }
    if !said.thinking.is_empty() {
        message["reasoning"] = said.thinking.into();
    }
    messages.push(message);
    Ok(())
}

/// What the blocks of a turn say.
#[derive(Default)]
struct Said {
    texts: Vec<String>,
    thinking: String,
    calls: Vec<Value>,
}

impl Said {
    fn add(&mut self, block: &Value, messages: &mut Vec<Value>) -> Result<(), ApiError> {
        let text = |name: &str| block.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        match block.get("type").and_then(Value::as_str) {
            Some("text") => self.texts.push(text("text")),
            Some("thinking") => self.thinking.push_str(&text("thinking")),
            // What it says is not for the model's eyes.
            Some("redacted_thinking") => {}
            Some("tool_use") => {
                let input = block.get("input").cloned().unwrap_or_else(|| json!({}));
                let function = json!({"name": text("name"), "arguments": input.to_string()});
                self.calls.push(json!({"id": text("id"), "type": "function", "function": function}));
            }
            Some("tool_result") => {
                let content = block.get("content").map_or(Ok(String::new()), |content| texts("messages", content))?;
                messages.push(json!({"role": "tool", "tool_call_id": text("tool_use_id"), "content": content}));
            }
            other => {
                let kind = other.unwrap_or("(none)");
                let message = format!("blocks of type `{kind}` are not supported by this model.");
                return Err(ApiError::field("messages", message));
            }
        }
        Ok(())
    }
}

/// A string, or the texts of blocks.
fn texts(param: &str, content: &Value) -> Result<String, ApiError> {
    let blocks = match content {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(blocks) => blocks,
        _ => return Err(ApiError::field(param, format!("`{param}`: expected a string or a list of text blocks."))),
    };
    let text = |block: &Value| {
        let is_text = block.get("type").and_then(Value::as_str) == Some("text");
        block.get("text").and_then(Value::as_str).filter(|_| is_text).map(str::to_owned)
    };
    let all: Option<Vec<String>> = blocks.iter().map(text).collect();
    let all =
        all.ok_or_else(|| ApiError::field(param, format!("`{param}`: only blocks of type `text` are supported.")))?;
    Ok(all.join("\n"))
}

fn tools(fields: &mut Fields<'_>, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let tools: Vec<Map<String, Value>> = fields.value("tools", "a list of tools")?.unwrap_or_default();
    if tools.iter().any(|tool| tool.get("type").is_some_and(|kind| kind != "custom" && !kind.is_null())) {
        return Err(ApiError::field("tools", "tools that the server runs are not supported."));
    }
    let function = |tool: &Map<String, Value>| {
        let of = |name: &str| tool.get(name).cloned().unwrap_or(Value::Null);
        let mut function = json!({"name": of("name"), "parameters": of("input_schema")});
        if tool.contains_key("description") {
            function["description"] = of("description");
        }
        json!({"type": "function", "function": function})
    };
    if !tools.is_empty() {
        chat.insert("tools".into(), tools.iter().map(function).collect());
    }
    let Some(choice) = fields.object("tool_choice")? else { return Ok(()) };
    let choice_of = match choice.get("type").and_then(Value::as_str) {
        Some("auto") => json!("auto"),
        Some("none") => json!("none"),
        Some("any") => json!("required"),
        Some("tool") => json!({"type": "function", "function": {"name": choice.get("name")}}),
        _ => return Err(ApiError::field("tool_choice", "`tool_choice.type` must be auto, any, tool or none.")),
    };
    chat.insert("tool_choice".into(), choice_of);
    if choice.get("disable_parallel_tool_use") == Some(&Value::Bool(true)) {
        chat.insert("parallel_tool_calls".into(), false.into());
    }
    Ok(())
}

/// Whether the model is to think is a variable of its template; how long, a budget.
fn thinking(fields: &mut Fields<'_>, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let Some(thinking) = fields.object("thinking")? else { return Ok(()) };
    let enabled = match thinking.get("type").and_then(Value::as_str) {
        Some("enabled" | "adaptive") => true,
        Some("disabled") => false,
        _ => return Err(ApiError::field("thinking", "`thinking.type` must be enabled, adaptive or disabled.")),
    };
    if let Some(budget) = thinking.get("budget_tokens").filter(|budget| enabled && !budget.is_null()) {
        chat.insert("thinking_token_budget".into(), budget.clone());
    }
    let kwargs = chat.entry("chat_template_kwargs").or_insert_with(|| json!({}));
    if let Some(kwargs) = kwargs.as_object_mut() {
        kwargs.entry("enable_thinking").or_insert(enabled.into());
    }
    Ok(())
}
