//! The two shapes in which templates expect a message's content.

use serde_json::{Map, Value, json};

use crate::ChatError;

/// How a template reads `message.content`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentFormat {
    /// As one string; parts are joined by newlines.
    String,
    /// As a list of parts, `{"type": "text", "text": …}`.
    OpenAi,
}

/// Brings a message's content into the form that the template expects.
pub(crate) fn convert(message: &mut Map<String, Value>, format: ContentFormat) -> Result<(), ChatError> {
    let texts = match message.get("content") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) => vec![text.as_str()],
        Some(Value::Array(parts)) => parts.iter().map(part_text).collect::<Result<_, _>>()?,
        Some(_) => return Err(refuse("a message's `content` is neither a string nor a list of parts".to_owned())),
    };
    let content = match format {
        ContentFormat::String => Value::String(texts.join("\n")),
        ContentFormat::OpenAi => texts.into_iter().map(|text| json!({"type": "text", "text": text})).collect(),
    };
    message.insert("content".to_owned(), content);
    Ok(())
}

/// The text of one part of a message's content, a string or an object. Templates see all of these as text, as with
/// vLLM.
///
/// # Errors
/// [`ChatError::InvalidRequest`], of `messages`: a part without text, or of a type that has none.
pub fn part_text(part: &Value) -> Result<&str, ChatError> {
    let part = match part {
        Value::String(text) => return Ok(text),
        Value::Object(part) => part,
        _ => return Err(refuse("a content part must be a string or an object".to_owned())),
    };
    let kind = part.get("type").and_then(Value::as_str).unwrap_or("text");
    let field = match kind {
        "text" | "input_text" | "output_text" => "text",
        "refusal" | "thinking" => kind,
        other => return Err(refuse(format!("content parts of type `{other}` are not supported by this model"))),
    };
    let text = part.get(field).and_then(Value::as_str);
    text.ok_or_else(|| refuse(format!("a content part of type `{kind}` must have a string `{field}`")))
}

fn refuse(message: String) -> ChatError {
    ChatError::InvalidRequest { param: "messages", message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(content: Value, string: &str, parts: Value) {
        let mut message = Map::from_iter([("role".to_owned(), json!("user")), ("content".to_owned(), content)]);
        let mut other = message.clone();
        convert(&mut message, ContentFormat::String).expect("a string");
        assert_eq!(message["content"], json!(string));
        convert(&mut other, ContentFormat::OpenAi).expect("parts");
        assert_eq!(other["content"], parts);
    }

    #[test]
    fn both_forms_of_every_content() {
        let text = |text: &str| json!({"type": "text", "text": text});
        check(json!("hi"), "hi", json!([text("hi")]));
        check(json!(null), "", json!([]));
        check(json!([text("a"), text("b")]), "a\nb", json!([text("a"), text("b")]));
        check(json!(["a", {"type": "refusal", "refusal": "no"}]), "a\nno", json!([text("a"), text("no")]));
        check(json!([{"type": "thinking", "thinking": "hm"}, text("a")]), "hm\na", json!([text("hm"), text("a")]));
    }

    #[test]
    fn other_contents_are_refused() {
        for content in
            [json!(3), json!([{"type": "image_url", "image_url": {}}]), json!([{"type": "text"}]), json!([7])]
        {
            let mut message = Map::from_iter([("content".to_owned(), content)]);
            assert!(matches!(convert(&mut message, ContentFormat::String), Err(ChatError::InvalidRequest { .. })));
        }
    }
}
