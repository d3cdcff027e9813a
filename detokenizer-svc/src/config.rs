//! The detokenizer's flags, checked once.

use std::path::PathBuf;

use service_kit::{Address, CommonArgs, values::count};

/// Flags of `quire detokenizer`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Flags that every process has.
    #[command(flatten)]
    pub common: CommonArgs,

    /// Where the scheduler brings tokens
    #[arg(long, value_name = "ADDRESS")]
    pub listen_tokens: Address,

    /// Where gateways come for events
    #[arg(long, value_name = "ADDRESS")]
    pub listen_events: Address,

    /// The model: a folder, or a GGUF file
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,

    /// The tokenizer, where it is not the model's: a folder, or a GGUF file
    #[arg(long, value_name = "DIR")]
    pub tokenizer: Option<PathBuf>,

    /// Fingerprint of the model folder; processes with another one are refused
    #[arg(long, default_value = "", hide_default_value = true)]
    pub model_fingerprint: String,

    /// How long a gateway may take no events before it is disconnected
    #[arg(long, value_name = "MS", default_value_t = 5000, value_parser = count(1..=600_000_u64))]
    pub send_deadline_ms: u64,
}

impl Args {
    /// The settings as a JSON object, for the control plane.
    pub(crate) fn to_json(&self) -> String {
        serde_json::json!({
            "model": self.model,
            "tokenizer": self.tokenizer,
            "send_deadline_ms": self.send_deadline_ms,
        })
        .to_string()
    }
}
