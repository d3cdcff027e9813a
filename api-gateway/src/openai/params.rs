//! The fields that both routes share: sampling, output, streaming. Each is checked for type and range here, once.

use std::{collections::BTreeSet, sync::Arc};

use proto::{AdapterTokenizer, BeamSearch, LogitBias, Output, Sampling};
use serde_json::Value;

use super::{
    beams,
    fields::{Fields, wrong},
    formats::Formats,
    plan::{Listing, Streaming},
    repetition, sampling, structured,
};
use crate::{defaults::Defaults, error::ApiError};

/// Most tokens of `logprob_token_ids`, as in vLLM.
const MAX_LOGPROB_TOKENS: usize = 128;

/// What a body is checked against.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Sampling values of requests that set none.
    pub defaults: Defaults,
    /// Size of the vocabulary; 0 while unknown.
    pub vocab_size: u32,
    /// Most log-probabilities to ask for; -1: any number.
    pub max_logprobs: i32,
    /// Most prompts of one body: each is a request in flight.
    pub max_prompts: usize,
    /// Names that the model goes by.
    pub served_names: Vec<String>,
    /// Adapters that are served, as far as this gateway knows.
    pub adapters: Arc<BTreeSet<String>>,
    /// The own tokenizer of the adapter that the body names, whose tokens `vocab_size` is of then.
    pub own_tokenizer: Option<AdapterTokenizer>,
    /// Whether a request may bring its own chat template.
    pub trust_chat_template: bool,
    /// How the model writes calls and reasoning.
    pub formats: Formats,
    /// Whether `tools` stay out of the prompt when they may not be used.
    pub exclude_unused_tools: bool,
    /// Template variables that requests may override.
    pub template_kwargs: serde_json::Map<String, Value>,
    /// Role of generated messages.
    pub response_role: String,
    /// Tokens per streamed event by default.
    pub stream_interval: u32,
    /// Whether every stream carries usage.
    pub force_usage: bool,
    /// Whether log-probabilities show tokens as `token_id:N`.
    pub tokens_as_ids: bool,
}

/// The fields that both routes share, checked.
#[derive(Clone, Debug)]
pub struct Params {
    /// The model or adapter that answers.
    pub model: ModelChoice,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// How tokens become text.
    pub output: Output,
    /// How the answer is delivered.
    pub streaming: Streaming,
    /// Choices per prompt.
    pub n: u32,
    /// The search whose best texts the choices are.
    pub beam_search: Option<BeamSearch>,
    /// Lower runs first.
    pub priority: i32,
    /// Separates tenants in the prefix cache.
    pub cache_salt: String,
    /// The client's own id for the request.
    pub request_id: Option<String>,
    /// Maximum number of prompt tokens to keep; -1: what fits.
    pub truncate_prompt_tokens: Option<i32>,
    /// Truncation keeps the beginning.
    pub truncate_keep_first: bool,
    /// Whether answers show token ids.
    pub return_token_ids: bool,
    /// Whether log-probabilities show tokens as `token_id:N`.
    pub tokens_as_ids: bool,
}

impl Params {
    /// Reads and checks the shared fields.
    pub fn read(fields: &mut Fields<'_>, limits: &Limits) -> Result<Self, ApiError> {
        let model = check_model(fields, limits)?;
        let n = fields.whole_in("n", 1..=beams::MAX_N)?.unwrap_or(1) as u32;
        let beam_search = beams::read(fields, n)?;
        let streaming = streaming(fields, limits)?;
        let return_token_ids = fields.flag("return_token_ids", false)?;
        let mut sampling = read_sampling(fields, limits)?;
        sampling.prompt_logprobs = prompt_logprobs(fields, limits, streaming)?;
        Ok(Self {
            model,
            sampling,
            output: output(fields, limits, streaming, return_token_ids)?,
            streaming,
            n,
            beam_search,
            priority: fields.whole_in("priority", i32::MIN.into()..=i32::MAX.into())?.unwrap_or(0) as i32,
            cache_salt: cache_salt(fields)?,
            request_id: fields.text("request_id")?,
            truncate_prompt_tokens: truncate(fields)?,
            truncate_keep_first: truncation_side(fields)?,
            return_token_ids,
            tokens_as_ids: fields.flag("return_tokens_as_token_ids", limits.tokens_as_ids)?,
        })
    }

    /// What the engine is asked for, and how many tokens answers list beside a chosen one, where a request asks for
    /// `logprobs` of the best ones. Tokens that it names are listed instead of those.
    pub fn listed(&self, logprobs: Option<i32>) -> (Option<i32>, Option<u32>) {
        match self.sampling.logprob_token_ids.len() as u32 {
            0 => (logprobs, logprobs.map(|count| u32::try_from(count).unwrap_or(u32::MAX))),
            named => (Some(0), Some(named)),
        }
    }

    /// Whether the request names the tokens that answers list.
    pub fn listing(&self) -> Listing {
        if self.sampling.logprob_token_ids.is_empty() { Listing::Likeliest } else { Listing::Named }
    }

    /// Checks what depends on the number of tokens to generate.
    pub fn check_max_tokens(&self, max_tokens: Option<u32>) -> Result<(), ApiError> {
        match max_tokens {
            Some(max_tokens) if self.sampling.min_tokens > max_tokens => Err(ApiError::field(
                "min_tokens",
                format!("`min_tokens` must be at most `max_tokens` = {max_tokens}, got {}.", self.sampling.min_tokens),
            )),
            _ => Ok(()),
        }
    }
}

/// What a request's `model` stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelChoice {
    /// The adapter that it runs with; empty: the model alone.
    pub adapter: String,
    /// Its own tokenizer; absent: the model's.
    pub tokenizer: Option<AdapterTokenizer>,
    /// The name that answers carry.
    pub name: String,
}

/// Refuses a model that is not served. An absent or empty name means whichever is.
pub fn check_model(fields: &mut Fields<'_>, limits: &Limits) -> Result<ModelChoice, ApiError> {
    match fields.text("model")? {
        Some(name) if limits.adapters.contains(&name) && !limits.served_names.contains(&name) => {
            Ok(ModelChoice { adapter: name.clone(), tokenizer: limits.own_tokenizer.clone(), name })
        }
        Some(name) if !name.is_empty() && !limits.served_names.contains(&name) => Err(ApiError {
            fault: crate::error::Fault::NotFound,
            message: format!("The model `{name}` does not exist."),
            param: Some("model".into()),
        }),
        _ => Ok(ModelChoice { adapter: String::new(), tokenizer: None, name: limits.served_names[0].clone() }),
    }
}

fn streaming(fields: &mut Fields<'_>, limits: &Limits) -> Result<Streaming, ApiError> {
    let on = fields.flag("stream", false)?;
    let options = fields.object("stream_options")?;
    if options.is_some() && !on {
        let message = "Stream options can only be defined when `stream=True`.";
        return Err(ApiError::field("stream_options", message));
    }
    let option = |name: &str, default: bool| match options.as_ref().and_then(|options| options.get(name)) {
        None | Some(Value::Null) => Ok(default),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(other) => Err(wrong(&format!("stream_options.{name}"), &other.to_string(), "true or false")),
    };
    // Continuous usage without include_usage is vLLM's no.
    let include_usage = option("include_usage", false)? || limits.force_usage;
    let continuous_usage = option("continuous_usage_stats", false)? && include_usage;
    Ok(Streaming { on, include_usage: on && include_usage, continuous_usage })
}

fn read_sampling(fields: &mut Fields<'_>, limits: &Limits) -> Result<Sampling, ApiError> {
    Ok(Sampling {
        seed: fields.whole("seed")?.map(|seed| seed as u64),
        logit_bias: logit_bias(fields, limits)?,
        allowed_token_ids: allowed_token_ids(fields, limits)?,
        bad_words: bad_words(fields)?,
        min_tokens: fields.whole_in("min_tokens", 0..=u32::MAX.into())?.unwrap_or(0) as u32,
        stop_token_ids: fields.token_ids("stop_token_ids")?.unwrap_or_default(),
        ignore_eos: fields.flag("ignore_eos", false)?,
        constraint: structured::read(fields)?,
        logprob_token_ids: logprob_token_ids(fields, limits)?,
        repetition_detection: repetition::read(fields)?,
        // Log-probabilities are each route's own, and what is left is the tokenizer's to say.
        ..sampling::read(fields, limits.defaults.numbers())?
    })
}

fn logit_bias(fields: &mut Fields<'_>, limits: &Limits) -> Result<Vec<LogitBias>, ApiError> {
    const NAME: &str = "logit_bias";
    let Some(object) = fields.object(NAME)? else { return Ok(Vec::new()) };
    let mut biases = Vec::with_capacity(object.len());
    let is_id = |key: &&str| key.trim().parse::<u32>().is_ok();
    let others: Vec<&str> = object.keys().map(String::as_str).filter(|key| !is_id(key)).collect();
    if !others.is_empty() {
        return Err(wrong(NAME, &others.join(", "), "an object from token ids to numbers"));
    }
    for (key, value) in object {
        let Ok(token) = key.trim().parse() else { continue };
        limits.check_token(NAME, token)?;
        let bias = value.as_f64().ok_or_else(|| wrong(NAME, &value.to_string(), "an object of numbers"))?;
        biases.push(LogitBias { token, bias: bias.clamp(-100.0, 100.0) as f32 });
    }
    Ok(biases)
}

fn allowed_token_ids(fields: &mut Fields<'_>, limits: &Limits) -> Result<Vec<u32>, ApiError> {
    const NAME: &str = "allowed_token_ids";
    let Some(ids) = fields.token_ids(NAME)? else { return Ok(Vec::new()) };
    if ids.is_empty() {
        return Err(ApiError::field(NAME, "`allowed_token_ids` must not be empty."));
    }
    ids.iter().try_for_each(|id| limits.check_token(NAME, *id))?;
    Ok(ids)
}

fn logprob_token_ids(fields: &mut Fields<'_>, limits: &Limits) -> Result<Vec<u32>, ApiError> {
    const NAME: &str = "logprob_token_ids";
    let ids = fields.token_ids(NAME)?.unwrap_or_default();
    if ids.len() > MAX_LOGPROB_TOKENS {
        let message = format!("`{NAME}`: {} tokens, more than the {MAX_LOGPROB_TOKENS} that are allowed.", ids.len());
        return Err(ApiError::field(NAME, message));
    }
    ids.iter().try_for_each(|id| limits.check_token(NAME, *id))?;
    Ok(ids)
}

fn bad_words(fields: &mut Fields<'_>) -> Result<Vec<String>, ApiError> {
    let words: Vec<String> = fields.value("bad_words", "a list of strings")?.unwrap_or_default();
    if words.iter().any(String::is_empty) {
        return Err(ApiError::field("bad_words", "`bad_words` must not contain an empty string."));
    }
    Ok(words)
}

fn prompt_logprobs(fields: &mut Fields<'_>, limits: &Limits, streaming: Streaming) -> Result<Option<i32>, ApiError> {
    const NAME: &str = "prompt_logprobs";
    let Some(count) = limits.logprob_count(fields, NAME)? else { return Ok(None) };
    if streaming.on {
        return Err(ApiError::field(NAME, "`prompt_logprobs` are not available when `stream=True`."));
    }
    Ok(Some(count))
}

fn output(
    fields: &mut Fields<'_>,
    limits: &Limits,
    streaming: Streaming,
    return_token_ids: bool,
) -> Result<Output, ApiError> {
    let stop = fields.texts("stop")?.unwrap_or_default();
    if stop.iter().any(String::is_empty) {
        return Err(ApiError::field("stop", "`stop` must not contain an empty string."));
    }
    let interval = fields.whole_in("stream_interval", 1..=u32::MAX.into())?;
    Ok(Output {
        stop,
        include_stop_str_in_output: fields.flag("include_stop_str_in_output", false)?,
        skip_special_tokens: fields.flag("skip_special_tokens", true)?,
        spaces_between_special_tokens: fields.flag("spaces_between_special_tokens", true)?,
        return_token_ids,
        return_prompt_token_ids: return_token_ids,
        echo: false,
        stream: streaming.on,
        stream_interval: interval.map_or(limits.stream_interval, |interval| interval as u32),
        prompt_tail: None,
    })
}

/// What separates tenants in the prefix cache.
pub fn cache_salt(fields: &mut Fields<'_>) -> Result<String, ApiError> {
    match fields.text("cache_salt")? {
        Some(salt) if salt.is_empty() => {
            Err(ApiError::field("cache_salt", "`cache_salt` must be a non-empty string if provided."))
        }
        salt => Ok(salt.unwrap_or_default()),
    }
}

/// How many tokens of a prompt are kept at most; -1: as many as fit.
pub fn truncate(fields: &mut Fields<'_>) -> Result<Option<i32>, ApiError> {
    const NAME: &str = "truncate_prompt_tokens";
    match fields.whole_in(NAME, -1..=i32::MAX.into())? {
        Some(0) => Err(ApiError::field(NAME, "`truncate_prompt_tokens` must be -1 or at least 1, got 0.")),
        tokens => Ok(tokens.map(|tokens| tokens as i32)),
    }
}

/// Whether truncation keeps the beginning.
pub fn truncation_side(fields: &mut Fields<'_>) -> Result<bool, ApiError> {
    match fields.text("truncation_side")?.as_deref() {
        None | Some("left") => Ok(false),
        Some("right") => Ok(true),
        Some(other) => Err(wrong("truncation_side", other, "`left` or `right`")),
    }
}

impl Limits {
    /// Refuses a token that the model does not have.
    pub fn check_token(&self, field: &str, token: u32) -> Result<(), ApiError> {
        if self.vocab_size > 0 && token >= self.vocab_size {
            let message = format!("`{field}`: token id {token} is out of vocabulary ({} tokens).", self.vocab_size);
            return Err(ApiError::field(field, message));
        }
        Ok(())
    }

    /// How many log-probabilities a field asks for, within what the server allows.
    pub fn logprob_count(&self, fields: &mut Fields<'_>, name: &str) -> Result<Option<i32>, ApiError> {
        let Some(count) = fields.whole(name)? else { return Ok(None) };
        let allowed = i64::from(self.max_logprobs);
        let unlimited = allowed < 0 || self.vocab_size > 0 && allowed >= i64::from(self.vocab_size);
        if count < -1 || (count == -1 && !unlimited) {
            return Err(ApiError::field(name, format!("`{name}` must be a positive value, got {count}.")));
        }
        if count > allowed && !unlimited {
            let message = format!("`{name}`: requested {count} log-probabilities, more than the allowed {allowed}.");
            return Err(ApiError::field(name, message));
        }
        i32::try_from(count).map(Some).map_err(|_| wrong(name, &count.to_string(), "a smaller number"))
    }
}
