//! Whole answers: all that a request brought, as one JSON body.

use proto::TextLogprobs;

use super::{
    logprobs::{self, CompletionLogprobs, PromptFacts},
    message::{ChoiceParser, Pieces},
    object::{Usage, finish, finish_as, head, request_metrics},
    plan::{Api, Echo, Plan},
};
use crate::{
    engine::mailbox::{ChoiceUpdate, Update},
    json,
};

/// The body of an answer whose choices have all finished.
pub fn write(plan: &Plan, update: Update) -> Vec<u8> {
    let mut gathered = Gathered::new(plan, update);
    let mut out =
        Vec::with_capacity(512 + gathered.choices.iter().map(|choice| choice.text.len()).sum::<usize>() * 9 / 8);
    head(&mut out, plan);
    json::raw(&mut out, ",\"service_tier\":null,\"choices\":");
    let choices = std::mem::take(&mut gathered.choices);
    let mut reasoning = None;
    json::list(&mut out, choices.iter().enumerate(), |out, (index, growth)| match &plan.api {
        Api::Chat { role, echo, .. } => {
            let prompt = &gathered.prompts[plan.prompt_of(index as u32)].facts;
            let tokens = chat_choice(out, plan, ChatChoice { index, growth, role, echo, prompt });
            reasoning = tokens.map(|tokens| reasoning.unwrap_or(0) + tokens);
        }
        Api::Completion { .. } => completion_choice(out, plan, index, growth, &gathered.prompts),
    });
    json::raw(&mut out, ",\"usage\":");
    let prompt_only = plan.echo() == Echo::PromptOnly;
    let generated = choices.iter().map(|growth| if prompt_only { 0 } else { growth.tokens });
    let facts = gathered.prompts.iter().map(|prompt| &prompt.facts);
    Usage { reasoning, ..Usage::total(facts, generated) }.write(&mut out, plan);
    request_metrics(&mut out, plan, choices.first().and_then(|choice| choice.timings.as_deref()));
    if let Api::Chat { return_prompt_text, .. } = plan.api {
        chat_tail(&mut out, plan, &gathered.prompts, return_prompt_text);
    }
    json::raw(&mut out, ",\"kv_transfer_params\":null}");
    out
}

/// Events by prompt and by choice.
struct Gathered {
    prompts: Vec<PromptOf>,
    choices: Vec<ChoiceUpdate>,
}

#[derive(Default)]
struct PromptOf {
    facts: PromptFacts,
    logprobs: Vec<TextLogprobs>,
}

impl Gathered {
    fn new(plan: &Plan, update: Update) -> Self {
        let mut prompts: Vec<PromptOf> = (0..plan.prompts).map(|_| PromptOf::default()).collect();
        let mut choices: Vec<ChoiceUpdate> = (0..plan.choices()).map(|_| ChoiceUpdate::default()).collect();
        for (prompt, admitted) in update.admitted {
            if let Some(slot) = prompts.get_mut(prompt as usize) {
                slot.facts = admitted.into();
            }
        }
        for (choice, mut growth) in update.grown {
            let Some(slot) = choices.get_mut(choice as usize) else { continue };
            // They come once per prompt, with whichever choice was first.
            let prompt_logprobs = growth.take_prompt_logprobs();
            if !prompt_logprobs.is_empty() {
                prompts[plan.prompt_of(choice)].logprobs = prompt_logprobs;
            }
            *slot = growth;
        }
        Self { prompts, choices }
    }
}

/// What a message has besides its content, when there is nothing.
const NOTHING_ELSE: &str =
    ",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\"reasoning\":null";

/// What a choice of a chat says, its answer taken apart where that was asked for.
struct Said {
    pieces: Pieces,
    finish: Option<&'static str>,
    reasoning_tokens: Option<u32>,
}

impl Said {
    fn read(plan: &Plan, growth: &ChoiceUpdate, prompt: &PromptFacts) -> Option<Self> {
        let mut parser = ChoiceParser::new(plan, &prompt.tail)?;
        let pieces = parser.take(growth);
        let finish = growth.finish.map(|reason| parser.finish(reason));
        Some(Self { pieces, finish, reasoning_tokens: parser.reasoning_tokens() })
    }
}

/// A choice of a chat; the tokens of its reasoning, where they were counted.
fn chat_choice(out: &mut Vec<u8>, plan: &Plan, one: ChatChoice<'_>) -> Option<u32> {
    let ChatChoice { index, growth, role, echo, prompt } = one;
    open(out, index);
    json::raw(out, ",\"message\":{\"role\":");
    json::string(out, role);
    let said = Said::read(plan, growth, prompt);
    match &said {
        Some(said) => said.pieces.write_message(out, echo),
        None => {
            json::raw(out, ",\"content\":\"");
            json::string_part(out, echo);
            json::string_part(out, &growth.text);
            json::raw(out, "\"");
            json::raw(out, NOTHING_ELSE);
        }
    }
    json::raw(out, "},\"logprobs\":");
    if plan.top_logprobs.is_some() {
        logprobs::chat(out, &growth.details().logprobs, plan);
    } else {
        json::raw(out, "null");
    }
    match &said {
        Some(said) => finish_as(out, growth, said.finish),
        None => finish(out, growth),
    }
    token_ids(out, plan, &growth.token_ids);
    out.push(b'}');
    said.and_then(|said| said.reasoning_tokens)
}

/// A choice of a chat, and what stands around it.
struct ChatChoice<'a> {
    index: usize,
    growth: &'a ChoiceUpdate,
    role: &'a str,
    echo: &'a str,
    prompt: &'a PromptFacts,
}

fn chat_tail(out: &mut Vec<u8>, plan: &Plan, prompts: &[PromptOf], return_prompt_text: bool) {
    let Some(prompt) = prompts.first() else { return };
    json::raw(out, ",\"prompt_logprobs\":");
    prompt_logprobs(out, plan, prompt);
    json::raw(out, ",\"prompt_token_ids\":");
    prompt_ids(out, plan, prompt);
    if return_prompt_text {
        json::raw(out, ",\"prompt_text\":");
        json::string(out, &prompt.facts.text);
    }
}

fn completion_choice(out: &mut Vec<u8>, plan: &Plan, choice: usize, growth: &ChoiceUpdate, prompts: &[PromptOf]) {
    let prompt = &prompts[plan.prompt_of(choice as u32)];
    let echo = plan.echo();
    open(out, choice);
    json::raw(out, ",\"text\":\"");
    if echo != Echo::No {
        json::string_part(out, &prompt.facts.text);
    }
    if echo != Echo::PromptOnly {
        json::string_part(out, &growth.text);
    }
    json::raw(out, "\",\"logprobs\":");
    if plan.top_logprobs.is_some() {
        CompletionLogprobs {
            prompt: (echo != Echo::No).then_some((&prompt.facts, &prompt.logprobs[..])),
            offset: if echo == Echo::No { 0 } else { prompt.facts.chars },
            generated: if echo == Echo::PromptOnly { &[] } else { &growth.details().logprobs },
        }
        .write(out, plan);
    } else {
        json::raw(out, "null");
    }
    finish(out, growth);
    token_ids(out, plan, if echo == Echo::PromptOnly { &[] } else { &growth.token_ids });
    json::raw(out, ",\"prompt_logprobs\":");
    prompt_logprobs(out, plan, prompt);
    json::raw(out, ",\"prompt_token_ids\":");
    prompt_ids(out, plan, prompt);
    out.push(b'}');
}

fn open(out: &mut Vec<u8>, choice: usize) {
    json::raw(out, "{\"index\":");
    json::number(out, choice as u64);
}

fn token_ids(out: &mut Vec<u8>, plan: &Plan, ids: &[u32]) {
    json::raw(out, ",\"token_ids\":");
    if plan.return_token_ids { json::numbers(out, ids) } else { json::raw(out, "null") }
}

fn prompt_ids(out: &mut Vec<u8>, plan: &Plan, prompt: &PromptOf) {
    if plan.return_token_ids { json::numbers(out, &prompt.facts.ids) } else { json::raw(out, "null") }
}

fn prompt_logprobs(out: &mut Vec<u8>, plan: &Plan, prompt: &PromptOf) {
    if plan.prompt_logprobs {
        logprobs::prompt(out, &prompt.facts, &prompt.logprobs);
    } else {
        json::raw(out, "null");
    }
}
