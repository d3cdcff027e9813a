//! A chat's answer taken apart: content, reasoning and calls, whole and in pieces.

use chat_format::parsers::{Event, Parser};
use proto::FinishReason;
use uuid::Uuid;

use super::plan::Plan;
use crate::{
    engine::mailbox::ChoiceUpdate,
    json,
    metrics::{finish_name, parser_calls::Invoked},
};

/// Takes one choice apart as it grows.
pub struct ChoiceParser {
    parser: Parser,
    tokens: ReasoningTokens,
    include_reasoning: bool,
    parallel: bool,
    mistral: bool,
    /// Who counts what it found; absent where it looks for no calls.
    invoked: Option<Invoked>,
}

/// What a choice grew by.
#[derive(Debug, Default)]
pub struct Pieces {
    /// More content.
    pub content: String,
    /// More reasoning.
    pub reasoning: String,
    /// Calls, and what goes on with one.
    pub calls: Vec<Call>,
}

/// A call, or more of one.
#[derive(Debug, Default)]
pub struct Call {
    /// Calls before it.
    pub index: u32,
    /// Its id and name, where it begins.
    pub begin: Option<(String, String)>,
    /// JSON, or more of it.
    pub arguments: String,
}

impl ChoiceParser {
    /// For a choice whose prompt ended so; absent: it is content as it stands.
    pub fn new(plan: &Plan, prompt_tail: &str) -> Option<Self> {
        let parsing = plan.parsing.as_ref()?;
        Some(Self {
            parser: Parser::new(parsing.setup(prompt_tail)),
            tokens: ReasoningTokens {
                ends: parsing.reasoning_ends.clone(),
                in_messages: parsing.reasoning.is_some_and(|format| format.is_whole()),
                ..ReasoningTokens::default()
            },
            include_reasoning: parsing.include_reasoning,
            parallel: parsing.parallel,
            mistral: parsing.tools.is_some_and(|format| format.name == "mistral"),
            invoked: parsing.tools.map(|_| parsing.counts.of(plan.is_response(), plan.streaming.on)),
        })
    }

    /// Takes what came; what is held back comes with the last growth.
    pub fn take(&mut self, growth: &ChoiceUpdate) -> Pieces {
        let mut pieces = Pieces::default();
        self.tokens.count(&growth.token_ids);
        let events = self.parser.push(&growth.text);
        self.add_all(&mut pieces, events);
        if growth.finish.is_some() {
            let events = self.parser.finish();
            self.add_all(&mut pieces, events);
            self.invoked.iter().for_each(|invoked| invoked.count(self.parser.calls()));
        }
        pieces
    }

    /// Tokens of the reasoning; absent where they cannot be counted: no single token ends it, or another message came
    /// before it.
    pub fn reasoning_tokens(&self) -> Option<u32> {
        let ReasoningTokens { ends, in_messages, later, seen, count, .. } = &self.tokens;
        if ends.is_empty() || (*in_messages && *later) {
            return None;
        }
        Some(if *seen { *count } else { 0 })
    }

    /// Why the choice ended: with a call, where it ended by itself.
    pub fn finish(&self, reason: FinishReason) -> &'static str {
        if reason == FinishReason::Stop && self.parser.calls() > 0 { "tool_calls" } else { finish_name(reason) }
    }

    fn add_all(&mut self, pieces: &mut Pieces, events: Vec<Event>) {
        for event in events {
            self.tokens.look(&event);
            self.add(pieces, event);
        }
    }

    fn add(&self, pieces: &mut Pieces, event: Event) {
        match event {
            Event::Content(text) => pieces.content.push_str(&text),
            Event::Reasoning(text) if self.include_reasoning => pieces.reasoning.push_str(&text),
            Event::Reasoning(_) => {}
            Event::CallStart { index, .. } | Event::Arguments { index, .. } if index > 0 && !self.parallel => {}
            Event::CallStart { index, id, name } => {
                let begin = Some((id.unwrap_or_else(|| self.fresh_id()), name));
                pieces.calls.push(Call { index, begin, arguments: String::new() });
            }
            Event::Arguments { index, text } => match pieces.calls.last_mut() {
                Some(call) if call.index == index => call.arguments.push_str(&text),
                _ => pieces.calls.push(Call { index, begin: None, arguments: text }),
            },
        }
    }

    /// An id as the model's template wants it: Mistral's ones have nine letters.
    fn fresh_id(&self) -> String {
        let id = Uuid::new_v4().simple().to_string();
        if self.mistral { id[..9].to_owned() } else { format!("chatcmpl-tool-{id}") }
    }
}

/// Counts the tokens up to the one that ends the reasoning, or its first message.
#[derive(Debug, Default)]
struct ReasoningTokens {
    /// Tokens that end it.
    ends: Vec<u32>,
    count: u32,
    /// Reasoning is a message among others.
    in_messages: bool,
    /// There was reasoning.
    seen: bool,
    /// There was something else.
    other: bool,
    /// It came before the reasoning.
    later: bool,
    ended: bool,
}

impl ReasoningTokens {
    fn count(&mut self, ids: &[u32]) {
        for id in ids {
            self.ended |= self.ends.contains(id);
            if self.ended {
                return;
            }
            self.count += 1;
        }
    }

    /// A call ends reasoning too, without a token of its own.
    fn look(&mut self, event: &Event) {
        match event {
            Event::Reasoning(_) => {
                self.later |= !self.seen && self.other;
                self.seen = true;
            }
            _ => {
                self.other = true;
                self.ended |= self.seen;
            }
        }
    }
}

impl Pieces {
    /// All of it is content.
    pub fn plain(text: &str) -> Self {
        Self { content: text.to_owned(), ..Self::default() }
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.content.is_empty() && self.reasoning.is_empty() && self.calls.is_empty()
    }

    /// The members of a streamed `delta`, without its braces.
    pub fn write_delta(&self, out: &mut Vec<u8>) {
        let mut separator = "";
        if !self.reasoning.is_empty() {
            write_reasoning(out, &self.reasoning);
            separator = ",";
        }
        if !self.content.is_empty() || (self.is_empty()) {
            json::raw(out, separator);
            json::raw(out, "\"content\":");
            json::string(out, &self.content);
            separator = ",";
        }
        if !self.calls.is_empty() {
            json::raw(out, separator);
            json::raw(out, "\"tool_calls\":");
            json::list(out, &self.calls, |out, call| call.write(out, Shape::Delta));
        }
    }

    /// The members of a whole `message` behind its role.
    pub fn write_message(&self, out: &mut Vec<u8>, echo: &str) {
        json::raw(out, ",\"content\":");
        let other = !(self.calls.is_empty() && self.reasoning.is_empty());
        if self.content.is_empty() && echo.is_empty() && other {
            json::raw(out, "null");
        } else {
            json::raw(out, "\"");
            json::string_part(out, echo);
            json::string_part(out, &self.content);
            json::raw(out, "\"");
        }
        json::raw(out, ",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,");
        // As OpenAI does: absent where nothing was called.
        if !self.calls.is_empty() {
            json::raw(out, "\"tool_calls\":");
            json::list(out, &self.calls, |out, call| call.write(out, Shape::Whole));
            json::raw(out, ",");
        }
        if self.reasoning.is_empty() {
            json::raw(out, "\"reasoning\":null,\"reasoning_content\":null");
        } else {
            write_reasoning(out, &self.reasoning);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Delta,
    Whole,
}

impl Call {
    fn write(&self, out: &mut Vec<u8>, shape: Shape) {
        json::raw(out, "{");
        if let Some((id, _)) = &self.begin {
            json::raw(out, "\"id\":");
            json::string(out, id);
            json::raw(out, ",\"type\":\"function\",");
        }
        if shape == Shape::Delta {
            json::raw(out, "\"index\":");
            json::number(out, self.index);
            json::raw(out, ",");
        }
        json::raw(out, "\"function\":{");
        if let Some((_, name)) = &self.begin {
            json::raw(out, "\"name\":");
            json::string(out, name);
            json::raw(out, ",");
        }
        json::raw(out, "\"arguments\":");
        json::string(out, &self.arguments);
        json::raw(out, "}}");
    }
}

/// Under its name, and the name that it had.
fn write_reasoning(out: &mut Vec<u8>, text: &str) {
    json::raw(out, "\"reasoning\":");
    json::string(out, text);
    json::raw(out, ",\"reasoning_content\":");
    json::string(out, text);
}
