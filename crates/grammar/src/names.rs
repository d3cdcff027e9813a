//! Names of members: the engine compares them as they are written, and readers of JSON by what they say. A name that
//! is written twice, or with escapes, makes the difference, which a grammar without memory cannot see.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::{
    dialect::{NAMED, VALUES},
    error::GrammarError,
};

/// Refuses schemas, here and inside, whose `minProperties` counts more than one name that a text chooses. Names that
/// are required are written once, and a single other one differs from these; a text with a name twice has fewer than
/// it wrote, so that `maxProperties` holds.
pub(crate) fn check_counted(schema: &Map<String, Value>) -> Result<(), GrammarError> {
    let too_many = first(schema, &|schema| {
        let min = schema.get("minProperties")?.as_f64()?;
        let most = required(schema) + 1;
        (is_object(schema) && !(is_closed(schema) && patterns(schema) == 0) && min > most as f64).then_some(most)
    });
    too_many.map_or(Ok(()), |most| Err(GrammarError::Counted { most }))
}

/// Whether some object, here or inside, takes further names beside those it has rules for: with escapes, these could
/// be written as further ones.
pub(crate) fn have_doubles(schema: &Map<String, Value>) -> bool {
    let properties =
        |schema: &Map<String, Value>| schema.get("properties").and_then(Value::as_object).map_or(0, Map::len);
    let is_double = |schema: &Map<String, Value>| {
        let ruled = properties(schema) + patterns(schema) + required(schema);
        (is_object(schema) && !is_closed(schema) && ruled > 0).then_some(())
    };
    first(schema, &is_double).is_some()
}

/// What is found in a schema, or else in one inside.
fn first<T>(schema: &Map<String, Value>, find: &dyn Fn(&Map<String, Value>) -> Option<T>) -> Option<T> {
    let inside = |(key, value): (&String, &Value)| match value {
        Value::Object(members) if NAMED.contains(&key.as_str()) => {
            members.values().find_map(|value| first_within(value, find))
        }
        value if !VALUES.contains(&key.as_str()) => first_within(value, find),
        _ => None,
    };
    find(schema).or_else(|| schema.iter().find_map(inside))
}

fn first_within<T>(value: &Value, find: &dyn Fn(&Map<String, Value>) -> Option<T>) -> Option<T> {
    match value {
        Value::Object(members) => first(members, find),
        Value::Array(items) => items.iter().find_map(|item| first_within(item, find)),
        _ => None,
    }
}

/// How many different names are required.
fn required(schema: &Map<String, Value>) -> usize {
    let Some(Value::Array(names)) = schema.get("required") else { return 0 };
    names.iter().filter_map(Value::as_str).collect::<BTreeSet<_>>().len()
}

fn patterns(schema: &Map<String, Value>) -> usize {
    schema.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len)
}

fn is_object(schema: &Map<String, Value>) -> bool {
    match schema.get("type") {
        Some(Value::String(name)) => name == "object",
        Some(Value::Array(names)) => names.iter().any(|name| name == "object"),
        _ => true,
    }
}

/// Whether no name but those with rules is taken.
fn is_closed(schema: &Map<String, Value>) -> bool {
    schema.get("additionalProperties") == Some(&Value::Bool(false))
}
