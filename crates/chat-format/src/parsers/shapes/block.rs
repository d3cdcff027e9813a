//! Calls in formats of their own between two markers. They are read when the block is complete.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{Doubt, Fed, Shape};
use crate::parsers::{
    markers::{Found, Markers},
    sink::Sink,
    tools::Tools,
};

/// A format between two markers.
#[derive(Debug)]
pub(crate) struct Format {
    /// Before the block.
    pub(crate) openers: &'static [&'static str],
    /// Behind it.
    pub(crate) closer: &'static str,
    /// Reads what stands between; `None` when that is no call.
    pub(crate) read: fn(&str, &Tools) -> Option<Vec<Call>>,
}

/// A call that was read.
#[derive(Debug, PartialEq)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) arguments: Map<String, Value>,
}

impl Format {
    /// A parser of such calls.
    pub(crate) fn shape(&'static self, tools: &Arc<Tools>) -> Box<dyn Shape> {
        Box::new(Block {
            format: self,
            tools: tools.clone(),
            closer: Markers::new([self.closer]),
            doubt: Doubt::default(),
            inside: String::new(),
        })
    }
}

struct Block {
    format: &'static Format,
    tools: Arc<Tools>,
    closer: Markers,
    doubt: Doubt,
    inside: String,
}

impl Shape for Block {
    fn openers(&self) -> &'static [&'static str] {
        self.format.openers
    }

    fn begin(&mut self, opener: &'static str) {
        self.doubt = Doubt::new(opener);
        self.inside = String::new();
    }

    fn feed(&mut self, text: &str, end: bool, sink: &mut Sink) -> Fed {
        match self.closer.find(text, end) {
            Found::Text(length) => {
                let taken = self.doubt.take(&text[..length]);
                self.inside.push_str(&text[..taken]);
                if taken < length {
                    self.doubt.give_up(sink);
                    return Fed::content(taken);
                }
                Fed::more(taken)
            }
            Found::Marker(closer) => {
                match (self.format.read)(&self.inside, &self.tools) {
                    Some(calls) => calls.into_iter().for_each(|call| {
                        sink.start(&call.name, None);
                        sink.arguments(&Value::Object(call.arguments).to_string());
                        sink.end();
                    }),
                    None => {
                        self.doubt.give_up(sink);
                        sink.content(closer);
                    }
                }
                Fed::content(closer.len())
            }
            Found::Nothing if end => {
                self.doubt.give_up(sink);
                Fed::content(0)
            }
            Found::Unknown | Found::Nothing => Fed::more(0),
        }
    }
}
