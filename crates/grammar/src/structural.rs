//! Structural tags: free text with parts that follow a schema between tags, in the format that XGrammar has for them.
//!
//! ```text
//! {"type": "triggered_tags", "triggers": ["<call>"],
//!  "tags": [{"type": "tag", "begin": "<call>{", "content": {"type": "json_schema", …}, "end": "}</call>"}]}
//! ```
//!
//! Becomes one Lark grammar, and one more for each schema, pattern or grammar in it. Names of special tokens in a
//! literal mean those tokens; other literals may be written by any tokens.

use llguidance::api::GrammarWithLexer;
use proto::Constraint;
use serde_json::{Map, Value};

use crate::{
    error::GrammarError,
    gbnf::pattern,
    source,
    vocabulary::{Part, Vocabulary},
};

/// Formats within formats.
const MAX_DEPTH: usize = 32;
/// Tags, literals and schemas of one format.
const MAX_PARTS: usize = 4096;

/// The grammars of a structural tag, the one to start with first: `{"format": …}`, a format itself, or the older
/// `{"structures": […], "triggers": […]}`.
pub(crate) fn translate(
    tag: &Value,
    constraint: &Constraint,
    vocabulary: &Vocabulary,
) -> Result<Vec<GrammarWithLexer>, GrammarError> {
    let mut writer = Writer { constraint, vocabulary, rules: String::new(), grammars: Vec::new(), count: 0 };
    let older = older(tag);
    let format = older.as_ref().or(tag.get("format")).unwrap_or(tag);
    let start = writer.format(format, Place { depth: 0, last: true })?;
    let lark = format!("start: {start}\n{}", writer.rules);
    writer.grammars.insert(0, GrammarWithLexer::from_lark(lark));
    Ok(writer.grammars)
}

/// The older form as a format.
fn older(tag: &Value) -> Option<Value> {
    let structures = tag.get("structures")?.as_array()?;
    let tags = structures.iter().map(|structure| {
        let text = |name: &str| structure.get(name).cloned().unwrap_or_default();
        let schema = structure.get("schema").or_else(|| structure.get("schema_")).cloned().unwrap_or_default();
        serde_json::json!({"type": "tag", "begin": text("begin"), "end": text("end"),
            "content": {"type": "json_schema", "json_schema": schema}})
    });
    let (triggers, tags) = (tag.get("triggers").cloned().unwrap_or_default(), tags.collect::<Vec<_>>());
    Some(serde_json::json!({"type": "triggered_tags", "triggers": triggers, "tags": tags}))
}

struct Writer<'a> {
    constraint: &'a Constraint,
    vocabulary: &'a Vocabulary,
    /// Rules and terminals beside the first rule.
    rules: String,
    grammars: Vec<GrammarWithLexer>,
    count: usize,
}

/// Where a format stands.
#[derive(Clone, Copy)]
struct Place {
    depth: usize,
    /// Nothing follows it.
    last: bool,
}

impl Place {
    fn inside(self) -> Self {
        Self { depth: self.depth + 1, last: false }
    }

    fn inside_last(self, last: bool) -> Self {
        Self { depth: self.depth + 1, last: self.last && last }
    }
}

impl Writer<'_> {
    /// A format as an expression of Lark.
    fn format(&mut self, format: &Value, place: Place) -> Result<String, GrammarError> {
        if place.depth > MAX_DEPTH {
            return Err(wrong(format!("formats are nested more than {MAX_DEPTH} deep")));
        }
        let members = format.as_object().ok_or_else(|| wrong("a format must be an object".to_owned()))?;
        match text(members, "type")? {
            "const_string" => Ok(self.vocabulary.literal(text(members, "value")?)),
            "json_schema" => self.schema(members),
            "regex" => {
                let grammar = source::regex(text(members, "pattern")?)?;
                self.nested(grammar)
            }
            "grammar" => {
                let grammar = source::grammar(text(members, "grammar")?)?;
                self.nested(grammar)
            }
            "any_text" if place.last => self.free_text(&strings(members, "excludes")?),
            "any_text" => Err(wrong("`any_text` must be the content of a tag, or stand at the end".to_owned())),
            "sequence" => self.sequence(list(members, "elements")?, place),
            "or" => {
                let elements = list(members, "elements")?.iter();
                let written: Vec<String> =
                    elements.map(|element| self.format(element, place.inside_last(true))).collect::<Result<_, _>>()?;
                Ok(format!("({})", written.join(" | ")))
            }
            kind @ ("optional" | "star" | "plus") => {
                let content = self.format(member(members, "content")?, place.inside())?;
                let sign = if kind == "optional" { "?" } else { ["*", "+"][usize::from(kind == "plus")] };
                Ok(format!("({content}){sign}"))
            }
            "tag" => self.tag(members, "", place),
            "triggered_tags" => self.triggered_tags(members, place),
            "tags_with_separator" => self.tags_with_separator(members, place),
            other => Err(wrong(format!("formats of type `{other}` are not supported"))),
        }
    }

    fn schema(&mut self, members: &Map<String, Value>) -> Result<String, GrammarError> {
        match members.get("style").and_then(Value::as_str) {
            None | Some("json") => {}
            Some(style) => return Err(wrong(format!("a `json_schema` in the style `{style}` is not supported"))),
        }
        let grammar = source::schema(member(members, "json_schema")?.clone(), self.constraint)?;
        self.nested(grammar)
    }

    /// A grammar by itself, and the reference to it.
    fn nested(&mut self, mut grammar: GrammarWithLexer) -> Result<String, GrammarError> {
        let number = self.number()?;
        grammar.name = Some(format!("part-{number}"));
        self.grammars.push(grammar);
        Ok(format!("@part-{number}"))
    }

    fn number(&mut self) -> Result<usize, GrammarError> {
        self.count += 1;
        match self.count > MAX_PARTS {
            true => Err(wrong(format!("a structural tag may have {MAX_PARTS} parts"))),
            false => Ok(self.count),
        }
    }

    /// Defines a terminal.
    fn terminal(&mut self, body: &str) -> Result<String, GrammarError> {
        let number = self.number()?;
        self.rules.push_str(&format!("TEXT_{number}: {body}\n"));
        Ok(format!("TEXT_{number}"))
    }

    fn sequence(&mut self, elements: &[Value], place: Place) -> Result<String, GrammarError> {
        let mut written = Vec::new();
        let mut at = 0;
        while let Some(element) = elements.get(at) {
            let (next, kind) = (elements.get(at + 1), element.get("type").and_then(Value::as_str));
            let ended_by = next.filter(|next| next.get("type").is_some_and(|kind| kind == "const_string"));
            if let (Some("any_text"), Some(next)) = (kind, ended_by.and_then(Value::as_object)) {
                let ends = [text(next, "value")?.to_owned()];
                written.push(self.text_up_to(&ends, &excludes(element)?)?.join(" | "));
                at += 2;
                continue;
            }
            written.push(self.format(element, place.inside_last(next.is_none()))?);
            at += 1;
        }
        Ok(format!("({})", written.join(" ")))
    }

    /// A tag whose `begin` has been written up to where `written` ends.
    fn tag(&mut self, members: &Map<String, Value>, written: &str, place: Place) -> Result<String, GrammarError> {
        let begin = text(members, "begin")?;
        let begin = begin.strip_prefix(written).unwrap_or(begin);
        let begin = if begin.is_empty() { String::new() } else { self.vocabulary.literal(begin) };
        let ends = ends(members)?;
        let content = member(members, "content")?;
        if content.get("type").is_some_and(|kind| kind == "any_text") && ends.iter().all(|end| !end.is_empty()) {
            let body = self.text_up_to(&ends, &excludes(content)?)?;
            return Ok(format!("({begin} ({}))", body.join(" | ")));
        }
        let endless = ends.iter().all(String::is_empty);
        let content = self.format(content, place.inside_last(endless))?;
        let ends: Vec<String> = ends.iter().map(|end| self.vocabulary.literal(end)).collect();
        Ok(format!("({begin} {content} ({}))", ends.join(" | ")))
    }

    fn triggered_tags(&mut self, members: &Map<String, Value>, place: Place) -> Result<String, GrammarError> {
        let triggers = strings(members, "triggers")?;
        if triggers.is_empty() || triggers.iter().any(String::is_empty) {
            return Err(wrong("`triggers` must name at least one text, and none may be empty".to_owned()));
        }
        let tags = list(members, "tags")?;
        let texts = self.text_up_to(&triggers, &excludes(&Value::Object(members.clone()))?)?;
        let mut branches = Vec::new();
        let mut triggered = 0;
        for (trigger, before) in triggers.iter().zip(texts) {
            let begins = |tag: &&Value| {
                let begin = tag.get("begin").and_then(Value::as_str);
                begin.is_some_and(|begin| begin.starts_with(trigger.as_str()))
            };
            let own: Vec<String> = (tags.iter().filter(begins))
                .map(|tag| self.tag(object(tag)?, trigger, place.inside()))
                .collect::<Result<_, _>>()?;
            triggered += own.len();
            if !own.is_empty() {
                branches.push(format!("({before}) ({})", own.join(" | ")));
            }
        }
        if triggered < tags.len() || branches.is_empty() {
            return Err(wrong("each tag must begin with one of `triggers`, and there must be one".to_owned()));
        }
        let tagged = format!("({})", branches.join(" | "));
        match (flag(members, "at_least_one"), flag(members, "stop_after_first")) {
            (true, true) => Ok(tagged),
            (true, false) => Ok(format!("({tagged}+ {})", self.free_text(&triggers)?)),
            (false, true) => Ok(format!("({tagged} | {})", self.free_text(&triggers)?)),
            (false, false) => Ok(format!("({tagged}* {})", self.free_text(&triggers)?)),
        }
    }

    fn tags_with_separator(&mut self, members: &Map<String, Value>, place: Place) -> Result<String, GrammarError> {
        let tags = list(members, "tags")?;
        let written: Vec<String> =
            (tags.iter()).map(|tag| self.tag(object(tag)?, "", place.inside())).collect::<Result<_, _>>()?;
        let any = format!("({})", written.join(" | "));
        let separator = self.vocabulary.literal(text(members, "separator")?);
        let all = match flag(members, "stop_after_first") {
            true => any,
            false => {
                let number = self.number()?;
                self.rules.push_str(&format!("tags_{number}: {any}\n"));
                format!("(tags_{number} ({separator} tags_{number})*)")
            }
        };
        Ok(if flag(members, "at_least_one") { all } else { format!("({all})?") })
    }

    /// Text in which none of these stands; it may be empty.
    fn free_text(&mut self, excluded: &[String]) -> Result<String, GrammarError> {
        let excluded = self.texts_of(excluded);
        self.text_without(&excluded)
    }

    /// For each of these ends: text up to where it stands first, with it, in which none of the others stands.
    fn text_up_to(&mut self, ends: &[String], excluded: &[String]) -> Result<Vec<String>, GrammarError> {
        let plain = self.texts_of(ends);
        let without = self.texts_of(excluded);
        ends.iter().map(|end| self.text_before(end, &plain, &without)).collect()
    }

    fn text_before(&mut self, end: &str, ends: &[String], excluded: &[String]) -> Result<String, GrammarError> {
        let parts = self.vocabulary.parts(end);
        let later: Vec<String> = parts.iter().skip(1).map(Part::lark).collect();
        let mut never: Vec<String> = excluded.iter().map(|text| format!("(?s:.*){text}(?s:.*)")).collect();
        match parts.first() {
            None => Err(wrong("the text that ends free text must not be empty".to_owned())),
            Some(special @ Part::Special(_)) => {
                let free = self.text_without(&[ends, excluded].concat())?;
                Ok(format!("({free} {} {})", special.lark(), later.join(" ")))
            }
            Some(Part::Text(first)) => {
                if later.is_empty() {
                    // What ends the text may not stand before its end.
                    never.extend(ends.iter().map(|text| format!("(?s:.*){text}(?s:.+)")));
                }
                let mut body = format!("/(?s:.*){}/", pattern(first));
                if !never.is_empty() {
                    body.push_str(&format!(" & ~/{}/", never.join("|")));
                }
                let text = self.terminal(&body)?;
                Ok(format!("({text} {})", later.join(" ")))
            }
        }
    }

    /// Text in which none of these patterns matches; it may be empty.
    fn text_without(&mut self, patterns: &[String]) -> Result<String, GrammarError> {
        let body = match patterns.is_empty() {
            true => "/(?s:.+)/".to_owned(),
            false => format!("/(?s:.+)/ & ~/(?s:.*)({})(?s:.*)/", patterns.join("|")),
        };
        Ok(format!("({})?", self.terminal(&body)?))
    }

    /// Patterns of those texts that are written without special tokens; text cannot hold the others anyway.
    fn texts_of(&self, texts: &[String]) -> Vec<String> {
        let plain = texts.iter().filter(|text| matches!(self.vocabulary.parts(text)[..], [Part::Text(_)]));
        plain.map(|text| pattern(text)).collect()
    }
}

fn wrong(reason: String) -> GrammarError {
    GrammarError::StructuralTag { reason }
}

fn object(value: &Value) -> Result<&Map<String, Value>, GrammarError> {
    value.as_object().ok_or_else(|| wrong("a tag must be an object".to_owned()))
}

fn member<'v>(members: &'v Map<String, Value>, name: &str) -> Result<&'v Value, GrammarError> {
    members.get(name).ok_or_else(|| wrong(format!("`{name}` is missing")))
}

fn text<'v>(members: &'v Map<String, Value>, name: &str) -> Result<&'v str, GrammarError> {
    member(members, name)?.as_str().ok_or_else(|| wrong(format!("`{name}` must be a string")))
}

fn list<'v>(members: &'v Map<String, Value>, name: &str) -> Result<&'v [Value], GrammarError> {
    match member(members, name)?.as_array() {
        Some(items) if !items.is_empty() => Ok(items),
        _ => Err(wrong(format!("`{name}` must be a list that is not empty"))),
    }
}

/// A list of strings; absent: none.
fn strings(members: &Map<String, Value>, name: &str) -> Result<Vec<String>, GrammarError> {
    match members.get(name) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(value) => {
            serde_json::from_value(value.clone()).map_err(|_| wrong(format!("`{name}` must be a list of strings")))
        }
    }
}

fn excludes(value: &Value) -> Result<Vec<String>, GrammarError> {
    value.as_object().map_or(Ok(Vec::new()), |members| strings(members, "excludes"))
}

/// What may end a tag: a string, or one of several.
fn ends(members: &Map<String, Value>) -> Result<Vec<String>, GrammarError> {
    match members.get("end") {
        Some(Value::String(end)) => Ok(vec![end.clone()]),
        Some(Value::Array(ends)) if !ends.is_empty() => strings(members, "end"),
        _ => Err(wrong("`end` must be a string or a list of strings".to_owned())),
    }
}

fn flag(members: &Map<String, Value>, name: &str) -> bool {
    members.get(name).and_then(Value::as_bool).unwrap_or(false)
}
