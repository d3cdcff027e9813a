//! A body of `/v1/responses` as one of `/v1/chat/completions`.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{
    input,
    store::Store,
    tools,
    turn::{Place, ShownReasoning, Turn},
};
use crate::{
    error::ApiError,
    openai::{
        chat,
        completion::{Envelope, Ready},
        fields::{Fields, wrong},
        params::Limits,
        plan::Dialect,
    },
};

/// Fields that are refused, with what to do instead. Sorted.
pub const REFUSED: [(&str, &str); 22] = [
    ("context_management", "send a shorter `input`"),
    ("conversation", "use `previous_response_id`, or send all items"),
    ("echo", "it is a field of /v1/chat/completions"),
    ("enable_response_messages", "read `output`"),
    ("include_reasoning", "reasoning is an item of `output`"),
    ("logprobs", "put \"message.output_text.logprobs\" into `include`"),
    ("max_completion_tokens", "use `max_output_tokens`"),
    ("max_tokens", "use `max_output_tokens`"),
    ("messages", "use `input`"),
    ("moderation", "nothing is moderated here"),
    ("n", "a response has one answer; send several requests"),
    ("previous_input_messages", "use `previous_response_id`, or send all items"),
    ("previous_response", "use `previous_response_id`, or send all items"),
    ("prompt", "there are no stored prompts here; use `instructions` and `input`"),
    ("prompt_logprobs", "it is a field of /v1/chat/completions"),
    ("reasoning_effort", "use `reasoning`"),
    ("request_id", "a response is named by the server"),
    ("response_format", "use `text`"),
    ("return_prompt_text", "it is a field of /v1/chat/completions"),
    ("return_token_ids", "it is a field of /v1/chat/completions"),
    ("stream_interval", "it is a field of /v1/chat/completions"),
    ("truncate_prompt_tokens", "use `truncation`"),
];

/// What `include` may name. All but the first two ask for what only tools of the server give, which there are none of.
pub const INCLUDABLE: [&str; 8] = [
    LOGPROBS,
    OPAQUE_REASONING,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
];
const LOGPROBS: &str = "message.output_text.logprobs";
const OPAQUE_REASONING: &str = "reasoning.encrypted_content";

/// What `service_tier` may say. There is one tier.
pub const TIERS: [&str; 6] = ["auto", "default", "fast", "flex", "priority", "scale"];

/// Texts that the response repeats as they came, and that steer nothing.
const REPEATED: [&str; 4] = ["prompt_cache_key", "prompt_cache_retention", "safety_identifier", "user"];
/// The same, an object.
const REPEATED_OBJECT: &str = "prompt_cache_options";

/// Fields that say the same in both APIs. Others that only chats know are passed on too, mostly to be refused.
pub const ALIKE: [&str; 27] = [
    "allowed_token_ids",
    "bad_words",
    "cache_salt",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "frequency_penalty",
    "ignore_eos",
    "include_stop_str_in_output",
    "logit_bias",
    "min_p",
    "min_tokens",
    "model",
    "presence_penalty",
    "priority",
    "repetition_penalty",
    "return_tokens_as_token_ids",
    "seed",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop",
    "stop_token_ids",
    "temperature",
    "top_k",
    "top_p",
    "truncation_side",
    "typical_p",
];

/// Reads a body of `/v1/responses`.
///
/// # Errors
/// When a field is wrong, or asks for what is not done; 404 when the previous response is not kept.
pub fn read(body: &[u8], limits: &Limits, envelope: &Envelope, store: &Store) -> Result<Ready, ApiError> {
    let id = format!("resp_{}", envelope.fresh_id);
    let Asked { mut turn, chat } = Asked::read(&mut Fields::parse(body)?, store, &id)?;
    let chat = Value::Object(chat).to_string();
    let mut ready = chat::read(chat.as_bytes(), limits, envelope).map_err(in_our_words)?;
    for request in &mut ready.requests {
        request.request_id.clone_from(&id);
        if let Some(sampling) = &request.sampling {
            turn.said["temperature"] = sampling.temperature.into();
            turn.said["top_p"] = sampling.top_p.into();
        }
    }
    turn.said["created_at"] = ready.plan.created.into();
    turn.said["model"] = ready.plan.model.as_str().into();
    ready.plan.id = id;
    ready.plan.dialect = Dialect::Responses(Arc::new(turn));
    Ok(ready)
}

/// A body, read.
pub struct Asked {
    /// What the response repeats or is written by.
    turn: Turn,
    /// The body of a chat that the answer comes from.
    chat: Map<String, Value>,
}

impl Asked {
    /// Reads the fields of a body whose response will have that id.
    ///
    /// # Errors
    /// When a field of this API alone is wrong or refused.
    pub fn read(fields: &mut Fields<'_>, store: &Store, id: &str) -> Result<Self, ApiError> {
        refuse(fields)?;
        let mut chat = Map::new();
        let turn = turn(fields, Kept { store, id }, &mut chat)?;
        pass_on(fields, &mut chat)?;
        Ok(Self { turn, chat })
    }
}

fn refuse(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    for (name, instead) in REFUSED {
        if fields.raw(name).is_some() {
            let message = format!("`{name}` is not supported by /v1/responses: {instead}.");
            return Err(ApiError::field(name, message));
        }
    }
    Ok(())
}

/// What the response repeats or is written by; what steers the answer goes into `chat`.
fn turn(fields: &mut Fields<'_>, kept: Kept<'_>, chat: &mut Map<String, Value>) -> Result<Turn, ApiError> {
    let mut said = Map::new();
    for name in ["created_at", "model", "temperature", "top_p"] {
        said.insert(name.into(), Value::Null);
    }
    let delivery = Delivery::read(fields, kept.store)?;
    for (name, value) in [("background", delivery.background), ("store", delivery.store)] {
        said.insert(name.into(), value.into());
    }
    chat.insert("stream".into(), (delivery.stream || delivery.background).into());
    let context = conversation(fields, kept, chat, &mut said)?;
    functions(fields, chat, &mut said)?;
    let included = include(fields, chat, &mut said)?;
    let place = reasoning(fields, chat, &mut said)?;
    text(fields, chat, &mut said)?;
    limits(fields, chat, &mut said)?;
    said.insert("metadata".into(), metadata(fields)?);
    said.insert("service_tier".into(), service_tier(fields)?);
    for name in REPEATED {
        said.insert(name.into(), fields.text(name)?.into());
    }
    said.insert(REPEATED_OBJECT.into(), fields.object(REPEATED_OBJECT)?.into());
    let Delivery { store, background, stream } = delivery;
    let reasoning = ShownReasoning { place, opaque: included.opaque_reasoning };
    Ok(Turn { said, context, store, background, stream, logprobs: included.logprobs, reasoning })
}

/// How a response gets to its client.
#[derive(Clone, Copy)]
struct Delivery {
    store: bool,
    background: bool,
    stream: bool,
}

impl Delivery {
    fn read(fields: &mut Fields<'_>, store: &Store) -> Result<Self, ApiError> {
        let wanted = fields.flag("store", true)?;
        let background = fields.flag("background", false)?;
        let stream = fields.flag("stream", false)?;
        if background && !wanted {
            return Err(ApiError::field("background", "`background` can only be used when `store` is true."));
        }
        if background && !store.is_on() {
            let message = "`background` needs responses to be kept, which this server does not do: see \
                           --max-stored-responses.";
            return Err(ApiError::field("background", message));
        }
        stream_options(fields, stream)?;
        Ok(Self { store: wanted && store.is_on(), background, stream })
    }
}

fn stream_options(fields: &mut Fields<'_>, stream: bool) -> Result<(), ApiError> {
    const NAME: &str = "stream_options";
    let Some(options) = fields.object(NAME)? else { return Ok(()) };
    if !stream {
        return Err(ApiError::field(NAME, "Stream options can only be defined when `stream=True`."));
    }
    for (name, value) in options {
        match (name.as_str(), &value) {
            (_, Value::Null | Value::Bool(false)) => {}
            ("include_usage", Value::Bool(true)) => {}
            _ => {
                let message = format!("`stream_options.{name}` = {value} is not supported by this server.");
                return Err(ApiError::field(NAME, message));
            }
        }
    }
    Ok(())
}

/// Where previous responses are, and the id of this one.
#[derive(Clone, Copy)]
struct Kept<'a> {
    store: &'a Store,
    id: &'a str,
}

/// The items that the answer is made from; the chat gets them as messages.
fn conversation(
    fields: &mut Fields<'_>,
    kept: Kept<'_>,
    chat: &mut Map<String, Value>,
    said: &mut Map<String, Value>,
) -> Result<Vec<Value>, ApiError> {
    let instructions = fields.text("instructions")?;
    let input: Value = fields
        .value("input", "a string or a list of items")?
        .ok_or_else(|| ApiError::field("input", "`input` must be provided."))?;
    let new = input::read(input, kept.id, kept.store)?;
    let previous = fields.text("previous_response_id")?;
    let mut items = match &previous {
        Some(id) => before(kept.store, id)?,
        None => Vec::new(),
    };
    items.extend(new);
    let messages = input::messages(instructions.as_deref(), &items);
    chat.insert("messages".into(), messages.all.into());
    if messages.goes_on {
        chat.insert("add_generation_prompt".into(), false.into());
        chat.insert("continue_final_message".into(), true.into());
    }
    said.insert("instructions".into(), instructions.into());
    said.insert("previous_response_id".into(), previous.into());
    Ok(items)
}

/// The items of a response that is kept, its own ones last.
fn before(store: &Store, id: &str) -> Result<Vec<Value>, ApiError> {
    const NAME: &str = "previous_response_id";
    let record = store.get(id).map_err(|error| ApiError { param: Some(NAME.into()), ..error })?;
    if !record.is_over() {
        return Err(ApiError::field(NAME, format!("Response '{id}' has not ended yet.")));
    }
    let mut items = record.context();
    items.extend(record.output());
    Ok(items)
}

fn functions(
    fields: &mut Fields<'_>,
    chat: &mut Map<String, Value>,
    said: &mut Map<String, Value>,
) -> Result<(), ApiError> {
    let tools = tools::read(fields)?;
    let parallel = fields.flag("parallel_tool_calls", true)?;
    chat.insert("parallel_tool_calls".into(), parallel.into());
    chat.insert("tool_choice".into(), tools.choice_of_chat);
    if !tools.of_chat.is_empty() {
        chat.insert("tools".into(), tools.of_chat.into());
    }
    said.insert("tools".into(), tools.shown.into());
    said.insert("tool_choice".into(), tools.choice);
    said.insert("parallel_tool_calls".into(), parallel.into());
    Ok(())
}

/// What is shown besides the usual.
struct Included {
    logprobs: bool,
    opaque_reasoning: bool,
}

/// `include` and `top_logprobs`: whether log-probabilities and opaque reasoning are shown.
fn include(
    fields: &mut Fields<'_>,
    chat: &mut Map<String, Value>,
    said: &mut Map<String, Value>,
) -> Result<Included, ApiError> {
    let include: Vec<String> = fields.value("include", "a list of strings")?.unwrap_or_default();
    if let Some(unknown) = include.iter().find(|name| !INCLUDABLE.contains(&name.as_str())) {
        return Err(wrong("include", unknown, &format!("a list of {}", INCLUDABLE.join(", "))));
    }
    // How many there may be is the chat's to say.
    let top = fields.whole("top_logprobs")?.unwrap_or(0);
    let logprobs = top != 0 || include.iter().any(|name| name == LOGPROBS);
    if logprobs {
        chat.insert("logprobs".into(), true.into());
        chat.insert("top_logprobs".into(), top.into());
    }
    said.insert("top_logprobs".into(), top.into());
    Ok(Included { logprobs, opaque_reasoning: include.iter().any(|name| name == OPAQUE_REASONING) })
}

fn reasoning(
    fields: &mut Fields<'_>,
    chat: &mut Map<String, Value>,
    said: &mut Map<String, Value>,
) -> Result<Place, ApiError> {
    const NAME: &str = "reasoning";
    let wanted = fields.object(NAME)?.unwrap_or_default();
    let of = |name: &str| wanted.get(name).filter(|value| !value.is_null());
    if let Some(other) = wanted.keys().find(|name| !["effort", "generate_summary", "summary"].contains(&name.as_str()))
        && of(other).is_some()
    {
        return Err(ApiError::field(NAME, format!("`reasoning.{other}` is not supported by this server.")));
    }
    if let Some(effort) = of("effort") {
        chat.insert("reasoning_effort".into(), effort.clone());
    }
    let summary = of("summary").or(of("generate_summary"));
    let place = match summary.map(|summary| summary.as_str()) {
        None => Place::Content,
        Some(Some("auto" | "detailed")) => Place::Summary,
        Some(_) => {
            let message = "`reasoning.summary` must be \"auto\" or \"detailed\", both of which give the reasoning as \
                           it is: nothing shortens it here.";
            return Err(ApiError::field(NAME, message));
        }
    };
    said.insert(NAME.into(), json!({"effort": of("effort"), "summary": summary}));
    Ok(place)
}

fn text(fields: &mut Fields<'_>, chat: &mut Map<String, Value>, said: &mut Map<String, Value>) -> Result<(), ApiError> {
    const NAME: &str = "text";
    let wanted = fields.object(NAME)?.unwrap_or_default();
    if let Some(other) = wanted.keys().find(|name| !["format", "verbosity"].contains(&name.as_str())) {
        return Err(ApiError::field(NAME, format!("`text.{other}` is not supported by this server.")));
    }
    let of = |name: &str| wanted.get(name).filter(|value| !value.is_null()).cloned();
    let format = of("format").unwrap_or_else(|| json!({"type": "text"}));
    let of_chat = match format["type"].as_str() {
        Some("text" | "json_object") => format.clone(),
        Some("json_schema") => {
            let members = format.as_object().into_iter().flatten().filter(|(name, _)| *name != "type");
            let schema: Map<String, Value> = members.map(|(name, value)| (name.clone(), value.clone())).collect();
            json!({"type": "json_schema", "json_schema": schema})
        }
        _ => {
            let message = "`text.format.type` must be \"text\", \"json_object\" or \"json_schema\".";
            return Err(ApiError::field(NAME, message));
        }
    };
    chat.insert("response_format".into(), of_chat);
    if let Some(verbosity) = of("verbosity") {
        chat.insert("verbosity".into(), verbosity);
    }
    said.insert(NAME.into(), json!({"format": format, "verbosity": of("verbosity")}));
    Ok(())
}

/// Bounds of the answer and of the prompt.
fn limits(
    fields: &mut Fields<'_>,
    chat: &mut Map<String, Value>,
    said: &mut Map<String, Value>,
) -> Result<(), ApiError> {
    let tokens = fields.whole_in("max_output_tokens", 1..=i64::MAX)?;
    chat.insert("max_completion_tokens".into(), tokens.into());
    // Only tools of the server count, and there are none.
    let calls = fields.whole_in("max_tool_calls", 1..=i64::MAX)?;
    let truncation = fields.text("truncation")?.unwrap_or_else(|| "disabled".into());
    match truncation.as_str() {
        "disabled" => {}
        // The last tokens of the conversation are kept.
        "auto" => {
            chat.insert("truncate_prompt_tokens".into(), (-1).into());
        }
        other => return Err(wrong("truncation", other, "\"auto\" or \"disabled\"")),
    }
    said.insert("max_output_tokens".into(), tokens.into());
    said.insert("max_tool_calls".into(), calls.into());
    said.insert("truncation".into(), truncation.into());
    Ok(())
}

fn metadata(fields: &mut Fields<'_>) -> Result<Value, ApiError> {
    const NAME: &str = "metadata";
    let metadata = fields.object(NAME)?.unwrap_or_default();
    let fits = |(name, value): (&String, &Value)| {
        name.chars().count() <= 64 && value.as_str().is_some_and(|value| value.chars().count() <= 512)
    };
    if metadata.len() > 16 || !metadata.iter().all(fits) {
        let message =
            "`metadata` must have at most 16 members: names of up to 64 characters, and strings of up to 512.";
        return Err(ApiError::field(NAME, message));
    }
    Ok(metadata.into())
}

/// The tier that is served, which is one for all.
fn service_tier(fields: &mut Fields<'_>) -> Result<Value, ApiError> {
    match fields.text("service_tier")? {
        Some(tier) if !TIERS.contains(&tier.as_str()) => {
            Err(wrong("service_tier", &tier, &format!("one of {}", TIERS.join(", "))))
        }
        _ => Ok("default".into()),
    }
}

/// Fields that say the same in both APIs, and those that neither knows.
fn pass_on(fields: &mut Fields<'_>, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let rest: Vec<String> = fields.unread().map(str::to_owned).collect();
    for name in ALIKE.into_iter().chain(rest.iter().map(String::as_str)) {
        if let Some(value) = fields.value::<Value>(name, "JSON")? {
            chat.entry(name).or_insert(value);
        }
    }
    Ok(())
}

/// An error of a chat's field, under the name that the field has here.
fn in_our_words(error: ApiError) -> ApiError {
    const NAMES: [(&str, &str); 5] = [
        ("max_completion_tokens", "max_output_tokens"),
        ("max_tokens", "max_output_tokens"),
        ("messages", "input"),
        ("reasoning_effort", "reasoning"),
        ("response_format", "text"),
    ];
    let Some((theirs, ours)) = NAMES.iter().find(|(theirs, _)| error.param.as_deref() == Some(theirs)) else {
        return error;
    };
    let message = error.message.replace(&format!("`{theirs}`"), &format!("`{ours}`"));
    ApiError { message, param: Some((*ours).to_owned()), ..error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_sorted() {
        assert!(REFUSED.is_sorted_by_key(|(name, _)| *name) && ALIKE.is_sorted());
    }
}
