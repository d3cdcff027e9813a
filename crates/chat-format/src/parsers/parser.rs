//! The core that all formats share: what is reasoning, what is content, and where calls begin.

use std::sync::Arc;

use super::{
    Event, Tools,
    families::Reasoning,
    markers::{Found, Markers},
    shapes::{Shape, Then, append},
    sink::Sink,
};

/// A header (a role or a name between two markers) is at most this long, bytes.
const MOST_HEADER: usize = 256;

/// Splits the text of one answer, as it comes, into reasoning, content and calls.
pub struct Parser {
    /// Text that is not understood yet: at most the beginning of a marker between two pushes.
    held: String,
    mode: Mode,
    reasoning: Option<&'static Reasoning>,
    shape: Option<Box<dyn Shape>>,
    in_content: Markers,
    in_reasoning: Markers,
    sink: Sink,
    /// Whether a reasoning block may still begin.
    may_reason: bool,
    prefix: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Mode {
    /// Nothing but whitespace came.
    Start,
    Content,
    Reasoning,
    Call,
    /// Behind a marker that begins a header; what came of it.
    Header(String),
}

/// What a parser is made of.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// How calls are written; absent: none is looked for.
    pub tools: Option<super::ToolFormat>,
    /// How reasoning is written; absent: it is content.
    pub reasoning: Option<super::ReasoningFormat>,
    /// The request's tools.
    pub offered: Arc<Tools>,
    /// The end of the rendered prompt, where known: templates may begin the reasoning, or end it.
    pub prompt_tail: Option<String>,
}

impl Parser {
    /// A parser for one answer.
    pub fn new(setup: Setup) -> Self {
        let reasoning = setup.reasoning.map(|format| format.format);
        let whole = reasoning.and_then(|format| format.whole).map(|make| make(setup.tools.is_some(), &setup.offered));
        let shape = whole.or_else(|| setup.tools.map(|format| (format.make)(&setup.offered)));
        let openers = || shape.iter().flat_map(|shape| shape.openers().iter().copied());
        let of_reasoning = || reasoning.into_iter();
        let in_content = openers()
            .chain(of_reasoning().flat_map(|format| format.open.iter().copied()))
            .chain(of_reasoning().flat_map(|format| format.dropped.iter().chain(format.headers).copied()));
        let call_ends = reasoning.is_some_and(|format| format.ended_by_call);
        let in_reasoning = of_reasoning()
            .flat_map(|format| format.close.iter().chain(format.open).copied())
            .chain(openers().filter(|_| call_ends));
        let (in_content, in_reasoning) = (Markers::new(in_content), Markers::new(in_reasoning));
        let mode = match (&shape, reasoning) {
            (Some(shape), _) if shape.is_whole() => Mode::Call,
            (_, Some(format)) => format.first_mode(setup.prompt_tail.as_deref()),
            _ => Mode::Start,
        };
        Self {
            held: String::new(),
            may_reason: reasoning.is_some(),
            prefix: reasoning.map_or("", |format| format.prefix),
            mode,
            reasoning,
            shape,
            in_content,
            in_reasoning,
            sink: Sink::new(),
        }
    }

    /// More text came; returns what is certain now.
    pub fn push(&mut self, text: &str) -> Vec<Event> {
        self.begin();
        self.held.push_str(text);
        self.run(false);
        self.sink.take()
    }

    /// The text is over; returns what was held back.
    pub fn finish(&mut self) -> Vec<Event> {
        self.begin();
        self.run(true);
        if let Mode::Header(header) = std::mem::replace(&mut self.mode, Mode::Content) {
            self.sink.content(&header);
        }
        self.sink.finish();
        self.sink.take()
    }

    /// Calls so far.
    pub fn calls(&self) -> u32 {
        self.sink.calls()
    }

    fn begin(&mut self) {
        let prefix = std::mem::take(&mut self.prefix);
        self.sink.content(prefix);
    }

    fn run(&mut self, end: bool) {
        let held = std::mem::take(&mut self.held);
        let mut at = 0;
        loop {
            let (used, again) = self.step(&held[at..], end);
            at += used;
            if used == 0 && !again {
                break;
            }
        }
        self.held.push_str(&held[at..]);
    }

    /// Takes what it can from the front of `text`: how many bytes, and whether the mode changed.
    fn step(&mut self, text: &str, end: bool) -> (usize, bool) {
        match &self.mode {
            Mode::Start => self.start(text, end),
            Mode::Content => self.content(text, end),
            Mode::Reasoning => self.think(text, end),
            Mode::Call => self.call(text, end),
            Mode::Header(_) => self.header(text, end),
        }
    }

    fn start(&mut self, text: &str, end: bool) -> (usize, bool) {
        let blank = text.len() - text.trim_start().len();
        if blank > 0 {
            self.sink.content(&text[..blank]);
            return (blank, true);
        }
        if let (Some(shape), Some(first)) = (&mut self.shape, text.chars().next())
            && shape.is_bare(first)
            && matches!(self.in_content.find(text, end), Found::Text(_))
        {
            shape.begin("");
            self.mode = Mode::Call;
            return (0, true);
        }
        // A marker may hide a call behind it, so its first character is not content yet.
        if text.is_empty() || self.in_content.find(text, end) == Found::Unknown {
            return (0, false);
        }
        self.mode = Mode::Content;
        (0, true)
    }

    fn content(&mut self, text: &str, end: bool) -> (usize, bool) {
        match self.in_content.find(text, end) {
            Found::Text(length) => {
                self.sink.content(&text[..length]);
                (length, true)
            }
            Found::Marker(marker) => {
                self.marker(marker);
                (marker.len(), true)
            }
            Found::Unknown | Found::Nothing => (0, false),
        }
    }

    fn marker(&mut self, marker: &'static str) {
        if let Some(shape) = &mut self.shape
            && shape.openers().contains(&marker)
        {
            shape.begin(marker);
            self.mode = Mode::Call;
            return;
        }
        let Some(format) = self.reasoning else { return };
        if format.open.contains(&marker) {
            // Text that speaks of a marker is text: only the first block, at the beginning, is reasoning for most
            // formats.
            if format.repeats || (self.may_reason && self.sink.at_seam()) {
                self.mode = Mode::Reasoning;
            } else {
                self.sink.content(marker);
            }
        } else if format.headers.contains(&marker) {
            self.mode = Mode::Header(String::new());
        }
    }

    fn think(&mut self, text: &str, end: bool) -> (usize, bool) {
        let Some(format) = self.reasoning else {
            self.mode = Mode::Content;
            return (0, true);
        };
        self.may_reason = false;
        match self.in_reasoning.find(text, end) {
            Found::Text(length) => {
                self.sink.reasoning(&text[..length]);
                (length, true)
            }
            Found::Marker(marker) if format.close.contains(&marker) => {
                self.sink.seam();
                self.mode = Mode::Start;
                (marker.len(), true)
            }
            Found::Marker(marker) if format.open.contains(&marker) => {
                if !self.sink.at_seam() {
                    self.sink.reasoning(marker);
                }
                (marker.len(), true)
            }
            Found::Marker(_) => {
                self.mode = Mode::Content;
                (0, true)
            }
            Found::Unknown | Found::Nothing => (0, false),
        }
    }

    fn call(&mut self, text: &str, end: bool) -> (usize, bool) {
        let Some(shape) = &mut self.shape else {
            self.mode = Mode::Content;
            return (0, true);
        };
        let fed = shape.feed(text, end, &mut self.sink);
        match fed.then {
            Then::More => (fed.used, false),
            Then::Content => {
                self.sink.end();
                self.mode = Mode::Content;
                (fed.used, true)
            }
        }
    }

    /// A header ends at the next marker, and is dropped with it. One that is too long was none.
    fn header(&mut self, text: &str, end: bool) -> (usize, bool) {
        let found = self.in_content.find(text, end);
        let Mode::Header(header) = &mut self.mode else { return (0, false) };
        match found {
            Found::Text(length) => {
                let taken = append(header, &text[..length], MOST_HEADER);
                if taken < length {
                    let header = std::mem::take(header);
                    self.sink.content(&header);
                    self.mode = Mode::Content;
                }
                (taken, true)
            }
            Found::Marker(_) => {
                let header = std::mem::take(header);
                // A name is one word; what is more was no header.
                if header.trim().contains(|letter: char| letter.is_whitespace() || letter == '<') {
                    self.sink.content(&header);
                }
                self.mode = Mode::Content;
                (0, true)
            }
            Found::Unknown | Found::Nothing => (0, false),
        }
    }
}

impl Reasoning {
    /// Whether the answer begins with reasoning, by the end of the prompt.
    fn first_mode(&self, prompt_tail: Option<&str>) -> Mode {
        let default = if self.implicit { Mode::Reasoning } else { Mode::Start };
        let Some(tail) = prompt_tail.map(str::trim_end) else { return default };
        let ends = |markers: &[&str]| markers.iter().any(|marker| tail.ends_with(marker.trim_end()));
        match (ends(self.open), ends(self.close)) {
            (true, _) => Mode::Reasoning,
            (_, true) => Mode::Start,
            _ => default,
        }
    }
}
