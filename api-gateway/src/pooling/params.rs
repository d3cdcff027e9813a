//! The fields that all routes share which pool.

use proto::{Output, Pooling, PoolingInfo, Prompt, Request, Sampling, pooling::Tokens};

use super::Reading;
use crate::{
    error::ApiError,
    openai::{
        fields::Fields,
        params::{ModelChoice, cache_salt, check_model, truncate, truncation_side},
    },
};

/// The shared fields, checked.
#[derive(Clone, Debug)]
pub struct Params {
    /// The model or adapter that answers.
    pub model: ModelChoice,
    priority: i32,
    cache_salt: String,
    request_id: Option<String>,
    truncate_prompt_tokens: Option<i32>,
    truncate_keep_first: bool,
}

/// Which outputs of a prompt are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// The one that the model pools.
    Pooled,
    /// Each token's.
    Each,
    /// Each token's, and the tokens.
    EachWithTokens,
    /// Each token's vector, of a model that gives one beside its output, and the tokens.
    TokenVectors,
    /// Each token's weight, of the same, and the tokens.
    TokenWeights,
}

impl Wanted {
    /// Whether the tokens themselves are.
    fn with_tokens(self) -> bool {
        matches!(self, Self::EachWithTokens | Self::TokenVectors | Self::TokenWeights)
    }

    /// Numbers of one output.
    pub fn width(self, info: &PoolingInfo) -> usize {
        let width = match (self, info.token_outputs) {
            (Self::TokenVectors, Some(outputs)) => outputs.vector,
            (Self::TokenWeights, Some(_)) => 1,
            _ => info.width,
        };
        width.max(1) as usize
    }

    /// The first column of an output, of a model that gives more beside it.
    fn first_column(self, info: &PoolingInfo) -> u32 {
        let vector = info.token_outputs.map_or(0, |outputs| outputs.vector);
        match self {
            Self::TokenVectors => info.width,
            Self::TokenWeights => info.width + vector,
            Self::Pooled | Self::Each | Self::EachWithTokens => 0,
        }
    }
}

impl Params {
    /// Reads and checks them.
    pub fn read(fields: &mut Fields<'_>, reading: &Reading<'_>) -> Result<Self, ApiError> {
        refuse(fields)?;
        let model = check_model(fields, reading.limits)?;
        // Names the client's user, which nothing here depends on.
        let _: Option<String> = fields.text("user")?;
        Ok(Self {
            model,
            priority: fields.whole_in("priority", i32::MIN.into()..=i32::MAX.into())?.unwrap_or(0) as i32,
            cache_salt: cache_salt(fields)?,
            request_id: fields.text("request_id")?,
            // As many as fit is what the engine says, which may be fewer than the tokenizer thinks.
            truncate_prompt_tokens: match (truncate(fields)?, reading.max_len) {
                (Some(-1), Some(most)) => Some(i32::try_from(most).unwrap_or(i32::MAX)),
                (tokens, _) => tokens,
            },
            truncate_keep_first: truncation_side(fields)?,
        })
    }

    /// Cuts inputs that are too long, at their end or their beginning.
    pub fn truncate_as(&mut self, keep_first: Option<bool>, reading: &Reading<'_>) {
        if let Some(keep_first) = keep_first.filter(|_| self.truncate_prompt_tokens.is_none()) {
            let most = reading.max_len.map_or(-1, |most| i32::try_from(most).unwrap_or(i32::MAX));
            (self.truncate_prompt_tokens, self.truncate_keep_first) = (Some(most), keep_first);
        }
    }

    /// The id that the client sees.
    pub fn id(&self, prefix: &str, reading: &Reading<'_>) -> String {
        reading.envelope.id(prefix, self.request_id.as_deref())
    }

    /// A pipeline request for each prompt.
    pub fn requests(&self, id: &str, prompts: Vec<Prompt>, wanted: Wanted, reading: &Reading<'_>) -> Vec<Request> {
        let single = prompts.len() == 1;
        let template = Request {
            adapter: self.model.adapter.clone(),
            adapter_tokenizer: self.model.tokenizer.clone(),
            traceparent: reading.envelope.traceparent.clone(),
            session_id: reading.envelope.routing.session.clone(),
            data_parallel_rank: reading.envelope.routing.rank,
            sampling: Some(Sampling { temperature: 0.0, ..Sampling::default() }),
            output: Some(Output { return_prompt_token_ids: wanted.with_tokens(), ..Output::default() }),
            n: 1,
            priority: self.priority,
            cache_salt: self.cache_salt.clone(),
            truncate_prompt_tokens: self.truncate_prompt_tokens,
            truncate_keep_first: self.truncate_keep_first,
            pooling: Some(pooling(reading.info, wanted)),
            ..Request::default()
        };
        let request = |(index, prompt)| Request {
            request_id: if single { id.to_owned() } else { format!("{id}-{index}") },
            prompt: Some(prompt),
            ..template.clone()
        };
        prompts.into_iter().enumerate().map(request).collect()
    }
}

/// Refuses what vLLM's routes take beside texts.
fn refuse(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    for name in ["media_io_kwargs", "mm_processor_kwargs"] {
        if fields.raw(name).is_some_and(|value| value != "{}") {
            return Err(ApiError::field(name, format!("`{name}` is not supported: inputs are text or token ids.")));
        }
    }
    Ok(())
}

fn pooling(info: &PoolingInfo, wanted: Wanted) -> Pooling {
    let each = wanted != Wanted::Pooled;
    let tokens = if each { Tokens::All.into() } else { info.tokens };
    let (first_column, columns) = match info.token_outputs {
        Some(_) => (wanted.first_column(info), wanted.width(info) as u32),
        None => (0, 0),
    };
    Pooling { tokens, each, first_column, columns, ..Pooling::default() }
}
