//! Incremental decoding, stop strings, log-probability texts: tokens become the stream of text.
//!
//! The scheduler sends one batch a step; [`streams`] turns it into events, and each gateway gets the events of its
//! requests as one message. All state lives on one thread. A gateway that does not read is
//! disconnected, and delays no other.

mod config;
mod control;
mod error;
mod gateways;
mod logprobs;
mod metrics;
mod parts;
mod sequence;
mod serve;
mod stops;
mod streams;
mod tokenizers;
mod wire;

pub use config::Args;
pub use serve::serve;

use service_kit::{Threads, metrics::Description};

/// The metrics of the process, for documents.
pub fn metrics() -> Vec<Description> {
    metrics::DetokenizerMetrics::descriptions()
}

/// The process, from its flags to its exit code.
pub fn run(args: Args) -> std::process::ExitCode {
    let common = args.common.clone();
    service_kit::run("detokenizer-svc", &common, Threads::One, |process| serve(args, process))
}
