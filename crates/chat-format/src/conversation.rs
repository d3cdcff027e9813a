//! What a request wants rendered, read from its JSON.

use serde_json::{Map, Value};

use crate::{ChatError, ContentFormat, content};

/// Template variables that a request may not set by `chat_template_kwargs`.
const RESERVED: [&str; 5] = ["chat_template", "conversation", "messages", "strftime_now", "tokenize"];

/// The JSON texts of a request; empty means absent.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChatText<'a> {
    /// The `messages` array.
    pub messages: &'a str,
    /// The `tools` array.
    pub tools: &'a str,
    /// The `documents` array.
    pub documents: &'a str,
    /// The `chat_template_kwargs` object.
    pub kwargs: &'a str,
}

/// What a request wants rendered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// One object a message, with `role`.
    pub messages: Vec<Value>,
    /// The tools, where the request has any.
    pub tools: Option<Vec<Value>>,
    /// The documents, where the request has any.
    pub documents: Option<Vec<Value>>,
    /// End with the start of the assistant's answer.
    pub add_generation_prompt: bool,
    /// End inside the last message, so that it is continued.
    pub continue_final_message: bool,
    /// A template that replaces the model's.
    pub chat_template: Option<String>,
    /// Further template variables.
    pub kwargs: Map<String, Value>,
}

impl Conversation {
    /// Reads a request's JSON.
    ///
    /// # Errors
    /// [`ChatError::InvalidRequest`], naming the field.
    pub fn parse(text: ChatText<'_>) -> Result<Self, ChatError> {
        let messages = list("messages", text.messages)?.unwrap_or_default();
        for (index, message) in messages.iter().enumerate() {
            if !message.get("role").is_some_and(Value::is_string) {
                let message = format!("message {index} is no object with a `role`");
                return Err(ChatError::InvalidRequest { param: "messages", message });
            }
        }
        let kwargs: Map<String, Value> = match text.kwargs {
            "" => Map::new(),
            json => serde_json::from_str(json).map_err(|error| invalid("chat_template_kwargs", &error))?,
        };
        if let Some(name) = kwargs.keys().find(|name| RESERVED.contains(&name.as_str())) {
            let message = format!("`{name}` cannot be set by chat_template_kwargs");
            return Err(ChatError::InvalidRequest { param: "chat_template_kwargs", message });
        }
        Ok(Self {
            messages,
            tools: list("tools", text.tools)?,
            documents: list("documents", text.documents)?,
            kwargs,
            ..Self::default()
        })
    }

    /// The messages as templates expect them: contents in `format`, arguments of tool calls as objects, reasoning under
    /// both its names.
    pub(crate) fn prepared(&self, format: ContentFormat) -> Result<Vec<Value>, ChatError> {
        let mut messages = self.messages.clone();
        for message in messages.iter_mut().filter_map(Value::as_object_mut) {
            content::convert(message, format)?;
            if message.get("role").and_then(Value::as_str) == Some("assistant") {
                parse_arguments(message)?;
                name_reasoning(message);
            }
        }
        Ok(messages)
    }
}

/// Clients send a tool call's arguments as a JSON text; templates expect the object.
fn parse_arguments(message: &mut Map<String, Value>) -> Result<(), ChatError> {
    if message.get("tool_calls").is_some_and(Value::is_null) {
        message.shift_remove("tool_calls");
    }
    let Some(Value::Array(calls)) = message.get_mut("tool_calls") else { return Ok(()) };
    for function in calls.iter_mut().filter_map(|call| call.get_mut("function")?.as_object_mut()) {
        let parsed = match function.get("arguments") {
            None | Some(Value::Null) => Value::Object(Map::new()),
            Some(Value::String(text)) if text.is_empty() => Value::Object(Map::new()),
            Some(Value::String(text)) => serde_json::from_str(text).map_err(|error| ChatError::InvalidRequest {
                param: "messages",
                message: format!("the arguments of a tool call are not JSON: {error}"),
            })?,
            Some(_) => continue,
        };
        function.insert("arguments".to_owned(), parsed);
    }
    Ok(())
}

/// What the assistant thought is `reasoning` now and was `reasoning_content`. Templates read one or the other, so both
/// are there, as with vLLM.
fn name_reasoning(message: &mut Map<String, Value>) {
    const NAMES: [&str; 2] = ["reasoning", "reasoning_content"];
    let is_text = |value: &&Value| value.as_str().is_some_and(|text| !text.is_empty());
    if let Some(reasoning) = NAMES.iter().filter_map(|name| message.get(*name)).find(is_text).cloned() {
        message.extend(NAMES.map(|name| (name.to_owned(), reasoning.clone())));
    }
}

fn list(param: &'static str, json: &str) -> Result<Option<Vec<Value>>, ChatError> {
    match json {
        "" => Ok(None),
        json => serde_json::from_str(json).map_err(|error| invalid(param, &error)),
    }
}

fn invalid(param: &'static str, error: &serde_json::Error) -> ChatError {
    ChatError::InvalidRequest { param, message: format!("`{param}` cannot be read: {error}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn param(text: ChatText<'_>) -> &'static str {
        match Conversation::parse(text) {
            Err(ChatError::InvalidRequest { param, .. }) => param,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn errors_name_the_field() {
        assert_eq!(param(ChatText { messages: "{}", ..ChatText::default() }), "messages");
        assert_eq!(param(ChatText { messages: "[{}]", ..ChatText::default() }), "messages");
        assert_eq!(param(ChatText { messages: "[3]", ..ChatText::default() }), "messages");
        assert_eq!(param(ChatText { messages: "[]", tools: "7", ..ChatText::default() }), "tools");
        let kwargs = r#"{"messages":[]}"#;
        assert_eq!(param(ChatText { messages: "[]", kwargs, ..ChatText::default() }), "chat_template_kwargs");
    }

    #[test]
    fn arguments_become_objects() {
        let messages = json!([{"role": "assistant", "content": null, "tool_calls": [
            {"function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}},
            {"function": {"name": "g", "arguments": ""}},
            {"function": {"name": "h", "arguments": {"x": 1}}},
        ]}]);
        let text = messages.to_string();
        let conversation = Conversation::parse(ChatText { messages: &text, ..ChatText::default() }).expect("messages");
        let prepared = conversation.prepared(ContentFormat::String).expect("messages");
        let arguments = |index: usize| prepared[0]["tool_calls"][index]["function"]["arguments"].to_string();
        assert_eq!(arguments(0), r#"{"b":1,"a":2}"#);
        assert_eq!(arguments(1), "{}");
        assert_eq!(arguments(2), r#"{"x":1}"#);
        assert_eq!(prepared[0]["content"], "");
    }

    #[test]
    fn reasoning_has_both_its_names() {
        let prepared = |message: Value| {
            let text = json!([message]).to_string();
            let conversation = Conversation::parse(ChatText { messages: &text, ..ChatText::default() });
            conversation.expect("messages").prepared(ContentFormat::String).expect("messages").remove(0)
        };
        let both = |message: &Value| (message["reasoning"].clone(), message["reasoning_content"].clone());
        for name in ["reasoning", "reasoning_content"] {
            assert_eq!(
                both(&prepared(json!({"role": "assistant", "content": "a", name: "hm"}))),
                (json!("hm"), json!("hm"))
            );
            let user = prepared(json!({"role": "user", "content": "a", name: "hm"}));
            assert_eq!(user.as_object().expect("a message").len(), 3);
        }
        let two = json!({"role": "assistant", "reasoning": "new", "reasoning_content": "old"});
        assert_eq!(both(&prepared(two)), (json!("new"), json!("new")));
        let none = json!({"role": "assistant", "reasoning": null, "reasoning_content": ""});
        assert_eq!(both(&prepared(none)), (Value::Null, json!("")));
    }

    #[test]
    fn arguments_that_are_no_json_are_the_clients_fault() {
        let messages = r#"[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{"}}]}]"#;
        let conversation = Conversation::parse(ChatText { messages, ..ChatText::default() }).expect("messages");
        let error = conversation.prepared(ContentFormat::String).expect_err("broken arguments");
        assert_eq!(error.param(), Some("messages"));
    }
}
