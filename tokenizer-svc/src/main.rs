//! The tokenizer as a program of its own; see the library.

use clap::Parser;

#[derive(Parser)]
#[command(name = "tokenizer-svc", version, about = "Quire's chat templates and encoding")]
struct Cli {
    #[command(flatten)]
    args: tokenizer_svc::Args,
}

fn main() -> std::process::ExitCode {
    tokenizer_svc::run(Cli::parse().args)
}
