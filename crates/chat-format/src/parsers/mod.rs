//! What a model's answer is made of: reasoning, content and calls of tools, each in the format that the model was
//! trained to write.
//!
//! [`Parser`] takes the text as it comes and gives [`Event`]s. However the text is cut, the events say the same.
//! Nothing is lost: what looks like a call and is none is content. What waits to be understood is bounded.

use std::sync::Arc;

pub(crate) mod detect;
mod families;
mod forms;
mod markers;
mod parser;
mod shapes;
mod sink;
mod tools;

pub use forms::CallForm;
pub use parser::{Parser, Setup};
pub use tools::Tools;

/// Something that a parser is certain of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// More of the content.
    Content(String),
    /// More of the reasoning.
    Reasoning(String),
    /// A call begins.
    CallStart {
        /// Calls before it.
        index: u32,
        /// The id that the model gave it, where its format has any.
        id: Option<String>,
        /// The tool's name.
        name: String,
    },
    /// More of the arguments of the call that began last, JSON.
    Arguments {
        /// The call.
        index: u32,
        /// The text to append.
        text: String,
    },
}

/// A format of calls.
#[derive(Clone, Copy)]
pub struct ToolFormat {
    /// The name that users type.
    pub name: &'static str,
    pub(crate) make: shapes::Make,
}

/// A format of reasoning.
#[derive(Clone, Copy)]
pub struct ReasoningFormat {
    /// The name that users type.
    pub name: &'static str,
    pub(crate) format: &'static families::Reasoning,
}

/// How an answer begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begins {
    /// With its reasoning.
    InReasoning,
    /// With its content.
    InAnswer,
    /// With the content, or with a marker that begins the reasoning.
    InEither,
}

/// Why there is no such format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownFormat {
    /// A known name that is not supported.
    #[error("`{name}` is not supported: {reason}")]
    Refused {
        /// The name.
        name: &'static str,
        /// Why not.
        reason: &'static str,
    },
    /// No name of any format.
    #[error("`{name}` is no known format; known are {}", .known.join(", "))]
    Unknown {
        /// What was given.
        name: String,
        /// All names.
        known: Vec<&'static str>,
    },
}

impl ToolFormat {
    /// The format of that name.
    ///
    /// # Errors
    /// When there is none.
    pub fn named(name: &str) -> Result<Self, UnknownFormat> {
        let found = families::TOOLS.iter().find(|(known, _)| *known == name);
        found.map(|(name, make)| Self { name, make: *make }).ok_or_else(|| unknown(name, Self::names()))
    }

    /// How a call is written, where its arguments are JSON.
    pub fn form(&self) -> Option<CallForm> {
        forms::FORMS.iter().find(|(name, _)| *name == self.name).map(|(_, form)| *form)
    }

    /// All names, sorted.
    pub fn names() -> impl Iterator<Item = &'static str> {
        families::TOOLS.iter().map(|(name, _)| *name)
    }
}

impl ReasoningFormat {
    /// The format of that name.
    ///
    /// # Errors
    /// When there is none.
    pub fn named(name: &str) -> Result<Self, UnknownFormat> {
        let found = families::REASONING.iter().find(|(known, _)| *known == name);
        found.map(|(name, format)| Self { name, format }).ok_or_else(|| unknown(name, Self::names()))
    }

    /// All names, sorted.
    pub fn names() -> impl Iterator<Item = &'static str> {
        families::REASONING.iter().map(|(name, _)| *name)
    }

    /// Markers behind the reasoning, or behind its first message.
    pub fn ends(&self) -> &'static [&'static str] {
        if self.format.close.is_empty() { self.format.message_end } else { self.format.close }
    }

    /// What stands between reasoning that is cut off and [`Self::answer_marks`] or [`Self::call_marks`].
    pub fn turn(&self) -> &'static str {
        self.format.turn
    }

    /// Markers before it.
    pub fn opens(&self) -> &'static [&'static str] {
        self.format.open
    }

    /// Markers behind which nothing but the answer follows; none where they cannot be told.
    pub fn answer_marks(&self) -> &'static [&'static str] {
        if self.format.answer.is_empty() { self.format.close } else { self.format.answer }
    }

    /// Markers behind which a call follows, or an answer where calls are part of it.
    pub fn call_marks(&self) -> &'static [&'static str] {
        if self.format.call.is_empty() { self.answer_marks() } else { self.format.call }
    }

    /// How a call goes on behind [`Self::call_marks`], where these begin one.
    pub fn call_form(&self) -> Option<CallForm> {
        (!self.format.call.is_empty()).then_some(CallForm::HEADED)
    }

    /// Whether it is read as a whole, calls and content too.
    pub fn is_whole(&self) -> bool {
        self.format.whole.is_some()
    }

    /// How an answer begins behind a prompt that ends so.
    pub fn begins(&self, prompt_tail: &str) -> Begins {
        let tail = prompt_tail.trim_end();
        let ends = |markers: &[&str]| markers.iter().any(|marker| tail.ends_with(marker.trim_end()));
        match (ends(self.format.open), ends(self.answer_marks())) {
            (true, _) => Begins::InReasoning,
            (_, true) => Begins::InAnswer,
            _ if self.format.implicit || self.format.whole.is_some() => Begins::InReasoning,
            _ if self.format.open.is_empty() => Begins::InAnswer,
            _ => Begins::InEither,
        }
    }
}

impl std::fmt::Debug for ToolFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ToolFormat({})", self.name)
    }
}

impl std::fmt::Debug for ReasoningFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReasoningFormat({})", self.name)
    }
}

fn unknown(name: &str, known: impl Iterator<Item = &'static str>) -> UnknownFormat {
    match families::REFUSED.iter().find(|(refused, _)| *refused == name) {
        Some((name, reason)) => UnknownFormat::Refused { name, reason },
        None => UnknownFormat::Unknown { name: name.to_owned(), known: known.collect() },
    }
}

/// The whole of an answer at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The content.
    pub content: String,
    /// The reasoning.
    pub reasoning: String,
    /// The calls.
    pub calls: Vec<Call>,
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// The id that the model gave it, where its format has any.
    pub id: Option<String>,
    /// The tool's name.
    pub name: String,
    /// JSON, unless the model wrote something else or was cut off.
    pub arguments: String,
}

impl Message {
    /// Reads a whole text.
    pub fn read(text: &str, setup: Setup) -> Self {
        let mut parser = Parser::new(setup);
        let mut message = Self::default();
        message.extend(parser.push(text));
        message.extend(parser.finish());
        message
    }
}

impl Extend<Event> for Message {
    fn extend<T: IntoIterator<Item = Event>>(&mut self, events: T) {
        for event in events {
            match event {
                Event::Content(text) => self.content.push_str(&text),
                Event::Reasoning(text) => self.reasoning.push_str(&text),
                Event::CallStart { id, name, .. } => self.calls.push(Call { id, name, arguments: String::new() }),
                Event::Arguments { index, text } => {
                    if let Some(call) = self.calls.get_mut(index as usize) {
                        call.arguments.push_str(&text);
                    }
                }
            }
        }
    }
}

impl Setup {
    /// With these formats, for these tools.
    pub fn new(tools: Option<ToolFormat>, reasoning: Option<ReasoningFormat>, offered: Arc<Tools>) -> Self {
        Self { tools, reasoning, offered, prompt_tail: None }
    }
}
