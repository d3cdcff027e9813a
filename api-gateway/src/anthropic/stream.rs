//! A streamed answer: events that open a block, add to it and close it.

use proto::FinishReason;
use serde_json::{Value, json};

use super::{Stop, answer::usage, error_body};
use crate::{
    engine::mailbox::{ChoiceUpdate, Ending, Update},
    error::ApiError,
    json,
    metrics::finish_name,
    openai::{
        logprobs::PromptFacts,
        message::{Call, ChoiceParser, Pieces},
        plan::Plan,
    },
};

/// Writes the events of one answer.
pub struct MessageStream {
    plan: Plan,
    prompt: PromptFacts,
    parser: Option<ChoiceParser>,
    /// The block that is open.
    open: Option<Block>,
    /// Blocks so far.
    blocks: u32,
    tokens: u32,
    started: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Text,
    Thinking,
    /// The call of that index.
    Call(u32),
}

impl MessageStream {
    /// A writer for the answer that `plan` describes.
    pub fn new(plan: Plan) -> Self {
        let prompt = PromptFacts::default();
        Self { plan, prompt, parser: None, open: None, blocks: 0, tokens: 0, started: false }
    }

    /// Appends the events for `update`, up to the last when it holds the ending. Tells whether it did.
    pub fn write(&mut self, out: &mut Vec<u8>, update: &mut Update) -> bool {
        for (_, admitted) in update.admitted.drain(..) {
            self.prompt = admitted.into();
            self.start(out);
        }
        for (_, growth) in update.grown.drain(..) {
            self.grown(out, &growth);
        }
        match update.ending.take() {
            None => false,
            Some(Ending::Complete) => {
                event(out, &json!({"type": "message_stop"}));
                true
            }
            Some(Ending::Failed(failure)) => {
                event(out, &error_body(&ApiError::from(failure)));
                true
            }
        }
    }

    /// Tokens that were streamed so far, for the log.
    pub fn tokens(&self) -> u64 {
        self.tokens.into()
    }

    fn start(&mut self, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        self.parser = ChoiceParser::new(&self.plan, &self.prompt.tail);
        let message = json!({
            "id": self.plan.id, "type": "message", "role": "assistant", "model": self.plan.model, "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": usage(&self.prompt, 0),
        });
        event(out, &json!({"type": "message_start", "message": message}));
    }

    fn grown(&mut self, out: &mut Vec<u8>, growth: &ChoiceUpdate) {
        self.start(out);
        self.tokens += growth.tokens;
        let pieces = match &mut self.parser {
            Some(parser) => parser.take(growth),
            None => Pieces::plain(&growth.text),
        };
        if !pieces.reasoning.is_empty() {
            self.block(out, Block::Thinking, || json!({"type": "thinking", "thinking": "", "signature": ""}));
            self.delta(out, json!({"type": "thinking_delta", "thinking": pieces.reasoning}));
        }
        if !pieces.content.is_empty() {
            self.block(out, Block::Text, || json!({"type": "text", "text": ""}));
            self.delta(out, json!({"type": "text_delta", "text": pieces.content}));
        }
        for call in &pieces.calls {
            self.call(out, call);
        }
        if let Some(reason) = growth.finish {
            self.finish(out, growth, reason);
        }
    }

    fn call(&mut self, out: &mut Vec<u8>, call: &Call) {
        let (id, name) = call.begin.clone().unwrap_or_default();
        let block = || json!({"type": "tool_use", "id": id, "name": name, "input": {}});
        self.block(out, Block::Call(call.index), block);
        if !call.arguments.is_empty() {
            self.delta(out, json!({"type": "input_json_delta", "partial_json": call.arguments}));
        }
    }

    fn finish(&mut self, out: &mut Vec<u8>, growth: &ChoiceUpdate, reason: FinishReason) {
        self.close(out);
        let finish = self.parser.as_ref().map_or(finish_name(reason), |parser| parser.finish(reason));
        let stop = Stop::of(growth, finish);
        let delta = json!({"stop_reason": stop.reason, "stop_sequence": stop.sequence});
        let usage = usage(&self.prompt, self.tokens);
        event(out, &json!({"type": "message_delta", "delta": delta, "usage": usage}));
    }

    /// Goes on with a block, or opens it.
    fn block(&mut self, out: &mut Vec<u8>, block: Block, content: impl FnOnce() -> Value) {
        if self.open == Some(block) {
            return;
        }
        self.close(out);
        self.open = Some(block);
        let start = json!({"type": "content_block_start", "index": self.blocks, "content_block": content()});
        event(out, &start);
    }

    fn delta(&self, out: &mut Vec<u8>, delta: Value) {
        event(out, &json!({"type": "content_block_delta", "index": self.blocks, "delta": delta}));
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        if self.open.take().is_some() {
            event(out, &json!({"type": "content_block_stop", "index": self.blocks}));
            self.blocks += 1;
        }
    }
}

/// An event, named as its data is.
fn event(out: &mut Vec<u8>, data: &Value) {
    json::raw(out, "event: ");
    json::raw(out, data["type"].as_str().unwrap_or("error"));
    json::raw(out, "\ndata: ");
    json::raw(out, &data.to_string());
    json::raw(out, "\n\n");
}
