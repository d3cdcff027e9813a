//! The scheduler as a program of its own; see the library.

use clap::Parser;

#[derive(Parser)]
#[command(name = "scheduler-svc", version, about = "Quire's central scheduler and KV block manager")]
struct Cli {
    #[command(flatten)]
    args: scheduler_svc::Args,
}

fn main() -> std::process::ExitCode {
    scheduler_svc::run(Cli::parse().args)
}
