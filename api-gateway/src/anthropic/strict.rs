//! What a body of Anthropic's Messages API may say beyond a chat: the format of its answer. What is not known is
//! refused by name, as Anthropic does.

use serde_json::{Map, Value, json};

use crate::{error::ApiError, openai::fields::Fields};

/// Fields that steer nothing this server does, each with the reason.
pub const WITHOUT_EFFECT: [(&str, &str); 4] = [
    ("cache_control", "the prefix cache finds equal prompts by itself"),
    ("inference_geo", "there is one engine"),
    ("metadata", "users are not told apart"),
    ("service_tier", "there is one tier; see `priority`"),
];

/// Reads the format of the answer and how much to reason into a chat.
pub fn output(fields: &mut Fields<'_>, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let config = fields.object("output_config")?.unwrap_or_default();
    if let Some(name) = config.keys().find(|name| !["effort", "format"].contains(&name.as_str())) {
        return Err(extra(&format!("output_config.{name}")));
    }
    if let Some(effort) = config.get("effort").filter(|effort| !effort.is_null()) {
        let effort = match effort.as_str() {
            Some(effort @ ("low" | "medium" | "high")) => effort,
            Some("xhigh" | "max") => "high",
            _ => {
                return Err(ApiError::field("output_config", "`effort` must be low, medium, high, xhigh or max."));
            }
        };
        chat.insert("reasoning_effort".into(), effort.into());
    }
    let formats = [
        ("output_format", fields.value::<Value>("output_format", "an object")?),
        ("output_config", config.get("format").filter(|format| !format.is_null()).cloned()),
    ];
    for (name, format) in formats {
        let Some(format) = format else { continue };
        if chat.contains_key("response_format") {
            return Err(ApiError::field(
                name,
                "`output_format` and `output_config.format` say the same: leave one out.",
            ));
        }
        let schema = format.get("schema").filter(|schema| schema.is_object());
        let Some(schema) = schema.filter(|_| format.get("type") == Some(&json!("json_schema"))) else {
            let message = format!("`{name}`: the format must be {{\"type\": \"json_schema\", \"schema\": an object}}.");
            return Err(ApiError::field(name, message));
        };
        chat.insert(
            "response_format".into(),
            json!({"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}),
        );
    }
    Ok(())
}

/// Accepts instructions that leave the conversation as it is.
pub fn context(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    let Some(management) = fields.object("context_management")? else { return Ok(()) };
    let keeps_all = |edit: &Value| {
        let kind = edit.get("type").and_then(Value::as_str).unwrap_or_default();
        kind.starts_with("clear_thinking") && edit.get("keep") == Some(&json!("all"))
    };
    let edits = management.get("edits").and_then(Value::as_array);
    if management.keys().any(|name| name != "edits") || edits.is_some_and(|edits| !edits.iter().all(keeps_all)) {
        let message = "`context_management` may keep all thinking; other edits are the client's to make.";
        return Err(ApiError::field("context_management", message));
    }
    Ok(())
}

/// Refuses fields that were not read.
pub fn refuse_unread(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    for (name, _) in WITHOUT_EFFECT {
        fields.raw(name);
    }
    fields.unread().next().map_or(Ok(()), |name| Err(extra(name)))
}

/// In Anthropic's words.
fn extra(name: &str) -> ApiError {
    ApiError::field(name, format!("{name}: Extra inputs are not permitted"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::anthropic::request::chat_body;

    fn chat(extra: &Value) -> Result<Value, ApiError> {
        let mut body = json!({"max_tokens": 9, "messages": [{"role": "user", "content": "x"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let text = body.to_string();
        let mut fields = Fields::parse(text.as_bytes())?;
        let chat = chat_body(&mut fields)?;
        refuse_unread(&mut fields)?;
        Ok(chat)
    }

    #[test]
    fn fields_are_honoured_or_refused_by_name() {
        let format = json!({"type": "json_schema", "schema": {"type": "object"}});
        let expected = json!({"type": "json_schema", "json_schema": {"name": "output", "schema": {"type": "object"}}});
        assert_eq!(chat(&json!({"output_format": format})).unwrap()["response_format"], expected);
        let config = json!({"output_config": {"format": format, "effort": "max"}});
        let read = chat(&config).unwrap();
        assert_eq!((&read["response_format"], &read["reasoning_effort"]), (&expected, &json!("high")));
        let keep = json!({"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]});
        chat(&json!({"metadata": {"user_id": "u"}, "context_management": keep})).unwrap();
        for (body, name) in [
            (json!({"mcp_servers": []}), "mcp_servers"),
            (json!({"output_format": {"type": "text"}}), "output_format"),
            (json!({"output_config": {"tone": "dry"}}), "output_config.tone"),
            (json!({"output_format": format, "output_config": {"format": format}}), "output_config"),
            (json!({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}), "context_management"),
        ] {
            assert_eq!(chat(&body).unwrap_err().param.as_deref(), Some(name), "{body}");
        }
    }
}
