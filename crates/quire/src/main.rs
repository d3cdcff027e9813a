//! The `quire` command: serve, chat, bench, and every process of the pipeline in one file.

mod absent;
mod bench;
mod chat_client;
mod client;
mod collect_env;
mod environment;
mod fetch;
mod kernels;
#[cfg(test)]
mod metrics_page;
mod processes;
mod serve;
mod sse;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand, error::ErrorKind};

use environment::Environment;
use processes::ProcessCommand;

/// Fewer stalls under many small messages than the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(name = "quire", version, about = "Serves large language models", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a model over OpenAI's API (see `quire serve --help`)
    #[command(disable_help_flag = true)]
    Serve {
        /// MODEL and flags
        #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
        words: Vec<String>,
    },
    /// Chat with a server from the terminal
    Chat(Box<chat_client::ChatArgs>),
    /// Let a server continue text from the terminal
    Complete(Box<chat_client::CompleteArgs>),
    /// Measure a server, or an engine without one
    Bench(bench::args::BenchArgs),
    /// Compile GPU kernels ahead
    Kernels(kernels::KernelsArgs),
    /// Bring a model to this machine, and print where it lies
    Fetch(fetch::FetchArgs),
    #[command(flatten)]
    Process(ProcessCommand),
    /// Show what flags, files and variables come to
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print what a bug report should say about this machine
    CollectEnv,
    /// Print the version
    Version,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Print the effective configuration of `quire serve`, and where each value was given; a file for --config
    #[command(disable_help_flag = true)]
    Show {
        /// MODEL and flags, as of `quire serve`
        #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
        words: Vec<String>,
    },
}

/// What the command line says; where it says nothing that can be done, the program ends here.
fn command() -> Command {
    let error = match Cli::try_parse() {
        Ok(cli) => return cli.command,
        Err(error) => error,
    };
    if error.kind() == ErrorKind::InvalidSubcommand {
        let words: Vec<String> = std::env::args().skip(1).collect();
        if let Some(reason) = absent::reason(words.iter().map(String::as_str)) {
            Cli::command().error(ErrorKind::InvalidSubcommand, reason).exit();
        }
    }
    error.exit()
}

fn main() -> ExitCode {
    let ended = match command() {
        Command::Serve { words } => return serve::run(&words, &Environment::read()),
        Command::Process(command) => return processes::run(command),
        Command::Chat(args) => chat_client::chat(&args),
        Command::Complete(args) => chat_client::complete(&args),
        Command::Bench(args) => bench::run(&args, &Environment::read()),
        Command::Kernels(args) => kernels::run(&args, &Environment::read()),
        Command::Config(ConfigCommand::Show { words }) => serve::show::show(&words, &Environment::read()),
        Command::Fetch(args) => fetch::run(args, &Environment::read()),
        Command::CollectEnv => {
            collect_env::print(&Environment::read());
            Ok(())
        }
        Command::Version => {
            println!("{}", service_kit::VERSION);
            Ok(())
        }
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
