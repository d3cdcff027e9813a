//! One device: weights, KV memory, the forward pass, sampling, collectives.
//!
//! Two threads. The main one talks: it keeps the link to the scheduler and moves messages ([`serve`]). The compute
//! thread works: it loads the model and executes plans strictly in order ([`compute`]), so the next plan may already
//! wait while a step runs. What a plan means is in [`engine`]; the sequences that it is about live in [`engine::slots`]. A plan
//! is submitted to the device while the one before it still runs.

mod compute;
mod config;
mod device;
mod engine;
mod error;
mod idle;
mod metrics;
mod profile;
mod serve;
mod wire;

pub use config::{Args, default_kernel_cache};
pub use profile::{Profile, Shape, Share, profile};
pub use serve::serve;

use service_kit::Threads;

/// The process, from its flags to its exit code.
pub fn run(args: Args) -> std::process::ExitCode {
    let common = args.common.clone();
    service_kit::run("worker-svc", &common, Threads::One, |process| serve::serve(args, process))
}
