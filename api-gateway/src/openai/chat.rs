//! `/v1/chat/completions`: a conversation becomes one pipeline request, and the plan of its answer.

use chat_format::part_text;
use proto::{Chat, Prompt, Reasoning, prompt};
use serde_json::{Map, Value};

use super::{
    beams,
    completion::{Envelope, Ready, log_unread, plan, request},
    fields::{Fields, wrong},
    params::{Limits, Params},
    plan::{Api, Plan},
    refused, sampling,
    tools::ToolUse,
};
use crate::{api::operation::Body, error::ApiError};

/// Reads a body of `/v1/chat/completions`.
pub fn read(body: &[u8], limits: &Limits, envelope: &Envelope) -> Result<Ready, ApiError> {
    let mut fields = Fields::parse(body)?;
    sampling::lift_custom(&mut fields)?;
    let mut params = Params::read(&mut fields, limits)?;
    refused::check(&mut fields, Body::Chat)?;
    let conversation = Conversation::read(&mut fields, limits)?;
    let parsing = conversation.tools.parsing(&mut fields, limits)?;
    params.sampling.constraint = conversation.tools.constraint(params.sampling.constraint.take())?;
    params.sampling.reasoning = reasoning(&mut fields, limits, params.sampling.constraint.is_some())?;
    if let Some(reasoning) = &mut params.sampling.reasoning {
        reasoning.calls = conversation.tools.demands_call();
    }
    let max_tokens = max_tokens(&mut fields, limits)?;
    params.check_max_tokens(max_tokens)?;
    let logprobs = logprobs(&mut fields, limits)?;
    let (asked, listed) = params.listed(logprobs);
    let echo = fields.flag("echo", false)?;
    let return_prompt_text = fields.flag("return_prompt_text", false)?;
    log_unread(&fields);
    let role = conversation.response_role(limits);
    let echo = if echo { conversation.text_to_echo(&role) } else { String::new() };
    let api = Api::Chat { role, echo, return_prompt_text };
    let plan = Plan { top_logprobs: listed, parsing, ..plan(api, &params, envelope) };
    let mut request = request(&params, envelope);
    request.request_id.clone_from(&plan.id);
    request.max_tokens = max_tokens;
    request.prompt = Some(conversation.prompt);
    request.sampling.get_or_insert_default().logprobs = asked;
    let output = request.output.get_or_insert_default();
    output.echo = return_prompt_text;
    if let Some(parsing) = &plan.parsing {
        parsing.prepare(output);
    }
    beams::check(&request)?;
    Ok(Ready { requests: vec![request], plan })
}

/// The conversation of a body: what the template needs, checked.
pub struct Conversation {
    /// As the tokenizer takes it.
    pub prompt: Prompt,
    last: Map<String, Value>,
    add_generation_prompt: bool,
    tools: ToolUse,
}

impl Conversation {
    /// Reads `messages`, `tools` and what steers the template.
    pub fn read(fields: &mut Fields<'_>, limits: &Limits) -> Result<Self, ApiError> {
        let (messages_json, last) = messages(fields)?;
        let mut kwargs = template_kwargs(fields, limits)?;
        // What the request says as a field goes before the server's variables; its own variables say the same.
        let mut flag = |name: &str, default: bool| {
            let of_field: Option<bool> = fields.value(name, "true or false")?;
            match (of_field, kwargs.shift_remove(name)) {
                (Some(flag), _) | (None, Some(Value::Bool(flag))) => Ok(flag),
                (None, None | Some(Value::Null)) => Ok(default),
                (None, Some(other)) => {
                    let message = format!("`{name}` among the template's variables must be true or false, got {other}");
                    Err(ApiError::field("chat_template_kwargs", message))
                }
            }
        };
        let add_generation_prompt = flag("add_generation_prompt", true)?;
        let continue_final_message = flag("continue_final_message", false)?;
        if continue_final_message && add_generation_prompt {
            return Err(ApiError::field(
                "continue_final_message",
                "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
            ));
        }
        let tools = ToolUse::read(fields, limits)?;
        let chat = Chat {
            messages_json,
            tools_json: tools.tools_json.clone(),
            add_generation_prompt,
            continue_final_message,
            chat_template: chat_template(fields, limits)?,
            template_kwargs_json: if kwargs.is_empty() { String::new() } else { Value::Object(kwargs).to_string() },
            documents_json: documents(fields)?,
        };
        let prompt = Prompt {
            kind: Some(prompt::Kind::Chat(chat)),
            add_special_tokens: fields.flag("add_special_tokens", false)?,
            suffix: None,
        };
        Ok(Self { prompt, last, add_generation_prompt, tools })
    }

    /// A continued message keeps its role.
    fn response_role(&self, limits: &Limits) -> String {
        match self.last.get("role") {
            Some(Value::String(role)) if !self.add_generation_prompt => role.clone(),
            _ => limits.response_role.clone(),
        }
    }

    /// The last message's text, when the answer goes on with it.
    fn text_to_echo(&self, role: &str) -> String {
        match (self.last.get("role"), self.last.get("content")) {
            (Some(last_role), Some(Value::String(text))) if last_role == role => text.clone(),
            (Some(last_role), Some(Value::Array(parts))) if last_role == role => {
                let texts: Vec<&str> = parts.iter().filter_map(|part| part_text(part).ok()).collect();
                texts.join("\n")
            }
            _ => String::new(),
        }
    }
}

/// The `messages` array as it came, and its last message.
fn messages(fields: &mut Fields<'_>) -> Result<(String, Map<String, Value>), ApiError> {
    const NAME: &str = "messages";
    let text = fields.raw(NAME).ok_or_else(|| ApiError::field(NAME, "`messages` must be provided."))?;
    let mut messages: Vec<Map<String, Value>> =
        serde_json::from_str(text).map_err(|_| wrong(NAME, text, "a list of message objects"))?;
    for (index, message) in messages.iter().enumerate() {
        check_message(message).map_err(|problem| ApiError::field(NAME, format!("messages[{index}]: {problem}")))?;
    }
    let last = messages.pop().ok_or_else(|| ApiError::field(NAME, "`messages` must not be empty."))?;
    Ok((text.to_owned(), last))
}

fn check_message(message: &Map<String, Value>) -> Result<(), String> {
    match message.get("role") {
        Some(Value::String(role)) if !role.is_empty() => {}
        _ => return Err("`role` must be a non-empty string.".into()),
    }
    let may_lack_content = message.get("role").is_some_and(|role| role == "assistant");
    match message.get("content") {
        None | Some(Value::Null) if may_lack_content => Ok(()),
        Some(Value::String(_)) => Ok(()),
        Some(Value::Array(parts)) => {
            parts.iter().try_for_each(|part| part_text(part).map(drop)).map_err(|error| format!("{error}."))
        }
        _ => Err("`content` must be a string or a list of content parts.".into()),
    }
}

fn chat_template(fields: &mut Fields<'_>, limits: &Limits) -> Result<String, ApiError> {
    match fields.text("chat_template")? {
        Some(template) if !limits.trust_chat_template && !template.is_empty() => Err(ApiError::field(
            "chat_template",
            "Chat template is passed with request, but --trust-request-chat-template is not set. \
             Refused request with untrusted chat template.",
        )),
        template => Ok(template.unwrap_or_default()),
    }
}

/// The server's template variables, overridden by the request's, and `reasoning_effort`, which templates read like one.
fn template_kwargs(fields: &mut Fields<'_>, limits: &Limits) -> Result<Map<String, Value>, ApiError> {
    let of_request = fields.object("chat_template_kwargs")?.unwrap_or_default();
    check_said_twice(fields, &of_request)?;
    let mut all = limits.template_kwargs.clone();
    if let Some(effort) = fields.text("reasoning_effort")? {
        all.insert("reasoning_effort".into(), effort.into());
    }
    if !limits.trust_chat_template && of_request.contains_key("chat_template") {
        let message = "`chat_template` is not allowed among the template's variables.";
        return Err(ApiError::field("chat_template_kwargs", message));
    }
    all.extend(of_request);
    Ok(all)
}

/// What is a field of the request and a variable of the template: given as both, it must be the same. (vLLM's versions
/// differ in which of two wins.)
fn check_said_twice(fields: &mut Fields<'_>, variables: &Map<String, Value>) -> Result<(), ApiError> {
    const BOTH: [&str; 5] =
        ["add_generation_prompt", "continue_final_message", "documents", "reasoning_effort", "tools"];
    for name in BOTH {
        let Some(variable) = variables.get(name).filter(|variable| !variable.is_null()) else { continue };
        let field: Option<Value> = fields.value(name, "JSON")?;
        if field.is_some_and(|field| field != *variable) {
            let message = format!(
                "`{name}` is a field of the request and, with another value, among the template's variables; give it \
                 once."
            );
            return Err(ApiError::field("chat_template_kwargs", message));
        }
    }
    Ok(())
}

fn documents(fields: &mut Fields<'_>) -> Result<String, ApiError> {
    let parsed: Option<Vec<Map<String, Value>>> = fields.value("documents", "a list of objects")?;
    Ok(match parsed {
        Some(documents) if !documents.is_empty() => fields.raw("documents").unwrap_or_default().to_owned(),
        _ => String::new(),
    })
}

/// `max_completion_tokens`, else its old name; absent: what the context leaves.
fn max_tokens(fields: &mut Fields<'_>, limits: &Limits) -> Result<Option<u32>, ApiError> {
    let old = fields.whole_in("max_tokens", 1..=i64::MAX)?;
    let asked = fields.whole_in("max_completion_tokens", 1..=i64::MAX)?.or(old);
    let asked = asked.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX));
    Ok(match (asked, limits.defaults.max_tokens) {
        (Some(asked), Some(cap)) => Some(asked.min(cap)),
        (asked, cap) => asked.or(cap),
    })
}

fn logprobs(fields: &mut Fields<'_>, limits: &Limits) -> Result<Option<i32>, ApiError> {
    let wanted = fields.flag("logprobs", false)?;
    let top = limits.logprob_count(fields, "top_logprobs")?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => {
            Err(ApiError::field("top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true."))
        }
    }
}

/// How reasoning is written, where the constraint begins behind it, or it has a budget.
fn reasoning(fields: &mut Fields<'_>, limits: &Limits, constrained: bool) -> Result<Option<Reasoning>, ApiError> {
    const BUDGET: &str = "thinking_token_budget";
    let budget = fields.whole_in(BUDGET, 0..=u32::MAX.into())?.map(|tokens| tokens as u32);
    match limits.formats.reasoning {
        Some(format) if constrained || budget.is_some() => {
            Ok(Some(Reasoning { format: format.name.to_owned(), budget, ..Reasoning::default() }))
        }
        None if budget.is_some() => {
            let message = "`thinking_token_budget` needs to know how the model writes its reasoning: start the server \
                           with --reasoning-parser.";
            Err(ApiError::field(BUDGET, message))
        }
        _ => Ok(None),
    }
}
