//! The detokenizer's flags, checked once.

use service_kit::{Address, CommonArgs, FingerprintArgs, ServerArgs, TokenizerFileArgs, values::count};

/// Flags of `quire detokenizer`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Flags that every process has.
    #[command(flatten)]
    pub common: CommonArgs,

    /// Where the scheduler brings tokens
    #[arg(long, value_name = "ADDRESS")]
    pub listen_tokens: Address,

    /// Where gateways come for events; once per address
    #[arg(long, value_name = "ADDRESS", required = true)]
    pub listen_events: Vec<Address>,

    /// The tokenizer's files.
    #[command(flatten)]
    pub files: TokenizerFileArgs,

    /// The model that all processes serve.
    #[command(flatten)]
    pub fingerprint: FingerprintArgs,

    /// The server that it is part of.
    #[command(flatten)]
    pub server: ServerArgs,

    /// How long a gateway may take no events before it is disconnected
    #[arg(long, value_name = "MS", default_value_t = 5000, value_parser = count(1..=600_000_u64))]
    pub send_deadline_ms: u64,
}

impl Args {
    /// The settings as a JSON object, for the control plane.
    pub(crate) fn to_json(&self) -> String {
        serde_json::json!({
            "model": self.files.model,
            "tokenizer": self.files.tokenizer,
            "send_deadline_ms": self.send_deadline_ms,
        })
        .to_string()
    }
}
