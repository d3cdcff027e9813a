//! Mistral: `[TOOL_CALLS]NAME[ARGS]{…}` for each call, older tokenizers `[TOOL_CALLS][{"name": …, "arguments": {…}}]`.
//! Ids have nine letters.

use std::sync::Arc;

use super::Reasoning;
use crate::parsers::{
    markers::{Found, Markers},
    shapes::{Doubt, Fed, Shape, json, scan::Nesting},
    sink::Sink,
    tools::Tools,
};

/// `[THINK]…[/THINK]`, older models `<think>…</think>`.
pub(super) const REASONING: Reasoning =
    Reasoning { open: &["[THINK]", "<think>"], close: &["[/THINK]", "</think>"], ..Reasoning::THINK };

const OPENER: &str = "[TOOL_CALLS]";
const ARGUMENTS: &str = "[ARGS]";
/// Newer models also write an id between name and arguments.
const ID: &str = "[CALL_ID]";

/// Calls of Mistral, in both forms.
pub(super) fn tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const LIST: json::Format = json::Format { openers: &[OPENER], ..json::Format::PLAIN };
    Box::new(Calls {
        list: LIST.shape(tools),
        in_name: Markers::new([ARGUMENTS, ID, OPENER, "{"]),
        doubt: Doubt::default(),
        state: State::Lead,
    })
}

struct Calls {
    list: Box<dyn Shape>,
    in_name: Markers,
    doubt: Doubt,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// Behind the opener.
    Lead,
    /// The older form.
    List,
    Name(String),
    Id(String, String),
    /// Behind the marker of the arguments.
    Before,
    Json(Nesting),
}

impl Shape for Calls {
    fn openers(&self) -> &'static [&'static str] {
        &[OPENER]
    }

    fn begin(&mut self, opener: &'static str) {
        self.doubt = Doubt::new(opener);
        self.state = State::Lead;
    }

    fn feed(&mut self, text: &str, end: bool, sink: &mut Sink) -> Fed {
        if let State::List = self.state {
            return self.list.feed(text, end, sink);
        }
        let Some(letter) = text.chars().next() else {
            if end {
                self.doubt.give_up(sink);
            }
            return if end { Fed::content(0) } else { Fed::more(0) };
        };
        match &mut self.state {
            State::Lead | State::Before if letter.is_whitespace() => {
                let taken = self.doubt.take(&text[..letter.len_utf8()]);
                if taken == 0 { self.give_up(sink) } else { Fed::more(taken) }
            }
            State::Lead if letter == '[' || letter == '{' => {
                self.state = State::List;
                self.list.begin(OPENER);
                self.list.feed(text, end, sink)
            }
            State::Lead => {
                self.state = State::Name(String::new());
                self.name(text, end, sink)
            }
            State::Before if letter == '{' || letter == '[' => {
                self.state = State::Json(Nesting::default());
                self.json(text, sink)
            }
            State::Json(_) => self.json(text, sink),
            State::Name(_) | State::Id(..) => self.name(text, end, sink),
            // Arguments that are no JSON are none.
            State::Before | State::List => Fed::content(0),
        }
    }
}

impl Calls {
    fn name(&mut self, text: &str, end: bool, sink: &mut Sink) -> Fed {
        let found = self.in_name.find(text, end);
        let (State::Name(part) | State::Id(_, part)) = &mut self.state else { return Fed::more(0) };
        match found {
            Found::Text(length) => {
                let held = self.doubt.take_name(part, &text[..length]);
                if held == length { Fed::more(held) } else { Fed { used: held, ..self.give_up(sink) } }
            }
            Found::Marker(ID) if matches!(self.state, State::Name(_)) => {
                let _ = self.doubt.take(ID);
                let State::Name(name) = &self.state else { return Fed::more(0) };
                self.state = State::Id(name.clone(), String::new());
                Fed::more(ID.len())
            }
            Found::Marker(marker) if marker == ARGUMENTS || marker == "{" => {
                let (name, id) = match &self.state {
                    State::Id(name, id) => (name, Some(id.trim().to_owned())),
                    State::Name(name) => (name, None),
                    _ => return Fed::more(0),
                };
                let name = name.trim();
                if name.is_empty() || name.contains(char::is_whitespace) {
                    return self.give_up(sink);
                }
                sink.start(name, id.filter(|id| !id.is_empty()));
                self.doubt.settle();
                self.state = State::Before;
                Fed::more(if marker == ARGUMENTS { marker.len() } else { 0 }).or(|| self.feed(text, end, sink))
            }
            Found::Marker(_) => self.give_up(sink),
            Found::Unknown | Found::Nothing => Fed::more(0),
        }
    }

    fn json(&mut self, text: &str, sink: &mut Sink) -> Fed {
        let State::Json(nesting) = &mut self.state else { return Fed::more(0) };
        let end = text.char_indices().find(|(_, letter)| nesting.ends(*letter));
        let length = end.map_or(text.len(), |(at, letter)| at + letter.len_utf8());
        sink.arguments(&text[..length]);
        if end.is_some() { Fed::content(length) } else { Fed::more(length) }
    }

    fn give_up(&mut self, sink: &mut Sink) -> Fed {
        self.doubt.give_up(sink);
        Fed::content(0)
    }
}
