//! Flags that every process has.

use std::ffi::OsString;

use clap::{Args, Command, ValueEnum};
use link::Address;

use crate::{shared_args::LinkArgs, values::log_filter};

/// Flags that every process has; flatten them into the service's own.
#[derive(Args, Clone, Debug)]
pub struct CommonArgs {
    /// Where this process serves its control plane (grpc://host:port or grpc+unix:/path); once per address
    #[arg(long, value_name = "ADDRESS")]
    pub control: Vec<Address>,

    /// What to log: error, warn, info, debug, trace, or a filter such as info,scheduler_svc=debug
    #[arg(long, value_name = "FILTER", default_value = "info", env = "QUIRE_LOG", value_parser = log_filter)]
    pub log_level: String,

    /// Format of log lines on stderr
    #[arg(long, value_name = "FORMAT", default_value = "text", env = "QUIRE_LOG_FORMAT")]
    pub log_format: LogFormat,

    /// Send one span tree per request to this OTLP/gRPC collector (http://host:4317)
    #[arg(long, value_name = "URL", env = "QUIRE_OTLP_TRACES_ENDPOINT")]
    pub otlp_traces_endpoint: Option<String>,

    /// What peers on other hosts show
    #[command(flatten)]
    pub link: LinkArgs,
}

/// How log lines look.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Reads the flags of a process from the words of a command line, the first of which is the program's name.
///
/// # Errors
/// When a flag is unknown, or its value does not fit; the text is for users.
pub fn parse_flags<A: Args>(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<A, clap::Error> {
    A::from_arg_matches(&A::augment_args(Command::new("process")).try_get_matches_from(words)?)
}

impl Default for CommonArgs {
    fn default() -> Self {
        Self {
            control: Vec::new(),
            log_level: "info".into(),
            log_format: LogFormat::Text,
            otlp_traces_endpoint: None,
            link: LinkArgs::default(),
        }
    }
}
