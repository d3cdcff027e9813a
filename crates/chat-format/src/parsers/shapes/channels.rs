//! Answers made of messages, each with a header that says what it is: reasoning, content, or a call.

use std::sync::Arc;

use super::{Fed, Make, Shape, Then, append};
use crate::parsers::{
    markers::{Found, Markers},
    sink::Sink,
    tools::Tools,
};

/// A header is at most this long, bytes.
const MOST_HEADER: usize = 512;

/// A format of messages.
pub(crate) struct Format {
    /// Markers within a header that say nothing by themselves.
    pub(crate) in_header: &'static [&'static str],
    /// Between header and body.
    pub(crate) body: &'static str,
    /// Behind a body; the next header begins.
    pub(crate) ends: &'static [&'static str],
    /// Before a header; also ends a body.
    pub(crate) start: &'static str,
    /// What the header says.
    pub(crate) classify: fn(&str) -> Message,
    /// Reads the body of a call.
    pub(crate) inner: Option<Make>,
}

/// What a message is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Reasoning,
    Content,
    /// The arguments of a call stand in the body.
    Call(String),
    /// Calls stand in the body, in a format of their own.
    Calls,
}

impl Format {
    /// A parser of such answers. Without `calls`, calls are content.
    pub(crate) fn shape(&'static self, calls: bool, tools: &Arc<Tools>) -> Box<dyn Shape> {
        let ends = self.ends.iter().copied().chain([self.start]);
        Box::new(Channels {
            format: self,
            header: Markers::new(ends.clone().chain([self.body]).chain(self.in_header.iter().copied())),
            body: Markers::new(ends),
            calls,
            inner: self.inner.filter(|_| calls).map(|make| make(tools)),
            started: false,
            state: State::Header(String::new()),
        })
    }
}

struct Channels {
    format: &'static Format,
    header: Markers,
    body: Markers,
    calls: bool,
    inner: Option<Box<dyn Shape>>,
    /// The marker before a header came.
    started: bool,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Header(String),
    Body(Message),
    /// In the body of a message with calls, before an opener of theirs.
    Calls,
    /// Behind it.
    Inner,
}

impl Shape for Channels {
    fn openers(&self) -> &'static [&'static str] {
        &[]
    }

    fn is_whole(&self) -> bool {
        true
    }

    fn begin(&mut self, _: &'static str) {}

    fn feed(&mut self, text: &str, end: bool, sink: &mut Sink) -> Fed {
        match &self.state {
            State::Header(_) => self.header(text, end, sink),
            State::Body(_) => self.body(text, end, sink),
            State::Calls => self.calls(text, end, sink),
            State::Inner => self.inner(text, end, sink),
        }
    }
}

impl Channels {
    fn header(&mut self, text: &str, end: bool, sink: &mut Sink) -> Fed {
        let found = self.header.find(text, end);
        let State::Header(header) = &mut self.state else { return Fed::more(0) };
        match found {
            Found::Text(length) => {
                let taken = append(header, &text[..length], MOST_HEADER);
                if taken < length {
                    // No header is that long: the markers are missing.
                    let header = std::mem::take(header);
                    sink.content(&header);
                    self.state = State::Body(Message::Content);
                }
                if taken == 0 { self.body(text, end, sink) } else { Fed::more(taken) }
            }
            Found::Marker(marker) if marker == self.format.body => {
                let message = (self.format.classify)(header);
                self.begin_body(message, sink);
                Fed::more(marker.len())
            }
            Found::Marker(marker) => {
                let starts = marker == self.format.start;
                if starts || self.format.ends.contains(&marker) {
                    let header = std::mem::take(header);
                    self.stray(&header, sink);
                    self.started = starts;
                } else {
                    header.push(' ');
                    header.push_str(marker);
                    header.push(' ');
                }
                Fed::more(marker.len())
            }
            Found::Nothing if end => {
                let header = std::mem::take(header);
                self.stray(&header, sink);
                Fed::more(0)
            }
            Found::Unknown | Found::Nothing => Fed::more(0),
        }
    }

    /// Text of a header that has no body. With a marker of headers it is one that was cut off; else it was not meant as
    /// one.
    fn stray(&mut self, header: &str, sink: &mut Sink) {
        let is_header = self.started || self.format.in_header.iter().any(|marker| header.contains(marker));
        if !is_header && header.trim() != "assistant" {
            sink.content(header);
        }
    }

    /// A body ended with this marker.
    fn await_header(&mut self, marker: &str) {
        self.started = marker == self.format.start;
        self.state = State::Header(String::new());
    }

    fn begin_body(&mut self, message: Message, sink: &mut Sink) {
        sink.seam();
        self.state = match message {
            Message::Call(_) | Message::Calls if !self.calls => State::Body(Message::Content),
            Message::Calls if self.inner.is_some() => State::Calls,
            Message::Calls => State::Body(Message::Content),
            Message::Call(name) => {
                sink.start(&name, None);
                State::Body(Message::Call(name))
            }
            message => State::Body(message),
        };
    }

    fn body(&mut self, text: &str, end: bool, sink: &mut Sink) -> Fed {
        let found = self.body.find(text, end);
        let State::Body(message) = &self.state else { return Fed::more(0) };
        match found {
            Found::Text(length) => {
                match message {
                    Message::Reasoning => sink.reasoning(&text[..length]),
                    Message::Call(_) => sink.arguments(&text[..length]),
                    Message::Content | Message::Calls => sink.content(&text[..length]),
                }
                Fed::more(length)
            }
            Found::Marker(marker) => {
                sink.end();
                self.await_header(marker);
                Fed::more(marker.len())
            }
            Found::Unknown | Found::Nothing => Fed::more(0),
        }
    }

    /// Before the calls of a message: text is content.
    fn calls(&mut self, text: &str, end: bool, sink: &mut Sink) -> Fed {
        let Some(inner) = &mut self.inner else { return Fed::more(0) };
        let openers = inner.openers();
        let markers = Markers::new(self.format.ends.iter().chain(openers).copied().chain([self.format.start]));
        match markers.find(text, end) {
            Found::Text(length) => {
                sink.content(&text[..length]);
                Fed::more(length)
            }
            Found::Marker(marker) if openers.contains(&marker) => {
                inner.begin(marker);
                self.state = State::Inner;
                Fed::more(marker.len())
            }
            Found::Marker(marker) => {
                self.await_header(marker);
                Fed::more(marker.len())
            }
            Found::Unknown | Found::Nothing => Fed::more(0),
        }
    }

    fn inner(&mut self, text: &str, end: bool, sink: &mut Sink) -> Fed {
        let Some(inner) = &mut self.inner else { return Fed::more(0) };
        let fed = inner.feed(text, end, sink);
        if fed.then == Then::More {
            return fed;
        }
        sink.end();
        self.state = State::Calls;
        let after = self.calls(&text[fed.used..], end, sink);
        Fed::more(fed.used + after.used)
    }
}
