//! Collects what a parser finds, and drops the whitespace at the seams of a format.

use super::Event;

/// A run of whitespace that is held back is at most this long, bytes.
const MOST_WHITESPACE: usize = 1024;

/// What the text at hand belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Content,
    Reasoning,
}

/// Takes what a parser finds. Whitespace between reasoning, content and calls belongs to the format and is dropped;
/// within them it is kept.
#[derive(Debug)]
pub(crate) struct Sink {
    events: Vec<Event>,
    part: Part,
    /// Whitespace that is dropped if a seam comes next.
    whitespace: String,
    /// Nothing but whitespace came since the last seam.
    at_seam: bool,
    /// Whether whitespace behind the last seam is dropped: not at the beginning of all.
    trims: bool,
    calls: u32,
    /// Whether the last call has had arguments.
    has_arguments: bool,
    open: bool,
}

impl Sink {
    pub(crate) fn new() -> Self {
        Self {
            events: Vec::new(),
            part: Part::Content,
            whitespace: String::new(),
            at_seam: true,
            trims: false,
            calls: 0,
            has_arguments: true,
            open: false,
        }
    }

    /// What was found since this was asked last.
    pub(crate) fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Calls so far.
    pub(crate) fn calls(&self) -> u32 {
        self.calls
    }

    /// Whether nothing but whitespace came so far, or since the last seam.
    pub(crate) fn at_seam(&self) -> bool {
        self.at_seam
    }

    /// Text of the answer.
    pub(crate) fn content(&mut self, text: &str) {
        self.text(text, Part::Content);
    }

    /// Text of the reasoning.
    pub(crate) fn reasoning(&mut self, text: &str) {
        self.text(text, Part::Reasoning);
    }

    /// What went on ends here: whitespace on both sides is dropped.
    pub(crate) fn seam(&mut self) {
        self.whitespace.clear();
        self.at_seam = true;
        self.trims = true;
    }

    /// A call begins. `id` is the model's own, if its format has any.
    pub(crate) fn start(&mut self, name: &str, id: Option<String>) {
        self.end();
        self.seam();
        self.events.push(Event::CallStart { index: self.calls, id, name: name.to_owned() });
        self.calls += 1;
        self.has_arguments = false;
        self.open = true;
    }

    /// More of the last call's arguments.
    pub(crate) fn arguments(&mut self, text: &str) {
        if text.is_empty() || !self.open {
            return;
        }
        self.has_arguments = true;
        let index = self.calls.saturating_sub(1);
        match self.events.last_mut() {
            Some(Event::Arguments { text: before, .. }) => before.push_str(text),
            _ => self.events.push(Event::Arguments { index, text: text.to_owned() }),
        }
    }

    /// The last call ends. One without arguments has an empty object.
    pub(crate) fn end(&mut self) {
        if std::mem::take(&mut self.open) && !self.has_arguments {
            self.open = true;
            self.arguments("{}");
            self.open = false;
        }
    }

    /// The text ends.
    pub(crate) fn finish(&mut self) {
        self.end();
        if !(self.at_seam && self.trims) && self.part == Part::Content {
            self.emit_whitespace();
        }
        self.whitespace.clear();
    }

    fn text(&mut self, text: &str, part: Part) {
        if text.is_empty() {
            return;
        }
        if self.part != part {
            self.seam();
            self.part = part;
        }
        let mut rest = text;
        while !rest.is_empty() {
            let words = rest.find(char::is_whitespace).unwrap_or(rest.len());
            if words > 0 {
                self.emit_whitespace();
                self.at_seam = false;
                self.emit(&rest[..words]);
                rest = &rest[words..];
            }
            let blank = rest.find(|letter: char| !letter.is_whitespace()).unwrap_or(rest.len());
            self.hold(&rest[..blank]);
            rest = &rest[blank..];
        }
    }

    fn hold(&mut self, blank: &str) {
        if self.at_seam && self.trims {
            return;
        }
        for letter in blank.chars() {
            self.whitespace.push(letter);
            if self.whitespace.len() >= MOST_WHITESPACE {
                self.emit_whitespace();
            }
        }
    }

    fn emit_whitespace(&mut self) {
        if !self.whitespace.is_empty() {
            let blank = std::mem::take(&mut self.whitespace);
            self.emit(&blank);
        }
    }

    fn emit(&mut self, text: &str) {
        match (self.events.last_mut(), self.part) {
            (Some(Event::Content(before)), Part::Content) | (Some(Event::Reasoning(before)), Part::Reasoning) => {
                before.push_str(text);
            }
            (_, Part::Content) => self.events.push(Event::Content(text.to_owned())),
            (_, Part::Reasoning) => self.events.push(Event::Reasoning(text.to_owned())),
        }
    }
}
