//! What the scheduler is told once, at start.

/// Which waiting sequence runs first, and which running one gives way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// First come, first served.
    #[default]
    Fcfs,
    /// By the request's `priority`, lower first; within one priority first come, first served.
    Priority,
}

/// What the workers can do beside generating text with the model alone. Requests for anything else are refused by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// Pool hidden states.
    pub pooling: bool,
    /// Nothing else: they generate no text.
    pub only_pooling: bool,
    /// Take images, videos and sounds in prompts.
    pub media: bool,
}

/// Prompt tokens of a mixed step: one that prefills prompts beside running decodes. This bounds inter-token latency: a
/// step takes longer the more prompt tokens it has, and all decodes wait for its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MixedPrefill {
    /// As many as a step computes at all.
    #[default]
    Unlimited,
    /// At most this many.
    AtMost(u32),
    /// What there is time for, going by earlier steps.
    Timed(PrefillBudget),
}

/// How long prompts may keep decodes waiting. Where few decodes run, short steps cost prompts little; the more there
/// are, the more of each step is theirs, and the longer a step has to be for prompts to get on. Where very few run,
/// fewer and longer steps keep fewer waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PrefillBudget {
    /// Prompt tokens of a mixed step at least, however long they take.
    pub min_tokens: u32,
    /// Length of a mixed step, microseconds.
    pub target_us: u32,
    /// Up to this many decodes count as very few.
    pub few_decodes: u32,
    /// Length of a mixed step beside very few decodes, microseconds.
    pub few_decodes_target_us: u32,
    /// Prompt tokens within the target at most. A fast model computes more in the time, but gains nothing by it that
    /// decodes should wait for.
    pub target_tokens: u32,
    /// A step may take longer than the target for this many prompt tokens for each of its decodes.
    pub tokens_per_decode: u32,
    /// The longest mixed step, microseconds, whose prompt tokens are more than the target has at most.
    pub max_us: u32,
    /// The longest with no more, microseconds: where a model is slow, short steps cost prompts much.
    pub slow_max_us: u32,
    /// Rows of a mixed step, decodes included, are a multiple of this: what the device's GEMMs compute best. 0 counts
    /// as 1.
    pub row_multiple: u32,
    /// The same from twice as many rows on, where the device's attention has a say.
    pub large_row_multiple: u32,
}

/// Limits and switches; see [`Config::check`] for what must hold between them.
#[derive(Clone, Debug)]
pub struct Config {
    /// What the workers serve: weights and all else that keys and values depend on. Part of every block's hash.
    pub model: String,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Slots: sequences that run at once.
    pub max_num_seqs: u32,
    /// Tokens that one step computes at most.
    pub max_num_batched_tokens: u32,
    /// Prompt and output together, tokens.
    pub max_model_len: u32,
    /// Tokens of one prompt that one step computes at most; 0: no such limit.
    pub long_prefill_token_threshold: u32,
    /// Prompt tokens of mixed steps. Without chunked prefill there is no such bound.
    pub mixed_prefill: MixedPrefill,
    /// Bytes that new requests may add to one plan, which goes to the workers as one message: their tokens, blocks and
    /// sampling, counted as what they take at most. A plan's first new request comes in whatever it takes.
    pub max_new_request_bytes: usize,
    /// Split prompts over steps. Off: a prompt runs in one step, alone or beside others.
    pub enable_chunked_prefill: bool,
    /// Find blocks again by the hash of their tokens.
    pub enable_prefix_caching: bool,
    /// Groups of layers with a block table each: `None` keeps everything, `Some(window)` what a token and the `window -
    /// 1` before it need. At least one; they all take from the same blocks.
    pub windows: Vec<Option<u32>>,
    /// The model has a recurrent state, which is not in the blocks: neither cached prefixes nor a sibling's prompt can
    /// be shared.
    pub recurrent: bool,
    /// Order of the queue and of preemption.
    pub policy: Policy,
    /// Plans that may be without a result at once. 1: in order, the next plan waits for the last result; simple, and
    /// what the others are tested against. 2: a step is planned while one runs, so workers never wait for the
    /// scheduler. More: for workers in stages.
    pub pipeline_depth: u32,
    /// Stages of the workers' pipeline: each computes some of the layers, and the last one samples. With more than one,
    /// plans tell the others what was sampled, and running decodes are spread over as many plans as may be in flight.
    pub stages: u32,
    /// Drafted tokens that a row verifies at most; 0: no speculation. See [`crate::Scheduler::propose`].
    pub speculative_tokens: u32,
    /// Append the tokens that a grammar forces without sampling them (see `jump.rs`).
    pub jump_forward: bool,
    /// Different adapters that a step may use, each in a slot of the workers' devices; 0: requests with adapters are
    /// refused.
    pub adapter_slots: u32,
    /// What the workers can do beside generating text.
    pub features: Features,
    /// Requests that may wait for their first step; `None`: no bound.
    pub max_num_queued_reqs: Option<u32>,
    /// Prompt tokens of requests that wait for their first step; `None`: no bound.
    pub max_num_queued_tokens: Option<u64>,
    /// Share of the blocks that admission leaves free for running sequences to grow into, `0.0 ..= 1.0`.
    pub watermark: f32,
    /// Tokens that end a text unless the request ignores them.
    pub eos_token_ids: Vec<u32>,
    /// Token ids are below this; those of a request that says otherwise ([`proto::Request::vocab_size`]) below its own.
    pub vocab_size: u32,
    /// Tokens that adapters may have behind these.
    pub extra_vocab_size: u32,
    /// Largest `n` of a request.
    pub max_choices: u32,
    /// Start of the generator that seeds requests without a seed of their own.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            model: String::new(),
            block_size: 16,
            max_num_seqs: 256,
            max_num_batched_tokens: 2048,
            max_model_len: 4096,
            long_prefill_token_threshold: 0,
            mixed_prefill: MixedPrefill::Unlimited,
            max_new_request_bytes: 4 << 20,
            enable_chunked_prefill: true,
            enable_prefix_caching: true,
            windows: vec![None],
            recurrent: false,
            policy: Policy::Fcfs,
            pipeline_depth: 2,
            stages: 1,
            speculative_tokens: 0,
            jump_forward: false,
            adapter_slots: 0,
            features: Features::default(),
            max_num_queued_reqs: None,
            max_num_queued_tokens: None,
            watermark: 0.0,
            eos_token_ids: Vec::new(),
            vocab_size: 32_000,
            extra_vocab_size: 0,
            max_choices: 128,
            seed: 0,
        }
    }
}

/// A configuration that cannot work.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// A limit that must be positive is zero.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// Every running sequence must be able to take a token in each step.
    #[error("max_num_batched_tokens ({batched}) must be at least max_num_seqs ({seqs})")]
    BudgetBelowSeqs {
        /// `max_num_batched_tokens`.
        batched: u32,
        /// `max_num_seqs`.
        seqs: u32,
    },
    /// Every running sequence must be able to verify a whole draft in each step.
    #[error(
        "max_num_batched_tokens ({batched}) must be at least {each} for each of max_num_seqs ({seqs}): one and \
         speculative_tokens"
    )]
    BudgetBelowDrafts {
        /// `max_num_batched_tokens`.
        batched: u32,
        /// `max_num_seqs`.
        seqs: u32,
        /// `speculative_tokens` and one.
        each: u64,
    },
    /// Longer drafts than a row has room for.
    #[error("speculative_tokens must be at most {most}, not {tokens}")]
    SpeculativeTokens {
        /// `speculative_tokens`.
        tokens: u32,
        /// The bound.
        most: u32,
    },
    /// A recurrent state cannot be taken back to before the rejected tokens.
    #[error("a model with a recurrent state cannot verify drafted tokens; switch speculation off")]
    RecurrentSpeculation,
    /// Without chunks, the longest prompt must fit into one step.
    #[error(
        "without chunked prefill, max_num_batched_tokens ({batched}) must be at least max_model_len ({len}); \
         raise it or enable chunked prefill"
    )]
    BudgetBelowPrompt {
        /// `max_num_batched_tokens`.
        batched: u32,
        /// `max_model_len`.
        len: u32,
    },
    /// No groups, or more than there are tables for, or a window without a token.
    #[error("windows must be 1 to 255 groups, each with a window of at least 1 token or none, not {0:?}")]
    Windows(Vec<Option<u32>>),
    /// A recurrent state is not in the blocks that the prefix cache finds.
    #[error("a model with a recurrent state cannot have a prefix cache; switch prefix caching off")]
    RecurrentPrefixCache,
    /// A share outside `0.0 ..= 1.0`.
    #[error("watermark must be between 0 and 1, not {0}")]
    Watermark(f32),
}

impl Config {
    /// What tokens are below, whatever their request's adapter.
    pub(crate) fn most_vocab_size(&self) -> u32 {
        self.vocab_size + self.extra_vocab_size
    }

    /// Refuses what cannot work.
    pub fn check(&self) -> Result<(), ConfigError> {
        let positive = [
            ("block_size", self.block_size),
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("max_model_len", self.max_model_len),
            ("vocab_size", self.vocab_size),
            ("max_choices", self.max_choices),
            ("pipeline_depth", self.pipeline_depth),
            ("stages", self.stages),
            ("mixed_prefill", if self.mixed_prefill == MixedPrefill::AtMost(0) { 0 } else { 1 }),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(ConfigError::Zero(name));
        }
        let (batched, seqs, len) = (self.max_num_batched_tokens, self.max_num_seqs, self.max_model_len);
        if batched < seqs {
            return Err(ConfigError::BudgetBelowSeqs { batched, seqs });
        }
        self.check_speculation()?;
        if !self.enable_chunked_prefill && batched < len {
            return Err(ConfigError::BudgetBelowPrompt { batched, len });
        }
        if !(1..=255).contains(&self.windows.len()) || self.windows.contains(&Some(0)) {
            return Err(ConfigError::Windows(self.windows.clone()));
        }
        if self.recurrent && self.enable_prefix_caching {
            return Err(ConfigError::RecurrentPrefixCache);
        }
        if !(0.0..=1.0).contains(&self.watermark) {
            return Err(ConfigError::Watermark(self.watermark));
        }
        Ok(())
    }

    fn check_speculation(&self) -> Result<(), ConfigError> {
        let (tokens, most) = (self.speculative_tokens, u32::from(u16::MAX) - 1);
        if tokens > most {
            return Err(ConfigError::SpeculativeTokens { tokens, most });
        }
        let (batched, seqs, each) = (self.max_num_batched_tokens, self.max_num_seqs, u64::from(tokens) + 1);
        if u64::from(batched) < u64::from(seqs) * each {
            return Err(ConfigError::BudgetBelowDrafts { batched, seqs, each });
        }
        if self.recurrent && tokens > 0 {
            return Err(ConfigError::RecurrentSpeculation);
        }
        Ok(())
    }
}
