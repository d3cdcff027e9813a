//! One device: weights, KV memory, the forward pass, sampling, collectives.
//!
//! Two threads. The main thread keeps the link to the scheduler and moves messages ([`serve`]). The compute thread
//! loads the model and executes plans strictly in order ([`compute`]). A plan is executed by the [`engine`], which
//! keeps the state of running sequences in [`engine::slots`], and submits a plan to the device while the one before it
//! still runs.
//!
//! | folder | what is in it |
//! |---|---|
//! | `compute` | the compute thread: loading, its run loop, the watchdog |
//! | `device` | opening a GPU or the CPU, sizing its KV memory |
//! | `engine` | executing plans: forward passes, input batches, slots, host sampler |
//! | `idle` | CUDA graph capture and warm-up |
//! | `stages` | the links to the stages before and after this one |
//! | `wire` | the link to the scheduler |

mod adapters;
mod compute;
mod config;
mod device;
mod engine;
mod error;
mod guide;
mod idle;
mod metrics;
mod perplexity;
mod profile;
mod serve;
mod stages;
mod wire;

pub use config::{Args, default_kernel_cache};
pub use idle::graph_capture::CaptureStats;
pub use perplexity::{Perplexity, Windows, perplexity};
pub use profile::{Profile, Shape, Share, profile};
pub use serve::serve;

use service_kit::{Threads, metrics::Description};

/// The metrics of the process, for documents.
pub fn metrics() -> Vec<Description> {
    [metrics::WorkerMetrics::descriptions(), device::gpu_metrics()].concat()
}

/// The process, from its flags to its exit code.
pub fn run(args: Args) -> std::process::ExitCode {
    let common = args.common.clone();
    service_kit::run("worker-svc", &common, Threads::One, |process| serve::serve(args, process))
}
