//! What fields of one body have to do with each other, as far as a schema can say it: which exclude each other, and
//! which need another one. The parser's own tables say it where it has one.

use serde_json::{Map, Value, json};

use crate::{
    api::operation::Body,
    openai::{beams, structured},
    pooling::score,
};

/// A rule: a body follows one of its ways.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// In words.
    pub words: String,
    ways: Vec<Way>,
}

/// A way to follow a rule: fields that a body must have, and values that fields are held to.
#[derive(Clone, Debug, Default, PartialEq)]
struct Way {
    has: Vec<&'static str>,
    held: Vec<(&'static str, Value)>,
}

impl Rule {
    fn new<const N: usize>(words: &str, ways: [Way; N]) -> Self {
        Self { words: words.to_owned(), ways: ways.to_vec() }
    }

    /// As a JSON schema.
    pub fn schema(&self) -> Value {
        json!({"anyOf": self.ways.iter().map(Way::schema).collect::<Vec<_>>()})
    }

    /// How many ways there are.
    pub fn ways(&self) -> usize {
        self.ways.len()
    }

    /// `field` asks for nothing (it is `idle`) unless `switch` is set.
    fn needs(field: &'static str, idle: Value, switch: &'static str) -> Self {
        let words = format!("`{field}` needs `{switch}`");
        Self::new(&words, [Way::of(&[], &[(field, idle)]), Way::of(&[switch], &[(switch, exactly(true))])])
    }

    /// `field` is absent where `switch` is set.
    fn excludes(switch: &'static str, field: &'static str) -> Self {
        let words = format!("`{switch}` excludes `{field}`");
        Self::new(&words, [Way::of(&[], &[(switch, off())]), Way::of(&[], &[(field, nothing())])])
    }

    /// At most one of the fields asks for something; each with what it may be where it does not.
    fn one_of(fields: &[(&'static str, Value)]) -> Self {
        let way = |at: usize| Way {
            has: Vec::new(),
            held: fields.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, held)| held.clone()).collect(),
        };
        let words = format!("one at most of {}", listed(fields.iter().map(|(name, _)| *name)));
        Self { words, ways: (0..fields.len()).map(way).collect() }
    }

    /// One of the groups of fields is there.
    fn some(groups: &[&[&'static str]]) -> Self {
        let there = |name: &&'static str| (*name, json!({"not": {"type": "null"}}));
        let way = |group: &&[&'static str]| Way { has: group.to_vec(), held: group.iter().map(there).collect() };
        let all: Vec<String> = groups.iter().map(|group| listed(group.iter().copied())).collect();
        Self { words: format!("there must be {}", all.join(" or ")), ways: groups.iter().map(way).collect() }
    }
}

fn listed(names: impl Iterator<Item = &'static str>) -> String {
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

impl Way {
    fn of(has: &[&'static str], held: &[(&'static str, Value)]) -> Self {
        Self { has: has.to_vec(), held: held.to_vec() }
    }

    fn schema(&self) -> Value {
        let held: Map<String, Value> =
            self.held.iter().map(|(name, held)| ((*name).to_owned(), held.clone())).collect();
        let mut way = json!({"properties": held});
        if !self.has.is_empty() {
            way["required"] = json!(self.has);
        }
        way
    }
}

fn nothing() -> Value {
    json!({"type": "null"})
}

fn off() -> Value {
    json!({"enum": [false, null]})
}

fn exactly(value: impl Into<Value>) -> Value {
    json!({"enum": [value.into()]})
}

/// The rules of a body, about fields that it has.
pub fn of(body: Body) -> Vec<Rule> {
    let names: Vec<&str> = super::of(body).iter().map(|field| field.name).collect();
    let mut rules = all(body);
    for way in rules.iter_mut().flat_map(|rule| &mut rule.ways) {
        way.held.retain(|(name, _)| names.contains(name));
    }
    rules
}

fn all(body: Body) -> Vec<Rule> {
    match body {
        Body::Chat => [generating(), chat()].concat(),
        Body::Completion => [generating(), completion()].concat(),
        Body::Responses => vec![
            called(CHOICES_OF_CHATS),
            Rule::needs("stream_options", nothing(), "stream"),
            Rule::new(
                "`background` needs `store`",
                [Way::of(&[], &[("background", off())]), Way::of(&[], &[("store", json!({"enum": [true, null]}))])],
            ),
        ],
        Body::Messages => {
            let no_format = json!({"type": ["object", "null"], "properties": {"format": nothing()}});
            vec![
                Rule::one_of(&[("output_format", nothing()), ("output_config", no_format)]),
                called(CHOICES_OF_MESSAGES),
            ]
        }
        Body::Embeddings | Body::Classify | Body::Pooling => {
            vec![
                Rule::some(&[&["input"], &["messages"]]),
                Rule::one_of(&[("input", nothing()), ("messages", nothing())]),
            ]
        }
        Body::CountTokens => vec![called(CHOICES_OF_MESSAGES)],
        Body::Tokenize => vec![called(CHOICES_OF_CHATS), Rule::some(&[&["prompt"], &["messages"]]), continued()],
        Body::Score => {
            let groups: Vec<&[&'static str]> = score::NAMES.iter().map(<[&'static str; 2]>::as_slice).collect();
            vec![Rule::some(&groups)]
        }
        _ => Vec::new(),
    }
}

/// Of both generating routes of OpenAI's.
fn generating() -> Vec<Rule> {
    let any_text = json!({"anyOf": [
        nothing(), {"type": "object", "required": ["type"], "properties": {"type": exactly("text")}}]});
    let idle = |name: &'static str| if name == "response_format" { any_text.clone() } else { nothing() };
    let demands: Vec<(&'static str, Value)> = structured::names().map(|name| (name, idle(name))).collect();
    let beamless: Vec<(&'static str, Value)> =
        beams::left_out().map(|name| (name, nothing())).chain(demands.iter().cloned()).collect();
    vec![
        Rule::new(
            &format!("`use_beam_search` excludes {}", listed(beamless.iter().map(|(name, _)| *name))),
            [Way::of(&[], &[("use_beam_search", off())]), Way::of(&[], &beamless)],
        ),
        Rule::needs("stream_options", nothing(), "stream"),
        Rule::needs("best_of", nothing(), "use_beam_search"),
        Rule::one_of(&demands),
        Rule::excludes("stream", "prompt_logprobs"),
        Rule::needs("early_stopping", off(), "use_beam_search"),
        Rule::needs("length_penalty", json!({"enum": [1, null]}), "use_beam_search"),
    ]
}

fn chat() -> Vec<Rule> {
    vec![Rule::needs("top_logprobs", json!({"enum": [0, null]}), "logprobs"), continued(), called(CHOICES_OF_CHATS)]
}

/// Choices that demand no call.
const CHOICES_OF_CHATS: fn() -> Value = || json!({"enum": ["auto", "none", null]});
const CHOICES_OF_MESSAGES: fn() -> Value =
    || json!({"type": ["object", "null"], "properties": {"type": {"enum": ["auto", "none"]}}});

/// A call may be demanded where there are tools.
fn called(idle: fn() -> Value) -> Rule {
    let some = json!({"type": "array", "minItems": 1});
    let ways = [Way::of(&[], &[("tool_choice", idle())]), Way::of(&["tools"], &[("tools", some)])];
    Rule::new("a `tool_choice` that demands a call needs `tools`", ways)
}

/// What goes on begins no answer, which prompts do unless they are told not to.
fn continued() -> Rule {
    let no_answer = ("add_generation_prompt", exactly(false));
    let ways = [Way::of(&[], &[("continue_final_message", off())]), Way::of(&[no_answer.0], &[no_answer])];
    Rule::new("`continue_final_message` needs `add_generation_prompt` to be false", ways)
}

fn completion() -> Vec<Rule> {
    let echoes = Way::of(&["echo"], &[("echo", exactly(true))]);
    let some = json!({"anyOf": [nothing(), {"type": "integer", "minimum": 1}]});
    vec![
        Rule::excludes("echo", "suffix"),
        Rule::new("`max_tokens` may be 0 with `echo` alone", [Way::of(&[], &[("max_tokens", some)]), echoes]),
    ]
}
