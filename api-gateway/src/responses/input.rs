//! Items of a conversation: read from `input`, and told to the model as messages.

use serde_json::{Map, Value, json};

use super::{item::opened, store::Store};
use crate::error::ApiError;

/// Reads `input`, a text or a list of items. References become the items that they name, and every item has an id.
///
/// # Errors
/// When an item is malformed, or of a type that is not supported.
pub fn read(input: Value, response: &str, store: &Store) -> Result<Vec<Value>, ApiError> {
    let items = match input {
        Value::String(text) => vec![json!({"role": "user", "content": text})],
        Value::Array(items) if !items.is_empty() => items,
        Value::Array(_) => return Err(ApiError::field("input", "`input` must not be empty.")),
        _ => return Err(ApiError::field("input", "`input` must be a string or a list of items.")),
    };
    let of = |(index, item): (usize, Value)| {
        let id = format!("item_{}{index:04x}", response.trim_start_matches("resp_"));
        complete(item, id, store).map_err(|problem| ApiError::field("input", format!("input[{index}]: {problem}")))
    };
    items.into_iter().enumerate().map(of).collect()
}

/// An item with type and id, its content as a list of parts.
fn complete(item: Value, fresh_id: String, store: &Store) -> Result<Value, String> {
    let Value::Object(mut item) = item else { return Err("not an object.".into()) };
    let kind = match item.get("type").and_then(Value::as_str) {
        Some(kind) => kind.to_owned(),
        None if item.contains_key("role") => "message".to_owned(),
        None => "item_reference".to_owned(),
    };
    if kind == "item_reference" {
        let id = text_of(&item, "id").ok_or("`type` or `role` is missing.")?;
        return store.item(id).ok_or_else(|| {
            format!("Item with id '{id}' not found: responses are kept for a while, and only with `store`.")
        });
    }
    item.insert("type".into(), kind.into());
    if text_of(&item, "id").is_none() {
        item.insert("id".into(), fresh_id.into());
    }
    if item["type"] == "message" {
        parts_of_message(&mut item)?;
    }
    check(&item)?;
    Ok(Value::Object(item))
}

/// Makes a message's content a list of parts.
fn parts_of_message(item: &mut Map<String, Value>) -> Result<(), String> {
    let is_answer = match text_of(item, "role") {
        Some("assistant") => true,
        Some("user" | "system" | "developer") => false,
        _ => return Err("`role` must be user, assistant, system or developer.".into()),
    };
    if let Some(Value::String(text)) = item.get("content") {
        let part = match is_answer {
            true => json!({"type": "output_text", "text": text, "annotations": []}),
            false => json!({"type": "input_text", "text": text}),
        };
        item.insert("content".into(), json!([part]));
    }
    Ok(())
}

fn text_of<'i>(item: &'i Map<String, Value>, name: &str) -> Option<&'i str> {
    item.get(name).and_then(Value::as_str)
}

/// Refuses what cannot be told to the model.
fn check(item: &Map<String, Value>) -> Result<(), String> {
    let needs = |names: &[&str]| match names.iter().find(|name| text_of(item, name).is_none()) {
        Some(name) => Err(format!("`{name}` must be a string.")),
        None => Ok(()),
    };
    match text_of(item, "type").unwrap_or_default() {
        "message" => texts(item.get("content")).map(drop),
        "function_call" => needs(&["call_id", "name", "arguments"]),
        "function_call_output" => needs(&["call_id"]).and_then(|()| output_of(item).map(drop)),
        "reasoning" => reasoning_of(item).map(drop),
        other => Err(format!("items of type `{other}` are not supported by this server.")),
    }
}

/// The texts of a list of parts.
fn texts(parts: Option<&Value>) -> Result<Vec<&str>, String> {
    let Some(Value::Array(parts)) = parts else {
        return Err("`content` must be a string or a list of parts.".into());
    };
    parts.iter().map(part_text).collect()
}

fn part_text(part: &Value) -> Result<&str, String> {
    let kind = part["type"].as_str().unwrap_or("(none)");
    let name = match kind {
        "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text" => "text",
        "refusal" => "refusal",
        _ => return Err(format!("parts of type `{kind}` are not supported by this model.")),
    };
    part[name].as_str().ok_or_else(|| format!("`{name}` of a part must be a string."))
}

/// What a function gave.
fn output_of(item: &Map<String, Value>) -> Result<String, String> {
    match item.get("output") {
        Some(Value::String(text)) => Ok(text.clone()),
        parts @ Some(Value::Array(_)) => Ok(texts(parts)?.join("\n")),
        _ => Err("`output` must be a string or a list of parts.".into()),
    }
}

/// What the model thought: the content, else what our opaque text holds, else the summary.
fn reasoning_of(item: &Map<String, Value>) -> Result<String, String> {
    let of = |name: &str| match item.get(name) {
        None | Some(Value::Null) => Ok(String::new()),
        parts => texts(parts).map(|texts| texts.join("\n")),
    };
    let (content, summary) = (of("content")?, of("summary")?);
    if !content.is_empty() {
        return Ok(content);
    }
    match text_of(item, "encrypted_content").map(opened) {
        Some(Some(text)) => Ok(text),
        Some(None) if summary.is_empty() => {
            Err("`encrypted_content` is not of this server: leave the reasoning item out.".into())
        }
        _ => Ok(summary),
    }
}

/// A conversation as chat messages.
#[derive(Debug, PartialEq)]
pub struct Messages {
    /// The messages.
    pub all: Vec<Value>,
    /// Whether the answer goes on with the last one, which was not finished.
    pub goes_on: bool,
}

/// The messages that `items` stand for, behind the request's instructions.
pub fn messages(instructions: Option<&str>, items: &[Value]) -> Messages {
    let mut chat = Chat { system: instructions.map(str::to_owned).into_iter().collect(), ..Chat::default() };
    for item in items.iter().filter_map(Value::as_object) {
        chat.add(item);
    }
    chat.flush_system();
    chat.flush_said();
    let goes_on = items.last().is_some_and(|last| {
        last["role"] == "assistant" && (last["status"] == "in_progress" || last["status"] == "incomplete")
    });
    Messages { all: chat.messages, goes_on }
}

/// Messages so far, and what waits to become one.
#[derive(Default)]
struct Chat {
    messages: Vec<Value>,
    /// What stands before the first turn: templates take one message of it.
    system: Vec<String>,
    begun: bool,
    said: Said,
}

/// What the assistant says in one message.
#[derive(Default)]
struct Said {
    reasoning: Vec<String>,
    text: Option<String>,
    calls: Vec<Value>,
}

impl Chat {
    fn add(&mut self, item: &Map<String, Value>) {
        let text = || texts(item.get("content")).unwrap_or_default().join("\n");
        match (text_of(item, "type"), text_of(item, "role")) {
            (Some("message"), Some("assistant")) => {
                if self.said.text.is_some() || !self.said.calls.is_empty() {
                    self.flush_said();
                }
                self.said.text = Some(text());
            }
            (Some("message"), Some("user")) => self.turn(json!({"role": "user", "content": text()})),
            // Hardly any template knows developers.
            (Some("message"), _) if !self.begun && self.said.is_empty() => self.system.push(text()),
            (Some("message"), _) => self.turn(json!({"role": "system", "content": text()})),
            (Some("reasoning"), _) => self.said.reasoning.push(reasoning_of(item).unwrap_or_default()),
            (Some("function_call"), _) => {
                let of = |name: &str| text_of(item, name).unwrap_or_default();
                let function = json!({"name": of("name"), "arguments": of("arguments")});
                self.said.calls.push(json!({"id": of("call_id"), "type": "function", "function": function}));
            }
            _ => {
                let content = output_of(item).unwrap_or_default();
                self.turn(json!({"role": "tool", "tool_call_id": item.get("call_id"), "content": content}));
            }
        }
    }

    fn turn(&mut self, message: Value) {
        self.flush_system();
        self.flush_said();
        self.messages.push(message);
    }

    fn flush_system(&mut self) {
        self.begun = true;
        if !self.system.is_empty() {
            let content = std::mem::take(&mut self.system).join("\n\n");
            self.messages.push(json!({"role": "system", "content": content}));
        }
    }

    fn flush_said(&mut self) {
        let said = std::mem::take(&mut self.said);
        if said.text.is_none() && said.calls.is_empty() {
            // Reasoning that nothing came of tells the model nothing.
            return;
        }
        self.flush_system();
        let mut message = json!({"role": "assistant", "content": said.text.unwrap_or_default()});
        let reasoning: Vec<String> = said.reasoning.into_iter().filter(|text| !text.is_empty()).collect();
        if !reasoning.is_empty() {
            message["reasoning"] = reasoning.join("\n").into();
        }
        if !said.calls.is_empty() {
            message["tool_calls"] = said.calls.into();
        }
        self.messages.push(message);
    }
}

impl Said {
    fn is_empty(&self) -> bool {
        self.reasoning.is_empty() && self.text.is_none() && self.calls.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::responses::store::{Bounds, Record};

    const RESPONSE: &str = "resp_0123456789abcdef0123456789abcdef";

    fn store() -> Store {
        Store::new(Bounds { count: 4, bytes: 1 << 20 })
    }

    fn told(input: Value, instructions: Option<&str>) -> Messages {
        messages(instructions, &read(input, RESPONSE, &store()).expect("items"))
    }

    #[test]
    fn a_text_is_what_the_user_says() {
        let expected = json!([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]);
        assert_eq!(Value::from(told(json!("Hi"), Some("Be kind.")).all), expected);
    }

    #[test]
    fn items_become_messages() {
        let part = |text: &str| json!({"type": "input_text", "text": text});
        let input = json!([
            {"role": "developer", "content": "Short."},
            {"role": "user", "content": [part("Weather"), part("?")]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "rain"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "sun"}]},
            {"role": "system", "content": "Hurry."},
        ]);
        let call =
            |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}});
        let expected = json!([
            {"role": "system", "content": "Be kind.\n\nShort."},
            {"role": "user", "content": "Weather\n?"},
            {"role": "assistant", "content": "I look.", "reasoning": "hm",
             "tool_calls": [call("c1", "f"), call("c2", "g")]},
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
            {"role": "tool", "tool_call_id": "c2", "content": "sun"},
            {"role": "system", "content": "Hurry."},
        ]);
        assert_eq!(Value::from(told(input, Some("Be kind.")).all), expected);
    }

    #[test]
    fn what_was_not_finished_goes_on() {
        let answer = |status: &str| json!({"role": "assistant", "content": "1, 2,", "status": status});
        let input = |status: &str| json!([{"role": "user", "content": "Count."}, answer(status)]);
        assert!(told(input("incomplete"), None).goes_on);
        assert!(!told(input("completed"), None).goes_on);
    }

    #[test]
    fn references_name_items_that_are_kept() {
        let store = store();
        let item = json!({"id": "msg_0123456789abcdef0123456789abcdef0000", "type": "message", "role": "assistant",
            "content": [{"type": "output_text", "text": "Yes."}]});
        let reference = json!([{"role": "user", "content": "?"}, {"id": item["id"]}]);
        let unknown = read(reference.clone(), RESPONSE, &store).expect_err("nothing is kept");
        assert!(unknown.message.starts_with("input[1]: Item with id 'msg_"), "{unknown}");
        store.keep(Record::ended(RESPONSE, &[], json!({"output": [item]}).to_string()));
        assert_eq!(read(reference, RESPONSE, &store).expect("items")[1], item);
    }

    #[test]
    fn what_cannot_be_told_is_refused_by_name() {
        let rows = [
            (json!([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]), "`input_image`"),
            (json!([{"type": "web_search_call", "id": "w"}]), "`web_search_call`"),
            (json!([{"type": "function_call", "call_id": "c", "name": "f"}]), "`arguments`"),
            (json!([{"type": "function_call_output", "call_id": "c"}]), "`output`"),
            (json!([{"role": "tool", "content": "x"}]), "`role`"),
            (json!([{"role": "user"}]), "`content`"),
            (json!([{"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}]), "`encrypted_content`"),
            (json!([1]), "not an object"),
            (json!([]), "empty"),
            (json!(7), "`input` must be"),
        ];
        for (input, word) in rows {
            let error = read(input.clone(), RESPONSE, &store()).expect_err("refused");
            assert!(error.message.contains(word) && error.param.as_deref() == Some("input"), "{input}: {error}");
        }
    }
}
