//! Gemma: `<|tool_call>call:NAME{KEY:<|"|>text<|"|>,KEY:42}<tool_call|>` (4),
//! `<start_function_call>call:NAME{KEY:<escape>text<escape>} <end_function_call>` (FunctionGemma).

use std::sync::Arc;

use serde_json::{Map, Value};

use super::Reasoning;
use crate::parsers::{
    shapes::{
        Shape,
        block::{Call, Format},
    },
    tools::Tools,
};

/// Values nest this deep.
const MOST_DEPTH: usize = 64;

/// Calls of Gemma 4.
pub(super) fn gemma4(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const GEMMA: Format =
        Format { openers: &["<|tool_call>"], closer: "<tool_call|>", read: |text, tools| read(text, "<|\"|>", tools) };
    GEMMA.shape(tools)
}

/// Calls of FunctionGemma.
pub(super) fn function_gemma(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const GEMMA: Format = Format {
        openers: &["<start_function_call>"],
        closer: "<end_function_call>",
        read: |text, tools| read(text, "<escape>", tools),
    };
    GEMMA.shape(tools)
}

/// A channel named `thought`.
pub(super) const REASONING: Reasoning = Reasoning {
    open: &["<|channel>thought\n", "<|channel>thought", "<|channel>"],
    close: &["<channel|>"],
    repeats: true,
    ended_by_call: true,
    ..Reasoning::THINK
};

fn read(text: &str, quote: &'static str, tools: &Tools) -> Option<Vec<Call>> {
    let (name, rest) = text.trim().strip_prefix("call:")?.split_once('{')?;
    let name = name.trim();
    let mut reader = Reader { rest, quote };
    let arguments = reader.fields(MOST_DEPTH, &|key, text| tools.types(name, key).read(text))?;
    let ends = reader.rest.trim().is_empty() && !name.is_empty() && !name.contains(char::is_whitespace);
    ends.then(|| vec![Call { name: name.to_owned(), arguments }])
}

struct Reader<'a> {
    rest: &'a str,
    quote: &'static str,
}

/// Reads a bare word as the value of a key.
type Bare<'a> = &'a dyn Fn(&str, &str) -> Value;

impl<'a> Reader<'a> {
    /// The fields of an object behind its brace, up to the brace that ends it.
    fn fields(&mut self, depth: usize, bare: Bare<'_>) -> Option<Map<String, Value>> {
        let mut fields = Map::new();
        loop {
            self.separators();
            if self.eat("}") {
                return Some(fields);
            }
            let key = match self.quoted() {
                Some(key) => key,
                None => self.until(&[":", "}"]).trim(),
            };
            self.rest = self.rest.trim_start();
            if key.is_empty() || !self.eat(":") {
                return None;
            }
            let value = self.value(depth, &|text| bare(key, text))?;
            fields.insert(key.to_owned(), value);
        }
    }

    fn value(&mut self, depth: usize, bare: &dyn Fn(&str) -> Value) -> Option<Value> {
        self.rest = self.rest.trim_start();
        if depth == 0 {
            return None;
        }
        if let Some(text) = self.quoted() {
            let value = bare(text);
            return Some(if value.is_string() { Value::String(text.to_owned()) } else { value });
        }
        if self.eat("{") {
            return self.fields(depth - 1, &|_, text| scalar(text)).map(Value::Object);
        }
        if self.eat("[") {
            return self.list(depth - 1);
        }
        let text = self.until(&[",", "}", "]"]).trim();
        let value = bare(text);
        Some(if value.is_string() { scalar(text) } else { value })
    }

    fn list(&mut self, depth: usize) -> Option<Value> {
        let mut items = Vec::new();
        loop {
            self.separators();
            if self.eat("]") {
                return Some(Value::Array(items));
            }
            if self.rest.is_empty() || self.rest.starts_with('}') {
                return None;
            }
            items.push(self.value(depth, &scalar)?);
        }
    }

    fn separators(&mut self) {
        self.rest = self.rest.trim_start_matches(|letter: char| letter.is_whitespace() || letter == ',');
    }

    fn eat(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn quoted(&mut self) -> Option<&'a str> {
        let (text, rest) = self.rest.strip_prefix(self.quote)?.split_once(self.quote)?;
        self.rest = rest;
        Some(text)
    }

    fn until(&mut self, ends: &[&str]) -> &'a str {
        let end = ends.iter().filter_map(|end| self.rest.find(end)).min().unwrap_or(self.rest.len());
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        text
    }
}

/// A word without quotes: a number, a truth, or a text.
fn scalar(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(value @ (Value::Number(_) | Value::Bool(_) | Value::Null)) => value,
        _ => Value::String(text.to_owned()),
    }
}
