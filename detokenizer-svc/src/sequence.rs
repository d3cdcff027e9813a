//! One choice of one request: its tokens so far, as far as its text depends on them.

use std::sync::{Arc, OnceLock};

use proto::{Delta, FinishReason, Output, RequestKey, Started, TokenLogprobs};
use tokenizer::{Context, DecodeOptions, IncrementalDecoder, Tokenizer, TokenizerError};
use tracing::{Span, debug};

use crate::{
    logprobs,
    stops::{Found, Stops},
};

/// Prompt tokens that a decoder looks at before the first generated one.
const CONTEXT: usize = 32;

/// What all choices of a request share.
pub(crate) struct RequestInfo {
    pub(crate) key: RequestKey,
    pub(crate) request_id: String,
    pub(crate) output: Output,
    /// The model's, or the adapter's own.
    tokenizer: Arc<Tokenizer>,
    /// Closed when the request is over.
    _span: Span,
    stops: Stops,
    min_tokens: u32,
    options: DecodeOptions,
    /// The prompt, or the end of it.
    prompt_ids: Vec<u32>,
    prompt_is_tail: bool,
    /// Found when the first prompt log-probability comes.
    prompt_offsets: OnceLock<Vec<u32>>,
}

impl RequestInfo {
    /// The request that `started` tells of; `None` when it names none.
    pub(crate) fn new(mut started: Started, tokenizer: Arc<Tokenizer>, span: Span) -> Option<Self> {
        let mut output = started.output.take().unwrap_or_default();
        let options = DecodeOptions {
            skip_special_tokens: output.skip_special_tokens,
            spaces_between_special_tokens: output.spaces_between_special_tokens,
        };
        let stops = Stops::new(std::mem::take(&mut output.stop), output.include_stop_str_in_output);
        Some(Self {
            key: started.key?,
            request_id: started.request_id,
            tokenizer,
            _span: span,
            stops,
            min_tokens: started.min_tokens,
            options,
            prompt_is_tail: started.prompt_ids.len() < started.prompt_tokens as usize,
            prompt_ids: started.prompt_ids,
            prompt_offsets: OnceLock::new(),
            output,
        })
    }

    /// The whole prompt's ids, when the scheduler sent them.
    pub(crate) fn prompt_ids(&self) -> &[u32] {
        if self.prompt_is_tail { &[] } else { &self.prompt_ids }
    }

    /// The prompt's text, special tokens as the output has them.
    pub(crate) fn prompt_text(&self) -> String {
        self.tokenizer.decode(self.prompt_ids(), self.options.skip_special_tokens).unwrap_or_default()
    }
}

/// Whether a token leaves text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Text {
    Shown,
    /// The token ended the sequence; it is no part of the answer, unless what stops it stays.
    Hidden,
}

/// One choice of one request.
pub(crate) struct Sequence {
    pub(crate) request: Arc<RequestInfo>,
    choice: u32,
    decoder: IncrementalDecoder,
    /// Text that may be the beginning of a stop string.
    held: String,
    tokens: u32,
    /// Characters decoded so far; counted only where log-probabilities need it.
    characters: u32,
    /// What has not been sent yet.
    delta: Delta,
    sent: bool,
    /// It grew since the last flush.
    pub(crate) touched: bool,
}

impl Sequence {
    pub(crate) fn new(request: Arc<RequestInfo>, choice: u32) -> Result<Self, TokenizerError> {
        let from = request.prompt_ids.len().saturating_sub(CONTEXT);
        let context = Context { ids: &request.prompt_ids[from..], is_tail: request.prompt_is_tail || from > 0 };
        let decoder = IncrementalDecoder::new(&request.tokenizer, request.options, context)?;
        Ok(Self {
            choice,
            decoder,
            held: String::new(),
            tokens: 0,
            characters: 0,
            delta: Delta::default(),
            sent: false,
            touched: false,
            request,
        })
    }

    /// Takes one token. True: a stop string ended the sequence.
    #[inline]
    pub(crate) fn push(&mut self, id: u32, text: Text, logprobs: Option<TokenLogprobs>) -> bool {
        let tokenizer = &self.request.tokenizer;
        self.tokens += 1;
        self.delta.token_count += 1;
        if self.request.output.return_token_ids {
            self.delta.token_ids.push(id);
        }
        let counts = logprobs.is_some();
        if let Some(logprobs) = logprobs {
            self.delta.details_mut().logprobs.push(logprobs::with_text(tokenizer, logprobs, id, self.characters));
        }
        if text == Text::Hidden && !self.request.output.include_stop_str_in_output {
            return false;
        }
        let stops = !self.request.stops.is_empty();
        let out = if stops { &mut self.held } else { &mut self.delta.text };
        let before = out.len();
        if let Err(error) = self.decoder.push(tokenizer, id, out) {
            debug!(request_id = self.request.request_id, token = id, "{error}");
        }
        if counts {
            self.characters += out[before..].chars().count() as u32;
        }
        stops && self.look_for_stops(before)
    }

    /// Looks at what `held` got behind `old`. True: a stop string ended the sequence.
    fn look_for_stops(&mut self, old: usize) -> bool {
        let stops = &self.request.stops;
        match stops.find(&self.held, old, self.tokens > self.request.min_tokens) {
            Found::Nothing { certain } => {
                self.delta.text.push_str(&self.held[..certain]);
                self.held.drain(..certain);
                false
            }
            Found::Stop { index, end } => {
                self.delta.text.push_str(&self.held[..end]);
                self.delta.details_mut().stop_text = Some(stops.get(index).to_owned());
                self.delta.set_finish(FinishReason::Stop);
                self.held.clear();
                true
            }
        }
    }

    /// The scheduler ended the sequence; what was held back comes out.
    pub(crate) fn finish(&mut self, reason: FinishReason, stop_token: Option<u32>) {
        let before = self.held.len();
        self.decoder.finish(&mut self.held);
        if self.look_for_stops(before) {
            return;
        }
        let rest = std::mem::take(&mut self.held);
        self.delta.text.push_str(&rest);
        self.delta.set_finish(reason);
        if stop_token.is_some() {
            self.delta.details_mut().stop_token = stop_token;
        }
    }

    /// Takes the output of a prompt that is pooled, or a part of it.
    pub(crate) fn push_pooled(&mut self, mut values: Vec<f32>) {
        let pooled = &mut self.delta.details_mut().pooled;
        if pooled.is_empty() {
            *pooled = values;
        } else {
            pooled.append(&mut values);
        }
    }

    /// Takes the log-probabilities of a prompt position.
    pub(crate) fn push_prompt(&mut self, logprobs: TokenLogprobs) {
        let request = &self.request;
        let tokenizer = &request.tokenizer;
        let offsets = request
            .prompt_offsets
            .get_or_init(|| logprobs::prompt_offsets(tokenizer, request.prompt_ids(), request.options));
        let offset = offsets.get(logprobs.index as usize).copied().unwrap_or(0);
        let token = logprobs.token;
        self.delta.details_mut().prompt_logprobs.push(logprobs::with_text(tokenizer, logprobs, token, offset));
    }

    /// Whether what is there should go out now. The first token goes out at once, so that its time is known even where
    /// the answer is not streamed.
    pub(crate) fn is_due(&self) -> bool {
        let output = &self.request.output;
        !self.sent || output.stream && self.delta.token_count >= output.stream_interval
    }

    /// What has not been sent yet.
    pub(crate) fn take(&mut self) -> Delta {
        self.sent = true;
        let mut delta = std::mem::take(&mut self.delta);
        delta.choice = self.choice;
        delta
    }
}
