//! What a body demands of its text: `response_format`, `structured_outputs`, and the older and other servers' fields
//! that say the same. There may be one demand; the tokenizer compiles it.

use proto::{Choices, Constraint, constraint::Kind};
use serde_json::{Map, Value, json};

use super::fields::{Fields, wrong};
use crate::error::ApiError;

/// Older fields of vLLM's, and the demand of `structured_outputs` that each is.
const GUIDED: [(&str, &str); 5] = [
    ("guided_choice", "choice"),
    ("guided_grammar", "grammar"),
    ("guided_json", "json"),
    ("guided_json_object", "json_object"),
    ("guided_regex", "regex"),
];
/// SGLang's and llama.cpp's fields; empty ones ask for nothing.
const OTHERS: [(&str, &str); 5] = [
    ("ebnf", "grammar"),
    ("grammar", "grammar"),
    ("json_schema", "json"),
    ("regex", "regex"),
    ("structural_tag", "structural_tag"),
];

/// The fields that constrain the text, of which there may be one; `response_format` may also ask for any text.
pub fn names() -> impl Iterator<Item = &'static str> {
    let aliases = GUIDED.iter().chain(&OTHERS).map(|(name, _)| *name);
    ["response_format", "structured_outputs"].into_iter().chain(aliases)
}

/// Reads all fields that constrain the text.
pub fn read(fields: &mut Fields<'_>) -> Result<Option<Constraint>, ApiError> {
    let mut found = Vec::new();
    found.extend(response_format(fields)?);
    found.extend(structured_outputs(fields)?);
    found.extend(guided(fields)?);
    found.extend(of_others(fields)?);
    let mut found = found.into_iter();
    match (found.next(), found.next()) {
        (Some(one), Some(other)) => {
            let message = format!("`{}` and `{}` both constrain the text: give one of them.", one.param, other.param);
            Err(ApiError::field(&other.param, message))
        }
        (one, _) => Ok(one),
    }
}

/// A constraint as the `format` of a structural tag.
pub fn as_format(constraint: &Constraint) -> Value {
    let schema = |schema: Value| json!({"type": "json_schema", "json_schema": schema});
    match &constraint.kind {
        Some(Kind::JsonSchema(text)) => schema(serde_json::from_str(text).unwrap_or_default()),
        Some(Kind::Regex(pattern)) => json!({"type": "regex", "pattern": pattern}),
        Some(Kind::Grammar(grammar)) => json!({"type": "grammar", "grammar": grammar}),
        Some(Kind::StructuralTag(text)) => {
            let tag: Value = serde_json::from_str(text).unwrap_or_default();
            tag.get("format").cloned().unwrap_or(tag)
        }
        Some(Kind::Choice(choices)) => {
            let of = |text: &String| json!({"type": "const_string", "value": text});
            json!({"type": "or", "elements": choices.choices.iter().map(of).collect::<Vec<_>>()})
        }
        Some(Kind::JsonObject(_)) | None => schema(json!({"type": "object"})),
    }
}

fn of(param: &str, kind: Kind) -> Constraint {
    Constraint { kind: Some(kind), param: param.to_owned(), ..Constraint::default() }
}

fn response_format(fields: &mut Fields<'_>) -> Result<Option<Constraint>, ApiError> {
    const NAME: &str = "response_format";
    let Some(format) = fields.object(NAME)? else { return Ok(None) };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(of(NAME, Kind::JsonObject(true)))),
        Some("json_schema") => {
            let inner = format.get("json_schema").and_then(Value::as_object);
            let inner = inner.ok_or_else(|| {
                ApiError::field(NAME, "`response_format.json_schema` must be an object with a `schema`.")
            })?;
            // Without a schema any JSON object will do, as for vLLM; pydantic and zod always send one.
            let schema = inner.get("schema").or_else(|| inner.get("json_schema")).filter(|schema| !schema.is_null());
            let schema = schema.cloned().unwrap_or_else(|| json!({"type": "object"}));
            Ok(Some(of(NAME, Kind::JsonSchema(schema.to_string()))))
        }
        Some("structural_tag") => Ok(Some(of(NAME, Kind::StructuralTag(Value::Object(format).to_string())))),
        _ => {
            let message = "`response_format.type` must be text, json_object, json_schema or structural_tag.";
            Err(ApiError::field(NAME, message))
        }
    }
}

/// vLLM's own field: one demand, and switches.
fn structured_outputs(fields: &mut Fields<'_>) -> Result<Option<Constraint>, ApiError> {
    const NAME: &str = "structured_outputs";
    let Some(mut members) = fields.object(NAME)? else { return Ok(None) };
    members.retain(|_, value| !value.is_null());
    let mut switch = |name: &str| match members.remove(name) {
        None => Ok(false),
        Some(Value::Bool(on)) => Ok(on),
        Some(other) => Err(wrong(&format!("{NAME}.{name}"), &other.to_string(), "true or false")),
    };
    let compact = switch("disable_any_whitespace")?;
    let closed = switch("disable_additional_properties")?;
    // What cannot be compiled is refused, whoever should have compiled it.
    switch("disable_fallback")?;
    let whitespace = match members.remove("whitespace_pattern") {
        None => None,
        Some(Value::String(pattern)) => Some(pattern),
        Some(other) => return Err(wrong("structured_outputs.whitespace_pattern", &other.to_string(), "a string")),
    };
    let mut found = members.into_iter().map(|(name, value)| {
        let kind = kind(&name, &value);
        let path = format!("{NAME}.{name}");
        kind.map_or_else(|expected| Err(wrong(&path, &value.to_string(), expected)), |kind| Ok((path.clone(), kind)))
    });
    let first = found.next().transpose()?.and_then(|(path, kind)| Some((path, kind?)));
    if let Some((path, _)) = found.next().transpose()? {
        return Err(ApiError::field(NAME, format!("`{path}`: only one of the constraints may be given.")));
    }
    let Some((_, kind)) = first else {
        return Err(ApiError::field(
            NAME,
            "`structured_outputs` must give one of json, regex, choice, grammar, \
                                          json_object or structural_tag.",
        ));
    };
    Ok(Some(Constraint {
        disable_any_whitespace: compact,
        whitespace_pattern: whitespace,
        disable_additional_properties: closed,
        ..of(NAME, kind)
    }))
}

/// A demand by vLLM's name for it; nothing where it asks for nothing. The error says what its value must be.
fn kind(name: &str, value: &Value) -> Result<Option<Kind>, &'static str> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    match name {
        "json" => schema_text(value).map(Kind::JsonSchema).map(Some).ok_or("a JSON schema: an object, or its text"),
        "json_object" => match value {
            Value::Bool(on) => Ok(on.then_some(Kind::JsonObject(true))),
            _ => Err("true or false"),
        },
        "regex" => text(value).map(Kind::Regex).map(Some).ok_or("a string"),
        "grammar" => text(value).map(Kind::Grammar).map(Some).ok_or("a string"),
        "choice" => match serde_json::from_value(value.clone()) {
            Ok(choices) => Ok(Some(Kind::Choice(Choices { choices }))),
            Err(_) => Err("a list of strings"),
        },
        "structural_tag" => schema_text(value).map(Kind::StructuralTag).map(Some).ok_or("an object, or its text"),
        _ => Err("absent: this server does not know it"),
    }
}

/// A schema as text: it may come as one, or as JSON.
fn schema_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Object(_) | Value::Bool(true) => Some(value.to_string()),
        _ => None,
    }
}

/// vLLM's older fields.
fn guided(fields: &mut Fields<'_>) -> Result<Vec<Constraint>, ApiError> {
    const BACKEND: &str = "guided_decoding_backend";
    if let Some(backend) = fields.text(BACKEND)?
        && !matches!(backend.as_str(), "auto" | "guidance")
    {
        let message = format!("`{BACKEND}`: there is one, `guidance`; leave `{backend}` out.");
        return Err(ApiError::field(BACKEND, message));
    }
    let whitespace = fields.text("guided_whitespace_pattern")?;
    let mut found = Vec::new();
    for (field, name) in GUIDED {
        found.extend(
            demanded(fields, field, name)?
                .map(|constraint| Constraint { whitespace_pattern: whitespace.clone(), ..constraint }),
        );
    }
    Ok(found)
}

fn of_others(fields: &mut Fields<'_>) -> Result<Vec<Constraint>, ApiError> {
    let mut found = Vec::new();
    for (field, name) in OTHERS {
        found.extend(demanded(fields, field, name)?);
    }
    Ok(found)
}

fn demanded(fields: &mut Fields<'_>, field: &str, name: &str) -> Result<Option<Constraint>, ApiError> {
    let Some(value) = fields.value::<Value>(field, "JSON")?.filter(|value| value != "") else { return Ok(None) };
    let kind = kind(name, &value).map_err(|expected| wrong(field, &value.to_string(), expected))?;
    Ok(kind.map(|kind| of(field, kind)))
}

/// The schema of a function's arguments; absent: any object.
pub fn parameters(function: &Map<String, Value>) -> Value {
    let given = function.get("parameters").filter(|schema| schema.is_object());
    given.cloned().unwrap_or_else(|| json!({"type": "object"}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_json(body: &str) -> Result<Option<Constraint>, ApiError> {
        read(&mut Fields::parse(body.as_bytes())?)
    }

    #[test]
    fn demands_are_read_whoever_names_them() {
        let schema = || Kind::JsonSchema("{\"type\":\"null\"}".into());
        let choice = || Kind::Choice(Choices { choices: vec!["a".into(), "b".into()] });
        let rows = [
            (r#"{"response_format":{"type":"json_object"}}"#, Kind::JsonObject(true)),
            (
                r#"{"response_format":{"type":"json_schema","json_schema":{"strict":true,"schema":{"type":"null"}}}}"#,
                schema(),
            ),
            (r#"{"structured_outputs":{"json":{"type":"null"},"regex":null}}"#, schema()),
            (r#"{"structured_outputs":{"json":"{\"type\":\"null\"}"}}"#, schema()),
            (r#"{"structured_outputs":{"choice":["a","b"]}}"#, choice()),
            (r#"{"guided_choice":["a","b"],"guided_decoding_backend":"auto"}"#, choice()),
            (r#"{"guided_json":{"type":"null"}}"#, schema()),
            (r#"{"guided_regex":"a+"}"#, Kind::Regex("a+".into())),
            (r#"{"regex":"a+","ebnf":""}"#, Kind::Regex("a+".into())),
            (r#"{"json_schema":"{\"type\":\"null\"}"}"#, schema()),
            (r#"{"grammar":"root ::= \"a\""}"#, Kind::Grammar("root ::= \"a\"".into())),
            (r#"{"ebnf":"root ::= \"a\""}"#, Kind::Grammar("root ::= \"a\"".into())),
        ];
        for (body, kind) in rows {
            let found = read_json(body).expect(body).expect(body);
            assert_eq!(found.kind, Some(kind), "{body}");
            assert!(body.contains(&format!("\"{}\"", found.param)), "{}", found.param);
        }
        for body in [r#"{}"#, r#"{"response_format":{"type":"text"},"regex":"","guided_json":null}"#] {
            assert_eq!(read_json(body), Ok(None), "{body}");
        }
        let switches = r#"{"structured_outputs":{"json_object":true,"disable_any_whitespace":true,
            "disable_additional_properties":true,"whitespace_pattern":" "}}"#;
        let found = read_json(switches).expect("read").expect("a constraint");
        assert!(found.disable_any_whitespace && found.disable_additional_properties);
        assert_eq!(found.whitespace_pattern.as_deref(), Some(" "));
    }

    #[test]
    fn demands_that_cannot_be_honoured_name_their_field() {
        let rows = [
            (r#"{"response_format":{"type":"xml"}}"#, "response_format"),
            (r#"{"response_format":"text"}"#, "response_format"),
            (r#"{"response_format":{"type":"json_schema"}}"#, "response_format"),
            (r#"{"structured_outputs":{}}"#, "structured_outputs"),
            (r#"{"structured_outputs":{"json":{},"regex":"a"}}"#, "structured_outputs"),
            (r#"{"structured_outputs":{"choice":[1]}}"#, "structured_outputs.choice"),
            (r#"{"structured_outputs":{"xpath":"a"}}"#, "structured_outputs.xpath"),
            (r#"{"guided_json":[1]}"#, "guided_json"),
            (r#"{"guided_regex":"a","guided_decoding_backend":"outlines"}"#, "guided_decoding_backend"),
            (r#"{"guided_regex":"a","response_format":{"type":"json_object"}}"#, "guided_regex"),
            (r#"{"regex":7}"#, "regex"),
        ];
        for (body, param) in rows {
            assert_eq!(read_json(body).expect_err(body).param.as_deref(), Some(param), "{body}");
        }
    }
}
