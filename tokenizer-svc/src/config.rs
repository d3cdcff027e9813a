//! The tokenizer's flags, checked once.

use std::{num::NonZeroUsize, thread};

use chat_format::ContentFormat;
use clap::ValueEnum;
use router::Policy;
use service_kit::{
    Address, CommonArgs, FingerprintArgs, LengthArgs, ReplicaArgs, ServerArgs, TokenizerFileArgs,
    values::{count, size},
};

/// Flags of `quire tokenizer`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Flags that every process has.
    #[command(flatten)]
    pub common: CommonArgs,

    /// Where gateways bring requests; once per address
    #[arg(long, value_name = "ADDRESS", required = true)]
    pub listen: Vec<Address>,

    /// The scheduler that takes them on; of several engines each one's, in the order of their ranks
    #[arg(long, value_name = "ADDRESS", required = true)]
    pub scheduler: Vec<Address>,

    /// How one of several engines is chosen for a request; prefix: its prefix cache, weighed against its queue;
    /// least-loaded: its queue; round-robin: one after the other
    #[arg(long, value_name = "POLICY", default_value = "prefix")]
    pub data_parallel_policy: Policy,

    /// Its place among engines.
    #[command(flatten)]
    pub replica: ReplicaArgs,

    /// The tokenizer's files.
    #[command(flatten)]
    pub files: TokenizerFileArgs,

    /// The model that all processes serve.
    #[command(flatten)]
    pub fingerprint: FingerprintArgs,

    /// The server that it is part of.
    #[command(flatten)]
    pub server: ServerArgs,

    /// Chat template: a file, or the template itself [default: the model's]
    #[arg(long, value_name = "FILE_OR_TEXT")]
    pub chat_template: Option<String>,

    /// Format in which the chat template gets a message's content; auto: detected from the template
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    pub chat_template_content_format: ContentFormatFlag,

    /// Threads that render chat templates and tokenize [default: one per CPU, 2 to 8]
    #[arg(long, value_name = "N", value_parser = count(1..=256_u16))]
    pub tokenizer_pool_size: Option<u16>,

    /// The longest sequence, which truncation of prompts needs.
    #[command(flatten)]
    pub length: LengthArgs,

    /// Maximum number of requests that wait to be tokenized; further ones get a 503
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = count(1..=1_000_000_u32))]
    pub max_pending_requests: u32,

    /// Maximum number of bytes of text that wait to be tokenized; a request that exceeds it gets a 503
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = size(1..=usize::MAX))]
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
            "model": self.files.model,
            "tokenizer": self.files.tokenizer,
            "chat_template": self.chat_template,
            "tokenizer_pool_size": self.pool_size(),
            "max_model_len": self.length.tokens(),
            "max_pending_requests": self.max_pending_requests,
            "max_pending_bytes": self.max_pending_bytes,
            "engines": self.scheduler.len(),
        })
        .to_string()
    }
}
