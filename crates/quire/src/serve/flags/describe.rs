//! Puts the flags of `quire serve` together: the table says which, the processes' own command lines say what they are.

use clap::{Arg, Args, Command};

use super::{Flag, To, own, table, value::Shape};

/// The command line of every process, `quire serve` first.
pub(super) fn commands() -> Vec<(To, Command)> {
    fn of<A: Args>(name: &'static str) -> Command {
        built(A::augment_args(Command::new(name)))
    }
    vec![
        (To::SERVE, built(own::command())),
        (To::WORKER, of::<worker_svc::Args>("worker")),
        (To::SCHEDULER, of::<scheduler_svc::Args>("scheduler")),
        (To::TOKENIZER, of::<tokenizer_svc::Args>("tokenizer")),
        (To::GATEWAY, of::<api_gateway::Args>("gateway")),
        (To::DETOKENIZER, of::<detokenizer_svc::Args>("detokenizer")),
    ]
}

/// With all that clap infers from an `Arg` filled in.
fn built(command: Command) -> Command {
    let mut command = command.disable_help_flag(true);
    command.build();
    command
}

/// All flags in the order of the table.
pub(super) fn all() -> Vec<Flag> {
    let commands = commands();
    let entries = table::TOPICS.iter().flat_map(|topic| topic.flags.iter().map(move |entry| (topic, entry)));
    entries
        .map(|(topic, entry)| {
            let having = commands.iter().filter(|(to, _)| entry.of.includes(*to)).map(|(_, command)| command);
            let checks: Vec<Command> = having.filter(|command| arg(command, entry.name).is_some()).cloned().collect();
            let described = checks.first().and_then(|command| arg(command, entry.name));
            let arg = described.expect("a flag of the table is one of its process").clone();
            let shape = Shape::of(&arg);
            Flag { name: entry.name, aliases: entry.aliases, topic: topic.title, to: entry.to, arg, shape, checks }
        })
        .collect()
}

fn arg<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| arg.get_long() == Some(name))
}
