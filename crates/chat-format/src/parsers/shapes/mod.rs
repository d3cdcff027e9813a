//! How calls are written: a few shapes, of which a model's format is an instance.

use std::sync::Arc;

use super::{sink::Sink, tools::Tools};

pub(crate) mod attributes;
pub(crate) mod block;
pub(crate) mod channels;
pub(crate) mod envelope;
pub(crate) mod json;
pub(crate) mod named;
pub(crate) mod pythonic;
pub(crate) mod scan;
pub(crate) mod tagged;
pub(crate) mod value;

/// A name of a tool is at most this long, bytes; what is longer is none.
pub(crate) const MOST_NAME: usize = 256;
/// What is held back until it is understood is at most this long, bytes.
pub(crate) const MOST_HELD: usize = 1 << 20;

/// Makes a parser of calls.
pub(crate) type Make = fn(&Arc<Tools>) -> Box<dyn Shape>;

/// Reads calls from text that comes in pieces. What it takes does not depend on the pieces.
pub(crate) trait Shape: Send {
    /// Markers in content behind which a call may stand.
    fn openers(&self) -> &'static [&'static str];

    /// Whether an answer whose first character is this may be calls without any marker.
    fn is_bare(&self, first: char) -> bool {
        let _ = first;
        false
    }

    /// Whether it reads the whole answer, reasoning and content too.
    fn is_whole(&self) -> bool {
        false
    }

    /// One of the openers was read (empty: a bare call begins).
    fn begin(&mut self, opener: &'static str);

    /// Takes what it can from the front of `text`. With `end` no more text comes: then all is taken, or content
    /// follows.
    fn feed(&mut self, text: &str, end: bool, sink: &mut Sink) -> Fed;
}

/// How much of a text was taken, and what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fed {
    /// Bytes that were taken.
    pub(crate) used: usize,
    /// What follows.
    pub(crate) then: Then,
}

/// What follows behind the text that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// More of the calls.
    More,
    /// Content: the calls are over, or there were none.
    Content,
}

impl Fed {
    pub(crate) fn more(used: usize) -> Self {
        Self { used, then: Then::More }
    }

    pub(crate) fn content(used: usize) -> Self {
        Self { used, then: Then::Content }
    }

    /// Itself, or what `more` does if nothing was taken.
    pub(crate) fn or(self, more: impl FnOnce() -> Self) -> Self {
        if self.used == 0 { more() } else { self }
    }
}

/// Text that is content after all unless a call comes of it.
#[derive(Debug, Default)]
pub(crate) struct Doubt {
    text: String,
    /// A call came of it.
    settled: bool,
}

impl Doubt {
    /// Begins with the opener that was read.
    pub(crate) fn new(opener: &str) -> Self {
        Self { text: opener.to_owned(), settled: false }
    }

    /// Takes from the front of `text` what there is room for, bytes. Less than all: it is too much to be a call.
    #[must_use]
    pub(crate) fn take(&mut self, text: &str) -> usize {
        if self.settled {
            return text.len();
        }
        append(&mut self.text, text, MOST_HELD)
    }

    /// The same of text of a name, of which there is a bound too.
    #[must_use]
    pub(crate) fn take_name(&mut self, name: &mut String, text: &str) -> usize {
        let taken = append(name, text, MOST_NAME);
        self.take(&text[..taken])
    }

    /// A call came of it.
    pub(crate) fn settle(&mut self) {
        self.settled = true;
        self.text = String::new();
    }

    /// It is content after all.
    pub(crate) fn give_up(&mut self, sink: &mut Sink) {
        sink.content(&std::mem::take(&mut self.text));
    }
}

/// Appends what there is room for from the front of `text`, bytes: `to` has `most` at most.
#[must_use]
pub(crate) fn append(to: &mut String, text: &str, most: usize) -> usize {
    let taken = fitting(text, most.saturating_sub(to.len()));
    to.push_str(&text[..taken]);
    taken
}

/// Length of the longest beginning of `text`, whole characters, that is at most `room` bytes.
pub(crate) fn fitting(text: &str, room: usize) -> usize {
    if text.len() <= room {
        return text.len();
    }
    (0..=room).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}
