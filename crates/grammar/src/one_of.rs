//! `oneOf` of schemas that exclude each other is `anyOf`, which the engine knows: pydantic and OpenAPI write unions so
//! that a member tells apart. The engine finds that out where nothing is a reference; here references are followed.

use serde_json::{Map, Value};

use crate::dialect::VALUES;

/// References followed from one schema.
const MOST_REFERENCES: usize = 8;
/// Schemas, and names of members, that are looked at in one text; what is left then stays as it is.
const MOST_WORK: usize = 200_000;

/// Writes every `oneOf` as `anyOf` whose options exclude each other.
pub(crate) fn loosen(schema: &mut Map<String, Value>) {
    // Under an `$id` of its own, references count from there.
    if !schema.values().any(|value| has(value, "$id")) {
        let root = Value::Object(schema.clone());
        Comparison { root: &root, work: MOST_WORK }.loosen(schema);
    }
}

/// Whether an object inside has `key`.
fn has(value: &Value, key: &str) -> bool {
    match value {
        Value::Object(members) => members.contains_key(key) || members.values().any(|value| has(value, key)),
        Value::Array(items) => items.iter().any(|item| has(item, key)),
        _ => false,
    }
}

type Schema = Map<String, Value>;

/// Compares schemas of one text, within bounds.
struct Comparison<'a> {
    root: &'a Value,
    /// What may still be looked at.
    work: usize,
}

impl<'a> Comparison<'a> {
    fn loosen(&mut self, schema: &mut Schema) {
        let exclusive = match schema.get("oneOf") {
            Some(Value::Array(options)) => !schema.contains_key("anyOf") && self.exclude_each_other(options),
            _ => false,
        };
        if exclusive {
            // In its place: the order of members is that of the text.
            let rename = |(key, value)| if key == "oneOf" { ("anyOf".to_owned(), value) } else { (key, value) };
            *schema = std::mem::take(schema).into_iter().map(rename).collect();
        }
        schema.iter_mut().filter(|(key, _)| !VALUES.contains(&key.as_str())).for_each(|(_, value)| self.within(value));
    }

    fn within(&mut self, value: &mut Value) {
        match value {
            Value::Object(members) => self.loosen(members),
            Value::Array(items) => items.iter_mut().for_each(|item| self.within(item)),
            _ => {}
        }
    }

    fn exclude_each_other(&mut self, options: &[Value]) -> bool {
        let options: Vec<_> = options.iter().map(|option| self.parts(option)).collect();
        let mut pairs = options.iter().enumerate().flat_map(|(at, a)| options[at + 1..].iter().map(move |b| (a, b)));
        pairs.all(|(a, b)| self.some_pair(a, b, Self::exclude_as_objects))
    }

    /// A schema, what it refers to, and so on: all of it holds together.
    fn parts<'b>(&self, schema: &'b Value) -> Vec<&'b Schema>
    where
        'a: 'b,
    {
        let root = self.root;
        let target = |schema: &&'b Value| root.pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?);
        std::iter::successors(Some(schema), target).take(MOST_REFERENCES).filter_map(Value::as_object).collect()
    }

    fn some_pair(&mut self, a: &[&Schema], b: &[&Schema], exclude: fn(&mut Self, &Schema, &Schema) -> bool) -> bool {
        a.iter().any(|a| b.iter().any(|b| exclude(self, a, b)))
    }

    /// Counts a look, while there is work left.
    fn looks(&mut self) -> bool {
        self.work = self.work.saturating_sub(1);
        self.work > 0
    }

    /// Whether no value satisfies both, because of what it is or of a member.
    fn exclude_as_objects(&mut self, a: &Schema, b: &Schema) -> bool {
        let is_object = |schema| types(schema).is_some_and(|types| types == ["object"]);
        self.exclude_as_written(a, b) || is_object(a) && is_object(b) && self.exclude_by_a_member(a, b)
    }

    /// Whether the types or the strings of the two have nothing in common.
    fn exclude_as_written(&mut self, a: &Schema, b: &Schema) -> bool {
        let (true, Some(types_a), Some(types_b)) = (self.looks(), types(a), types(b)) else { return false };
        if !types_a.iter().any(|a| types_b.iter().any(|b| overlap(a, b))) {
            return true;
        }
        let (Some(a), Some(b)) = (words(a), words(b)) else { return false };
        self.work = self.work.saturating_sub(a.len() * b.len());
        self.work > 0 && !a.iter().any(|word| b.contains(word))
    }

    /// Whether a member that one of them requires cannot be what both want.
    fn exclude_by_a_member(&mut self, a: &Schema, b: &Schema) -> bool {
        let (Some(of_a), Some(of_b)) = (object(a, "properties"), object(b, "properties")) else { return false };
        of_a.iter().any(|(name, value)| {
            let Some(other) = of_b.get(name).filter(|_| self.looks()) else { return false };
            let (value, other) = (self.parts(value), self.parts(other));
            self.some_pair(&value, &other, Self::exclude_as_written)
                && (self.requires(a, name) || self.requires(b, name))
        })
    }

    fn requires(&mut self, schema: &Schema, name: &str) -> bool {
        let Some(Value::Array(names)) = schema.get("required") else { return false };
        names.iter().any(|required| self.looks() && required == name)
    }
}

fn object<'a>(schema: &'a Schema, key: &str) -> Option<&'a Schema> {
    schema.get(key).and_then(Value::as_object)
}

/// The types of values that a schema allows, where it says.
fn types(schema: &Schema) -> Option<Vec<&str>> {
    match (schema.get("type"), schema.get("const"), schema.get("enum")) {
        (Some(Value::String(name)), ..) => Some(vec![name]),
        (Some(Value::Array(names)), ..) => names.iter().map(Value::as_str).collect(),
        (None, Some(value), _) => Some(vec![type_of(value)]),
        (None, None, Some(Value::Array(values))) => Some(values.iter().map(type_of).collect()),
        _ => None,
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn overlap(a: &str, b: &str) -> bool {
    let wide = |name| if name == "integer" { "number" } else { name };
    wide(a) == wide(b)
}

/// The strings that a schema allows, where it lists them.
fn words(schema: &Schema) -> Option<Vec<&str>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(word), _) => word.as_str().map(|word| vec![word]),
        (None, Some(Value::Array(words))) => words.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn is_loosened(options: &Value) -> bool {
        let mut schema = json!({"title": "x", "oneOf": options, "$defs": {
            "cat": {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]},
            "dog": {"type": "object", "properties": {"kind": {"enum": ["dog", "wolf"]}}, "required": ["kind"]},
            "any": {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]},
            "tag": {"type": "object", "properties": {"kind": {"const": "tag"}}},
            "loop": {"$ref": "#/$defs/loop"}}});
        loosen(schema.as_object_mut().expect("an object"));
        assert_eq!(schema.as_object().expect("an object").keys().next().map(String::as_str), Some("title"));
        schema.get("anyOf") == Some(options)
    }

    #[test]
    fn options_that_exclude_each_other_are_a_choice() {
        let of = |names: &[&str]| -> Value {
            names.iter().map(|name| json!({"$ref": format!("#/$defs/{name}")})).collect::<Vec<_>>().into()
        };
        assert!(is_loosened(&of(&["cat", "dog"])));
        assert!(is_loosened(&of(&["cat", "tag"])), "a member that one of them requires");
        assert!(is_loosened(&json!([{"$ref": "#/$defs/cat"}, {"type": ["null", "string"]}, {"const": 3}])));
        assert!(is_loosened(&json!([{"const": "a"}, {"enum": ["b", "c"]}])));
        assert!(!is_loosened(&of(&["cat", "any"])), "a cat is any");
        assert!(!is_loosened(&of(&["cat", "dog", "cat"])));
        assert!(!is_loosened(&of(&["cat", "loop"])));
        assert!(!is_loosened(&of(&["cat", "absent"])));
        assert!(!is_loosened(&json!([{"type": "integer"}, {"type": "number"}])));
        assert!(!is_loosened(&json!([{"type": "integer"}, {"minimum": 3}])));
        assert!(!is_loosened(&json!([{"enum": ["a", "b"]}, {"enum": ["b", "c"]}])));
        let untyped = json!([{"properties": {"k": {"const": "a"}}, "required": ["k"]},
            {"properties": {"k": {"const": "b"}}, "required": ["k"]}]);
        assert!(!is_loosened(&untyped), "a number is both");
        assert!(!is_loosened(&json!([{"$ref": "#/$defs/cat"}, {"$id": "x:y", "$ref": "#/$defs/dog"}])));
    }

    #[test]
    fn much_work_is_left_undone() {
        let names: Vec<String> = (0..2000).map(|name| name.to_string()).collect();
        let members: Map<String, Value> = names.iter().map(|name| (name.clone(), json!({"const": "x"}))).collect();
        let options: Vec<Value> = vec![json!({"$ref": "#/$defs/big"}); 500];
        let mut schema = json!({"oneOf": options,
            "$defs": {"big": {"type": "object", "properties": members, "required": names}}});
        let mut comparison = Comparison { root: &schema.clone(), work: MOST_WORK };
        comparison.loosen(schema.as_object_mut().expect("an object"));
        assert!(schema.get("oneOf").is_some());
        let distinct: Vec<Value> = (0..1000).map(|word| json!({"const": word.to_string()})).collect();
        let mut schema = json!({ "oneOf": distinct });
        loosen(schema.as_object_mut().expect("an object"));
        assert!(schema.get("oneOf").is_some(), "half a million pairs");
    }

    #[test]
    fn unions_are_found_wherever_they_are_but_in_values() {
        let union = json!({"oneOf": [{"type": "null"}, {"type": "string"}]});
        let mut schema = json!({"items": [union], "properties": {"oneOf": union}, "default": union});
        loosen(schema.as_object_mut().expect("an object"));
        let loose = json!({"anyOf": [{"type": "null"}, {"type": "string"}]});
        assert_eq!(schema, json!({"items": [loose], "properties": {"oneOf": loose}, "default": union}));
    }
}
