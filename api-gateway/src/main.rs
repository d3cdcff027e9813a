//! The gateway as a program of its own; see the library.

use clap::Parser;

#[derive(Parser)]
#[command(name = "api-gateway", version, about = "Quire's OpenAI-compatible HTTP server")]
struct Cli {
    #[command(flatten)]
    args: api_gateway::Args,
}

fn main() -> std::process::ExitCode {
    api_gateway::run(Cli::parse().args)
}
