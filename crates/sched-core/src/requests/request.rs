//! A request: what its choices share, and the checks before it is taken.

use crate::{
    beam::{self, Beams},
    blocks::groups::Groups,
    config::Config,
    error::Refusal,
    flight::Want,
};
use block_hash::{BlockHash, Identity};
use ids::SequenceId;
use proto::{Pooling, RequestKey, pooling::Tokens, prompt::Kind};

/// Prompt tokens that `Started` carries unless all are asked for: enough for any tokenizer to decode the next one.
const PROMPT_TAIL: usize = 8;

/// A live request. Its sequences hold only their own output; the prompt is here once.
#[derive(Debug)]
pub(crate) struct Request {
    pub key: RequestKey,
    pub request_id: String,
    pub traceparent: String,
    pub sampling: proto::Sampling,
    pub output: proto::Output,
    pub task: Task,
    pub prompt: Vec<u32>,
    /// Hashes of the prompt's full blocks; empty when the prefix cache is off.
    pub prompt_hashes: Vec<BlockHash>,
    /// Its adapter; empty: none.
    pub adapter: String,
    /// Its own tokenizer, by which its tokens become text.
    pub adapter_tokenizer: Option<proto::AdapterTokenizer>,
    /// Its tenant's; empty: none.
    pub cache_salt: String,
    /// In order of positions.
    pub media: Vec<proto::Media>,
    /// Root of the hashes, for prompts shorter than a block.
    pub root: BlockHash,
    pub first_sequence: SequenceId,
    /// Choices that are answered.
    pub n: u32,
    /// Its beam search, whose beams are the sequences.
    pub beams: Option<Box<Beams>>,
    /// Indices of the live choices' sequences, by choice.
    pub choices: Vec<Option<u32>>,
    /// Choices that have not ended.
    pub live: u32,
    pub started: bool,
    /// Prompt and output together, for each choice.
    pub limit: u32,
    pub priority: i32,
    /// Its own, or drawn for it.
    pub seed: u64,
    pub queued_us: u64,
}

/// What is computed from the prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Task {
    /// Tokens that continue it.
    Generate,
    /// One output, pooled from the hidden states of these tokens.
    Pool(Pooling),
}

impl Task {
    /// What the row that computes the last known token gives.
    #[inline]
    pub fn want(self) -> Want {
        match self {
            Task::Generate => Want::Sample,
            Task::Pool(_) => Want::Pool,
        }
    }

    /// Whether all of the prompt's hidden states are needed, so that none of it may come from the prefix cache.
    pub fn needs_whole_prompt(self) -> bool {
        matches!(self, Task::Pool(pooling) if pooling.each || pooling.tokens() == Tokens::All)
    }
}

/// What the checks of a request found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checked {
    pub key: RequestKey,
    pub task: Task,
    /// Prompt and output together; a pooled output counts as one token.
    pub limit: u32,
}

/// What admission decides about a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    pub checked: Checked,
    pub first_sequence: SequenceId,
    /// For requests without a seed of their own.
    pub drawn_seed: u64,
    pub now_us: u64,
}

/// The prompt's token ids.
pub(crate) fn prompt_ids(request: &proto::Request) -> Result<&[u32], Refusal> {
    match request.prompt.as_ref().and_then(|prompt| prompt.kind.as_ref()) {
        Some(Kind::Ids(ids)) => Ok(&ids.ids),
        _ => Err(Refusal::Incomplete("prompt token ids")),
    }
}

/// The checks that depend on the request alone; `num_blocks` is what the worker group has.
pub(crate) fn check(
    request: &proto::Request,
    config: &Config,
    groups: &Groups,
    num_blocks: u32,
) -> Result<Checked, Refusal> {
    let key = request.key.ok_or(Refusal::Incomplete("key"))?;
    let prompt = prompt_ids(request)?;
    let task = task(request, config)?;
    beam::check(request, config)?;
    check_prompt(prompt, task, config)?;
    check_tokens(prompt, vocab_size(request, config))?;
    check_media(&request.media, prompt.len() as u32)?;
    let max = if task == Task::Generate { config.max_choices } else { 1 };
    if request.n == 0 || request.n > max {
        return Err(Refusal::Choices { n: request.n, max });
    }
    // Once a search gave way, each beam computes all of its own again.
    let width = request.beam_search.as_ref().map_or(1, |beams| beams.width);
    let prompt_tokens = prompt.len() as u32;
    let limit = match task {
        Task::Pool(_) => prompt_tokens + 1,
        Task::Generate => token_limit(prompt_tokens, request.max_tokens, config.max_model_len, || {
            groups.positions_in(num_blocks / width).saturating_add(1)
        })?,
    };
    let blocks = groups.blocks_for(limit - 1) * u64::from(width);
    if blocks > num_blocks.into() {
        return Err(Refusal::NeverFits { blocks: blocks.min(u32::MAX.into()) as u32, num_blocks });
    }
    Ok(Checked { key, task, limit })
}

/// What the request asks for, if the workers can do it.
fn task(request: &proto::Request, config: &Config) -> Result<Task, Refusal> {
    let features = config.features;
    let asked = [
        ("pooling", request.pooling.is_some() && !features.pooling),
        ("adapter", !request.adapter.is_empty() && config.adapter_slots == 0),
        ("media", !request.media.is_empty() && !features.media),
    ];
    if let Some((param, _)) = asked.iter().find(|(_, refused)| *refused) {
        return Err(Refusal::Unsupported(param));
    }
    let Some(pooling) = &request.pooling else {
        return if features.only_pooling { Err(Refusal::OnlyPooling) } else { Ok(Task::Generate) };
    };
    let scores_prompt = request.sampling.as_ref().is_some_and(|sampling| sampling.prompt_logprobs.is_some());
    match (request.max_tokens, scores_prompt) {
        (Some(_), _) => Err(Refusal::NotForPooling("max_tokens")),
        (None, true) => Err(Refusal::NotForPooling("prompt_logprobs")),
        (None, false) => Ok(Task::Pool(*pooling)),
    }
}

fn check_prompt(prompt: &[u32], task: Task, config: &Config) -> Result<(), Refusal> {
    if prompt.is_empty() {
        return Err(Refusal::EmptyPrompt);
    }
    let prompt_tokens = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
    let max_model_len = config.max_model_len;
    match task {
        Task::Generate if prompt_tokens >= max_model_len => {
            return Err(Refusal::PromptTooLong { prompt_tokens, max_model_len });
        }
        Task::Pool(_) if prompt_tokens > max_model_len => {
            return Err(Refusal::PooledPromptTooLong { prompt_tokens, max_model_len });
        }
        _ => {}
    }
    Ok(())
}

/// What the tokens of a request are below.
fn vocab_size(request: &proto::Request, config: &Config) -> u32 {
    match request.vocab_size {
        0 => config.vocab_size,
        own => own.min(config.most_vocab_size()),
    }
}

fn check_tokens(prompt: &[u32], vocab_size: u32) -> Result<(), Refusal> {
    match prompt.iter().position(|token| *token >= vocab_size) {
        Some(position) => {
            Err(Refusal::TokenOutOfRange { token: prompt[position], position: position as u32, vocab_size })
        }
        None => Ok(()),
    }
}

/// Media lie in the prompt one behind the other.
fn check_media(media: &[proto::Media], prompt_tokens: u32) -> Result<(), Refusal> {
    let mut free = 0;
    for (index, one) in media.iter().enumerate() {
        let end = one.start.checked_add(one.num_tokens).filter(|end| *end <= prompt_tokens);
        match end {
            Some(end) if one.start >= free && one.num_tokens > 0 && !one.hash.is_empty() => free = end,
            _ => return Err(Refusal::Media { index }),
        }
    }
    Ok(())
}

/// Prompt and output together; `capacity` is what the blocks hold. The last token's keys and values are never computed,
/// so `limit - 1` positions must fit.
fn token_limit(
    prompt_tokens: u32,
    max_tokens: Option<u32>,
    max_model_len: u32,
    capacity: impl Fn() -> u32,
) -> Result<u32, Refusal> {
    match max_tokens {
        Some(0) => Err(Refusal::ZeroMaxTokens),
        Some(max_tokens) if max_tokens > max_model_len - prompt_tokens => {
            Err(Refusal::MaxTokensTooLarge { max_tokens, prompt_tokens, max_model_len })
        }
        Some(max_tokens) => Ok(prompt_tokens + max_tokens),
        // What the context leaves, and what the blocks leave should they be fewer than one context.
        None => Ok(max_model_len.min(capacity().max(prompt_tokens + 1))),
    }
}

impl Request {
    /// Takes a checked request apart.
    pub fn new(mut request: proto::Request, admitted: Admitted, config: &Config) -> Self {
        let max_tokens = admitted.checked.limit - prompt_ids(&request).map_or(0, <[u32]>::len) as u32;
        let beams = Beams::of(&request, config, max_tokens);
        let sequences = sequences(&request);
        let prompt = match request.prompt.take().and_then(|prompt| prompt.kind) {
            Some(Kind::Ids(ids)) => ids.ids,
            _ => Vec::new(),
        };
        let identity = Identity { model: &config.model, adapter: &request.adapter, cache_salt: &request.cache_salt };
        let root = BlockHash::root(identity);
        let prompt_hashes = match config.enable_prefix_caching {
            true => block_hash::prompt_hashes(root, &prompt, &request.media, config.block_size),
            false => Vec::new(),
        };
        let sampling = request.sampling.unwrap_or_default();
        Self {
            key: admitted.checked.key,
            task: admitted.checked.task,
            request_id: request.request_id,
            traceparent: request.traceparent,
            seed: sampling.seed.unwrap_or(admitted.drawn_seed),
            sampling,
            output: request.output.unwrap_or_default(),
            adapter: request.adapter,
            adapter_tokenizer: request.adapter_tokenizer,
            cache_salt: request.cache_salt,
            media: request.media,
            root,
            prompt,
            prompt_hashes,
            first_sequence: admitted.first_sequence,
            n: request.n,
            beams,
            choices: Vec::with_capacity(sequences as usize),
            live: sequences,
            started: false,
            limit: admitted.checked.limit,
            priority: request.priority,
            queued_us: admitted.now_us,
        }
    }

    /// The event that tells the detokenizer about it.
    pub fn started(&self, cached_tokens: u32) -> proto::Started {
        let whole = self.output.echo || self.output.return_prompt_token_ids || self.sampling.prompt_logprobs.is_some();
        let from = if whole { 0 } else { self.prompt.len().saturating_sub(PROMPT_TAIL) };
        proto::Started {
            key: Some(self.key),
            request_id: self.request_id.clone(),
            traceparent: self.traceparent.clone(),
            first_sequence: self.first_sequence.0,
            n: self.n,
            output: Some(self.output.clone()),
            prompt_tokens: self.prompt.len() as u32,
            cached_tokens,
            prompt_ids: self.prompt[from..].to_vec(),
            logprobs: self.sampling.logprobs,
            min_tokens: self.sampling.min_tokens,
            adapter_tokenizer: self.adapter_tokenizer.clone(),
        }
    }

    /// Its failure as the event that ends it.
    pub fn failed(&self, failure: &proto::Failure) -> proto::Failed {
        proto::Failed { key: Some(self.key), failure: Some(failure.clone()), request_id: self.request_id.clone() }
    }
}

/// Sequences of a request: a choice each, or a beam each.
pub(crate) fn sequences(request: &proto::Request) -> u32 {
    request.beam_search.as_ref().map_or(request.n, |beams| beams.width)
}

/// The seed of one choice. Choice 0 keeps the request's own, so `n` = 1 is not special.
pub(crate) fn choice_seed(seed: u64, choice: u32) -> u64 {
    match choice {
        0 => seed,
        _ => Seeds(seed ^ (u64::from(choice) << 32)).draw(),
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): seeds for requests that bring none.
#[derive(Debug)]
pub(crate) struct Seeds(pub u64);

impl Seeds {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
