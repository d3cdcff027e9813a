//! The flags of `quire serve`: vLLM's names and defaults.
//!
//! Each flag is described once, by the process that uses it: its clap `Arg` says what it takes, its default and its
//! help. The table here adds only which processes get it, and vLLM's short spelling. What the user did not give is not
//! passed on, so each process's own default holds.

mod describe;
mod error;
mod file;
mod help;
#[cfg(test)]
mod markdown;
mod own;
mod parse;
mod reader;
mod settings;
mod table;
mod unsupported;
mod value;

use std::sync::LazyLock;

use clap::{Arg, Command};

pub use error::{FlagError, Source};
pub use help::help;
pub use parse::parse;
pub use settings::Settings;
pub use value::Value;

use reader::Reader;
use value::Shape;

/// Which processes a flag goes to; a set of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct To(u8);

impl To {
    pub const GATEWAY: Self = Self(1);
    pub const TOKENIZER: Self = Self(2);
    pub const SCHEDULER: Self = Self(4);
    pub const WORKER: Self = Self(8);
    pub const DETOKENIZER: Self = Self(16);
    /// `quire serve` itself.
    pub const SERVE: Self = Self(32);

    const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn includes(self, process: Self) -> bool {
        self.0 & process.0 != 0
    }
}

/// One flag.
#[derive(Debug)]
pub struct Flag {
    /// Long name without dashes.
    pub name: &'static str,
    /// Other spellings, dashes included: `-tp`.
    pub aliases: &'static [&'static str],
    /// The heading it stands under.
    topic: &'static str,
    /// Where it goes.
    to: To,
    /// Its description, of the first process that has it.
    arg: Arg,
    /// The form of its values.
    shape: Shape,
    /// The commands of all processes that check its value.
    checks: Vec<Command>,
}

/// All flags, described by their processes, in the order of the help text.
static FLAGS: LazyLock<Vec<Flag>> = LazyLock::new(describe::all);

/// The flag of that long name.
fn find(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}

/// The flag that a variable stands for by its own description.
pub fn of_variable(variable: &str) -> Option<&'static str> {
    let stands_for = |flag: &&Flag| flag.arg.get_env().is_some_and(|name| name == variable);
    FLAGS.iter().find(stands_for).map(|flag| flag.name)
}

/// Takes a flag from the environment, unless it was given elsewhere.
pub fn from_variable(
    settings: &mut Settings,
    flag: &'static str,
    variable: &str,
    value: &str,
) -> Result<(), FlagError> {
    if settings.get(flag).is_some() {
        return Ok(());
    }
    let mut reader = Reader::new(Source::Environment);
    reader.named(flag, Some(value))?;
    let mut given = reader.finish()?;
    given.sources.insert(flag, format!("environment {variable}"));
    settings.add(given);
    Ok(())
}

/// Every flag with its value, its default and where it was given.
pub fn effective(settings: &Settings) -> Vec<Effective> {
    let of = |flag: &'static Flag| Effective {
        name: flag.name,
        topic: flag.topic,
        value: settings.get(flag.name).cloned(),
        default: flag.default_value(),
        default_in_words: flag.default_in_words(),
        source: settings.source(flag.name).map(str::to_owned),
    };
    FLAGS.iter().map(of).collect()
}

/// A flag as it stands after command line, file and environment.
pub struct Effective {
    /// Long name without dashes.
    pub name: &'static str,
    /// The heading it stands under.
    pub topic: &'static str,
    /// What was given.
    pub value: Option<Value>,
    /// What counts otherwise.
    pub default: Option<Value>,
    /// The same in words, where it is no value.
    pub default_in_words: Option<String>,
    /// Where it was given.
    pub source: Option<String>,
}

/// Whether `quire serve` has that flag.
#[cfg(test)]
pub fn is_flag_of_serve(name: &str) -> bool {
    find(name).is_some()
}

/// The flags that a process gets, as its own command line has them.
pub fn passed_to(process: To, settings: &Settings) -> Vec<String> {
    let flags = FLAGS.iter().filter(|flag| flag.to.includes(process));
    flags
        .filter_map(|flag| Some((flag, settings.get(flag.name)?)))
        .flat_map(|(flag, value)| words(flag, value))
        .collect()
}

/// The flags that were given and that gateways alone have, those included that they get in another form.
pub fn of_gateways_alone(settings: &Settings) -> impl Iterator<Item = &'static str> {
    let alone = |flag: &&Flag| flag.to == To::GATEWAY || flag.name == "api-key";
    FLAGS.iter().filter(alone).map(|flag| flag.name).filter(|name| settings.get(name).is_some())
}

/// A flag and its value as words of a command line.
fn words(flag: &Flag, value: &Value) -> Vec<String> {
    let name = flag.name;
    match (flag.shape, value) {
        (Shape::Switch, Value::Bool(true)) => vec![format!("--{name}")],
        (Shape::Switch, _) => Vec::new(),
        (_, Value::Bool(on)) => vec![format!("--{name}={on}")],
        (_, Value::Text(text)) => vec![format!("--{name}={text}")],
        (_, Value::Many(texts)) => texts.iter().map(|text| format!("--{name}={text}")).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{table::NOT_OF_SERVE, unsupported::UNSUPPORTED, *};

    #[test]
    fn every_flag_of_a_process_is_a_flag_of_serve_or_listed_as_not() {
        for (_, command) in describe::commands() {
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let name = arg.get_long().unwrap_or_default();
                let known = find(name).is_some() || NOT_OF_SERVE.contains(&name);
                assert!(known, "--{name} of {} is in neither list of serve/flags/table.rs", command.get_name());
            }
        }
        for name in NOT_OF_SERVE {
            let of_a_process = describe::commands()
                .iter()
                .any(|(_, command)| command.get_arguments().any(|a| a.get_long() == Some(*name)));
            assert!(of_a_process && find(name).is_none(), "{name}");
        }
    }

    /// Flags that mean something else in each process: addresses of its own peers, its own name for the model.
    const OWN_MEANING: &[&str] = &["detokenizer", "model", "scheduler", "served-model-name", "threads", "tokenizer"];

    #[test]
    fn a_flag_of_several_processes_is_the_same_in_all() {
        let commands = describe::commands();
        let processes: Vec<_> = commands.iter().filter(|(to, _)| *to != To::SERVE).collect();
        let described = |arg: &Arg| {
            let help = arg.get_help().map(ToString::to_string);
            let choices: Vec<_> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
            let value = arg.get_value_names().map(<[_]>::to_vec);
            (help, arg.get_default_values().to_vec(), arg.get_env().map(ToOwned::to_owned), choices, value)
        };
        for (position, (_, command)) in processes.iter().enumerate() {
            for arg in command.get_arguments() {
                let name = arg.get_long().unwrap_or_default();
                let own = OWN_MEANING.contains(&name);
                let others = processes[position + 1..].iter().filter(|_| !own);
                let twins = others.filter_map(|(_, other)| other.get_arguments().find(|a| a.get_long() == Some(name)));
                twins.for_each(|twin| assert_eq!(described(arg), described(twin), "--{name}"));
            }
        }
    }

    #[test]
    fn names_are_unique_and_sorted_tables_stay_sorted() {
        let ours = FLAGS.iter().map(|flag| flag.name);
        let names: Vec<_> = ours.chain(UNSUPPORTED.iter().map(|flag| flag.name)).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "a name is in two places");
        assert!(UNSUPPORTED.is_sorted_by_key(|flag| flag.name));
        assert!(table::TOPICS.iter().all(|topic| topic.flags.is_sorted_by_key(|entry| entry.name)));
    }

    #[test]
    fn words_are_what_the_processes_parse() {
        for flag in FLAGS.iter() {
            let value = match flag.shape {
                Shape::Switch | Shape::Toggle => Value::Bool(true),
                Shape::Text | Shape::Json | Shape::List => {
                    let default = flag.arg.get_default_values().first().and_then(|value| value.to_str());
                    let Some(default) = default else { continue };
                    flag.check(default).unwrap_or_else(|problem| panic!("--{}: {problem}", flag.name))
                }
            };
            let gets = |to: To| to != To::SERVE && flag.to.includes(to);
            for (process, command) in describe::commands().into_iter().filter(|(to, _)| gets(*to)) {
                let mut line = vec!["process".to_owned()];
                line.extend(words(flag, &value));
                if let Err(error) = command.try_get_matches_from(line.clone()) {
                    // A flag may need companions; that it is known is what matters here.
                    let kind = error.kind();
                    assert_eq!(kind, clap::error::ErrorKind::MissingRequiredArgument, "{process:?} {line:?}: {error}");
                }
            }
        }
    }
}
