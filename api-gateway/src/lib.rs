//! The OpenAI-compatible HTTP server: authentication, validation, shapes, streaming.
//!
//! A request enters at [`serve`], passes [`front`] (keys, counting) and reaches its route in [`routes`]. [`openai`]
//! turns its body into pipeline requests and a plan of the answer. [`pipeline`] sends them and collects what comes
//! back: [`wire`] moves messages, [`registry`] knows the requests in flight, a [`mailbox`] merges one answer's events
//! until [`sse`] or a route writes them.

mod anthropic;
mod auth;
mod body;
mod config;
mod defaults;
mod error;
mod exposition;
mod front;
mod gateway;
mod generate;
mod http_metrics;
mod json;
mod listen;
mod mailbox;
mod metrics;
mod model;
mod openai;
mod outbox;
mod peers;
mod pipeline;
mod registry;
mod request_id;
mod router;
mod routes;
mod serve;
mod sse;
mod wire;

pub use config::{AccessArgs, AnswerArgs, Args, ListenArgs, PeerArgs};
pub use error::ConfigError;
pub use serve::serve;

use service_kit::Threads;

/// The process, from its flags to its exit code.
pub fn run(args: Args) -> std::process::ExitCode {
    let common = args.common.clone();
    let threads = if args.threads <= 1 { Threads::One } else { Threads::Pool(args.threads) };
    service_kit::run("api-gateway", &common, threads, |process| serve::serve(args, process))
}
