//! An answer as items that open, grow and close, with an event for each step. Whole answers take the same way; their
//! events are not looked at.

use std::sync::Arc;

use proto::FinishReason;
use serde_json::{Map, Value, json};

use super::{
    events::Events,
    item::Open,
    logprobs::of_content,
    turn::{Outcome, Place, Turn},
};
use crate::{
    engine::{
        mailbox::{ChoiceUpdate, Ending, Update},
        pipeline::Arrival,
    },
    error::{ApiError, Fault},
    json,
    metrics::finish_name,
    openai::{
        logprobs::PromptFacts,
        message::{Call, ChoiceParser, Pieces},
        plan::Plan,
    },
};

/// An answer in the making.
pub struct Assembly {
    plan: Plan,
    turn: Arc<Turn>,
    prompt: PromptFacts,
    parser: Option<ChoiceParser>,
    /// Whether its first events were written.
    begun: bool,
    /// The number of the next event.
    next: u64,
    tokens: u32,
    /// Items that are done.
    items: Vec<Value>,
    open: Option<Open>,
    /// Why the only choice ended.
    finish: &'static str,
}

impl Assembly {
    /// Of the answer that `plan` and `turn` describe.
    pub fn new(plan: Plan, turn: Arc<Turn>) -> Self {
        Self {
            plan,
            turn,
            prompt: PromptFacts::default(),
            parser: None,
            begun: false,
            next: 0,
            tokens: 0,
            items: Vec::new(),
            open: None,
            finish: "stop",
        }
    }

    /// What the request said.
    pub fn turn(&self) -> &Arc<Turn> {
        &self.turn
    }

    /// The response's id.
    pub fn id(&self) -> &str {
        &self.plan.id
    }

    /// Tokens so far.
    pub fn tokens(&self) -> u64 {
        self.tokens.into()
    }

    /// The response as it is now.
    pub fn response(&self, status: &'static str) -> Value {
        self.turn
            .response(&self.plan.id, Outcome { status, output: &self.items, error: Value::Null, usage: Value::Null })
    }

    /// Writes the events of a response that waits for its turn, and gives it.
    pub fn queue(&mut self, out: &mut Events) -> Value {
        let response = self.response("queued");
        self.event(out, "response.created", json!({"response": response}));
        self.event(out, "response.queued", json!({"response": response}));
        response
    }

    /// Writes the events for `update`. Gives the response with the last one.
    pub fn write(&mut self, out: &mut Events, update: &mut Update) -> Option<Value> {
        for (_, admitted) in update.admitted.drain(..) {
            self.prompt = admitted.into();
            self.begin(out);
        }
        for (_, growth) in update.grown.drain(..) {
            self.begin(out);
            self.grow(out, &growth);
        }
        match update.ending.take()? {
            Ending::Complete => Some(self.complete(out)),
            Ending::Failed(failure) => Some(self.fail(out, &ApiError::from(failure))),
        }
    }

    fn begin(&mut self, out: &mut Events) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        self.parser = ChoiceParser::new(&self.plan, &self.prompt.tail);
        let response = json!({"response": self.response("in_progress")});
        if self.next == 0 {
            self.event(out, "response.created", response.clone());
        }
        self.event(out, "response.in_progress", response);
    }

    fn grow(&mut self, out: &mut Events, growth: &ChoiceUpdate) {
        self.tokens += growth.tokens;
        let pieces = match &mut self.parser {
            Some(parser) => parser.take(growth),
            None => Pieces::plain(&growth.text),
        };
        if !pieces.reasoning.is_empty() {
            self.reason(out, &pieces.reasoning);
        }
        if !pieces.content.is_empty() {
            self.say(out, &pieces.content, growth);
        }
        for call in &pieces.calls {
            self.call(out, call);
        }
        if let Some(reason) = growth.finish {
            self.finish = self.parser.as_ref().map_or(finish_name(reason), |parser| parser.finish(reason));
        }
    }

    fn reason(&mut self, out: &mut Events, delta: &str) {
        if !matches!(self.open, Some(Open::Reasoning { .. })) {
            self.open(out, Open::Reasoning { text: String::new() });
        }
        if let Some(Open::Reasoning { text }) = &mut self.open {
            text.push_str(delta);
        }
        let kind = match self.turn.reasoning.place {
            Place::Content => "response.reasoning_text.delta",
            Place::Summary => "response.reasoning_summary_text.delta",
        };
        self.delta(out, kind, delta);
    }

    fn say(&mut self, out: &mut Events, delta: &str, growth: &ChoiceUpdate) {
        if !matches!(self.open, Some(Open::Message { .. })) {
            self.open(out, Open::Message { text: String::new(), logprobs: Vec::new() });
        }
        let new = if self.turn.logprobs { of_content(growth, delta, &self.plan) } else { Vec::new() };
        let tail = format!(",\"logprobs\":{}}}", Value::from(new.clone()));
        if let Some(Open::Message { text, logprobs }) = &mut self.open {
            text.push_str(delta);
            logprobs.extend(new);
        }
        self.delta_with(out, "response.output_text.delta", Delta { text: delta, tail: &tail });
    }

    fn call(&mut self, out: &mut Events, call: &Call) {
        if !matches!(&self.open, Some(Open::Call { index, .. }) if *index == call.index) {
            let (call_id, name) = call.begin.clone().unwrap_or_default();
            self.open(out, Open::Call { index: call.index, call_id, name, arguments: String::new() });
        }
        if call.arguments.is_empty() {
            return;
        }
        if let Some(Open::Call { arguments, .. }) = &mut self.open {
            arguments.push_str(&call.arguments);
        }
        self.delta(out, "response.function_call_arguments.delta", &call.arguments);
    }

    /// Opens an item, after the one before it is closed.
    fn open(&mut self, out: &mut Events, open: Open) {
        self.close(out, "completed");
        let item = open.begun(&self.item_id(&open));
        self.event(out, "response.output_item.added", json!({"output_index": self.items.len(), "item": item}));
        let part = open.part(self.turn.reasoning);
        let kind = part_kind(&open, self.turn.reasoning.place);
        self.open = Some(open);
        if let Some(kind) = kind {
            let members = self.place(json!({"part": part}));
            self.event(out, &format!("response.{kind}.added"), members);
        }
    }

    /// Closes the item that is open, if one is.
    fn close(&mut self, out: &mut Events, status: &'static str) {
        let Some(open) = &self.open else { return };
        let shown = self.turn.reasoning;
        let part = open.part(shown);
        let (kind, last) = match open {
            Open::Message { text, logprobs } => {
                ("response.output_text.done", json!({"text": text, "logprobs": logprobs}))
            }
            Open::Reasoning { text } if shown.place == Place::Summary => {
                ("response.reasoning_summary_text.done", json!({"text": text}))
            }
            Open::Reasoning { text } => ("response.reasoning_text.done", json!({"text": text})),
            Open::Call { name, arguments, .. } => {
                ("response.function_call_arguments.done", json!({"name": name, "arguments": arguments}))
            }
        };
        let item = open.done(&self.item_id(open), status, shown);
        let done = part_kind(open, shown.place).map(|kind| (kind, self.place(json!({"part": part}))));
        let last = self.place(last);
        self.event(out, kind, last);
        if let Some((kind, members)) = done {
            self.event(out, &format!("response.{kind}.done"), members);
        }
        self.event(out, "response.output_item.done", json!({"output_index": self.items.len(), "item": item}));
        self.items.push(item);
        self.open = None;
    }

    fn complete(&mut self, out: &mut Events) -> Value {
        self.begin(out);
        if self.items.is_empty() && self.open.is_none() {
            self.open(out, Open::Message { text: String::new(), logprobs: Vec::new() });
        }
        match self.finish {
            name if name == finish_name(FinishReason::Length) => self.end(out, "incomplete", Value::Null),
            name if name == finish_name(FinishReason::Abort) => self.end(out, "cancelled", Value::Null),
            _ => self.end(out, "completed", Value::Null),
        }
    }

    /// Ends it because its client or an operator wants no more of it.
    pub fn cancel(&mut self, out: &mut Events) -> Value {
        self.begin(out);
        self.end(out, "cancelled", Value::Null)
    }

    fn fail(&mut self, out: &mut Events, error: &ApiError) -> Value {
        self.begin(out);
        let code = match error.fault {
            Fault::BadRequest | Fault::UserInput | Fault::NotFound | Fault::TooLarge | Fault::NotImplemented => {
                "invalid_prompt"
            }
            Fault::Timeout | Fault::Unavailable | Fault::Internal => "server_error",
        };
        self.end(out, "failed", json!({"code": code, "message": error.message}))
    }

    /// Closes what is open and writes the one terminal event.
    fn end(&mut self, out: &mut Events, status: &'static str, error: Value) -> Value {
        self.close(out, if status == "completed" { "completed" } else { "incomplete" });
        let outcome = Outcome { status, output: &self.items, error, usage: self.usage() };
        let mut response = self.turn.response(&self.plan.id, outcome);
        if status == "completed" {
            response["completed_at"] = Arrival::now().unix_seconds().into();
        }
        // Clients know no event of its own for what was cancelled.
        let kind = if status == "cancelled" { "incomplete" } else { status };
        self.event(out, &format!("response.{kind}"), json!({"response": response}));
        response
    }

    fn usage(&self) -> Value {
        let reasoning = self.parser.as_ref().and_then(ChoiceParser::reasoning_tokens).unwrap_or(0);
        json!({
            "input_tokens": self.prompt.tokens,
            "input_tokens_details": {"cached_tokens": self.prompt.cached, "cache_write_tokens": 0},
            "output_tokens": self.tokens,
            "output_tokens_details": {"reasoning_tokens": reasoning},
            "total_tokens": u64::from(self.prompt.tokens) + u64::from(self.tokens),
        })
    }

    fn item_id(&self, open: &Open) -> String {
        open.id(&self.plan.id, self.items.len())
    }

    /// Adds where the open item stands.
    fn place(&self, members: Value) -> Value {
        let mut placed = Map::new();
        if let Some(open) = &self.open {
            placed.insert("item_id".into(), self.item_id(open).into());
            placed.insert("output_index".into(), self.items.len().into());
            if let Some(index) = part_index(open, self.turn.reasoning.place) {
                placed.insert(index.into(), 0.into());
            }
        }
        if let Value::Object(members) = members {
            placed.extend(members);
        }
        Value::Object(placed)
    }

    fn event(&mut self, out: &mut Events, kind: &str, members: Value) {
        out.push(kind, self.next, &members);
        self.next += 1;
    }

    fn delta(&mut self, out: &mut Events, kind: &str, text: &str) {
        self.delta_with(out, kind, Delta { text, tail: "}" });
    }

    /// Written by hand: there is one for each token.
    fn delta_with(&mut self, out: &mut Events, kind: &str, delta: Delta<'_>) {
        let Some(open) = &self.open else { return };
        let id = self.item_id(open);
        let index = part_index(open, self.turn.reasoning.place);
        let output_index = self.items.len() as u64;
        out.write(kind, self.next, |out| {
            json::raw(out, "\"item_id\":");
            json::string(out, &id);
            json::raw(out, ",\"output_index\":");
            json::number(out, output_index);
            if let Some(index) = index {
                json::raw(out, ",\"");
                json::raw(out, index);
                json::raw(out, "\":0");
            }
            json::raw(out, ",\"delta\":");
            json::string(out, delta.text);
            json::raw(out, delta.tail);
        });
        self.next += 1;
    }
}

/// More of a text.
struct Delta<'a> {
    text: &'a str,
    /// What follows it in the event, the closing brace included.
    tail: &'a str,
}

/// The event of a part that holds the item's text, without what happens to it.
fn part_kind(open: &Open, place: Place) -> Option<&'static str> {
    match (open, place) {
        (Open::Call { .. }, _) => None,
        (Open::Reasoning { .. }, Place::Summary) => Some("reasoning_summary_part"),
        _ => Some("content_part"),
    }
}

/// How events count an item's parts; each has one.
fn part_index(open: &Open, place: Place) -> Option<&'static str> {
    match (open, place) {
        (Open::Call { .. }, _) => None,
        (Open::Reasoning { .. }, Place::Summary) => Some("summary_index"),
        _ => Some("content_index"),
    }
}
