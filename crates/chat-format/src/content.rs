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
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(parts)) => parts.iter().map(part).collect::<Result<_, _>>()?,
        Some(_) => return Err(refuse("a message's `content` is neither a string nor a list of parts".to_owned())),
    };
    let content = match format {
        ContentFormat::String => Value::String(texts.join("\n")),
        ContentFormat::OpenAi => texts.into_iter().map(|text| json!({"type": "text", "text": text})).collect(),
    };
    message.insert("content".to_owned(), content);
    Ok(())
}

/// The text of one part.
fn part(part: &Value) -> Result<String, ChatError> {
    if let Value::String(text) = part {
        return Ok(text.clone());
    }
    let kind = part.get("type").and_then(Value::as_str);
    let field = match kind {
        None | Some("text" | "input_text" | "output_text") => "text",
        Some("refusal") => "refusal",
        Some(other) => return Err(refuse(format!("content parts of type `{other}` are not supported"))),
    };
    match part.get(field).and_then(Value::as_str) {
        Some(text) => Ok(text.to_owned()),
        None => Err(refuse(format!("a content part has no string `{field}`"))),
    }
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
