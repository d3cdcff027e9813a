//! Calls as Python writes them: `[f(a=1, b="x"), g()]`. Each is read when it is complete.

use std::sync::Arc;

use serde_json::{Map, Number, Value};

use super::{Doubt, Fed, MOST_NAME, Shape, envelope::Envelope, fitting};
use crate::parsers::{sink::Sink, tools::Tools};

/// Lists and dictionaries nest this deep.
const MOST_DEPTH: usize = 64;

/// A way of writing calls as Python.
#[derive(Debug)]
pub(crate) struct Format {
    /// Markers before the calls.
    pub(crate) openers: &'static [&'static str],
    /// Markers behind them; none: the list ends by itself.
    pub(crate) closers: &'static [&'static str],
    /// Whether an answer that begins with a list may be calls.
    pub(crate) bare: bool,
}

impl Format {
    /// A parser of such calls.
    pub(crate) fn shape(&'static self, tools: &Arc<Tools>) -> Box<dyn Shape> {
        Box::new(Calls {
            format: self,
            tools: tools.clone(),
            envelope: Envelope::new(self.closers.iter().copied()),
            bare: false,
            in_list: false,
            junk: false,
            item: None,
        })
    }
}

struct Calls {
    format: &'static Format,
    tools: Arc<Tools>,
    envelope: Envelope,
    bare: bool,
    in_list: bool,
    /// Text came that belongs to no call: all up to the closer is content.
    junk: bool,
    item: Option<Item>,
}

/// A call that is not complete.
#[derive(Debug, Default)]
struct Item {
    text: String,
    depth: usize,
    quote: Option<char>,
    escaped: bool,
}

impl Shape for Calls {
    fn openers(&self) -> &'static [&'static str] {
        self.format.openers
    }

    fn is_bare(&self, first: char) -> bool {
        self.format.bare && first == '['
    }

    fn begin(&mut self, opener: &'static str) {
        self.envelope.begin(opener);
        self.bare = opener.is_empty();
        self.in_list = false;
        self.junk = false;
        self.item = None;
    }

    fn feed(&mut self, text: &str, end: bool, sink: &mut Sink) -> Fed {
        if text.is_empty() {
            if !end {
                return Fed::more(0);
            }
            if !self.envelope.called || self.item.is_some() {
                self.envelope.doubt.give_up(sink);
            }
            return Fed::content(0);
        }
        match (&self.item, self.junk) {
            (Some(_), _) => self.item(text, end, sink),
            (None, true) => self.junk(text, end, sink),
            (None, false) => self.between(text, end, sink),
        }
    }
}

impl Calls {
    fn between(&mut self, text: &str, end: bool, sink: &mut Sink) -> Fed {
        if let Some(fed) = self.envelope.closer(text, end, sink) {
            return fed;
        }
        let Some(letter) = text.chars().next() else { return Fed::more(0) };
        let size = letter.len_utf8();
        let separates = match letter {
            ',' | ';' => self.envelope.called,
            '[' => !std::mem::replace(&mut self.in_list, true),
            ']' => std::mem::take(&mut self.in_list) && self.envelope.called,
            letter if letter.is_alphabetic() || letter == '_' => {
                if !self.envelope.has_closers() && !self.in_list {
                    return self.junk(text, end, sink);
                }
                self.item = Some(Item::default());
                return self.item(text, end, sink);
            }
            letter => letter.is_whitespace(),
        };
        if !separates || self.envelope.doubt.take(&text[..size]) < size {
            return self.junk(text, end, sink);
        }
        if letter == ']' {
            self.envelope.doubt = Doubt::default();
            if !self.envelope.has_closers() {
                return Fed::content(size);
            }
        }
        Fed::more(size)
    }

    /// Text where there should be none is content, up to the closer if there was a call.
    fn junk(&mut self, text: &str, end: bool, sink: &mut Sink) -> Fed {
        self.envelope.doubt.give_up(sink);
        if !self.envelope.called || !self.envelope.has_closers() {
            return Fed::content(0);
        }
        self.junk = true;
        self.envelope.content_to_closer(text, end, sink)
    }

    fn item(&mut self, text: &str, end: bool, sink: &mut Sink) -> Fed {
        let mut used = 0;
        for letter in text.chars() {
            let size = letter.len_utf8();
            let Some(item) = &mut self.item else { break };
            if !item.may_take(letter) || self.envelope.doubt.take(&text[used..used + size]) < size {
                self.item = None;
                let fed = self.junk(&text[used..], end, sink);
                return Fed { used: used + fed.used, then: fed.then };
            }
            used += size;
            if !item.ends(letter) {
                continue;
            }
            let call = parse(&item.text).filter(|call| !self.bare || self.tools.has(&call.name));
            self.item = None;
            let Some(call) = call else {
                let fed = self.junk(&text[used..], end, sink);
                return Fed { used: used + fed.used, then: fed.then };
            };
            sink.start(&call.name, None);
            sink.arguments(&Value::Object(call.arguments).to_string());
            sink.end();
            self.envelope.called = true;
            self.envelope.doubt = Doubt::default();
            break;
        }
        Fed::more(used)
    }
}

impl Item {
    /// Before the parenthesis only a name may stand.
    fn may_take(&self, letter: char) -> bool {
        self.depth > 0
            || letter == '('
            || (self.text.len() < MOST_NAME && (letter.is_alphanumeric() || "_.-".contains(letter)))
    }

    /// Takes a character; tells whether the call ends with it.
    fn ends(&mut self, letter: char) -> bool {
        self.text.push(letter);
        if let Some(quote) = self.quote {
            match letter {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                letter if letter == quote => self.quote = None,
                _ => {}
            }
            return false;
        }
        match letter {
            '"' | '\'' => self.quote = Some(letter),
            '(' | '[' | '{' => self.depth += 1,
            ')' | ']' | '}' => self.depth = self.depth.saturating_sub(1),
            _ => return false,
        }
        self.depth == 0
    }
}

/// A call that was read.
#[derive(Debug, PartialEq)]
struct Call {
    name: String,
    arguments: Map<String, Value>,
}

/// `NAME(KEY=VALUE, …)`; `None` when it is something else.
fn parse(text: &str) -> Option<Call> {
    let (name, rest) = text.split_once('(')?;
    let mut reader = Reader { rest: rest.strip_suffix(')')? };
    let mut arguments = Map::new();
    reader.blank();
    while !reader.rest.is_empty() {
        let key = reader.word();
        reader.blank();
        if key.is_empty() || !reader.eat('=') {
            return None;
        }
        let value = reader.value(MOST_DEPTH)?;
        arguments.insert(key.to_owned(), value);
        reader.blank();
        if !reader.rest.is_empty() && !reader.eat(',') {
            return None;
        }
        reader.blank();
    }
    Some(Call { name: name.to_owned(), arguments })
}

/// Reads Python literals, and JSON's words for them.
struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn blank(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn eat(&mut self, letter: char) -> bool {
        match self.rest.strip_prefix(letter) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn word(&mut self) -> &'a str {
        let end = self.rest.find(|letter: char| !(letter.is_alphanumeric() || letter == '_'));
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        word
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        self.blank();
        let letter = self.rest.chars().next()?;
        if depth == 0 {
            return None;
        }
        match letter {
            '"' | '\'' => self.strings(),
            '[' => self.list(']', depth),
            '(' => self.list(')', depth),
            '{' => self.dictionary(depth),
            '-' | '+' | '.' | '0'..='9' => self.number(),
            _ => match self.word() {
                "True" | "true" => Some(Value::Bool(true)),
                "False" | "false" => Some(Value::Bool(false)),
                "None" | "null" => Some(Value::Null),
                _ => None,
            },
        }
    }

    /// Strings beside each other are one.
    fn strings(&mut self) -> Option<Value> {
        let mut whole = String::new();
        while let Some(quote @ ('"' | '\'')) = self.rest.chars().next() {
            self.string(quote, &mut whole)?;
            self.blank();
        }
        Some(Value::String(whole))
    }

    fn string(&mut self, quote: char, out: &mut String) -> Option<()> {
        let long: String = std::iter::repeat_n(quote, 3).collect();
        let ending = if self.rest.starts_with(&long) { &long } else { &long[..1] };
        self.rest = &self.rest[ending.len()..];
        loop {
            if let Some(rest) = self.rest.strip_prefix(ending) {
                self.rest = rest;
                return Some(());
            }
            let letter = self.next()?;
            if letter == '\\' { self.escape(out)? } else { out.push(letter) }
        }
    }

    fn escape(&mut self, out: &mut String) -> Option<()> {
        let letter = match self.next()? {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'x' => self.code(2)?,
            'u' => self.code(4)?,
            'U' => self.code(8)?,
            '\n' => return Some(()),
            other @ ('\\' | '\'' | '"') => other,
            other => {
                out.push('\\');
                other
            }
        };
        out.push(letter);
        Some(())
    }

    fn code(&mut self, digits: usize) -> Option<char> {
        let (code, rest) = self.rest.split_at_checked(digits)?;
        self.rest = rest;
        char::from_u32(u32::from_str_radix(code, 16).ok()?)
    }

    fn next(&mut self) -> Option<char> {
        let letter = self.rest.chars().next()?;
        self.rest = &self.rest[letter.len_utf8()..];
        Some(letter)
    }

    fn list(&mut self, close: char, depth: usize) -> Option<Value> {
        self.next()?;
        let mut items = Vec::new();
        loop {
            self.blank();
            if self.eat(close) {
                return Some(Value::Array(items));
            }
            items.push(self.value(depth - 1)?);
            self.blank();
            if !self.eat(',') && !self.rest.starts_with(close) {
                return None;
            }
        }
    }

    fn dictionary(&mut self, depth: usize) -> Option<Value> {
        self.next()?;
        let mut fields = Map::new();
        loop {
            self.blank();
            if self.eat('}') {
                return Some(Value::Object(fields));
            }
            let key = match self.value(depth - 1)? {
                Value::String(key) => key,
                key @ (Value::Number(_) | Value::Bool(_) | Value::Null) => key.to_string(),
                _ => return None,
            };
            self.blank();
            if !self.eat(':') {
                return None;
            }
            fields.insert(key, self.value(depth - 1)?);
            self.blank();
            if !self.eat(',') && !self.rest.starts_with('}') {
                return None;
            }
        }
    }

    fn number(&mut self) -> Option<Value> {
        let end = self.rest.find(|letter: char| !(letter.is_ascii_alphanumeric() || "+-._".contains(letter)));
        let length = end.unwrap_or(self.rest.len());
        let text = self.rest[..fitting(self.rest, length)].replace('_', "");
        self.rest = &self.rest[length..];
        if let Ok(whole) = text.parse::<i64>() {
            return Some(whole.into());
        }
        Number::from_f64(text.parse().ok()?).map(Value::Number)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn literals_become_json() {
        let text =
            r#"a.f(s='it\'s', t="""x"y""", n=-1_000, d=1.5e3, l=[1, (2,), True], o={"k": None, 1: false}, j="a" 'b')"#;
        let call = parse(text).expect("a call");
        assert_eq!(call.name, "a.f");
        let expected = json!({"s": "it's", "t": "x\"y", "n": -1000, "d": 1500.0, "l": [1, [2], true],
            "o": {"k": null, "1": false}, "j": "ab"});
        assert_eq!(Value::Object(call.arguments), expected);
        for text in ["f(1)", "f(a=b)", "f(a=1+2)", "f(a=1 b=2)", "f(a=[1)", "f(a='x)", "f(a={[]:1})", "f(a=inf)"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
