//! Calls as JSON objects: `{"name": …, "arguments": {…}}`, one or many, perhaps in a list.
//!
//! An object is a call as soon as its name is read and its arguments begin; before that it is content after all when it
//! turns out to be something else. Arguments are passed on as they stand; a string of JSON is decoded.

use std::sync::Arc;

use super::{
    Doubt, Fed, MOST_NAME, Shape,
    envelope::Envelope,
    scan::{Letter, Nesting, Quoted},
};
use crate::parsers::{sink::Sink, tools::Tools};

/// A way of writing calls as JSON.
#[derive(Debug)]
pub(crate) struct Format {
    /// Markers before the objects.
    pub(crate) openers: &'static [&'static str],
    /// Markers behind them; none: the JSON ends by itself.
    pub(crate) closers: &'static [&'static str],
    /// Keys of the tool's name.
    pub(crate) name: &'static [&'static str],
    /// Keys of the arguments.
    pub(crate) arguments: &'static [&'static str],
    /// First characters of calls without any marker.
    pub(crate) bare: &'static [char],
    /// `{NAME: {…}}` instead.
    pub(crate) keyed: bool,
}

impl Format {
    /// `{"name": …, "arguments": …}` without markers.
    pub(crate) const PLAIN: Self = Self {
        openers: &[],
        closers: &[],
        name: &["name"],
        arguments: &["arguments", "parameters"],
        bare: &[],
        keyed: false,
    };

    /// A parser of such calls.
    pub(crate) fn shape(&'static self, tools: &Arc<Tools>) -> Box<dyn Shape> {
        Box::new(Calls {
            format: self,
            tools: tools.clone(),
            envelope: Envelope::new(self.closers.iter().copied()),
            bare: false,
            in_list: false,
            ended: false,
            state: State::Between,
            call: Call::default(),
        })
    }
}

struct Calls {
    format: &'static Format,
    tools: Arc<Tools>,
    /// In doubt are the object at hand and the text before it.
    envelope: Envelope,
    /// No marker was read: only the request's tools are calls.
    bare: bool,
    in_list: bool,
    /// The JSON is complete; only a closer, or another object behind a separator, may follow.
    ended: bool,
    state: State,
    call: Call,
}

#[derive(Clone, Debug)]
enum State {
    /// Before, between or behind objects.
    Between,
    /// Behind text that belongs to no call: all up to the closer is content.
    Junk,
    /// In an object, before a key.
    BeforeKey,
    Key(Quoted, String),
    Colon(String),
    BeforeValue(Role),
    Name(Quoted, String),
    /// A value as it stands.
    Raw(Role, Nesting),
    /// A string: arguments are decoded, others are dropped.
    Text(Role, Quoted),
    /// A number or a word.
    Word(Role, String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Name,
    Arguments,
    Other,
}

/// What is known of the object at hand.
#[derive(Clone, Debug, Default)]
struct Call {
    name: Option<String>,
    /// Arguments that came before the name.
    early: String,
    has_arguments: bool,
    /// It has members that are neither.
    has_others: bool,
    started: bool,
}

/// What follows a character.
enum Next {
    Taken,
    /// The character belongs to what follows.
    Again,
    /// This is no call.
    No,
}

impl Shape for Calls {
    fn openers(&self) -> &'static [&'static str] {
        self.format.openers
    }

    fn is_bare(&self, first: char) -> bool {
        self.format.bare.contains(&first)
    }

    fn begin(&mut self, opener: &'static str) {
        self.envelope.begin(opener);
        self.bare = opener.is_empty();
        self.in_list = false;
        self.ended = false;
        self.state = State::Between;
        self.call = Call::default();
    }

    fn feed(&mut self, text: &str, end: bool, sink: &mut Sink) -> Fed {
        if text.is_empty() {
            if !end {
                return Fed::more(0);
            }
            let only_separators = self.envelope.called && matches!(self.state, State::Between | State::Junk);
            if !only_separators {
                self.envelope.doubt.give_up(sink);
            }
            return Fed::content(0);
        }
        match self.state {
            State::Between => self.between(text, end, sink),
            State::Junk => self.junk(text, end, sink),
            _ => self.object(text, end, sink),
        }
    }
}

impl Calls {
    /// Before, between and behind objects.
    fn between(&mut self, text: &str, end: bool, sink: &mut Sink) -> Fed {
        if let Some(fed) = self.envelope.closer(text, end, sink) {
            return fed;
        }
        let Some(letter) = text.chars().next() else { return Fed::more(0) };
        let size = letter.len_utf8();
        if self.separates(letter) && self.envelope.doubt.take(&text[..size]) == size {
            if letter == ']' {
                self.envelope.doubt = Doubt::default();
            }
            return Fed::more(size);
        }
        self.envelope.doubt.give_up(sink);
        if self.envelope.called && self.envelope.has_closers() {
            return self.junk(text, end, sink);
        }
        Fed::content(0)
    }

    /// Whether a character belongs between objects, or begins one.
    fn separates(&mut self, letter: char) -> bool {
        match letter {
            ',' | ';' => {
                self.ended &= self.in_list || self.envelope.has_closers();
                self.envelope.called
            }
            '[' => !self.ended && !std::mem::replace(&mut self.in_list, true),
            ']' => {
                self.ended = true;
                std::mem::take(&mut self.in_list) && self.envelope.called
            }
            '{' if !self.ended || self.in_list => {
                self.state = State::BeforeKey;
                self.call = Call::default();
                true
            }
            letter => letter.is_whitespace(),
        }
    }

    /// Text where there should be none, up to the closer, is content.
    fn junk(&mut self, text: &str, end: bool, sink: &mut Sink) -> Fed {
        self.state = State::Junk;
        self.envelope.content_to_closer(text, end, sink)
    }

    /// Inside an object, up to its end.
    fn object(&mut self, text: &str, end: bool, sink: &mut Sink) -> Fed {
        let mut used = 0;
        for letter in text.chars() {
            let size = letter.len_utf8();
            if self.envelope.doubt.take(&text[used..used + size]) < size {
                self.envelope.doubt.give_up(sink);
                return Fed::content(used);
            }
            let next = loop {
                match self.letter(letter, sink) {
                    Next::Again => {}
                    next => break next,
                }
            };
            if matches!(next, Next::No) {
                return self.broken(text, used, end, sink);
            }
            used += size;
            if matches!(self.state, State::Between) {
                break;
            }
        }
        Fed::more(used)
    }

    /// The character at `at` fits nowhere: what has become a call stays one, the rest is content.
    fn broken(&mut self, text: &str, at: usize, end: bool, sink: &mut Sink) -> Fed {
        self.state = State::Between;
        if !self.call.started {
            let size = text[at..].chars().next().map_or(0, char::len_utf8);
            self.envelope.doubt.give_up(sink);
            return Fed::content(at + size);
        }
        sink.end();
        if !self.envelope.has_closers() {
            return Fed::content(at);
        }
        let fed = self.between(&text[at..], end, sink);
        Fed { used: at + fed.used, then: fed.then }
    }

    fn letter(&mut self, letter: char, sink: &mut Sink) -> Next {
        match std::mem::replace(&mut self.state, State::Between) {
            State::Between | State::Junk => Next::No,
            State::BeforeKey => self.before_key(letter, sink),
            State::Key(mut quoted, mut key) => {
                self.state = match quoted.take(letter) {
                    Letter::End => State::Colon(key),
                    Letter::Pending => State::Key(quoted, key),
                    Letter::Plain(letter) if key.len() < MOST_NAME => {
                        key.push(letter);
                        State::Key(quoted, key)
                    }
                    Letter::Plain(_) => return Next::No,
                };
                Next::Taken
            }
            State::Colon(key) => self.colon(key, letter, sink),
            State::BeforeValue(role) => self.before_value(role, letter, sink),
            State::Name(mut quoted, mut name) => {
                self.state = match quoted.take(letter) {
                    Letter::End => return self.named(name, sink),
                    Letter::Pending => State::Name(quoted, name),
                    Letter::Plain(letter) if name.len() < MOST_NAME => {
                        name.push(letter);
                        State::Name(quoted, name)
                    }
                    Letter::Plain(_) => return Next::No,
                };
                Next::Taken
            }
            State::Raw(role, mut nesting) => {
                let ends = nesting.ends(letter);
                self.pass(role, letter, sink);
                self.state = if ends { State::BeforeKey } else { State::Raw(role, nesting) };
                Next::Taken
            }
            State::Text(role, mut quoted) => {
                self.state = match quoted.take(letter) {
                    Letter::End => State::BeforeKey,
                    Letter::Pending => State::Text(role, quoted),
                    Letter::Plain(letter) => {
                        self.pass(role, letter, sink);
                        State::Text(role, quoted)
                    }
                };
                Next::Taken
            }
            State::Word(role, word) => self.word(role, word, letter, sink),
        }
    }

    fn before_key(&mut self, letter: char, sink: &mut Sink) -> Next {
        match letter {
            '"' => self.state = State::Key(Quoted::default(), String::new()),
            '}' => return self.close(sink),
            ',' => self.state = State::BeforeKey,
            letter if letter.is_whitespace() => self.state = State::BeforeKey,
            _ => return Next::No,
        }
        Next::Taken
    }

    fn colon(&mut self, key: String, letter: char, sink: &mut Sink) -> Next {
        if letter.is_whitespace() {
            self.state = State::Colon(key);
            return Next::Taken;
        }
        if letter != ':' {
            return Next::No;
        }
        if self.format.keyed {
            self.call = Call::default();
        }
        let first = self.call.name.is_none();
        let role = match key.as_str() {
            _ if self.format.keyed => {
                if let Next::No = self.named(key, sink) {
                    return Next::No;
                }
                Role::Arguments
            }
            key if self.format.name.contains(&key) && first => Role::Name,
            key if self.format.arguments.contains(&key) && !self.call.has_arguments => Role::Arguments,
            _ => {
                self.call.has_others = true;
                Role::Other
            }
        };
        self.state = State::BeforeValue(role);
        Next::Taken
    }

    fn before_value(&mut self, role: Role, letter: char, sink: &mut Sink) -> Next {
        if letter.is_whitespace() {
            self.state = State::BeforeValue(role);
            return Next::Taken;
        }
        if role == Role::Arguments {
            self.call.has_arguments = true;
            self.commit(sink);
        }
        self.state = match letter {
            '"' if role == Role::Name => State::Name(Quoted::default(), String::new()),
            _ if role == Role::Name => return Next::No,
            '"' => State::Text(role, Quoted::default()),
            '{' | '[' => {
                let mut nesting = Nesting::default();
                nesting.ends(letter);
                self.pass(role, letter, sink);
                State::Raw(role, nesting)
            }
            letter if letter.is_ascii_alphanumeric() || letter == '-' => State::Word(role, letter.to_string()),
            _ => return Next::No,
        };
        Next::Taken
    }

    fn word(&mut self, role: Role, mut word: String, letter: char, sink: &mut Sink) -> Next {
        if letter.is_ascii_alphanumeric() || "+-.".contains(letter) {
            if word.len() >= MOST_NAME {
                return Next::No;
            }
            word.push(letter);
            self.state = State::Word(role, word);
            return Next::Taken;
        }
        // No arguments at all are an empty object, which the end of the call writes.
        if word != "null" {
            word.chars().for_each(|letter| self.pass(role, letter, sink));
        }
        self.state = State::BeforeKey;
        Next::Again
    }

    fn named(&mut self, name: String, sink: &mut Sink) -> Next {
        if name.trim().is_empty() || (self.bare && !self.tools.has(&name)) {
            return Next::No;
        }
        self.call.name = Some(name);
        if self.call.has_arguments {
            self.commit(sink);
        }
        self.state = State::BeforeKey;
        Next::Taken
    }

    /// The call is certain.
    fn commit(&mut self, sink: &mut Sink) {
        let Some(name) = self.call.name.as_deref().filter(|_| !self.call.started) else { return };
        sink.start(name, None);
        sink.arguments(&std::mem::take(&mut self.call.early));
        self.call.started = true;
        self.envelope.called = true;
        self.envelope.doubt.settle();
    }

    fn pass(&mut self, role: Role, letter: char, sink: &mut Sink) {
        if role != Role::Arguments {
            return;
        }
        if self.call.started {
            sink.arguments(letter.encode_utf8(&mut [0; 4]));
        } else {
            self.call.early.push(letter);
        }
    }

    /// The object ends.
    fn close(&mut self, sink: &mut Sink) -> Next {
        // A name alone is a call without arguments; with other members it is something else.
        if !self.bare && !self.call.has_others {
            self.commit(sink);
        }
        if !self.call.started {
            return Next::No;
        }
        sink.end();
        self.ended = !self.in_list && !self.envelope.has_closers();
        self.state = State::Between;
        self.envelope.doubt = Doubt::default();
        Next::Taken
    }
}
