//! Streamed answers: events become server-sent chunks. Written by hand: this runs once per token.
//!
//! All chunks of an answer begin alike, so that beginning is written once and copied.

use proto::TextLogprobs;

use super::{
    logprobs::{self, CompletionLogprobs, PromptFacts},
    message::{ChoiceParser, Pieces},
    object::{self, Usage, finish, finish_as},
    plan::{Api, Echo, Plan},
};
use crate::{
    engine::{
        mailbox::{ChoiceUpdate, Ending, Update},
        timings::Timings,
    },
    error::ApiError,
    json,
};

/// The last line of every stream.
const DONE: &str = "data: [DONE]\n\n";

/// Writes the chunks of one answer.
pub struct ChunkWriter {
    plan: Plan,
    /// `data: {… "choices":[`
    head: Vec<u8>,
    prompts: Vec<PromptFacts>,
    /// By prompt. They come once, and every choice echoes them.
    prompt_logprobs: Vec<Vec<TextLogprobs>>,
    choices: Vec<ChoiceState>,
    /// Of the choice that finished last.
    timings: Option<Box<Timings>>,
}

#[derive(Default)]
struct ChoiceState {
    tokens: u32,
    started: bool,
    /// Takes the answer apart, where that was asked for.
    parser: Option<Box<ChoiceParser>>,
}

/// What a choice grew by, taken apart.
struct Said {
    pieces: Pieces,
    finish: Option<&'static str>,
}

impl ChunkWriter {
    /// A writer for the answer that `plan` describes.
    pub fn new(plan: Plan) -> Self {
        let mut head = Vec::with_capacity(192);
        json::raw(&mut head, "data: ");
        object::head(&mut head, &plan);
        json::raw(&mut head, ",\"choices\":[");
        let prompts = (0..plan.prompts).map(|_| PromptFacts::default()).collect();
        let choices = (0..plan.choices()).map(|_| ChoiceState::default()).collect();
        let prompt_logprobs = vec![Vec::new(); plan.prompts as usize];
        Self { plan, head, prompts, prompt_logprobs, choices, timings: None }
    }

    /// Appends the chunks for `update`, up to `[DONE]` when it holds the ending. Tells whether it did.
    pub fn write(&mut self, out: &mut Vec<u8>, update: &mut Update) -> bool {
        for (prompt, admitted) in update.admitted.drain(..) {
            self.admitted(out, prompt, admitted.into());
        }
        for (choice, growth) in update.grown.drain(..) {
            self.grown(out, choice, growth);
        }
        match update.ending.take() {
            None => false,
            Some(Ending::Complete) => {
                if self.plan.streaming.include_usage {
                    self.usage_chunk(out);
                }
                json::raw(out, DONE);
                true
            }
            Some(Ending::Failed(failure)) => {
                error_event(out, &failure.into());
                true
            }
        }
    }

    /// Text and tokens that were streamed so far, for the log.
    pub fn tokens(&self) -> u64 {
        self.choices.iter().map(|choice| u64::from(choice.tokens)).sum()
    }

    fn admitted(&mut self, out: &mut Vec<u8>, prompt: u32, facts: PromptFacts) {
        if let Some(slot) = self.prompts.get_mut(prompt as usize) {
            *slot = facts;
        }
        if !matches!(self.plan.api, Api::Chat { .. }) {
            return;
        }
        for choice in 0..self.plan.n {
            let choice = prompt * self.plan.n + choice;
            self.role_chunk(out, choice);
            if let Some(state) = self.choices.get_mut(choice as usize) {
                let tail = self.prompts.get(prompt as usize).map_or("", |facts| &facts.tail);
                state.parser = ChoiceParser::new(&self.plan, tail).map(Box::new);
            }
        }
    }

    /// The chunk that opens a choice of a chat, and the one with what it echoes.
    fn role_chunk(&mut self, out: &mut Vec<u8>, choice: u32) {
        let Api::Chat { role, echo, return_prompt_text } = &self.plan.api else { return };
        self.open(out, choice);
        json::raw(out, ",\"delta\":{\"role\":");
        json::string(out, role);
        json::raw(out, ",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]");
        let facts = &self.prompts[self.plan.prompt_of(choice)];
        if self.plan.return_token_ids {
            json::raw(out, ",\"prompt_token_ids\":");
            json::numbers(out, &facts.ids);
        }
        if *return_prompt_text {
            json::raw(out, ",\"prompt_text\":");
            json::string(out, &facts.text);
        }
        self.close(out, choice);
        if !echo.is_empty() {
            self.open(out, choice);
            json::raw(out, ",\"delta\":{\"content\":");
            json::string(out, echo);
            json::raw(out, "},\"logprobs\":null,\"finish_reason\":null}]");
            self.close(out, choice);
        }
    }

    fn grown(&mut self, out: &mut Vec<u8>, choice: u32, mut growth: ChoiceUpdate) {
        let prompt_only = self.plan.echo() == Echo::PromptOnly;
        let Some(state) = self.choices.get_mut(choice as usize) else { return };
        if !prompt_only {
            state.tokens += growth.tokens;
        }
        let first = !std::mem::replace(&mut state.started, true);
        self.timings = growth.timings.take().or(self.timings.take());
        let prompt_logprobs = growth.take_prompt_logprobs();
        if !prompt_logprobs.is_empty() {
            self.prompt_logprobs[self.plan.prompt_of(choice)] = prompt_logprobs;
        }
        let said = state.parser.as_mut().map(|parser| {
            let pieces = parser.take(&growth);
            Said { pieces, finish: growth.finish.map(|reason| parser.finish(reason)) }
        });
        let echoes = first && self.plan.echo() != Echo::No;
        let says = said.as_ref().map_or(!growth.text.is_empty(), |said| !said.pieces.is_empty());
        if !(echoes || says || self.is_worth_a_chunk(&growth)) {
            return;
        }
        self.open(out, choice);
        match self.plan.api {
            Api::Chat { .. } => self.chat_delta(out, &growth, said.as_ref()),
            Api::Completion { .. } => self.completion_delta(out, choice, &growth, first),
        }
        out.extend_from_slice(b"}]");
        self.close(out, choice);
    }

    /// Text may be held back while it could still become a stop string or half a character; nothing is sent then.
    fn is_worth_a_chunk(&self, growth: &ChoiceUpdate) -> bool {
        growth.finish.is_some()
            || !growth.details().logprobs.is_empty()
            || self.plan.return_token_ids
            || self.plan.streaming.continuous_usage
    }

    fn chat_delta(&self, out: &mut Vec<u8>, growth: &ChoiceUpdate, said: Option<&Said>) {
        json::raw(out, ",\"delta\":{");
        match said {
            Some(said) => said.pieces.write_delta(out),
            None => {
                json::raw(out, "\"content\":");
                json::string(out, &growth.text);
            }
        }
        json::raw(out, "},\"logprobs\":");
        let entries = &growth.details().logprobs;
        if self.plan.top_logprobs.is_some() && !entries.is_empty() {
            logprobs::chat(out, entries, &self.plan);
        } else {
            json::raw(out, "null");
        }
        match said {
            Some(said) => finish_as(out, growth, said.finish),
            None => finish(out, growth),
        }
        if self.plan.return_token_ids {
            json::raw(out, ",\"token_ids\":");
            json::numbers(out, &growth.token_ids);
        }
    }

    fn completion_delta(&self, out: &mut Vec<u8>, choice: u32, growth: &ChoiceUpdate, first: bool) {
        let facts = &self.prompts[self.plan.prompt_of(choice)];
        let echo = self.plan.echo();
        let echoes = first && echo != Echo::No;
        json::raw(out, ",\"text\":\"");
        if echoes {
            json::string_part(out, &facts.text);
        }
        if echo != Echo::PromptOnly {
            json::string_part(out, &growth.text);
        }
        json::raw(out, "\",\"logprobs\":");
        let generated: &[TextLogprobs] = if echo == Echo::PromptOnly { &[] } else { &growth.details().logprobs };
        let prompt = echoes.then(|| (facts, &self.prompt_logprobs[self.plan.prompt_of(choice)][..]));
        if self.plan.top_logprobs.is_some() && (prompt.is_some() || !generated.is_empty()) {
            let offset = if echo == Echo::No { 0 } else { facts.chars };
            CompletionLogprobs { prompt, offset, generated }.write(out, &self.plan);
        } else {
            json::raw(out, "null");
        }
        finish(out, growth);
        if self.plan.return_token_ids {
            if first {
                json::raw(out, ",\"prompt_token_ids\":");
                json::numbers(out, &facts.ids);
            }
            json::raw(out, ",\"token_ids\":");
            json::numbers(out, if echo == Echo::PromptOnly { &[][..] } else { &growth.token_ids });
        }
    }

    fn open(&self, out: &mut Vec<u8>, choice: u32) {
        out.extend_from_slice(&self.head);
        json::raw(out, "{\"index\":");
        json::number(out, choice);
    }

    fn close(&self, out: &mut Vec<u8>, choice: u32) {
        if self.plan.streaming.continuous_usage {
            let facts = &self.prompts[self.plan.prompt_of(choice)];
            let state = &self.choices[choice as usize];
            let reasoning = state.parser.as_ref().and_then(|parser| parser.reasoning_tokens());
            let usage = Usage { prompt: facts.tokens, cached: facts.cached, completion: state.tokens, reasoning };
            json::raw(out, ",\"usage\":");
            usage.write(out, &self.plan);
        }
        out.extend_from_slice(b"}\n\n");
    }

    fn usage_chunk(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head);
        json::raw(out, "],\"usage\":");
        let parsers = self.choices.iter().filter_map(|choice| choice.parser.as_ref());
        let reasoning = parsers.filter_map(|parser| parser.reasoning_tokens()).reduce(|sum, tokens| sum + tokens);
        let total = Usage::total(self.prompts.iter(), self.choices.iter().map(|choice| choice.tokens));
        Usage { reasoning, ..total }.write(out, &self.plan);
        object::request_metrics(out, &self.plan, self.timings.as_deref());
        out.extend_from_slice(b"}\n\n");
    }
}

/// An error inside a stream, and the stream's end.
pub fn error_event(out: &mut Vec<u8>, error: &ApiError) {
    json::raw(out, "data: ");
    json::raw(out, &error.to_json());
    json::raw(out, "\n\n");
    json::raw(out, DONE);
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};
    use proto::{Admitted, Delta, FinishReason};
    use serde_json::Value;

    use super::*;
    use crate::{
        engine::mailbox::{Mailbox, WakeAt},
        openai::{
            answer,
            plan::{Dialect, Listing, Streaming},
        },
    };

    fn plan(chat: bool, on: bool) -> Plan {
        let chat_api = Api::Chat { role: "assistant".into(), echo: "so: ".into(), return_prompt_text: false };
        Plan {
            api: if chat { chat_api } else { Api::Completion { echo: Echo::Prompt } },
            id: "cmpl-\"1\"".into(),
            created: 1,
            model: "m\\".into(),
            prompts: 1,
            n: 2,
            streaming: Streaming { on, include_usage: true, continuous_usage: false },
            top_logprobs: None,
            listing: Listing::default(),
            prompt_logprobs: false,
            return_token_ids: true,
            tokens_as_ids: false,
            prompt_tokens_details: true,
            request_metrics: false,
            parsing: None,
            dialect: Dialect::OpenAi,
        }
    }

    fn look(mailbox: &Mailbox, update: &mut Update) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        mailbox.poll(&mut context, update).is_ready()
    }

    fn deltas(pieces: &[(String, bool)]) -> impl Iterator<Item = (u32, Delta, bool)> {
        let count = pieces.len();
        pieces.iter().enumerate().flat_map(move |(index, (text, reads))| {
            let finish = if index + 1 == count { FinishReason::Length } else { FinishReason::Unspecified };
            (0..2).map(move |choice| {
                let token_ids = vec![index as u32];
                let delta = Delta {
                    choice,
                    text: text.clone(),
                    token_count: 1,
                    token_ids,
                    finish: finish.into(),
                    ..Delta::default()
                };
                (choice, delta, *reads)
            })
        })
    }

    fn collect(stream: &[u8]) -> (Vec<(String, Vec<u64>, Value)>, Value) {
        let mut choices = vec![(String::new(), Vec::new(), Value::Null); 2];
        let mut usage = Value::Null;
        let text = std::str::from_utf8(stream).expect("UTF-8");
        for line in text.split("\n\n").filter(|line| !line.is_empty() && *line != "data: [DONE]") {
            let chunk: Value = serde_json::from_str(line.strip_prefix("data: ").expect("data")).expect("JSON");
            let Some(choice) = chunk["choices"].get(0) else {
                usage = chunk["usage"].clone();
                continue;
            };
            let slot = &mut choices[choice["index"].as_u64().expect("an index") as usize];
            slot.0.push_str(choice["delta"]["content"].as_str().or(choice["text"].as_str()).expect("text"));
            slot.1.extend(choice["token_ids"].as_array().into_iter().flatten().filter_map(Value::as_u64));
            if !choice["finish_reason"].is_null() {
                slot.2 = choice["finish_reason"].clone();
            }
        }
        (choices, usage)
    }

    proptest! {
        /// However often the reader looks, the stream's concatenation is the whole answer.
        #[test]
        fn streams_concatenate_to_the_answer(pieces in vec((".{0,6}", any::<bool>()), 1..20), chat: bool) {
            let facts = Admitted { prompt_tokens: 3, prompt_text: "p\u{e9}".into(), ..Admitted::default() };
            let (streamed, whole) = (Mailbox::new(2, WakeAt::Update), Mailbox::new(2, WakeAt::Ending));
            let mut writer = ChunkWriter::new(plan(chat, true));
            let (mut out, mut update, mut ended) = (Vec::new(), Update::default(), false);
            for mailbox in [&streamed, &whole] {
                mailbox.admit(0, facts.clone());
            }
            for (choice, delta, reads) in deltas(&pieces) {
                streamed.grow(choice, delta.clone());
                whole.grow(choice, delta);
                if reads && look(&streamed, &mut update) {
                    ended = writer.write(&mut out, &mut update);
                }
            }
            if !ended && look(&streamed, &mut update) {
                ended = writer.write(&mut out, &mut update);
            }
            prop_assert!(ended && out.ends_with(DONE.as_bytes()));
            let (choices, usage) = collect(&out);
            prop_assert!(look(&whole, &mut update));
            let answer: Value = serde_json::from_slice(&answer::write(&plan(chat, false), update)).expect("JSON");
            prop_assert_eq!(&answer["usage"], &usage);
            for (index, (text, token_ids, finish)) in choices.into_iter().enumerate() {
                let choice = &answer["choices"][index];
                let expected = choice["message"]["content"].as_str().or(choice["text"].as_str());
                prop_assert_eq!(Some(text.as_str()), expected);
                prop_assert_eq!(&choice["token_ids"], &serde_json::json!(token_ids));
                prop_assert_eq!(&choice["finish_reason"], &finish);
            }
        }
    }
}
