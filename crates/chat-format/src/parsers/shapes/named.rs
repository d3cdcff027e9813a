//! Calls as a name, a marker, and arguments as they stand, up to another marker.

use super::{
    Fed, Shape,
    envelope::{Between, SectionMarkers, Sections},
    scan::Nesting,
};
use crate::parsers::{
    markers::{Found, Markers},
    sink::Sink,
};

/// A way of writing calls as name and arguments.
#[derive(Debug)]
pub(crate) struct Format {
    /// Markers around all calls.
    pub(crate) sections: &'static [(&'static str, &'static str)],
    /// Marker before each name.
    pub(crate) open: &'static str,
    /// Marker between name and arguments.
    pub(crate) separator: &'static str,
    /// Marker behind the arguments.
    pub(crate) close: &'static str,
    /// Markers between calls that say nothing.
    pub(crate) ignored: &'static [&'static str],
    /// Texts around the arguments that say nothing, in order.
    pub(crate) fences: &'static [&'static str],
    /// Name and the model's own id in the text before the separator.
    pub(crate) head: fn(&str) -> Option<Head>,
    /// Section markers as openers, and `open`.
    pub(crate) openers: &'static [&'static str],
}

/// What the text before the arguments says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) name: String,
    pub(crate) id: Option<String>,
}

impl Head {
    /// The whole text is the name.
    pub(crate) fn plain(text: &str) -> Option<Self> {
        let name = text.trim();
        let fits = !name.is_empty() && !name.contains(char::is_whitespace);
        fits.then(|| Self { name: name.to_owned(), id: None })
    }
}

impl Format {
    /// A parser of such calls.
    pub(crate) fn shape(&'static self) -> Box<dyn Shape> {
        let closers = self.sections.iter().map(|(_, close)| *close);
        let around = closers.clone().chain([self.open, self.close]);
        Box::new(Calls {
            format: self,
            around: Sections::new(
                SectionMarkers { sections: self.sections, call: self.open },
                self.ignored.iter().copied().chain([self.close]),
            ),
            in_name: Markers::new(around.chain([self.separator])),
            in_arguments: Markers::new(closers.clone().chain([self.close])),
            fences: Markers::new(closers.chain([self.close]).chain(self.fences.iter().copied())),
            state: State::Between,
        })
    }
}

struct Calls {
    format: &'static Format,
    around: Sections,
    in_name: Markers,
    in_arguments: Markers,
    /// Around the arguments: fences too.
    fences: Markers,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Between,
    Name(String),
    /// Before the arguments.
    Lead,
    /// In an object or a list.
    Json(Nesting),
    /// Behind it.
    Tail,
    /// Arguments that are no JSON.
    Plain,
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
            if !end {
                return Fed::more(0);
            }
            if !(self.around.envelope.called && matches!(self.state, State::Between)) {
                self.around.envelope.doubt.give_up(sink);
            }
            return Fed::content(0);
        }
        match &self.state {
            State::Between => self.between(text, end, sink),
            State::Name(_) => self.name(text, end, sink),
            _ => self.arguments(text, end, sink),
        }
    }
}

impl Calls {
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
            Found::Marker(marker) if marker == self.format.separator => match (self.format.head)(name) {
                Some(head) => {
                    sink.start(&head.name, head.id);
                    self.around.envelope.settle();
                    self.state = State::Lead;
                    Fed::more(marker.len())
                }
                None => self.around.envelope.give_up(0, sink),
            },
            Found::Marker(_) => self.around.envelope.give_up(0, sink),
            Found::Unknown | Found::Nothing => Fed::more(0),
        }
    }

    fn arguments(&mut self, text: &str, end: bool, sink: &mut Sink) -> Fed {
        let is_between = matches!(self.state, State::Lead | State::Tail);
        let markers = if is_between { &self.fences } else { &self.in_arguments };
        match markers.find(text, end) {
            Found::Text(length) => Fed::more(self.argument_text(&text[..length], sink)),
            Found::Marker(marker) if self.format.fences.contains(&marker) => Fed::more(marker.len()),
            Found::Marker(marker) => {
                sink.end();
                if self.around.is_end(marker) {
                    return Fed::content(marker.len());
                }
                self.state = State::Between;
                Fed::more(marker.len())
            }
            Found::Unknown | Found::Nothing => Fed::more(0),
        }
    }

    /// Takes text of the arguments.
    fn argument_text(&mut self, text: &str, sink: &mut Sink) -> usize {
        let Some(letter) = text.chars().next() else { return 0 };
        match &mut self.state {
            State::Lead | State::Tail if letter.is_whitespace() => letter.len_utf8(),
            State::Tail => {
                sink.content(&text[..letter.len_utf8()]);
                letter.len_utf8()
            }
            State::Lead if letter == '{' || letter == '[' => {
                self.state = State::Json(Nesting::default());
                self.argument_text(text, sink)
            }
            State::Lead => {
                self.state = State::Plain;
                self.argument_text(&text[..letter.len_utf8()], sink)
            }
            State::Json(nesting) => {
                let end = text.char_indices().find(|(_, letter)| nesting.ends(*letter));
                let length = end.map_or(text.len(), |(at, letter)| at + letter.len_utf8());
                sink.arguments(&text[..length]);
                if end.is_some() {
                    self.state = State::Tail;
                }
                length
            }
            _ => {
                sink.arguments(text);
                text.len()
            }
        }
    }
}
