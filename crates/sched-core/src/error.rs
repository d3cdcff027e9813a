//! Why a request is refused, why a result is, and what a broken invariant looks like.

use proto::failure::Kind;

/// Why a request was not admitted. The data is enough to write vLLM's messages; `Display` writes a plain one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// The prompt has no tokens.
    #[error("The decoder prompt cannot be empty")]
    EmptyPrompt,
    /// The prompt leaves no room for a token.
    #[error(
        "The decoder prompt (length {prompt_tokens}) is too long: this model's maximum context length is \
         {max_model_len} tokens, of which at least one is generated"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Context length of the model as served.
        max_model_len: u32,
    },
    /// The prompt of a request that is pooled is longer than the context.
    #[error(
        "The prompt (length {prompt_tokens}) is too long: this model's maximum context length is {max_model_len} tokens"
    )]
    PooledPromptTooLong {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Context length of the model as served.
        max_model_len: u32,
    },
    /// Prompt and `max_tokens` together exceed the context.
    #[error(
        "'max_tokens' or 'max_completion_tokens' is too large: {max_tokens}. This model's maximum context length is \
         {max_model_len} tokens and your request has {prompt_tokens} input tokens ({max_tokens} > {max_model_len} - \
         {prompt_tokens})."
    )]
    MaxTokensTooLarge {
        /// What the request asked for.
        max_tokens: u32,
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Context length of the model as served.
        max_model_len: u32,
    },
    /// `max_tokens` is zero.
    #[error("max_tokens must be at least 1, got 0.")]
    ZeroMaxTokens,
    /// A prompt token that the model does not have.
    #[error("Token id {token} is out of vocabulary ({vocab_size} tokens)")]
    TokenOutOfRange {
        /// The offending id.
        token: u32,
        /// Where it stands in the prompt.
        position: u32,
        /// Ids are below this.
        vocab_size: u32,
    },
    /// `n` is zero or above what the engine runs for one request.
    #[error("n must be between 1 and {max}, got {n}.")]
    Choices {
        /// What the request asked for.
        n: u32,
        /// The largest `n` served.
        max: u32,
    },
    /// More KV blocks than the engine has in all.
    #[error("The request needs {blocks} KV cache blocks, the engine has {num_blocks}")]
    NeverFits {
        /// Blocks for prompt and output of one choice.
        blocks: u32,
        /// Blocks in all.
        num_blocks: u32,
    },
    /// A queue bound is reached.
    #[error("The queue is full ({bound}: {limit})")]
    Overloaded {
        /// Which bound.
        bound: QueueBound,
        /// Its value: requests or tokens.
        limit: u64,
    },
    /// The scheduler finishes what it has and takes nothing new.
    #[error("The engine is draining")]
    Draining,
    /// No worker group is formed.
    #[error("The engine is not ready")]
    NotReady,
    /// A live request has this key already: a bug of the sender.
    #[error("A request with this key is already there")]
    Duplicate,
    /// The workers' model generates no text.
    #[error(
        "The model pools prompts and generates no text: see /v1/embeddings, /classify, /score, /rerank and /pooling"
    )]
    OnlyPooling,
    /// A request that is pooled has nothing to do with this field.
    #[error("'{0}' has no meaning for a request that is pooled")]
    NotForPooling(&'static str),
    /// A beam search cannot have this field.
    #[error("'{0}' is not supported together with beam search")]
    NotForBeams(&'static str),
    /// A recurrent state cannot be shared by beams.
    #[error(
        "'use_beam_search' is not supported for this model: it has a recurrent state, which beams cannot share; ask \
         for 'n' samples instead"
    )]
    RecurrentBeams,
    /// Asks for something that this engine does not do.
    #[error("'{0}' is not supported by this engine")]
    Unsupported(&'static str),
    /// Placeholders of a medium are not in the prompt, or not behind those before it, or it has no hash: a bug of the
    /// sender.
    #[error("The request's medium {index} does not lie in its prompt behind the one before it, or has no hash")]
    Media {
        /// Which one.
        index: usize,
    },
    /// The request lacks a part that the steps before must fill in: a bug of the sender.
    #[error("The request has no {0}")]
    Incomplete(&'static str),
}

/// A bound of the waiting queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueBound {
    /// `max_num_queued_reqs`
    Requests,
    /// `max_num_queued_tokens`
    Tokens,
}

impl std::fmt::Display for QueueBound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            QueueBound::Requests => "max_num_queued_reqs",
            QueueBound::Tokens => "max_num_queued_tokens",
        })
    }
}

impl Refusal {
    /// Whose fault it is.
    pub fn kind(&self) -> Kind {
        match self {
            Self::EmptyPrompt
            | Self::PromptTooLong { .. }
            | Self::PooledPromptTooLong { .. }
            | Self::MaxTokensTooLarge { .. }
            | Self::ZeroMaxTokens
            | Self::TokenOutOfRange { .. }
            | Self::Choices { .. }
            | Self::NotForPooling(_)
            | Self::OnlyPooling
            | Self::NotForBeams(_)
            | Self::RecurrentBeams
            | Self::NeverFits { .. } => Kind::Invalid,
            Self::Overloaded { .. } => Kind::Overloaded,
            Self::Draining | Self::NotReady => Kind::Unavailable,
            Self::Unsupported(_) => Kind::Unimplemented,
            Self::Duplicate | Self::Incomplete(_) | Self::Media { .. } => Kind::Internal,
        }
    }

    /// The request field at fault; empty when there is none.
    pub fn param(&self) -> &'static str {
        match self {
            Self::EmptyPrompt
            | Self::PromptTooLong { .. }
            | Self::PooledPromptTooLong { .. }
            | Self::TokenOutOfRange { .. } => "prompt",
            Self::MaxTokensTooLarge { .. } | Self::ZeroMaxTokens | Self::NeverFits { .. } => "max_tokens",
            Self::Choices { .. } => "n",
            Self::Unsupported(param) | Self::NotForPooling(param) | Self::NotForBeams(param) => param,
            Self::RecurrentBeams => "use_beam_search",
            _ => "",
        }
    }

    /// The message that goes to the client's gateway.
    pub fn to_failure(&self) -> proto::Failure {
        proto::Failure { kind: self.kind().into(), message: self.to_string(), param: self.param().into() }
    }
}

/// Why a draft was not taken. All but the last happen in the ordinary course of things: sequences end and are
/// preempted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DraftRefusal {
    /// `speculative_tokens` is 0.
    #[error("speculation is off")]
    Off,
    /// No sequence of that handle runs.
    #[error("the sequence does not run")]
    NotRunning,
    /// The sequence is pooled.
    #[error("the sequence does not generate tokens")]
    NotGenerating,
    /// Tokens of the sequence are on their way; the draft does not continue it.
    #[error("tokens of the sequence are in flight")]
    InFlight,
    /// A token that the model does not have.
    #[error("drafted token {token} is out of vocabulary ({vocab_size} tokens)")]
    TokenOutOfRange {
        /// The offending id.
        token: u32,
        /// Ids are below this.
        vocab_size: u32,
    },
}

/// A step result that does not answer the plan. The group cannot be trusted any more; the scheduler's state is as
/// before.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProtocolError {
    /// Of another epoch.
    #[error("result of epoch {got}, the group is in epoch {expected}")]
    Epoch {
        /// The result's.
        got: u64,
        /// The group's; 0 when there is no group.
        expected: u64,
    },
    /// Not the oldest plan in flight.
    #[error("result of step {got}, expected {expected:?}")]
    Step {
        /// The result's.
        got: u64,
        /// The oldest plan in flight, if any.
        expected: Option<u64>,
    },
    /// Other numbers of rows, counts, tokens or pooled outputs than planned.
    #[error(
        "step {step} gave {slots} slots and {tokens} tokens, which do not belong to the {expected} rows that want \
         something"
    )]
    Rows {
        /// The step.
        step: u64,
        /// Length of `StepResult.slot`.
        slots: usize,
        /// Length of `StepResult.token`.
        tokens: usize,
        /// Rows planned that want something.
        expected: usize,
    },
    /// A row of another slot than planned.
    #[error("row {row} of step {step} is of slot {got}, planned was {expected}")]
    Slot {
        /// The step.
        step: u64,
        /// Index into the rows that want something.
        row: usize,
        /// The result's slot.
        got: u32,
        /// The plan's slot.
        expected: u32,
    },
    /// More or fewer tokens than the row can give.
    #[error("row {row} of step {step} gave {got} tokens, it gives {most} at most")]
    Count {
        /// The step.
        step: u64,
        /// Index into the rows that want something.
        row: usize,
        /// What `StepResult.count` says.
        got: u32,
        /// One more than the row's drafted tokens.
        most: u32,
    },
    /// Tokens before a row's last are not the drafted ones.
    #[error("row {row} of step {step} accepted tokens that were not drafted")]
    Accepted {
        /// The step.
        step: u64,
        /// Index into the rows that want something.
        row: usize,
    },
    /// A pooled output of another slot than planned.
    #[error("row {row} of step {step} gave no pooled output of its slot")]
    Pooled {
        /// The step.
        step: u64,
        /// Index into the rows that want something.
        row: usize,
    },
    /// Candidates of another slot than planned, or without log-probabilities, or that the model does not have.
    #[error("row {row} of step {step} gave no right candidates of its slot")]
    Candidates {
        /// The step.
        step: u64,
        /// Index into the rows that want something.
        row: usize,
    },
    /// A token that the model does not have.
    #[error("row {row} of step {step} gave token {token} of a vocabulary of {vocab_size}")]
    Token {
        /// The step.
        step: u64,
        /// Index into the rows that want something.
        row: usize,
        /// The result's token.
        token: u32,
        /// Ids are below this.
        vocab_size: u32,
    },
    /// Log-probabilities that belong to no row.
    #[error("log-probabilities of step {step} belong to no row of the plan")]
    Logprobs {
        /// The step.
        step: u64,
    },
}

/// An invariant that does not hold: a bug in this crate.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("scheduler invariant broken: {0}")]
pub struct Broken(pub String);
