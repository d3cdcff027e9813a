//! The five kinds of process as subcommands: the same programs as the services' own.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// A process of the pipeline.
#[derive(Subcommand)]
pub enum ProcessCommand {
    /// Speak HTTP: one process of the pipeline
    Gateway(Box<Supervised<api_gateway::Args>>),
    /// Turn text into tokens: one process of the pipeline
    Tokenizer(Box<Supervised<tokenizer_svc::Args>>),
    /// Plan steps and own the KV blocks: one process of the pipeline
    Scheduler(Box<Supervised<scheduler_svc::Args>>),
    /// Run the model on one device: one process of the pipeline
    Worker(Box<Supervised<worker_svc::Args>>),
    /// Turn tokens into text: one process of the pipeline
    Detokenizer(Box<Supervised<detokenizer_svc::Args>>),
}

/// A process's flags, and whose child it is.
#[derive(Args)]
pub struct Supervised<A: Args> {
    /// End when this parent does
    #[arg(long, value_name = "PID", hide = true)]
    supervised_by: Option<i32>,
    #[command(flatten)]
    args: A,
}

/// Runs it to its end.
pub fn run(command: ProcessCommand) -> ExitCode {
    match command {
        ProcessCommand::Gateway(process) => process.run(api_gateway::run),
        ProcessCommand::Tokenizer(process) => process.run(tokenizer_svc::run),
        ProcessCommand::Scheduler(process) => process.run(scheduler_svc::run),
        ProcessCommand::Worker(process) => process.run(worker_svc::run),
        ProcessCommand::Detokenizer(process) => process.run(detokenizer_svc::run),
    }
}

impl<A: Args> Supervised<A> {
    fn run(self, run: impl FnOnce(A) -> ExitCode) -> ExitCode {
        if let Some(parent) = self.supervised_by {
            // So that nothing is left behind when the supervisor is killed.
            if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
                eprintln!("cannot tie this process to its supervisor: {error}");
                return ExitCode::FAILURE;
            }
            // It may have died before the kernel knew of the tie.
            if getppid() != Pid::from_raw(parent) {
                return ExitCode::FAILURE;
            }
        }
        run(self.args)
    }
}
