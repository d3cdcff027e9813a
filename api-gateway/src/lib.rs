//! The OpenAI-compatible HTTP server: authentication, validation, shapes, streaming.
//!
//! A request enters at [`serve`], passes [`server::middleware`] (keys, counting) and reaches its route in [`routes`].
//! [`openai`] turns its body into pipeline requests and a plan of the answer. [`engine`] sends them and collects what
//! comes back: [`wire`] moves messages, [`engine::registry`] knows the requests in flight, and a [`engine::mailbox`]
//! merges one answer's events until [`server::sse`] or a route writes them.

mod anthropic;
mod api;
mod config;
mod defaults;
mod engine;
mod envelope;
mod error;
mod gateway;
mod generate;
mod json;
mod metrics;
mod openai;
mod pooling;
mod profile;
mod responses;
mod routes;
mod serve;
mod server;
mod wire;

pub use config::{AccessArgs, AnswerArgs, Args, ListenArgs, PeerArgs};
pub use error::ConfigError;
pub use serve::serve;

use service_kit::{Threads, metrics::Description};

/// The metrics of the process, for documents.
pub fn metrics() -> Vec<Description> {
    metrics::descriptions()
}

/// The process, from its flags to its exit code.
pub fn run(args: Args) -> std::process::ExitCode {
    let common = args.common.clone();
    let threads = if args.threads <= 1 { Threads::One } else { Threads::Pool(args.threads) };
    service_kit::run("api-gateway", &common, threads, |process| serve::serve(args, process))
}
