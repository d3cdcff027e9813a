//! The tools of a request: what types their parameters have. Formats that write values as bare text need them.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// References and alternatives are followed this deep.
const MOST_DEPTH: usize = 8;

/// The tools that a request offers.
#[derive(Clone, Debug, Default)]
pub struct Tools {
    parameters: HashMap<String, HashMap<String, Types>>,
    schemas: HashMap<String, Value>,
}

/// The JSON types that a value may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Types {
    null: bool,
    integer: bool,
    number: bool,
    boolean: bool,
    object: bool,
    array: bool,
    string: bool,
}

impl Tools {
    /// Reads the `tools` array of a request: objects with `function`, or functions themselves. What is malformed has no
    /// parameters.
    pub fn new(tools: &[Value]) -> Self {
        let mut known = Self::default();
        for tool in tools {
            let function = tool.get("function").unwrap_or(tool);
            let Some(name) = function.get("name").and_then(Value::as_str) else { continue };
            let schema = function.get("parameters").or_else(|| function.get("input_schema")).unwrap_or(&Value::Null);
            let properties = schema.get("properties").and_then(Value::as_object);
            let types = properties.into_iter().flatten();
            let types = types.map(|(key, value)| (key.clone(), Types::of(value, schema))).collect();
            known.parameters.insert(name.to_owned(), types);
            known.schemas.insert(name.to_owned(), schema.clone());
        }
        known
    }

    /// Whether a tool of that name is offered.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.parameters.contains_key(name)
    }

    /// Types of a parameter; a text, where nothing is known of it.
    pub(crate) fn types(&self, tool: &str, parameter: &str) -> Types {
        let known = self.parameters.get(tool).and_then(|parameters| parameters.get(parameter));
        known.copied().unwrap_or(Types::STRING)
    }

    /// The schema of a tool's parameters.
    pub(crate) fn schema(&self, tool: &str) -> Option<&Value> {
        self.schemas.get(tool)
    }
}

impl Types {
    /// A text.
    pub(crate) const STRING: Self =
        Self { null: false, integer: false, number: false, boolean: false, object: false, array: false, string: true };

    /// The types that `schema` allows; `root` holds what it refers to.
    pub(crate) fn of(schema: &Value, root: &Value) -> Self {
        let mut types = Self::default();
        types.add(schema, root, MOST_DEPTH);
        if types == Self::default() { Self::STRING } else { types }
    }

    /// Whether only texts are allowed.
    pub(crate) fn is_string(self) -> bool {
        self == Self::STRING
    }

    /// The type of that name, also in the words of programming languages.
    pub(crate) fn named(name: &str) -> Self {
        let mut types = Self::default();
        types.add_name(name);
        if types == Self::default() { Self::STRING } else { types }
    }

    /// The value that `text` stands for: of the first allowed type that it reads as, else a text.
    pub(crate) fn read(self, text: &str) -> Value {
        let trimmed = text.trim();
        if self.null && trimmed.eq_ignore_ascii_case("null") {
            return Value::Null;
        }
        if (self.integer || self.number)
            && let Some(number) = number(trimmed, self.number)
        {
            return number;
        }
        if self.boolean {
            match trimmed.to_ascii_lowercase().as_str() {
                "true" | "1" => return Value::Bool(true),
                "false" | "0" => return Value::Bool(false),
                _ => {}
            }
        }
        if (self.object || self.array)
            && let Ok(value @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(trimmed)
        {
            return value;
        }
        Value::String(text.to_owned())
    }

    fn add(&mut self, schema: &Value, root: &Value, depth: usize) {
        let Value::Object(fields) = schema else { return };
        match fields.get("type") {
            Some(Value::String(name)) => self.add_name(name),
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).for_each(|name| self.add_name(name)),
            _ => {}
        }
        for value in fields.get("enum").and_then(Value::as_array).into_iter().flatten().chain(fields.get("const")) {
            self.add_value(value);
        }
        if depth == 0 {
            return;
        }
        for choices in ["anyOf", "oneOf", "allOf"].iter().filter_map(|name| fields.get(*name)?.as_array()) {
            choices.iter().for_each(|choice| self.add(choice, root, depth - 1));
        }
        if let Some(target) = reference(fields, root) {
            self.add(target, root, depth - 1);
        }
    }

    fn add_name(&mut self, name: &str) {
        match name.trim().to_ascii_lowercase().as_str() {
            "null" | "none" => self.null = true,
            "integer" | "int" | "long" | "short" => self.integer = true,
            "number" | "float" | "double" => self.number = true,
            "boolean" | "bool" => self.boolean = true,
            "object" | "dict" | "map" => self.object = true,
            "array" | "list" | "tuple" => self.array = true,
            "string" | "str" | "text" | "enum" => self.string = true,
            _ => {}
        }
    }

    fn add_value(&mut self, value: &Value) {
        match value {
            Value::Null => self.null = true,
            Value::Bool(_) => self.boolean = true,
            Value::Number(number) if number.is_f64() => self.number = true,
            Value::Number(_) => self.integer = true,
            Value::String(_) => self.string = true,
            Value::Array(_) => self.array = true,
            Value::Object(_) => self.object = true,
        }
    }
}

/// What `$ref` points to inside `root`.
pub(crate) fn reference<'a>(schema: &Map<String, Value>, root: &'a Value) -> Option<&'a Value> {
    root.pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?)
}

/// A whole number, or any where `fractions` are allowed.
fn number(text: &str, fractions: bool) -> Option<Value> {
    if let Ok(whole) = text.parse::<i64>() {
        return Some(whole.into());
    }
    let float: f64 = text.parse().ok().filter(|float: &f64| fractions && float.is_finite())?;
    let whole = float.fract() == 0.0 && float.abs() < 9e15;
    if whole { Some((float as i64).into()) } else { serde_json::Number::from_f64(float).map(Value::Number) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_follow_the_schema() {
        let schema = json!({"properties": {
            "s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"},
            "o": {"type": "object"}, "a": {"type": ["array", "null"]}, "r": {"$ref": "#/$defs/x"},
            "u": {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "e": {"enum": [1, 2]},
            "loop": {"$ref": "#/$defs/l"},
        }, "$defs": {"x": {"type": "boolean"}, "l": {"$ref": "#/$defs/l"}}});
        let tools = Tools::new(&[json!({"type": "function", "function": {"name": "f", "parameters": schema}})]);
        let rows = [
            ("s", "12", json!("12")),
            ("i", "12", json!(12)),
            ("i", "1.5", json!("1.5")),
            ("n", "1.50", json!(1.5)),
            ("n", "2.0", json!(2)),
            ("n", "inf", json!("inf")),
            ("b", "True", json!(true)),
            ("o", "{\"k\": [1]}", json!({"k": [1]})),
            ("o", "{broken", json!("{broken")),
            ("a", "null", json!(null)),
            ("a", "[1]", json!([1])),
            ("r", "false", json!(false)),
            ("u", "7", json!(7)),
            ("u", "seven", json!("seven")),
            ("e", "2", json!(2)),
            ("loop", "x", json!("x")),
            ("unknown", "7", json!("7")),
        ];
        for (parameter, text, expected) in rows {
            assert_eq!(tools.types("f", parameter).read(text), expected, "{parameter} {text}");
        }
        assert!(tools.has("f") && !tools.has("g"));
    }
}
