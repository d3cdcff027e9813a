//! The worker as a program of its own; see the library.

use clap::Parser;

#[derive(Parser)]
#[command(name = "worker-svc", version, about = "Quire's worker: one device, its weights and its KV memory")]
struct Cli {
    #[command(flatten)]
    args: worker_svc::Args,
}

fn main() -> std::process::ExitCode {
    worker_svc::run(Cli::parse().args)
}
