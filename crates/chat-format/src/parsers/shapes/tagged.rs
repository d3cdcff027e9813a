//! Calls as tags: one around the call, one around each argument. Values are bare text; their types come from the tool's
//! schema, or from the tag. Texts are passed on while they come; other values when they are complete.

use std::sync::Arc;

use super::{
    Doubt, Fed, MOST_NAME, Shape, append,
    attributes::attribute,
    envelope::{Between, SectionMarkers, Sections},
    value::{Kind, Text, Trim},
};
use crate::parsers::{
    markers::{Found, Markers},
    sink::Sink,
    tools::{Tools, Types},
};

/// A way of writing calls as tags.
#[derive(Debug)]
pub(crate) struct Format {
    /// Section markers and the marker of a call.
    pub(crate) openers: &'static [&'static str],
    /// Markers around all calls, or around each.
    pub(crate) sections: &'static [(&'static str, &'static str)],
    /// Markers between calls that say nothing.
    pub(crate) ignored: &'static [&'static str],
    /// Before the call's name.
    pub(crate) call: &'static str,
    /// Behind it; absent: the name ends where an argument begins, or the call ends.
    pub(crate) call_head_end: Option<&'static str>,
    /// Behind the call.
    pub(crate) call_end: &'static str,
    /// Before an argument's key.
    pub(crate) key: &'static str,
    /// Behind the key.
    pub(crate) key_end: &'static str,
    /// Before an argument's value, where something stands between key and value.
    pub(crate) value: Option<&'static str>,
    /// Around an argument's type, between key and value.
    pub(crate) type_tag: Option<(&'static str, &'static str)>,
    /// Behind the value.
    pub(crate) value_end: &'static str,
    /// The attribute with the call's name; empty: the text itself.
    pub(crate) name_attribute: &'static str,
    /// The attribute with the key; empty: the text itself.
    pub(crate) key_attribute: &'static str,
    /// Where types come from.
    pub(crate) typing: Typing,
    /// Which whitespace around values belongs to the format.
    pub(crate) trim: Trim,
}

/// Where the types of values come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Typing {
    /// The tool's schema.
    Schema,
    /// The attribute `string`: `true` is a text, all else JSON if it reads as such.
    StringAttribute,
    /// The attribute `type`.
    TypeAttribute,
    /// JSON if the schema knows no better and it reads as such.
    Json,
}

impl Format {
    /// `<invoke name="…"><parameter name="…">…</parameter></invoke>` in no section.
    pub(crate) const INVOKE: Self = Self {
        openers: &[],
        sections: &[],
        ignored: &[],
        call: "<invoke",
        call_head_end: Some(">"),
        call_end: "</invoke>",
        key: "<parameter",
        key_end: ">",
        value: None,
        type_tag: None,
        value_end: "</parameter>",
        name_attribute: "name",
        key_attribute: "name",
        typing: Typing::Schema,
        trim: Trim::Nothing,
    };

    /// `<tool_call>NAME<arg_key>…</arg_key><arg_value>…</arg_value></tool_call>`
    pub(crate) const ARG_KEY: Self = Self {
        openers: &["<tool_call>"],
        call: "<tool_call>",
        call_head_end: None,
        call_end: "</tool_call>",
        key: "<arg_key>",
        key_end: "</arg_key>",
        value: Some("<arg_value>"),
        value_end: "</arg_value>",
        name_attribute: "",
        key_attribute: "",
        ..Self::INVOKE
    };

    /// A parser of such calls.
    pub(crate) fn shape(&'static self, tools: &Arc<Tools>) -> Box<dyn Shape> {
        let ends = self.sections.iter().map(|(_, close)| *close);
        let inside = ends.clone().chain([self.call, self.call_end]);
        let value = self.value.into_iter().chain(self.type_tag.map(|(open, _)| open));
        Box::new(Calls {
            format: self,
            tools: tools.clone(),
            around: Sections::new(
                SectionMarkers { sections: self.sections, call: self.call },
                self.sections.iter().map(|(open, _)| *open).chain(self.ignored.iter().copied()),
            ),
            in_name: Markers::new(inside.clone().chain(self.call_head_end).chain([self.key])),
            in_call: Markers::new(inside.clone().chain([self.key])),
            in_key: Markers::new(inside.clone().chain([self.key_end])),
            before_value: Markers::new(inside.chain(value).chain([self.key])),
            in_type: Markers::new(self.type_tag.map(|(_, close)| close)),
            in_value: Markers::new(ends.chain([self.value_end, self.key, self.call_end])),
            state: State::Between,
            name: String::new(),
            keys: 0,
        })
    }
}

struct Calls {
    format: &'static Format,
    tools: Arc<Tools>,
    around: Sections,
    in_name: Markers,
    in_call: Markers,
    in_key: Markers,
    before_value: Markers,
    in_type: Markers,
    in_value: Markers,
    state: State,
    name: String,
    /// Arguments of the call at hand so far.
    keys: usize,
}

#[derive(Clone, Debug)]
enum State {
    Between,
    Name(String),
    InCall,
    Key(String),
    /// Behind a key; with the type that was read.
    BeforeValue(Argument),
    Type(Argument, String),
    Value(Box<Text>),
}

/// An argument before its value.
#[derive(Clone, Debug)]
struct Argument {
    key: String,
    types: Kind,
}

impl Shape for Calls {
    fn openers(&self) -> &'static [&'static str] {
        self.format.openers
    }

    fn begin(&mut self, opener: &'static str) {
        let is_call = self.around.begin(opener);
        self.state = if is_call { State::Name(String::new()) } else { State::Between };
    }

    fn feed(&mut self, text: &str, end: bool, sink: &mut Sink) -> Fed {
        if text.is_empty() {
            return if end { self.over(sink) } else { Fed::more(0) };
        }
        match &self.state {
            State::Between => self.between(text, end, sink),
            State::Name(_) => self.name(text, end, sink),
            State::InCall => self.in_call(text, end, sink),
            State::Key(_) => self.key(text, end, sink),
            State::BeforeValue(_) => self.before_value(text, end, sink),
            State::Type(..) => self.type_text(text, end, sink),
            State::Value(_) => self.value(text, end, sink),
        }
    }
}

impl Calls {
    /// The text ends, wherever this is.
    fn over(&mut self, sink: &mut Sink) -> Fed {
        match std::mem::replace(&mut self.state, State::Between) {
            State::Between if self.around.envelope.called => return Fed::content(0),
            State::Between | State::Name(_) => {
                self.around.envelope.doubt.give_up(sink);
                return Fed::content(0);
            }
            State::Key(key) | State::Type(Argument { key, .. }, _) | State::BeforeValue(Argument { key, .. }) => {
                self.lost(&key, sink);
            }
            State::Value(mut value) => value.finish(sink),
            State::InCall => {}
        }
        self.close(self.format.call_end, sink);
        Fed::content(0)
    }

    /// An argument of which only the key came is an empty text, so that nothing is lost.
    fn lost(&mut self, key: &str, sink: &mut Sink) {
        if key.trim().is_empty() {
            return;
        }
        let mut value = self.value_of(Argument { key: key.trim().to_owned(), types: Kind::Types(Types::STRING) }, sink);
        value.finish(sink);
    }

    fn between(&mut self, text: &str, end: bool, sink: &mut Sink) -> Fed {
        match self.around.between(text, end, sink) {
            Between::Call(fed) => {
                self.state = State::Name(String::new());
                fed
            }
            Between::Other(fed) => fed,
        }
    }

    fn name(&mut self, text: &str, end: bool, sink: &mut Sink) -> Fed {
        let found = self.in_name.find(text, end);
        let State::Name(name) = &mut self.state else { return Fed::more(0) };
        match found {
            Found::Text(length) => {
                let held = self.around.envelope.doubt.take_name(name, &text[..length]);
                if held < length { self.around.envelope.give_up(held, sink) } else { Fed::more(held) }
            }
            Found::Marker(marker) => {
                let is_end = Some(marker) == self.format.call_head_end;
                let may_end = is_end || marker == self.format.key || marker == self.format.call_end;
                match attribute(name, self.format.name_attribute).filter(|name| may_end && is_name(name)) {
                    Some(name) => {
                        sink.start(&name, None);
                        self.name = name;
                        self.around.envelope.settle();
                        self.keys = 0;
                        self.state = State::InCall;
                        if is_end { Fed::more(marker.len()) } else { self.in_call(text, end, sink) }
                    }
                    None => self.around.envelope.give_up(0, sink),
                }
            }
            Found::Unknown | Found::Nothing => Fed::more(0),
        }
    }

    fn in_call(&mut self, text: &str, end: bool, sink: &mut Sink) -> Fed {
        match self.in_call.find(text, end) {
            Found::Text(length) => {
                sink.content(&text[..length]);
                Fed::more(length)
            }
            Found::Marker(marker) if marker == self.format.key => {
                self.state = State::Key(String::new());
                Fed::more(marker.len())
            }
            Found::Marker(marker) => self.close(marker, sink),
            Found::Unknown | Found::Nothing => Fed::more(0),
        }
    }

    fn key(&mut self, text: &str, end: bool, sink: &mut Sink) -> Fed {
        let found = self.in_key.find(text, end);
        let State::Key(key) = &mut self.state else { return Fed::more(0) };
        match found {
            Found::Text(length) => {
                let taken = append(key, &text[..length], MOST_NAME);
                if taken == length {
                    return Fed::more(length);
                }
                // No key is that long.
                let key = std::mem::take(key);
                sink.content(&key);
                self.state = State::InCall;
                let fed = self.in_call(&text[taken..], end, sink);
                Fed { used: taken + fed.used, then: fed.then }
            }
            Found::Marker(marker) if marker == self.format.key_end => {
                let head = std::mem::take(key);
                let argument = self.argument(&head);
                if self.format.value.is_some() {
                    self.state = State::BeforeValue(argument);
                } else {
                    self.state = State::Value(Box::new(self.value_of(argument, sink)));
                }
                Fed::more(marker.len())
            }
            Found::Marker(marker) => {
                let key = std::mem::take(key);
                self.lost(&key, sink);
                self.close(marker, sink)
            }
            Found::Unknown | Found::Nothing => Fed::more(0),
        }
    }

    fn before_value(&mut self, text: &str, end: bool, sink: &mut Sink) -> Fed {
        let found = self.before_value.find(text, end);
        let State::BeforeValue(argument) = &self.state else { return Fed::more(0) };
        let argument = argument.clone();
        match found {
            Found::Text(length) => {
                sink.content(&text[..length]);
                Fed::more(length)
            }
            Found::Marker(marker) if Some(marker) == self.format.value => {
                self.state = State::Value(Box::new(self.value_of(argument, sink)));
                Fed::more(marker.len())
            }
            Found::Marker(marker) if self.format.type_tag.is_some_and(|(open, _)| open == marker) => {
                self.state = State::Type(argument, String::new());
                Fed::more(marker.len())
            }
            Found::Marker(marker) => {
                self.lost(&argument.key, sink);
                self.state = State::InCall;
                if marker == self.format.key { self.in_call(text, end, sink) } else { self.close(marker, sink) }
            }
            Found::Unknown | Found::Nothing => Fed::more(0),
        }
    }

    fn type_text(&mut self, text: &str, end: bool, _: &mut Sink) -> Fed {
        let found = self.in_type.find(text, end);
        let State::Type(argument, kind) = &mut self.state else { return Fed::more(0) };
        match found {
            Found::Text(length) => {
                // No type is longer.
                let _ = append(kind, &text[..length], MOST_NAME);
                Fed::more(length)
            }
            Found::Marker(marker) => {
                let mut argument = argument.clone();
                let base = kind.split('[').next().unwrap_or_default();
                if argument.types == Kind::Types(Types::STRING) && !self.tools.has(&self.name) {
                    argument.types = Kind::Types(Types::named(base));
                }
                self.state = State::BeforeValue(argument);
                Fed::more(marker.len())
            }
            Found::Unknown | Found::Nothing => Fed::more(0),
        }
    }

    fn value(&mut self, text: &str, end: bool, sink: &mut Sink) -> Fed {
        let found = self.in_value.find(text, end);
        let State::Value(value) = &mut self.state else { return Fed::more(0) };
        match found {
            Found::Text(length) => {
                value.push(&text[..length], sink);
                Fed::more(length)
            }
            Found::Marker(marker) => {
                value.finish(sink);
                self.state = State::InCall;
                match marker {
                    marker if marker == self.format.value_end => Fed::more(marker.len()),
                    marker if marker == self.format.key => self.in_call(text, end, sink),
                    marker => self.close(marker, sink),
                }
            }
            Found::Unknown | Found::Nothing => Fed::more(0),
        }
    }

    /// The call ends at a marker: its own, that of a section, or that of the next call.
    fn close(&mut self, marker: &'static str, sink: &mut Sink) -> Fed {
        if self.keys > 0 {
            sink.arguments("}");
        }
        sink.end();
        if self.around.is_end(marker) && marker != self.format.call_end {
            return Fed::content(marker.len());
        }
        if marker == self.format.call {
            self.around.envelope.doubt = Doubt::new(marker);
            self.state = State::Name(String::new());
        } else {
            self.state = State::Between;
        }
        Fed::more(marker.len())
    }

    /// What an argument's head says.
    fn argument(&self, head: &str) -> Argument {
        let key = attribute(head, self.format.key_attribute).unwrap_or_else(|| head.trim().to_owned());
        let of_schema = self.tools.types(&self.name, &key);
        let types = match self.format.typing {
            Typing::Schema => Kind::Types(of_schema),
            Typing::StringAttribute if attribute(head, "string").as_deref() == Some("true") => {
                Kind::Types(Types::STRING)
            }
            Typing::TypeAttribute => match attribute(head, "type").as_deref() {
                None | Some("string") => Kind::Types(Types::STRING),
                Some(_) => Kind::Json,
            },
            Typing::Json if self.tools.has(&self.name) => Kind::Types(of_schema),
            Typing::StringAttribute | Typing::Json => Kind::Json,
        };
        Argument { key, types }
    }

    /// Writes the key; the value follows.
    fn value_of(&mut self, argument: Argument, sink: &mut Sink) -> Text {
        let before = if self.keys == 0 { "{" } else { ", " };
        self.keys += 1;
        sink.arguments(&format!("{before}{}: ", serde_json::Value::from(argument.key)));
        Text::new(argument.types, self.format.trim)
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(|letter: char| letter.is_whitespace() || letter == '<')
}
