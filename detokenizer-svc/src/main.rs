//! The detokenizer as a program of its own; see the library.

use clap::Parser;

#[derive(Parser)]
#[command(name = "detokenizer-svc", version, about = "Quire's tokens to text")]
struct Cli {
    #[command(flatten)]
    args: detokenizer_svc::Args,
}

fn main() -> std::process::ExitCode {
    detokenizer_svc::run(Cli::parse().args)
}
