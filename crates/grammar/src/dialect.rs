//! Where JSON Schema means something else than the engine reads, a schema is written in the engine's terms: classes of
//! ECMA 262's regular expressions, formats (`formats.rs`), whole numbers of any length.

use serde_json::{Map, Value, json};

use crate::formats;

/// Whole numbers lie between this and its negative: they fit 64 bits, as most clients keep them.
const MOST: f64 = 9.2e18;
/// Multiples of something are checked in floating point, which is exact enough up to here.
const MOST_EXACT: f64 = 1e12;

/// ECMA's classes, which regard ASCII alone but for white space; each is written as a class that may stand in another.
const CLASSES: [(char, &str); 6] = [
    ('d', "[0-9]"),
    ('D', "[^0-9]"),
    ('w', "[A-Za-z0-9_]"),
    ('W', "[^A-Za-z0-9_]"),
    ('s', r"[\t\n\x0B\x0C\r \u{A0}\u{1680}\u{2000}-\u{200A}\u{2028}\u{2029}\u{202F}\u{205F}\u{3000}\u{FEFF}]"),
    ('S', r"[^\t\n\x0B\x0C\r \u{A0}\u{1680}\u{2000}-\u{200A}\u{2028}\u{2029}\u{202F}\u{205F}\u{3000}\u{FEFF}]"),
];

/// Members whose values are schemas by name or by pattern.
pub(crate) const NAMED: [&str; 5] = ["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"];
/// Members that hold values, not schemas.
pub(crate) const VALUES: [&str; 4] = ["const", "default", "enum", "examples"];

/// OpenAPI's members that say nothing of the value. To the engine they are schemas of their own beside the others,
/// which it cannot join with a reference to what it is reading.
const ANNOTATIONS: [&str; 5] = ["discriminator", "example", "externalDocs", "nullable", "xml"];

/// Rewrites a schema and all schemas inside.
pub(crate) fn rewrite(schema: &mut Map<String, Value>) {
    schema.retain(|key, _| !ANNOTATIONS.contains(&key.as_str()));
    bound(schema);
    formats::narrow(schema);
    if let Some(Value::String(pattern)) = schema.get_mut("pattern") {
        *pattern = classes(pattern);
    }
    if let Some(Value::Object(patterns)) = schema.get_mut("patternProperties") {
        *patterns = std::mem::take(patterns).into_iter().map(|(name, schema)| (classes(&name), schema)).collect();
    }
    for (key, value) in schema.iter_mut() {
        match value {
            Value::Object(members) if NAMED.contains(&key.as_str()) => members.values_mut().for_each(rewrite_value),
            value if !VALUES.contains(&key.as_str()) => rewrite_value(value),
            _ => {}
        }
    }
}

fn rewrite_value(value: &mut Value) {
    match value {
        Value::Object(members) => rewrite(members),
        Value::Array(items) => items.iter_mut().for_each(rewrite_value),
        _ => {}
    }
}

/// Gives whole numbers and multiples the bounds that they lack.
fn bound(schema: &mut Map<String, Value>) {
    let is_whole = match schema.get("type") {
        Some(Value::String(name)) => name == "integer",
        // With `number` the fraction makes the difference.
        Some(Value::Array(names)) => names.iter().any(|name| name == "integer") && names.iter().all(|n| n != "number"),
        _ => false,
    };
    let most = match schema.contains_key("multipleOf") {
        true => MOST_EXACT,
        false if is_whole => MOST,
        false => return,
    };
    let given = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"].map(|key| schema.get(key));
    if given.iter().flatten().any(|bound| bound.as_f64().is_some_and(|bound| bound.abs() >= most)) {
        return;
    }
    let [min, max, below, above] = given.map(|bound| bound.is_some_and(Value::is_number));
    if !min && !below {
        schema.insert("minimum".to_owned(), json!(-most));
    }
    if !max && !above {
        schema.insert("maximum".to_owned(), json!(most));
    }
}

/// A pattern with ECMA's classes written out.
fn classes(pattern: &str) -> String {
    let (mut written, mut letters) = (String::with_capacity(pattern.len()), pattern.chars());
    while let Some(letter) = letters.next() {
        if letter != '\\' {
            written.push(letter);
            continue;
        }
        let Some(escaped) = letters.next() else {
            written.push(letter);
            break;
        };
        match CLASSES.iter().find(|(name, _)| *name == escaped) {
            Some((_, class)) => written.push_str(class),
            None => written.extend([letter, escaped]),
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_written_out() {
        let rows =
            [(r"^\d+$", "^[0-9]+$"), (r"[\d.]", "[[0-9].]"), (r"\\d\D", r"\\d[^0-9]"), (r"\w\.\", r"[A-Za-z0-9_]\.\")];
        for (pattern, expected) in rows {
            assert_eq!(classes(pattern), expected, "{pattern}");
        }
    }

    #[test]
    fn schemas_are_rewritten_and_values_are_not() {
        let mut schema = json!({"const": {"type": "integer"}, "properties": {"type": {"type": ["integer", "null"],
            "minimum": 1}, "pattern": {"pattern": "\\d"}}, "patternProperties": {"^\\d": {"pattern": "\\W"}},
            "anyOf": [{"type": ["integer", "number"]}, {"type": "integer", "maximum": 1e19}]});
        rewrite(schema.as_object_mut().expect("an object"));
        let expected = json!({"const": {"type": "integer"}, "properties": {"type": {"type": ["integer", "null"],
            "minimum": 1, "maximum": MOST}, "pattern": {"pattern": "[0-9]"}},
            "patternProperties": {"^[0-9]": {"pattern": "[^A-Za-z0-9_]"}},
            "anyOf": [{"type": ["integer", "number"]}, {"type": "integer", "maximum": 1e19}]});
        assert_eq!(schema, expected);
    }
}
