//! What an answer must look like, decided when its request is read.

use std::sync::Arc;

use super::formats::Parsing;
use crate::responses::turn::Turn;

/// How the answer is delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streaming {
    /// As server-sent events.
    pub on: bool,
    /// With a last chunk that holds the usage.
    pub include_usage: bool,
    /// With usage in each chunk.
    pub continuous_usage: bool,
}

/// Which tokens are listed with their log-probabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Listing {
    /// The likeliest ones.
    #[default]
    Likeliest,
    /// The chosen one, and those that the request names.
    Named,
}

/// What an answer must look like.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which API it answers.
    pub api: Api,
    /// `chatcmpl-…` or `cmpl-…`.
    pub id: String,
    /// Unix time, seconds.
    pub created: u64,
    /// The served model's name.
    pub model: String,
    /// Prompts.
    pub prompts: u32,
    /// Choices per prompt.
    pub n: u32,
    /// How it is delivered.
    pub streaming: Streaming,
    /// Most likely tokens to list beside the chosen one; absent: no log-probabilities.
    pub top_logprobs: Option<u32>,
    /// Which tokens these are.
    pub listing: Listing,
    /// Whether the prompt's log-probabilities were asked for as a field of their own.
    pub prompt_logprobs: bool,
    /// Whether token ids are shown.
    pub return_token_ids: bool,
    /// Whether log-probabilities show tokens as `token_id:N`.
    pub tokens_as_ids: bool,
    /// Whether `usage` tells of cached prompt tokens.
    pub prompt_tokens_details: bool,
    /// Whether answers tell where their time went; those of several choices never do.
    pub request_metrics: bool,
    /// How answers are taken apart; absent: they are content as they stand.
    pub parsing: Option<Parsing>,
    /// In whose shapes answers are written.
    pub dialect: Dialect,
}

/// In whose shapes answers are written.
#[derive(Clone, Debug, Default)]
pub enum Dialect {
    /// As [`Api`] says.
    #[default]
    OpenAi,
    /// A message of blocks.
    Anthropic,
    /// A response of items.
    Responses(Arc<Turn>),
}

/// What differs between the two APIs.
#[derive(Clone, Debug, PartialEq)]
pub enum Api {
    /// `/v1/chat/completions`.
    Chat {
        /// Role of the generated message.
        role: String,
        /// Text that goes before the generated one (`echo`).
        echo: String,
        /// Whether the rendered prompt is shown.
        return_prompt_text: bool,
    },
    /// `/v1/completions`.
    Completion {
        /// What `echo` asked for.
        echo: Echo,
    },
}

/// What `echo` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Echo {
    /// Only what was generated.
    No,
    /// The prompt, then what was generated.
    Prompt,
    /// Only the prompt: `echo` with `max_tokens` 0. One token is generated and dropped.
    PromptOnly,
}

impl Plan {
    /// Whether the answer is a response of items.
    pub fn is_response(&self) -> bool {
        matches!(self.dialect, Dialect::Responses(_))
    }

    /// Choices of all prompts.
    pub fn choices(&self) -> u32 {
        self.prompts * self.n
    }

    /// Which prompt a choice answers.
    pub fn prompt_of(&self, choice: u32) -> usize {
        (choice / self.n.max(1)) as usize
    }

    /// What a completion echoes.
    pub fn echo(&self) -> Echo {
        match self.api {
            Api::Completion { echo } => echo,
            Api::Chat { .. } => Echo::No,
        }
    }
}
