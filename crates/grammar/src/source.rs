//! What a request demands in one way, in the engine's terms.

use llguidance::{JsonCompileOptions, api::GrammarWithLexer};
use proto::Constraint;
use serde_json::{Map, Value};

use crate::{dialect, error::GrammarError, gbnf, names, one_of};

/// Bytes of a constraint that are looked at.
const MAX_BYTES: usize = 512 << 10;
/// The engine's own key in a schema, which changes what it enforces.
const RESERVED: &str = "x-guidance";

fn check_len(text: &str) -> Result<(), GrammarError> {
    match text.len() {
        bytes if bytes > MAX_BYTES => Err(GrammarError::TooLong { bytes, limit: MAX_BYTES }),
        _ => Ok(()),
    }
}

/// JSON of a size that is looked at.
pub(crate) fn parse(text: &str) -> Result<Value, GrammarError> {
    check_len(text)?;
    serde_json::from_str(text).map_err(|error| GrammarError::NotJson { reason: error.to_string() })
}

/// A regular expression that the whole text matches.
pub(crate) fn regex(pattern: &str) -> Result<GrammarWithLexer, GrammarError> {
    check_len(pattern)?;
    Ok(GrammarWithLexer::from_regex(pattern))
}

/// GBNF or Lark, told apart by how they write a rule.
pub(crate) fn grammar(text: &str) -> Result<GrammarWithLexer, GrammarError> {
    check_len(text)?;
    let lark = if gbnf::is_gbnf(text) { gbnf::to_lark(text)? } else { text.to_owned() };
    Ok(GrammarWithLexer::from_lark(lark))
}

/// White space between two tokens of JSON: a blank, or a line break and an indentation. Without a bound, small models
/// write blanks until `max_tokens`.
const WHITE_SPACE: &str = r" |\r?\n[ \t]{0,64}";

/// Escapes that do not spell letters and digits, as `\u` does.
const SHORT_ESCAPES: &str = "nrbtf\\\"";

/// Whether a schema names characters that JSON can write with `\u` alone.
fn has_controls(schema: &Value) -> bool {
    let text = schema.to_string();
    text.contains("\\u00") || text.contains('\u{7F}')
}

/// A JSON schema with the request's switches.
pub(crate) fn schema(schema: Value, constraint: &Constraint) -> Result<GrammarWithLexer, GrammarError> {
    let mut schema = match schema {
        Value::Object(members) => members,
        // `true` takes anything; in an object, so that the switches have a place.
        Value::Bool(true) => Map::new(),
        other => {
            let shown: String = other.to_string().chars().take(64).collect();
            return Err(GrammarError::NotJson { reason: format!("expected an object, got {shown}") });
        }
    };
    if schema.contains_key(RESERVED) {
        return Err(GrammarError::Reserved { key: RESERVED });
    }
    if constraint.disable_additional_properties {
        close_objects(&mut schema);
    }
    names::check_counted(&schema)?;
    one_of::loosen(&mut schema);
    dialect::rewrite(&mut schema);
    let has_doubles = names::have_doubles(&schema);
    let mut schema = Value::Object(schema);
    let compact = constraint.disable_any_whitespace;
    let pattern = constraint.whitespace_pattern.as_deref().unwrap_or(WHITE_SPACE);
    let options = JsonCompileOptions {
        whitespace_flexible: !compact,
        whitespace_pattern: (!compact).then(|| pattern.to_owned()),
        json_allowed_escapes: (has_doubles && !has_controls(&schema)).then(|| SHORT_ESCAPES.to_owned()),
        ..JsonCompileOptions::default()
    };
    options.apply_to(&mut schema);
    Ok(GrammarWithLexer::from_json_schema(schema))
}

/// Objects that say nothing of further properties take none, here and in all schemas inside.
fn close_objects(schema: &mut Map<String, Value>) {
    if schema.contains_key("properties") && !schema.contains_key("additionalProperties") {
        schema.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    for (key, value) in schema.iter_mut() {
        if !dialect::VALUES.contains(&key.as_str()) {
            close_within(value);
        }
    }
}

fn close_within(value: &mut Value) {
    match value {
        Value::Object(members) => close_objects(members),
        Value::Array(items) => items.iter_mut().for_each(close_within),
        _ => {}
    }
}

/// One of some strings, literally.
pub(crate) fn choice(choices: &[String]) -> Result<GrammarWithLexer, GrammarError> {
    if choices.is_empty() || choices.iter().any(String::is_empty) {
        return Err(GrammarError::NoChoice);
    }
    let bytes = choices.iter().map(String::len).sum();
    if bytes > MAX_BYTES {
        return Err(GrammarError::TooLong { bytes, limit: MAX_BYTES });
    }
    let literals: Vec<String> = choices.iter().map(|text| gbnf::quoted(text)).collect();
    Ok(GrammarWithLexer::from_lark(format!("start: {}", literals.join(" | "))))
}
