//! Formats: whatever is generated under one is one, by an independent validator and by the RFCs.

mod walk;

use std::sync::LazyLock;

use grammar::Compiler;
use proptest::prelude::*;
use proto::constraint::Kind;
use serde_json::{Value, json};
use walk::{compiler, of, takes, text};

static SHARED: LazyLock<Compiler> = LazyLock::new(compiler);

/// Every format, and what leads random texts to its borders.
fn schemas() -> Vec<Value> {
    let formats = ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"];
    let plain = formats.map(|format| json!({ "format": format }));
    let led = [
        json!({"format": "date", "pattern": "^0[0-3]*-02-2"}),
        json!({"format": "date-time", "pattern": "^0[0-3]*-02-2"}),
        json!({"format": "time", "pattern": ":5.:[56]"}),
        json!({"format": "email", "minLength": 6, "maxLength": 100}),
        json!({"format": "hostname", "minLength": 20}),
        json!({"format": "ipv6", "pattern": "^::"}),
        json!({"format": "uri", "pattern": "^a://\\["}),
        json!({"format": "uri", "pattern": "^a://b@"}),
    ];
    plain.into_iter().chain(led).collect()
}

/// What the validator does not look at.
fn is_one(format: &str, text: &str) -> bool {
    match format {
        "date" | "date-time" => !text.starts_with("0000"),
        "email" => text.len() <= 254 && text.find('@').is_some_and(|at| at <= 64),
        _ => true,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn sentences_of_a_format_are_of_it(seed: u64, mut schema in prop::sample::select(schemas())) {
        schema["type"] = json!("string");
        let mut matcher = SHARED.matcher(&of(Kind::JsonSchema(schema.to_string())), None).expect("it compiles");
        let Some(text) = text(&mut matcher, seed, 400) else { return Ok(()) };
        let value: Value = serde_json::from_slice(&text).expect("JSON");
        let validator = jsonschema::options().should_validate_formats(true).build(&schema).expect("a schema");
        let format = schema["format"].as_str().expect("a name");
        let said = value.as_str().expect("a string");
        prop_assert!(validator.is_valid(&value) && is_one(format, said), "{said} under {schema}");
    }
}

/// What is excluded is excluded alone.
#[test]
fn formats_end_where_their_texts_do() {
    let label = "a".repeat(63);
    let host = |rest: usize| format!("{label}.{label}.{label}.{}", "b".repeat(rest));
    for (format, said, fits) in [
        ("hostname", "a".to_owned(), true),
        ("hostname", "3-.b".to_owned(), false),
        ("hostname", "a-b.c--d.e-f".to_owned(), true),
        ("hostname", "xn--a".to_owned(), false),
        ("hostname", "ab--c.de".to_owned(), false),
        ("hostname", "a.b-".to_owned(), false),
        ("hostname", host(61), true),
        ("hostname", host(62), false),
        ("hostname", format!("{label}a"), false),
        ("hostname", "a.".to_owned(), false),
        ("email", "a.b+c@quire.example".to_owned(), true),
        ("email", "a@[127.0.0.1]".to_owned(), true),
        ("email", format!("{}@b", "a".repeat(64)), true),
        ("email", format!("{}@b", "a".repeat(65)), false),
        ("email", format!("a@{label}b"), false),
        ("email", format!("a@{}", host(60)), true),
        ("email", format!("a@{}", host(61)), false),
        ("date", "0000-01-01".to_owned(), false),
        ("date", "0000-02-29".to_owned(), false),
        ("date", "0001-12-31".to_owned(), true),
        ("date", "0400-02-29".to_owned(), true),
        ("date", "1900-02-29".to_owned(), false),
        ("date", "2100-02-28".to_owned(), true),
        ("date-time", "2000-02-29T23:59:59.5+01:00".to_owned(), true),
        ("date-time", "0000-03-01T00:00:00Z".to_owned(), false),
    ] {
        let schema = json!({"type": "string", "format": format}).to_string();
        let matcher = SHARED.matcher(&of(Kind::JsonSchema(schema)), None).unwrap();
        assert_eq!(takes(matcher, &json!(said).to_string()), fits, "{said} as {format}");
    }
}
