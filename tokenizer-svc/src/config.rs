//! The tokenizer's flags, checked once.

use std::{num::NonZeroUsize, path::PathBuf, thread};

use chat_format::ContentFormat;
use clap::ValueEnum;
use service_kit::{Address, CommonArgs};

/// Flags of `quire tokenizer`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Flags that every process has.
    #[command(flatten)]
    pub common: CommonArgs,

    /// Where gateways bring requests
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Address,

    /// The scheduler that takes them on
    #[arg(long, value_name = "ADDRESS")]
    pub scheduler: Address,

    /// The model: a folder, or a GGUF file
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,

    /// The tokenizer, where it is not the model's: a folder, or a GGUF file
    #[arg(long, value_name = "DIR")]
    pub tokenizer: Option<PathBuf>,

    /// Fingerprint of the model folder; processes with another one are refused
    #[arg(long, default_value = "", hide_default_value = true)]
    pub model_fingerprint: String,

    /// A chat template that replaces the model's: a file, or the template itself
    #[arg(long, value_name = "FILE_OR_TEXT")]
    pub chat_template: Option<String>,

    /// How the chat template reads a message's content
    #[arg(long, default_value = "auto")]
    pub chat_template_content_format: ContentFormatFlag,

    /// Threads that render and encode; absent: one per CPU, between 2 and 8
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub tokenizer_pool_size: Option<u16>,

    /// Longest sequence, for requests that are truncated to what fits; absent: the model's
    #[arg(long)]
    pub max_model_len: Option<u32>,

    /// Requests that may wait to be encoded; one more gets a 503
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_pending_requests: u32,

    /// Bytes of text that may wait to be encoded; a request that would exceed it gets a 503
    #[arg(long, default_value_t = 512 << 20, value_name = "BYTES")]
    pub max_pending_bytes: usize,
}

/// How the chat template reads a message's content.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentFormatFlag {
    /// Found by looking at the template.
    Auto,
    /// As one string.
    String,
    /// As a list of parts.
    Openai,
}

impl Args {
    /// Threads of the pool.
    pub(crate) fn pool_size(&self) -> usize {
        let available = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.tokenizer_pool_size.map_or(available.clamp(2, 8), usize::from)
    }

    pub(crate) fn content_format(&self) -> Option<ContentFormat> {
        match self.chat_template_content_format {
            ContentFormatFlag::Auto => None,
            ContentFormatFlag::String => Some(ContentFormat::String),
            ContentFormatFlag::Openai => Some(ContentFormat::OpenAi),
        }
    }

    /// The settings as a JSON object, for the control plane.
    pub(crate) fn to_json(&self) -> String {
        serde_json::json!({
            "model": self.model,
            "tokenizer": self.tokenizer,
            "chat_template": self.chat_template,
            "tokenizer_pool_size": self.pool_size(),
            "max_model_len": self.max_model_len,
            "max_pending_requests": self.max_pending_requests,
            "max_pending_bytes": self.max_pending_bytes,
        })
        .to_string()
    }
}
