//! JSON: whatever is generated under a schema validates, by an independent validator.

mod walk;

use grammar::GrammarError;
use proto::{Constraint, constraint::Kind};
use serde_json::{Value, json};
use walk::{compiler, of, texts};

/// Schemas as applications send them.
fn schemas() -> Vec<Value> {
    vec![
        json!({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0,
            "maximum": 150}},
            "required": ["name", "age"], "additionalProperties": false}),
        json!({"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 4}),
        json!({"enum": ["red", "green", 3, null, {"a": [1, 2]}]}),
        json!({"type": "string", "pattern": "^[a-c]{2,5}$"}),
        json!({"type": "string", "minLength": 3, "maxLength": 6}),
        json!({"type": "string", "format": "date"}),
        json!({"anyOf": [{"type": "boolean"}, {"type": "object", "properties": {"x": {"type": "null"}},
            "required": ["x"]}]}),
        json!({"$defs": {"leaf": {"type": "object", "properties": {"kind": {"const": "leaf", "type": "string"}},
            "required": ["kind"], "additionalProperties": false},
            "node": {"type": "object", "properties": {"kind": {"const": "node", "type": "string"}, "child": {"anyOf": [
            {"discriminator": {"propertyName": "kind", "mapping": {"leaf": "#/$defs/leaf", "node": "#/$defs/node"}},
            "oneOf": [{"$ref": "#/$defs/leaf"}, {"$ref": "#/$defs/node"}]}, {"type": "null"}], "default": null}},
            "required": ["kind"], "additionalProperties": false}}, "$ref": "#/$defs/node"}),
        json!({"$defs": {"node": {"type": "object", "properties": {"value": {"type": "integer"},
            "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["value", "next"],
            "additionalProperties": false}}, "$ref": "#/$defs/node"}),
        json!({"type": "object", "properties": {"kind": {"const": "circle"}, "r": {"type": "number",
            "exclusiveMinimum": 0}},
            "required": ["kind"], "additionalProperties": {"type": "integer"}}),
        json!({"type": ["integer", "null"], "minimum": -3, "maximum": 3}),
        json!({"type": "object", "properties": {"tags": {"type": "array", "items": {"enum": ["a", "b"]}}},
            "required": ["tags"], "additionalProperties": false}),
        json!({"type": "integer"}),
        json!({"multipleOf": 3, "type": ["integer", "string"]}),
        json!({"type": "string", "pattern": "^\\d{2}\\s[\\w-]\\S$"}),
        json!({"type": "string", "format": "time"}),
        json!({"type": "string", "format": "date", "pattern": "-02-29$"}),
        json!({"type": "string", "format": "date-time", "pattern": "Z$"}),
        json!({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]}]}),
    ]
}

fn of_schema(schema: &Value) -> Constraint {
    of(Kind::JsonSchema(schema.to_string()))
}

#[test]
fn what_is_generated_validates() {
    let compiler = compiler();
    for schema in schemas() {
        let validator = jsonschema::options().should_validate_formats(true).build(&schema).expect("a schema");
        match texts(&compiler, &of_schema(&schema), 40) {
            Err(GrammarError::Refused { reason }) => panic!("{schema} is refused: {reason}"),
            Err(error) => panic!("{schema}: {error}"),
            Ok(texts) => {
                for text in texts {
                    let Some(value) = read(&text) else { continue };
                    assert!(validator.is_valid(&value), "{text} under {schema}");
                }
            }
        }
    }
}

/// Numbers without bounds have JSON's own form; those with bounds have neither exponent nor a value beyond them.
#[test]
fn numbers_have_exponents_where_nothing_bounds_them() {
    let compiler = compiler();
    for (schema, text, fits) in [
        (json!({"type": "number"}), "1e5", true),
        (json!({"type": "number"}), "-2.50E-10", true),
        (json!({"type": "number"}), "1E+2", true),
        (json!({}), "[1e5]", true),
        (json!({"type": ["integer", "number"]}), "3.5e0", true),
        (json!({"type": "number"}), "1e", false),
        (json!({"type": "number"}), "01", false),
        (json!({"type": "integer"}), "1e5", false),
        (json!({"type": "number", "minimum": 0}), "1e5", false),
        (json!({"type": "number", "minimum": 0}), "100000.0", true),
        (json!({"type": "number", "minimum": 1e5}), "99999.9", false),
        (json!({"type": "number", "exclusiveMaximum": 1.5e-3}), "0.0015", false),
        (json!({"type": "number", "exclusiveMaximum": 1.5e-3}), "0.00149", true),
        (json!({"type": "number", "multipleOf": 0.25}), "0.75", true),
        (json!({"type": "number", "multipleOf": 0.25}), "0.7", false),
        (json!({"type": "number", "multipleOf": 0.25}), "75e-2", false),
    ] {
        let matcher = compiler.matcher(&of_schema(&schema), None).unwrap();
        assert_eq!(walk::takes(matcher, text), fits, "{text} under {schema}");
    }
}

#[test]
fn bounds_with_exponents_hold() {
    let compiler = compiler();
    for schema in [
        json!({"type": "number", "minimum": -1e3, "maximum": 1e-3}),
        json!({"type": "number", "exclusiveMinimum": 2.5e2, "exclusiveMaximum": 1e6}),
        json!({"type": "number", "multipleOf": 1e-2, "minimum": 0}),
        json!({"type": "number", "multipleOf": 1e3}),
        json!({"type": "integer", "minimum": 1e3, "maximum": 1e4}),
        json!({"type": "number", "maximum": -1e15}),
        json!({"const": 1e5}),
        json!({"enum": [-2.5e-3, 1e2]}),
    ] {
        let validator = jsonschema::validator_for(&schema).expect("a schema");
        for text in texts(&compiler, &of_schema(&schema), 60).unwrap() {
            let value: Value = serde_json::from_str(&text).unwrap();
            assert!(validator.is_valid(&value) && !text.contains(['e', 'E']), "{text} under {schema}");
        }
    }
}

/// A text as JSON; none if it has a number that is out of this reader's range: JSON itself knows no bound.
fn read(text: &str) -> Option<Value> {
    match serde_json::from_str(text) {
        Ok(value) => Some(value),
        Err(error) if error.to_string().contains("number out of range") => None,
        Err(error) => panic!("{text}: {error}"),
    }
}

#[test]
fn any_object_is_an_object() {
    for text in texts(&compiler(), &of(Kind::JsonObject(true)), 60).unwrap() {
        assert!(read(&text).is_none_or(|value| value.is_object()), "{text}");
    }
}

#[test]
fn switches_say_how_json_is_written() {
    let compiler = compiler();
    let schema = json!({"type": "object", "properties": {"a": {"type": "object", "properties": {"b":
        {"type": "integer"}},
        "required": ["b"]}}, "required": ["a"]});
    let compact = Constraint { disable_any_whitespace: true, ..of_schema(&schema) };
    let closed = Constraint { disable_additional_properties: true, ..compact.clone() };
    for text in texts(&compiler, &closed, 20).unwrap() {
        let value: Value = serde_json::from_str(&text).unwrap();
        assert!(!text.contains(char::is_whitespace), "no space: {text}");
        assert_eq!(value["a"].as_object().map(|inner| inner.len()), Some(1), "no further property: {text}");
    }
    let open = texts(&compiler, &compact, 60).unwrap();
    assert!(open.iter().any(|text| serde_json::from_str::<Value>(text).unwrap().as_object().unwrap().len() > 1));
    let one_space = Constraint { whitespace_pattern: Some(" ".to_owned()), ..closed.clone() };
    let spaced = Constraint { disable_any_whitespace: false, ..one_space };
    let texts = texts(&compiler, &spaced, 20).unwrap();
    assert!(texts.iter().all(|text| !text.contains('\n')) && texts.iter().any(|text| text.contains(' ')), "{texts:?}");
}

/// A name that is written twice counts once.
#[test]
fn members_are_counted_by_name() {
    let compiler = compiler();
    let any = json!({"type": "integer"});
    for schema in [
        json!({"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": any}),
        json!({"type": "object", "minProperties": 2, "properties": {"a": any}, "required": ["a"],
            "patternProperties": {"^[ab]$": any}, "additionalProperties": false}),
        json!({"type": "object", "minProperties": 3, "properties": {"a": any, "b": any}, "required": ["a", "b"],
            "additionalProperties": any}),
        json!({"properties": {"minProperties": {"type": "string", "minProperties": 2}}, "type": "object"}),
    ] {
        let validator = jsonschema::validator_for(&schema).expect("a schema");
        for text in texts(&compiler, &of_schema(&schema), 60).unwrap() {
            assert!(read(&text).is_none_or(|value| validator.is_valid(&value)), "{text} under {schema}");
        }
    }
}

/// Escapes do not make another name of one that has a rule.
#[test]
fn names_are_what_they_say() {
    let compiler = compiler();
    let open = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
        "patternProperties": {"^b": {"type": "integer"}}, "additionalProperties": {"type": "string"}});
    let free = json!({"type": "object", "additionalProperties": {"type": "integer"}});
    let control = json!({"properties": {"a": {"const": "\u{1}"}}, "required": ["a"]});
    for (schema, text, fits) in [
        (&open, r#"{"a":1,"b":2,"c":"\n\"\\"}"#, true),
        (&open, r#"{"a":1,"\u0061":"x"}"#, false),
        (&open, r#"{"a":1,"\u0062":"x"}"#, false),
        (&free, r#"{"\u0001":1}"#, true),
        (&control, r#"{"a":"\u0001"}"#, true),
    ] {
        let matcher = compiler.matcher(&of_schema(schema), None).unwrap();
        assert_eq!(walk::takes(matcher, text), fits, "{text} under {schema}");
    }
}

#[test]
fn members_that_hold_values_are_left_alone() {
    let constant = json!({"const": {"properties": {"x": 1}}});
    let closed =
        Constraint { disable_additional_properties: true, disable_any_whitespace: true, ..of_schema(&constant) };
    assert_eq!(texts(&compiler(), &closed, 4).unwrap()[0], r#"{"properties":{"x":1}}"#);
}

#[test]
fn bad_schemas_are_refused_in_words() {
    let compiler = compiler();
    for (schema, word) in [
        ("{", "not valid JSON"),
        ("[1]", "expected an object"),
        (r#"{"type": "objekt"}"#, "objekt"),
        (r##"{"$ref": "#/$defs/none"}"##, "none"),
        (r#"{"type": "string", "pattern": "(a"}"#, "compiled"),
        (r#"{"type": "integer", "minimum": 5, "maximum": 3}"#, "compiled"),
        (r#"{"oneOf": [{"type": "integer"}, {"minimum": 3}]}"#, "use `anyOf`"),
        (r#"{"type": "object", "minProperties": 2, "patternProperties": {"^.$": {}}}"#, "at most 1 here"),
        (r#"{"items": {"minProperties": 3.0, "required": ["a", "a"]}}"#, "at most 2 here"),
        (r#"{"type": "object", "x-guidance": {"lenient": true}}"#, "x-guidance"),
    ] {
        let refused =
            compiler.matcher(&of(Kind::JsonSchema(schema.to_owned())), None).err().map(|error| error.to_string());
        assert!(refused.as_ref().is_some_and(|text| text.contains(word)), "{schema}: {refused:?}");
    }
}
