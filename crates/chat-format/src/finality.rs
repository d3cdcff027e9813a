//! `continue_final_message`: cuts the rendered text right behind the last message's text.

use serde_json::Value;

use crate::ChatError;

/// Cuts `rendered` behind the text of the last message, as Hugging Face does.
pub(crate) fn cut(rendered: &mut String, messages: &[Value]) -> Result<(), ChatError> {
    let refuse = |message: &str| ChatError::InvalidRequest {
        param: "continue_final_message",
        message: format!("continue_final_message is set, but {message}"),
    };
    let last = messages.last().ok_or_else(|| refuse("there are no messages"))?;
    let text = match last.get("content") {
        Some(Value::String(text)) => text.as_str(),
        Some(Value::Array(parts)) => parts.iter().rev().find_map(|part| part.get("text")?.as_str()).unwrap_or_default(),
        _ => "",
    };
    if text.trim().is_empty() {
        return Err(refuse("the last message is empty"));
    }
    let Some(start) = rendered.rfind(text.trim()) else {
        return Err(refuse("the chat template does not write the last message's text"));
    };
    // Templates that trim messages have dropped the trailing space already.
    let kept = if rendered[start..].starts_with(text.trim_start()) { text.trim_start() } else { text.trim() };
    rendered.truncate(start + kept.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(rendered: &str, content: Value, expected: Option<&str>) {
        let mut text = rendered.to_owned();
        let result = cut(&mut text, &[json!({"role": "assistant", "content": content})]);
        assert_eq!(result.is_ok().then_some(text.as_str()), expected, "{rendered}");
    }

    #[test]
    fn the_text_ends_inside_the_last_message() {
        check("<a>x</a><b>one two</b>", json!("one two"), Some("<a>x</a><b>one two"));
        check("<b>one </b>", json!("one "), Some("<b>one "));
        check("<b>one</b>", json!(" one "), Some("<b>one"));
        check("<b>x</b><b>x</b>", json!([{"type": "text", "text": "x"}]), Some("<b>x</b><b>x"));
        check("<b></b>", json!("lost"), None);
        check("<b></b>", json!(null), None);
    }
}
