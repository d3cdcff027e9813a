//! Whole answers: all that a request brought, as one JSON body.

use proto::TextLogprobs;

use super::{
    logprobs::{self, CompletionLogprobs, PromptFacts},
    object::{Usage, finish, head},
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
    json::list(&mut out, choices.iter().enumerate(), |out, (choice, growth)| match &plan.api {
        Api::Chat { role, echo, .. } => chat_choice(out, plan, (choice, growth), (role, echo)),
        Api::Completion { .. } => completion_choice(out, plan, (choice, growth), &gathered.prompts),
    });
    json::raw(&mut out, ",\"usage\":");
    let prompt_only = plan.echo() == Echo::PromptOnly;
    let generated = choices.iter().map(|growth| if prompt_only { 0 } else { growth.tokens });
    let facts = gathered.prompts.iter().map(|prompt| &prompt.facts);
    Usage::total(facts, generated).write(&mut out, plan);
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
            if !growth.prompt_logprobs.is_empty() {
                prompts[plan.prompt_of(choice)].logprobs = std::mem::take(&mut growth.prompt_logprobs);
            }
            *slot = growth;
        }
        Self { prompts, choices }
    }
}

fn chat_choice(
    out: &mut Vec<u8>,
    plan: &Plan,
    (choice, growth): (usize, &ChoiceUpdate),
    (role, echo): (&String, &String),
) {
    open(out, choice);
    json::raw(out, ",\"message\":{\"role\":");
    json::string(out, role);
    json::raw(out, ",\"content\":\"");
    json::string_part(out, echo);
    json::string_part(out, &growth.text);
    json::raw(
        out,
        "\",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\"tool_calls\":[],\"reasoning\":null},\"logprobs\":",
    );
    if plan.top_logprobs.is_some() {
        logprobs::chat(out, &growth.logprobs, plan);
    } else {
        json::raw(out, "null");
    }
    finish(out, growth);
    token_ids(out, plan, &growth.token_ids);
    out.push(b'}');
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

fn completion_choice(out: &mut Vec<u8>, plan: &Plan, (choice, growth): (usize, &ChoiceUpdate), prompts: &[PromptOf]) {
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
            generated: if echo == Echo::PromptOnly { &[] } else { &growth.logprobs },
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
