//! Calls of tools as something that a text can be held to: formats of structural tags.

use chat_format::parsers::CallForm;
use serde_json::{Map, Value, json};

use super::structured::parameters;

/// A function that may be called.
#[derive(Clone, Copy, Debug)]
pub struct Function<'a>(pub &'a Map<String, Value>);

/// Whether an answer may hold more than one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// One.
    One,
    /// Any number.
    Many,
}

impl<'a> Function<'a> {
    /// Of a tool of a request.
    pub fn of_tool(tool: &'a Value) -> Option<Self> {
        tool.get("function").and_then(Value::as_object).map(Self)
    }

    /// Its name.
    pub fn name(self) -> &'a str {
        self.0.get("name").and_then(Value::as_str).unwrap_or_default()
    }

    /// Whether its arguments must follow the schema, even where calls are not demanded.
    pub fn is_strict(self) -> bool {
        self.0.get("strict") == Some(&Value::Bool(true))
    }
}

/// Nothing but calls, at least one.
pub fn only(form: CallForm, functions: &[Function<'_>], calls: Calls) -> Value {
    let tags: Vec<Value> = functions.iter().map(|function| tag(form, *function, parameters(function.0))).collect();
    let all = listed(form, &tags, calls);
    let text = |text: &str| json!({"type": "const_string", "value": text});
    let ends = [text(form.before), all, text(form.after)];
    json!({"type": "sequence", "elements": ends.iter().filter(|part| part["value"] != "").collect::<Vec<_>>()})
}

/// Text with calls in it: arguments of strict functions follow their schemas. Absent: where a call begins cannot be
/// told from text.
pub fn among_text(form: CallForm, functions: &[Function<'_>], calls: Calls) -> Option<Value> {
    if form.trigger.is_empty() {
        return None;
    }
    let schema = |function: Function<'_>| match function.is_strict() {
        true => parameters(function.0),
        false => json!({"type": "object"}),
    };
    let tags: Vec<Value> = functions.iter().map(|function| tag(form, *function, schema(*function))).collect();
    let tags = match form.before {
        "" => tags,
        before => {
            vec![json!({"type": "tag", "begin": before, "content": listed(form, &tags, calls), "end": form.after})]
        }
    };
    let one = calls == Calls::One;
    Some(json!({"type": "triggered_tags", "triggers": [form.trigger], "tags": tags, "stop_after_first": one}))
}

fn listed(form: CallForm, tags: &[Value], calls: Calls) -> Value {
    json!({"type": "tags_with_separator", "tags": tags, "separator": form.separator, "at_least_one": true,
        "stop_after_first": calls == Calls::One})
}

fn tag(form: CallForm, function: Function<'_>, schema: Value) -> Value {
    // The name stands in a JSON string, or as it is; names that need escapes are none that models write.
    let begin = format!("{}{}{}", form.begin, function.name(), form.middle);
    json!({"type": "tag", "begin": begin, "content": {"type": "json_schema", "json_schema": schema}, "end": form.end})
}
