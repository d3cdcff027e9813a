//! Chat templates and encoding, in a process of their own.
//!
//! Requests come from gateways, are rendered and encoded on a bounded pool of threads, and go on to the scheduler. The
//! process serves one engine, or chooses among several. While it has no scheduler it does not listen, and when it loses
//! its last scheduler it disconnects its gateways. So a gateway always knows that what it sent and did not see admitted
//! is lost, and no request is kept here without a gateway.

mod config;
mod constraint;
mod control;
mod encode;
mod engines;
mod error;
mod metrics;
mod model;
mod models;
mod pool;
mod schedulers;
mod serve;
mod session;
mod wire;

pub use config::{Args, ContentFormatFlag};
pub use serve::serve;

use service_kit::{Threads, metrics::Description};

/// The metrics of the process, for documents.
pub fn metrics() -> Vec<Description> {
    metrics::TokenizerMetrics::descriptions()
}

/// The process, from its flags to its exit code.
pub fn run(args: Args) -> std::process::ExitCode {
    let common = args.common.clone();
    service_kit::run("tokenizer-svc", &common, Threads::One, |process| serve(args, process))
}
