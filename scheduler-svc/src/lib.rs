//! The central scheduler and KV block manager, around `sched-core`.
//!
//! `sched-core` decides, this process acts: it turns links into events ([`wire`]), feeds them to the core one at a time
//! ([`serve`]), and sends the core's plans to the workers and its output to the detokenizer. All state lives on one
//! thread, so there is nothing to lock.

mod adapters;
mod clock;
mod config;
mod control;
mod detokenizer;
mod error;
mod group;
mod kv_events;
mod messages;
mod metrics;
mod preemptions;
mod results;
mod serve;
mod spans;
mod stats_line;
mod watchers;
mod wire;

pub use config::Args;
pub use serve::serve;

use service_kit::{Threads, metrics::Description};

/// The metrics of the process, for documents.
pub fn metrics() -> Vec<Description> {
    metrics::EngineMetrics::descriptions()
}

/// The process, from its flags to its exit code.
pub fn run(args: Args) -> std::process::ExitCode {
    let common = args.common.clone();
    service_kit::run("scheduler-svc", &common, Threads::One, |process| serve::serve(args, process))
}
