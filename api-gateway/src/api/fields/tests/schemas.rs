//! The document says what the parsers demand: bodies drawn from a schema are read, and bodies that break it are
//! refused.

use proptest::{
    strategy::{Strategy, ValueTree},
    string::string_regex,
    test_runner::{Config, RngSeed, TestRunner},
};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};

use std::collections::BTreeMap;

use super::*;
use crate::{api::openapi::components, responses::request};

/// Bodies that are drawn of each schema.
const BODIES: u64 = 200;

/// What a schema cannot say, by a part of the refusal.
const BEYOND_SCHEMAS: [&str; 18] = [
    // One number depends on another.
    "`min_tokens` must be at most",
    "`best_of`, the width",
    "min_pattern_size` must be",
    "`prompt_logprobs` must equal `logprobs`",
    "more than 131072 choices",
    // One field names a part of another.
    "`tools` has no function",
    "`tool_choice.tools` must name functions",
    "cannot be held to their schemas",
    "`use_beam_search`: demand a text",
    // Of an echoed prompt.
    "`use_beam_search`: ask for the prompt's",
    // Of this model.
    "cannot be cut",
    "`task` must be",
    // Turns that say nothing.
    "`messages` must not be empty",
    "`input` must not be empty",
    "must be a single prompt",
    // What the server keeps.
    "not found",
    "the model has no prompt of the name",
    // As many texts on both sides.
    "expected one, or as many",
];

/// Draws values of schemas.
struct Drawing<'a> {
    schemas: &'a Value,
    random: StdRng,
    patterns: TestRunner,
}

impl Drawing<'_> {
    fn chance(&mut self, one_in: u32) -> bool {
        self.random.random_range(0..one_in) == 0
    }

    fn value(&mut self, schema: &Value) -> Value {
        if let Some(name) = schema["$ref"].as_str() {
            let named = self.schemas[name.rsplit('/').next().expect("a name")].clone();
            return self.value(&named);
        }
        if let Some(values) = schema["enum"].as_array() {
            return values.choose(&mut self.random).expect("a value").clone();
        }
        if let Some(ways) = schema["anyOf"].as_array() {
            let way = ways.choose(&mut self.random).expect("a way").clone();
            return self.value(&way);
        }
        let kind = match &schema["type"] {
            Value::Array(kinds) => kinds.choose(&mut self.random).and_then(Value::as_str).expect("a type").to_owned(),
            kind => kind.as_str().unwrap_or("any").to_owned(),
        };
        match kind.as_str() {
            "null" => Value::Null,
            "boolean" => self.chance(2).into(),
            "integer" => self.whole(schema).into(),
            "number" => self.number(schema).into(),
            "string" => self.text(schema).into(),
            "array" => self.list(schema),
            "object" => self.object(schema),
            _ => json!([1, "x"]),
        }
    }

    fn whole(&mut self, schema: &Value) -> i64 {
        let least = schema["minimum"].as_i64().unwrap_or(-5);
        let most = schema["maximum"].as_i64().unwrap_or(i64::MAX);
        match self.random.random_range(0..4) {
            0 => least,
            1 => most,
            _ => self.random.random_range(least..=most.min(least.saturating_add(20))),
        }
    }

    fn number(&mut self, schema: &Value) -> f64 {
        let bound = |name: &str| schema[name].as_f64();
        let least = bound("minimum").or(bound("exclusiveMinimum").map(|least| least + 1e-6)).unwrap_or(-3.0);
        let most = bound("maximum").or(bound("exclusiveMaximum").map(|most| most - 1e-6)).unwrap_or(least + 9.0);
        if self.chance(3) { most } else { self.random.random_range(least..=most) }
    }

    fn text(&mut self, schema: &Value) -> String {
        if let Some(pattern) = schema["pattern"].as_str() {
            let strategy = string_regex(pattern.trim_matches(['^', '$'])).expect("a pattern");
            return strategy.new_tree(&mut self.patterns).expect("a text").current();
        }
        if schema["format"] == "regex" {
            return "a+".to_owned();
        }
        let least = schema["minLength"].as_u64().unwrap_or(0);
        let most = schema["maxLength"].as_u64().unwrap_or(least + 5).min(least + 600);
        let length = if self.chance(4) { most } else { self.random.random_range(least..=most.min(least + 5)) };
        (0..length).map(|_| *['a', 'é', ' ', '{', '"', '語'].choose(&mut self.random).expect("a letter")).collect()
    }

    fn list(&mut self, schema: &Value) -> Value {
        let least = schema["minItems"].as_u64().unwrap_or(0);
        let most = schema["maxItems"].as_u64().unwrap_or(least + 3).min(least + 3);
        let length = self.random.random_range(least..=most);
        (0..length).map(|_| self.value(&schema["items"])).collect()
    }

    /// An object that follows one way of each rule.
    fn object(&mut self, schema: &Value) -> Value {
        let mut members = schema["properties"].as_object().cloned().unwrap_or_default();
        let held = self.ways(schema["allOf"].as_array().map_or(&[], Vec::as_slice));
        let mut needed: Vec<Value> = schema["required"].as_array().cloned().unwrap_or_default();
        needed.extend(held.required);
        for (name, held) in &held.properties {
            narrow(members.get_mut(name).unwrap_or_else(|| panic!("no field {name}")), held);
        }
        let mut drawn = Map::new();
        for (name, member) in &members {
            if needed.iter().any(|needed| needed == name) || self.chance(5) {
                drawn.insert(name.clone(), self.value(member));
            }
        }
        let others = &schema["additionalProperties"];
        if others.is_object() {
            let most = schema["maxProperties"].as_u64().unwrap_or(3);
            for _ in 0..self.random.random_range(0..=most.min(3)) {
                let name = self.text(&schema["propertyNames"]);
                let value = self.value(others);
                drawn.insert(name, value);
            }
        }
        Value::Object(drawn)
    }

    /// One way of each rule, together: no field is held to two things.
    fn ways(&mut self, rules: &[Value]) -> Held {
        loop {
            let mut held = Held::default();
            let mut agree = true;
            for rule in rules {
                let way = rule["anyOf"].as_array().expect("ways").choose(&mut self.random).expect("a way");
                held.required.extend(way["required"].as_array().cloned().unwrap_or_default());
                for (name, value) in way["properties"].as_object().expect("held fields") {
                    let before = held.properties.insert(name.clone(), value.clone());
                    agree &= before.is_none_or(|before| before == *value);
                }
            }
            if agree {
                return held;
            }
        }
    }
}

/// What rules hold a body to.
#[derive(Default)]
struct Held {
    required: Vec<Value>,
    properties: Map<String, Value>,
}

/// Holds a field's schema to what a rule says.
fn narrow(member: &mut Value, held: &Value) {
    let some = held["not"]["type"] == "null" || held["minItems"].is_u64();
    if !some {
        // An object whose members are held is left out.
        *member = if held["properties"].is_object() { json!({"type": "null"}) } else { held.clone() };
        return;
    }
    if let Value::Array(kinds) = &mut member["type"] {
        kinds.retain(|kind| kind != "null");
    }
    if let Some(ways) = member["anyOf"].as_array_mut() {
        ways.retain(|way| way["type"] != "null");
        for way in ways.iter_mut().filter(|_| held["minItems"].is_u64()) {
            way["minItems"] = held["minItems"].clone();
        }
    }
}

/// Reads a body as its route does.
fn verdict(body: Body, json: &Value) -> Result<(), ApiError> {
    let (text, limits) = (json.to_string(), limits());
    let (bytes, envelope) = (text.as_bytes(), envelope(Arrival::now()));
    match body {
        Body::Responses => {
            let store = Store::new(Bounds { count: 1, bytes: 1 });
            request::read(bytes, &limits, &envelope, &store).map(drop)
        }
        Body::Messages => anthropic::request::read(bytes, &limits, &envelope).map(drop),
        Body::CountTokens => anthropic::request::read_prompt(bytes, &limits).map(drop),
        other => try_read(other, json),
    }
}

fn schemas() -> Value {
    let components = serde_json::to_value(components(&limits()).build()).expect("JSON");
    let mut schemas = components["schemas"].clone();
    for body in Body::ALL {
        // Also those that the document tells in words.
        schemas[body.name()]["allOf"] = rules::of(body).iter().map(rules::Rule::schema).collect();
    }
    schemas
}

#[test]
fn bodies_that_the_document_allows_are_read() {
    let (schemas, mut refusals) = (schemas(), BTreeMap::new());
    for body in Body::ALL {
        let mut read = 0;
        for seed in 0..BODIES {
            let config = Config { rng_seed: RngSeed::Fixed(seed), ..Config::default() };
            let (random, patterns) = (StdRng::seed_from_u64(seed), TestRunner::new(config));
            let drawn = Drawing { schemas: &schemas, random, patterns }.value(&schemas[body.name()]);
            match verdict(body, &drawn) {
                Ok(()) => read += 1,
                Err(error) => {
                    let known = BEYOND_SCHEMAS.iter().any(|part| error.message.contains(part));
                    if !known {
                        refusals.entry(format!("{body:?}: {error}")).or_insert((seed, drawn));
                    }
                }
            }
        }
        assert!(read > BODIES / 4, "{body:?}: {read} of {BODIES}");
    }
    assert!(refusals.is_empty(), "{refusals:#?}");
}

/// A value that a member's schema does not take, where there is one.
fn breaking(schema: &Value) -> Option<Value> {
    let takes = |kind: &str| {
        let of = |schema: &Value| match &schema["type"] {
            Value::Array(kinds) => kinds.iter().any(|one| one == kind),
            one => one == kind,
        };
        of(schema) || schema["anyOf"].as_array().is_some_and(|ways| ways.iter().any(of))
    };
    let at_bound = |name: &str, by: i64| schema[name].as_i64().and_then(|bound| bound.checked_add(by)).map(Value::from);
    match schema {
        _ if schema["enum"].is_array() => Some("no such word".into()),
        _ if schema["minLength"] == 1 => Some("".into()),
        _ if schema["minItems"] == 1 => Some(json!([])),
        _ if schema["minimum"].is_i64() => at_bound("minimum", -1),
        _ if schema["maximum"].is_i64() => at_bound("maximum", 1),
        _ => {
            let others = [("number", json!(7.5)), ("boolean", json!(true)), ("string", json!("x"))];
            let known = ["array", "boolean", "null", "number", "object", "string"].into_iter().any(takes);
            let other = others.into_iter().find(|(kind, _)| known && !takes(kind) && !takes("integer"));
            other.map(|(_, value)| value)
        }
    }
}

#[test]
fn bodies_that_the_document_excludes_are_refused() {
    let (schemas, mut taken) = (schemas(), Vec::new());
    for body in Body::ALL {
        for field in of(body).iter().filter(|field| !matches!(field.fate, Fate::WithoutEffect(_))) {
            let Some(value) = breaking(&schemas[body.name()]["properties"][field.name]) else { continue };
            // Fields of conversations count where there is one.
            let mut json = least(if body == Body::Tokenize && field.name != "prompt" { Body::Chat } else { body });
            json[field.name] = value;
            taken.extend(verdict(body, &json).is_ok().then(|| format!("{body:?} {}: {json}", field.name)));
        }
        for name in schemas[body.name()]["required"].as_array().into_iter().flatten() {
            let mut json = least(body);
            json.as_object_mut().expect("an object").shift_remove(name.as_str().expect("a name"));
            taken.extend(verdict(body, &json).is_ok().then(|| format!("{body:?} without {name}")));
        }
    }
    assert!(taken.is_empty(), "{taken:#?}");
}
