//! MiniMax M3: elements named after the arguments, which may nest; each tag stands behind `]<]minimax[>[`.

use std::{collections::HashMap, sync::Arc};

use serde_json::{Map, Value};

use super::Reasoning;
use crate::parsers::{
    shapes::{
        Shape,
        block::{Call, Format},
    },
    tools::{Tools, Types, reference},
};

const TAG: &str = "]<]minimax[>[<";
/// Elements nest this deep.
const MOST_DEPTH: usize = 64;

/// Calls of MiniMax M3.
pub(super) fn tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const M3: Format = Format { openers: &["]<]minimax[>[<tool_call>"], closer: "]<]minimax[>[</tool_call>", read };
    M3.shape(tools)
}

/// `<mm:think>…</mm:think>`
pub(super) const REASONING: Reasoning =
    Reasoning { open: &["<mm:think>"], close: &["</mm:think>"], repeats: true, ..Reasoning::THINK };

enum Element<'a> {
    Text(&'a str),
    Children(Vec<(&'a str, Element<'a>)>),
}

fn read(text: &str, tools: &Tools) -> Option<Vec<Call>> {
    let mut rest = text.trim();
    let mut calls = Vec::new();
    while !rest.is_empty() {
        let (head, inside) = rest.strip_prefix(TAG)?.strip_prefix("invoke")?.split_once('>')?;
        let name = head.trim().strip_prefix("name=")?.trim_matches(['"', '\'']);
        let (children, behind) = children(inside, "invoke", MOST_DEPTH)?;
        let schema = tools.schema(name).unwrap_or(&Value::Null);
        let arguments = object(&children, schema, schema);
        calls.push(Call { name: name.to_owned(), arguments });
        rest = behind.trim();
    }
    (!calls.is_empty()).then_some(calls)
}

type Children<'a> = Vec<(&'a str, Element<'a>)>;

/// The elements up to the end tag of `parent`, and what stands behind it. Text beside elements makes it something else.
fn children<'a>(text: &'a str, parent: &str, depth: usize) -> Option<(Children<'a>, &'a str)> {
    let mut rest = text;
    let mut found = Vec::new();
    loop {
        let (before, behind) = rest.split_once(TAG)?;
        if !before.trim().is_empty() || depth == 0 {
            return None;
        }
        let (tag, inside) = behind.split_once('>')?;
        if tag.strip_prefix('/') == Some(parent) {
            return Some((found, inside));
        }
        let (element, behind) = element(inside, tag, depth - 1)?;
        found.push((tag, element));
        rest = behind;
    }
}

fn element<'a>(text: &'a str, tag: &str, depth: usize) -> Option<(Element<'a>, &'a str)> {
    let (before, behind) = text.split_once(TAG)?;
    let (next, after) = behind.split_once('>')?;
    if next.strip_prefix('/') == Some(tag) {
        return Some((Element::Text(before), after));
    }
    let (children, after) = children(text, tag, depth)?;
    Some((Element::Children(children), after))
}

fn object(children: &[(&str, Element<'_>)], schema: &Value, root: &Value) -> Map<String, Value> {
    let mut fields = Map::new();
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for (name, element) in children {
        let value = convert(element, &schema["properties"][name], root);
        let times = seen.entry(name).or_default();
        *times += 1;
        match (*times, fields.get_mut(*name)) {
            // A name that comes again makes a list of all that it names.
            (2, Some(first)) => *first = Value::Array(vec![first.take(), value]),
            (_, Some(Value::Array(items))) => items.push(value),
            _ => drop(fields.insert((*name).to_owned(), value)),
        }
    }
    fields
}

fn convert(element: &Element<'_>, schema: &Value, root: &Value) -> Value {
    let target = schema.as_object().and_then(|fields| reference(fields, root));
    let schema = target.unwrap_or(schema);
    match element {
        Element::Text(text) => Types::of(schema, root).read(text),
        Element::Children(children) if is_list(schema) => {
            children.iter().map(|(_, child)| convert(child, &schema["items"], root)).collect()
        }
        Element::Children(children) => Value::Object(object(children, schema, root)),
    }
}

fn is_list(schema: &Value) -> bool {
    schema["type"] == "array" || (schema["type"].is_null() && schema.get("items").is_some())
}
