//! The text around calls: openers, closers, and markers of sections. It is content after all when no call comes of it.

use super::{Doubt, Fed};
use crate::parsers::{
    markers::{Found, Markers},
    sink::Sink,
};

/// The text around calls that end by themselves or at a closer.
pub(crate) struct Envelope {
    closers: Markers,
    /// Text that is content unless a call comes of it.
    pub(crate) doubt: Doubt,
    /// A call came behind the opener.
    pub(crate) called: bool,
}

impl Envelope {
    pub(crate) fn new(closers: impl IntoIterator<Item = &'static str>) -> Self {
        Self { closers: Markers::new(closers), doubt: Doubt::default(), called: false }
    }

    /// An opener was read (empty: a bare call begins).
    pub(crate) fn begin(&mut self, opener: &str) {
        self.doubt = Doubt::new(opener);
        self.called = false;
    }

    /// A call came of the text so far.
    pub(crate) fn settle(&mut self) {
        self.doubt.settle();
        self.called = true;
    }

    /// Whether calls are closed by a marker.
    pub(crate) fn has_closers(&self) -> bool {
        !self.closers.is_empty()
    }

    /// Takes a closer from the front of `text`, or waits for the rest of one; absent: other text stands there.
    pub(crate) fn closer(&mut self, text: &str, end: bool, sink: &mut Sink) -> Option<Fed> {
        match self.closers.find(text, end) {
            Found::Unknown => Some(Fed::more(0)),
            Found::Marker(closer) => Some(self.close(closer, sink)),
            Found::Text(_) | Found::Nothing => None,
        }
    }

    /// Content follows the closer, which is content itself if there was no call.
    fn close(&mut self, closer: &str, sink: &mut Sink) -> Fed {
        if !self.called {
            self.doubt.give_up(sink);
            sink.content(closer);
        }
        Fed::content(closer.len())
    }

    /// Gives up to the next closer as content; behind the closer there is content again.
    pub(crate) fn content_to_closer(&self, text: &str, end: bool, sink: &mut Sink) -> Fed {
        match self.closers.find(text, end) {
            Found::Text(length) => {
                sink.content(&text[..length]);
                Fed::more(length)
            }
            Found::Marker(closer) => Fed::content(closer.len()),
            Found::Unknown | Found::Nothing => Fed::more(0),
        }
    }

    /// There is no call: `used` bytes were taken, all text so far is content.
    pub(crate) fn give_up(&mut self, used: usize, sink: &mut Sink) -> Fed {
        self.doubt.give_up(sink);
        Fed::content(used)
    }
}

/// Markers of calls that stand in sections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SectionMarkers {
    /// Around all calls, or around each.
    pub(crate) sections: &'static [(&'static str, &'static str)],
    /// Before each call.
    pub(crate) call: &'static str,
}

/// The text around calls that begin with a marker of their own, perhaps inside a section.
pub(crate) struct Sections {
    pub(crate) envelope: Envelope,
    markers: SectionMarkers,
    /// All of them.
    between: Markers,
    in_section: bool,
}

/// What was read between calls.
pub(crate) enum Between {
    /// The marker of a call.
    Call(Fed),
    /// Something else, or nothing.
    Other(Fed),
}

impl Sections {
    /// `ignored`: markers that may stand between calls and mean nothing.
    pub(crate) fn new(markers: SectionMarkers, ignored: impl IntoIterator<Item = &'static str>) -> Self {
        let closers = markers.sections.iter().map(|(_, close)| *close);
        let between = Markers::new(closers.clone().chain([markers.call]).chain(ignored));
        Self { envelope: Envelope::new(closers), markers, between, in_section: false }
    }

    /// An opener was read; whether it is the marker of a call.
    pub(crate) fn begin(&mut self, opener: &str) -> bool {
        self.envelope.begin(opener);
        self.in_section = opener != self.markers.call;
        !self.in_section
    }

    /// Whether a marker closes a section.
    pub(crate) fn is_end(&self, marker: &str) -> bool {
        self.markers.sections.iter().any(|(_, close)| *close == marker)
    }

    /// Takes what it can from the front of a text between calls.
    pub(crate) fn between(&mut self, text: &str, end: bool, sink: &mut Sink) -> Between {
        let envelope = &mut self.envelope;
        match self.between.find(text, end) {
            Found::Marker(marker) if marker == self.markers.call => {
                if envelope.called {
                    envelope.doubt = Doubt::new("");
                }
                let _ = envelope.doubt.take(marker);
                Between::Call(Fed::more(marker.len()))
            }
            Found::Marker(marker) if self.markers.sections.iter().any(|(_, close)| *close == marker) => {
                Between::Other(envelope.close(marker, sink))
            }
            Found::Marker(marker) => {
                let _ = envelope.doubt.take(marker);
                Between::Other(Fed::more(marker.len()))
            }
            Found::Text(length) if envelope.called && self.in_section => {
                sink.content(&text[..length]);
                Between::Other(Fed::more(length))
            }
            Found::Text(_) if envelope.called => Between::Other(Fed::content(0)),
            Found::Text(length) => {
                let blank = length - text[..length].trim_start().len();
                let taken = envelope.doubt.take(&text[..blank]);
                Between::Other(if taken == length { Fed::more(taken) } else { envelope.give_up(taken, sink) })
            }
            Found::Unknown | Found::Nothing => Between::Other(Fed::more(0)),
        }
    }
}
