//! `tools` and `tool_choice` as a chat has them.

use serde_json::{Map, Value, json};

use crate::{error::ApiError, openai::fields::Fields};

/// What a request says of tools.
pub struct ToolsSaid {
    /// The tools, as the response repeats them.
    pub shown: Vec<Value>,
    /// `tool_choice`, as the response repeats it.
    pub choice: Value,
    /// `tools` of the chat.
    pub of_chat: Vec<Value>,
    /// `tool_choice` of the chat.
    pub choice_of_chat: Value,
}

/// Reads both fields.
///
/// # Errors
/// When a tool is not a function, or the choice is none that the API has.
pub fn read(fields: &mut Fields<'_>) -> Result<ToolsSaid, ApiError> {
    let tools: Vec<Map<String, Value>> = fields.value("tools", "a list of tools")?.unwrap_or_default();
    for (index, tool) in tools.iter().enumerate() {
        check(tool).map_err(|problem| ApiError::field("tools", format!("tools[{index}]: {problem}")))?;
    }
    let choice = fields.value("tool_choice", "a string or an object")?.unwrap_or_else(|| json!("auto"));
    let chosen = Choice::read(&choice, &tools)?;
    let callable = |tool: &&Map<String, Value>| chosen.only.as_ref().is_none_or(|only| only.contains(&name_of(tool)));
    let of_chat: Vec<Value> = tools.iter().filter(callable).map(function).collect();
    Ok(ToolsSaid { shown: tools.iter().map(shown).collect(), choice, of_chat, choice_of_chat: chosen.of_chat })
}

fn name_of(tool: &Map<String, Value>) -> String {
    tool.get("name").and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn check(tool: &Map<String, Value>) -> Result<(), String> {
    match tool.get("type").and_then(Value::as_str) {
        Some("function") => {}
        other => {
            let kind = other.unwrap_or("(none)");
            return Err(format!("tools of type `{kind}` are not supported by this server: only `function` is."));
        }
    }
    match tool.get("name").and_then(Value::as_str) {
        Some(name) if !name.is_empty() => Ok(()),
        _ => Err("`name` must be a non-empty string.".into()),
    }
}

/// A tool as chats have it.
fn function(tool: &Map<String, Value>) -> Value {
    let members = ["name", "description", "parameters", "strict"];
    let present = members.into_iter().filter_map(|name| Some((name.to_owned(), tool.get(name)?.clone())));
    let function: Map<String, Value> = present.filter(|(_, value)| !value.is_null()).collect();
    json!({"type": "function", "function": function})
}

/// A tool with all the members that clients expect.
fn shown(tool: &Map<String, Value>) -> Value {
    let of = |name: &str| tool.get(name).cloned().unwrap_or_default();
    let strict = tool.get("strict") == Some(&Value::Bool(true));
    json!({
        "type": "function", "name": of("name"), "description": of("description"), "parameters": of("parameters"),
        "strict": strict,
    })
}

/// What `tool_choice` asks for.
struct Choice {
    of_chat: Value,
    /// The tools that may be called, where not all may be.
    only: Option<Vec<String>>,
}

impl Choice {
    fn read(choice: &Value, tools: &[Map<String, Value>]) -> Result<Self, ApiError> {
        let wrong = |message: String| Err(ApiError::field("tool_choice", message));
        let of_chat = match (choice.as_str(), choice["type"].as_str()) {
            (Some("auto" | "none" | "required"), _) => choice.clone(),
            (_, Some("function")) => json!({"type": "function", "function": {"name": choice["name"]}}),
            (_, Some("allowed_tools")) => return Self::among(choice, tools),
            (_, Some(kind)) => {
                return wrong(format!("`tool_choice` of type `{kind}` is not supported by this server."));
            }
            _ => {
                return wrong(format!(
                    "`tool_choice` must be \"none\", \"auto\", \"required\", or an object with a `type`, got {choice}"
                ));
            }
        };
        // A request without tools says "auto" by habit.
        let moot = tools.is_empty() && of_chat == "auto";
        Ok(Self { of_chat: if moot { Value::Null } else { of_chat }, only: None })
    }

    /// The model sees those that are allowed and no others: so it cannot call these.
    fn among(choice: &Value, tools: &[Map<String, Value>]) -> Result<Self, ApiError> {
        let wrong = |message: &str| ApiError::field("tool_choice", message);
        let mode = choice["mode"].clone();
        if mode != "auto" && mode != "required" {
            return Err(wrong("`tool_choice.mode` must be \"auto\" or \"required\"."));
        }
        let allowed = choice["tools"].as_array().ok_or_else(|| wrong("`tool_choice.tools` must be a list."))?;
        let only: Vec<String> = allowed.iter().filter_map(|tool| Some(tool["name"].as_str()?.to_owned())).collect();
        let known = only.len() == allowed.len() && only.iter().all(|name| tools.iter().any(|t| name_of(t) == *name));
        if !known || only.is_empty() {
            return Err(wrong("`tool_choice.tools` must name functions among `tools`."));
        }
        Ok(Self { of_chat: mode, only: Some(only) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(body: &Value) -> Result<ToolsSaid, ApiError> {
        read(&mut Fields::parse(body.to_string().as_bytes())?)
    }

    fn tools() -> Value {
        json!([{"type": "function", "name": "f", "parameters": {"type": "object"}}, {"type": "function", "name": "g"}])
    }

    #[test]
    fn functions_are_those_of_a_chat() {
        let said = said(&json!({"tools": tools(), "tool_choice": {"type": "function", "name": "g"}})).expect("tools");
        let expected = json!([
            {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
            {"type": "function", "function": {"name": "g"}},
        ]);
        assert_eq!(Value::from(said.of_chat), expected);
        assert_eq!(said.choice_of_chat, json!({"type": "function", "function": {"name": "g"}}));
        assert_eq!(
            said.shown[1],
            json!({"type": "function", "name": "g", "description": null, "parameters": null, "strict": false})
        );
    }

    #[test]
    fn only_allowed_tools_are_shown_to_the_model() {
        let choice = json!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]});
        let said = said(&json!({"tools": tools(), "tool_choice": choice})).expect("tools");
        assert_eq!(Value::from(said.of_chat), json!([{"type": "function", "function": {"name": "g"}}]));
        assert_eq!((said.choice_of_chat, said.shown.len(), said.choice), (json!("auto"), 2, choice));
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        let tool = |name: &str| json!([{"type": "function", "name": name}]);
        let allowed = |mode: &str, name: &str| json!({"type": "allowed_tools", "mode": mode, "tools": tool(name)});
        let rows = [
            (json!({"tools": [{"type": "web_search"}]}), "tools", "`web_search`"),
            (json!({"tools": [{"type": "custom", "name": "x"}]}), "tools", "`custom`"),
            (json!({"tools": [{"type": "function"}]}), "tools", "`name`"),
            (json!({"tools": tools(), "tool_choice": {"type": "mcp"}}), "tool_choice", "`mcp`"),
            (json!({"tools": tools(), "tool_choice": "any"}), "tool_choice", "\"required\""),
            (json!({"tools": tools(), "tool_choice": allowed("auto", "h")}), "tool_choice", "among"),
            (json!({"tools": tools(), "tool_choice": allowed("x", "g")}), "tool_choice", "mode"),
        ];
        for (body, param, word) in rows {
            let error = said(&body).err().expect("refused");
            assert!(error.param.as_deref() == Some(param) && error.message.contains(word), "{body}: {error}");
        }
    }
}
