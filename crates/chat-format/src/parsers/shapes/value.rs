//! An argument's value that stands as bare text.

use super::{MOST_HELD, append, scan::escaped};
use crate::parsers::{sink::Sink, tools::Types};

/// How a value is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// By these types.
    Types(Types),
    /// As JSON, else as a text.
    Json,
}

/// Which whitespace around a value belongs to the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trim {
    /// None.
    Nothing,
    /// A line break on each side.
    Breaks,
    /// All, and the frame of a CDATA section.
    All,
}

/// A value while it comes. Texts are passed on at once, other types when they are complete.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    kind: Kind,
    trim: Trim,
    /// Text that waits: all of a value that is no text, or whitespace that may be the last.
    held: String,
    /// The text began: its opening quote is written.
    began: bool,
    /// What belongs to the format before the value was taken.
    trimmed: bool,
    streams: bool,
}

impl Text {
    pub(crate) fn new(kind: Kind, trim: Trim) -> Self {
        let is_text = matches!(kind, Kind::Types(types) if types.is_string());
        Self { kind, trim, held: String::new(), began: false, trimmed: false, streams: is_text && trim != Trim::All }
    }

    /// More of the value.
    pub(crate) fn push(&mut self, text: &str, sink: &mut Sink) {
        let mut text = text;
        if !self.streams {
            let taken = append(&mut self.held, text, MOST_HELD);
            if taken == text.len() {
                return;
            }
            // No number or object is that long.
            self.streams = true;
            text = &text[taken..];
            let held = std::mem::take(&mut self.held);
            self.pass(&held, sink);
        }
        self.pass(text, sink);
    }

    /// The value is complete.
    pub(crate) fn finish(&mut self, sink: &mut Sink) {
        if self.streams {
            self.open(sink);
            sink.arguments("\"");
            return;
        }
        let text = self.complete();
        let value = match self.kind {
            Kind::Types(types) => types.read(text),
            Kind::Json => serde_json::from_str(text.trim()).unwrap_or_else(|_| Types::STRING.read(text)),
        };
        sink.arguments(&value.to_string());
    }

    fn complete(&self) -> &str {
        match self.trim {
            Trim::Nothing => &self.held,
            Trim::Breaks => {
                let text = self.held.strip_prefix('\n').unwrap_or(&self.held);
                text.strip_suffix('\n').unwrap_or(text)
            }
            Trim::All => {
                let text = self.held.trim();
                let inside = text.strip_prefix("<![CDATA[").and_then(|text| text.strip_suffix("]]>"));
                inside.unwrap_or(text)
            }
        }
    }

    fn open(&mut self, sink: &mut Sink) {
        if !std::mem::replace(&mut self.began, true) {
            sink.arguments("\"");
        }
    }

    fn pass(&mut self, text: &str, sink: &mut Sink) {
        let mut text = text;
        if text.is_empty() {
            return;
        }
        self.open(sink);
        if self.trim != Trim::Breaks {
            sink.arguments(&escaped(text));
            return;
        }
        if !std::mem::replace(&mut self.trimmed, true) {
            text = text.strip_prefix('\n').unwrap_or(text);
        }
        if text.is_empty() {
            return;
        }
        sink.arguments(&escaped(&std::mem::take(&mut self.held)));
        if let Some(before) = text.strip_suffix('\n') {
            self.held.push('\n');
            text = before;
        }
        sink.arguments(&escaped(text));
    }
}
