//! `/v1/completions`: a body becomes one pipeline request per prompt, and the plan of its answer.

use proto::{Prompt, Request};

use super::{
    beams,
    fields::Fields,
    params::{Limits, Params},
    plan::{Api, Dialect, Echo, Plan},
    prompt, refused, sampling,
};
use crate::{api::operation::Body, engine::pipeline::Arrival, error::ApiError, server::routing::Routing};

const DEFAULT_MAX_TOKENS: u32 = 16;
/// Choices of all prompts of a body, at most: there is room for each from the start.
const MAX_CHOICES: usize = 1 << 17;

/// A request that was read and checked, ready to be sent.
#[derive(Debug)]
pub struct Ready {
    /// One per prompt, without keys.
    pub requests: Vec<Request>,
    /// What the answer must look like.
    pub plan: Plan,
}

/// What the HTTP request tells besides its body.
#[derive(Clone, Debug)]
pub struct Envelope {
    /// When it came.
    pub arrival: Arrival,
    /// `X-Request-Id`, if it is usable.
    pub request_id: Option<String>,
    /// The id to use when the client brought none.
    pub fresh_id: String,
    /// W3C trace context of the request's span.
    pub traceparent: String,
    /// Whether `usage` tells of cached prompt tokens.
    pub prompt_tokens_details: bool,
    /// Whether answers tell where their time went.
    pub request_metrics: bool,
    /// The engine that it is for.
    pub routing: Routing,
}

impl Envelope {
    /// The id that the client sees: the header's, else the body's, else a fresh one.
    pub fn id(&self, prefix: &str, of_body: Option<&str>) -> String {
        let base = self.request_id.as_deref().or(of_body).unwrap_or(&self.fresh_id);
        format!("{prefix}-{base}")
    }
}

/// Reads a body of `/v1/completions`.
pub fn read(body: &[u8], limits: &Limits, envelope: &Envelope) -> Result<Ready, ApiError> {
    let mut fields = Fields::parse(body)?;
    sampling::lift_custom(&mut fields)?;
    let params = Params::read(&mut fields, limits)?;
    refused::check(&mut fields, Body::Completion)?;
    let add_special_tokens = fields.flag("add_special_tokens", true)?;
    let prompts = prompt::read(&mut fields, limits, add_special_tokens)?;
    if prompts.len() * params.n as usize > MAX_CHOICES {
        let message = format!("`n` = {} for {} prompts is more than {MAX_CHOICES} choices.", params.n, prompts.len());
        return Err(ApiError::field("n", message));
    }
    let echo = echo(&mut fields)?;
    let max_tokens = max_tokens(&mut fields, limits, echo)?;
    params.check_max_tokens(Some(max_tokens))?;
    let logprobs = limits.logprob_count(&mut fields, "logprobs")?;
    if echo != Echo::No
        && logprobs.is_some()
        && params.sampling.prompt_logprobs.is_some_and(|of_prompt| Some(of_prompt) != logprobs)
    {
        let message = "`prompt_logprobs` must equal `logprobs` when `echo` is set.";
        return Err(ApiError::field("prompt_logprobs", message));
    }
    let suffix = suffix(&mut fields, echo)?;
    let (asked, listed) = params.listed(logprobs);
    log_unread(&fields);
    let api = Api::Completion { echo: if max_tokens == 0 { Echo::PromptOnly } else { echo } };
    let count = prompts.len() as u32;
    let plan = Plan { prompts: count, top_logprobs: listed, ..plan(api, &params, envelope) };
    let mut template = request(&params, envelope);
    template.max_tokens = Some(max_tokens.max(1));
    let sampling = template.sampling.get_or_insert_default();
    sampling.logprobs = asked;
    if echo != Echo::No && logprobs.is_some() {
        sampling.prompt_logprobs = logprobs;
    }
    beams::check(&template)?;
    let output = template.output.get_or_insert_default();
    output.echo = echo != Echo::No;
    output.return_prompt_token_ids |= echo != Echo::No && logprobs.is_some();
    let single = prompts.len() == 1;
    let requests = prompts.into_iter().enumerate().map(|(index, prompt)| Request {
        request_id: if single { plan.id.clone() } else { format!("{}-{index}", plan.id) },
        prompt: Some(Prompt { suffix: suffix.clone(), ..prompt }),
        ..template.clone()
    });
    Ok(Ready { requests: requests.collect(), plan })
}

/// The plan of an answer of one prompt without log-probabilities, its text as it stands.
pub fn plan(api: Api, params: &Params, envelope: &Envelope) -> Plan {
    let prefix = match api {
        Api::Chat { .. } => "chatcmpl",
        Api::Completion { .. } => "cmpl",
    };
    Plan {
        api,
        id: envelope.id(prefix, params.request_id.as_deref()),
        created: envelope.arrival.unix_seconds(),
        model: params.model.name.clone(),
        prompts: 1,
        n: params.n,
        streaming: params.streaming,
        top_logprobs: None,
        listing: params.listing(),
        prompt_logprobs: params.sampling.prompt_logprobs.is_some(),
        return_token_ids: params.return_token_ids,
        tokens_as_ids: params.tokens_as_ids,
        prompt_tokens_details: envelope.prompt_tokens_details,
        request_metrics: envelope.request_metrics,
        parsing: None,
        dialect: Dialect::OpenAi,
    }
}

/// A pipeline request with all that both APIs share; prompt, id and key are missing.
pub fn request(params: &Params, envelope: &Envelope) -> Request {
    Request {
        adapter: params.model.adapter.clone(),
        adapter_tokenizer: params.model.tokenizer.clone(),
        key: None,
        request_id: String::new(),
        traceparent: envelope.traceparent.clone(),
        session_id: envelope.routing.session.clone(),
        data_parallel_rank: envelope.routing.rank,
        prompt: None,
        sampling: Some(params.sampling.clone()),
        output: Some(params.output.clone()),
        n: params.n,
        beam_search: params.beam_search,
        priority: params.priority,
        cache_salt: params.cache_salt.clone(),
        max_tokens: None,
        truncate_prompt_tokens: params.truncate_prompt_tokens,
        truncate_keep_first: params.truncate_keep_first,
        ..Request::default()
    }
}

/// Unknown fields do no harm; somebody who wonders about one finds it in the log.
pub fn log_unread(fields: &Fields<'_>) {
    if tracing::enabled!(tracing::Level::DEBUG) {
        for name in fields.unread() {
            tracing::debug!(field = name, "ignoring an unknown request field");
        }
    }
}

/// What follows the text that is asked for.
fn suffix(fields: &mut Fields<'_>, echo: Echo) -> Result<Option<String>, ApiError> {
    let suffix = fields.text("suffix")?.filter(|suffix| !suffix.is_empty());
    if suffix.is_some() && echo != Echo::No {
        return Err(ApiError::field(
            "suffix",
            "`suffix` is not supported together with `echo`: leave one of them out.",
        ));
    }
    Ok(suffix)
}

fn echo(fields: &mut Fields<'_>) -> Result<Echo, ApiError> {
    Ok(if fields.flag("echo", false)? { Echo::Prompt } else { Echo::No })
}

fn max_tokens(fields: &mut Fields<'_>, limits: &Limits, echo: Echo) -> Result<u32, ApiError> {
    let least = i64::from(echo == Echo::No);
    let asked =
        fields.whole_in("max_tokens", least..=i64::MAX)?.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX));
    let asked = asked.unwrap_or(DEFAULT_MAX_TOKENS);
    Ok(limits.defaults.max_tokens.map_or(asked, |cap| asked.min(cap)))
}
