//! The flags of `quire serve`: vLLM's names and defaults, each with what it takes, what it does, and which processes it goes to.
//!
//! The processes have flags of the same names, so most of them are only checked here and passed on. What the user did not give is
//! not passed, so each process's own default holds.

mod error;
mod file;
mod foreign;
mod help;
mod parse;
mod reader;
mod settings;
mod table;
mod value;

pub use help::help;
pub use parse::parse;
pub use settings::Settings;
pub use value::Value;

use value::Kind;

/// Which processes a flag goes to; a set of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct To(u8);

impl To {
    /// Used by `quire serve` itself.
    pub const SERVE: Self = Self(0);
    pub const GATEWAY: Self = Self(1);
    pub const TOKENIZER: Self = Self(2);
    pub const SCHEDULER: Self = Self(4);
    pub const WORKER: Self = Self(8);
    pub const DETOKENIZER: Self = Self(16);

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
    /// What it takes.
    kind: Kind,
    /// Its default, for the help text.
    default: &'static str,
    /// Where it goes.
    to: To,
    /// What it does.
    help: &'static str,
}

/// Flags that belong together.
struct Group {
    title: &'static str,
    flags: &'static [Flag],
}

/// The flag of that long name.
fn find(name: &str) -> Option<&'static Flag> {
    table::GROUPS.iter().flat_map(|group| group.flags).find(|flag| flag.name == name)
}

/// The flags that a process gets, as its own command line has them.
pub fn passed_to(process: To, settings: &Settings) -> Vec<String> {
    let flags = table::GROUPS.iter().flat_map(|group| group.flags).filter(|flag| flag.to.includes(process));
    flags
        .filter_map(|flag| Some((flag, settings.get(flag.name)?)))
        .flat_map(|(flag, value)| words(flag, value, process))
        .collect()
}

/// A flag and its value as words of a command line.
fn words(flag: &Flag, value: &Value, process: To) -> Vec<String> {
    let name = flag.name;
    match (flag.kind, value) {
        (Kind::Switch, Value::Bool(true)) => vec![format!("--{name}")],
        (Kind::Switch, _) => Vec::new(),
        // Who holds the memory finds the length; the others are told.
        (Kind::MaxLen, Value::Text(text)) if text == "auto" && process != To::WORKER => Vec::new(),
        (_, Value::Bool(on)) => vec![format!("--{name}={on}")],
        (_, Value::Text(text)) => vec![format!("--{name}={text}")],
        (_, Value::Many(texts)) => texts.iter().map(|text| format!("--{name}={text}")).collect(),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command};

    use super::*;

    /// Values that parse, for a flag of that kind: the first and the last of those in order.
    fn samples(kind: Kind) -> Vec<Value> {
        let texts = |texts: &[&str]| texts.iter().map(|text| Value::Text((*text).to_owned())).collect();
        let many = |texts: [String; 2]| vec![Value::Many(texts.to_vec())];
        match kind {
            Kind::Switch | Kind::Toggle => vec![Value::Bool(true), Value::Bool(false)],
            Kind::List => many(["a", "b"].map(str::to_owned)),
            Kind::Counts { most } => many([1, most].map(|number| number.to_string())),
            Kind::Choice(choices) => texts(choices),
            Kind::Json => texts(&["{}"]),
            Kind::Fraction => texts(&["0", "1"]),
            Kind::Share => texts(&["0.000001", "1"]),
            Kind::Count { least, most } => texts(&[&least.to_string(), &most.to_string()]),
            Kind::Size { most } => texts(&["1", &most.to_string()]),
            Kind::MaxLen => texts(&["1", &u32::MAX.to_string()]),
            Kind::Text | Kind::Seconds => texts(&["1"]),
        }
    }

    fn takes<A: Args>(process: To, fixed: &[&str]) {
        let flags = table::GROUPS.iter().flat_map(|group| group.flags).filter(|flag| flag.to.includes(process));
        for (flag, value) in flags.flat_map(|flag| samples(flag.kind).into_iter().map(move |value| (flag, value))) {
            let words = words(flag, &value, process);
            let line = ["process"].into_iter().chain(fixed.iter().copied()).chain(words.iter().map(String::as_str));
            if let Err(error) = A::augment_args(Command::new("process")).try_get_matches_from(line) {
                // A flag may ask for a companion; that it is known is what matters here.
                assert_eq!(error.kind(), clap::error::ErrorKind::MissingRequiredArgument, "{words:?}: {error}");
            }
        }
    }

    #[test]
    fn every_process_takes_the_flags_it_gets_up_to_their_bounds() {
        takes::<api_gateway::Args>(To::GATEWAY, &["--tokenizer=ring:/a", "--detokenizer=ring:/b"]);
        takes::<tokenizer_svc::Args>(To::TOKENIZER, &["--listen=ring:/a", "--scheduler=ring:/b", "--model=/m"]);
        let scheduler = ["--listen-requests=ring:/a", "--listen-workers=ring:/b", "--detokenizer=ring:/c"];
        takes::<scheduler_svc::Args>(To::SCHEDULER, &scheduler);
        takes::<worker_svc::Args>(To::WORKER, &["--scheduler=ring:/a", "--model=/m"]);
        let detokenizer = ["--listen-tokens=ring:/a", "--listen-events=ring:/b", "--model=/m"];
        takes::<detokenizer_svc::Args>(To::DETOKENIZER, &detokenizer);
    }

    #[test]
    fn names_are_unique_and_sorted_tables_stay_sorted() {
        let mut names: Vec<_> = table::GROUPS.iter().flat_map(|group| group.flags).map(|flag| flag.name).collect();
        names.extend(foreign::FOREIGN.iter().map(|flag| flag.name));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "a name is in two places");
        assert!(foreign::FOREIGN.is_sorted_by_key(|flag| flag.name));
        assert!(table::GROUPS.iter().all(|group| group.flags.is_sorted_by_key(|flag| flag.name)));
    }
}
