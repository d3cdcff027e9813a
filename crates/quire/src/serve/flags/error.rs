//! Why flags make no sense, and where they were given.

/// Why the flags make no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// No such flag here or in vLLM.
    #[error(
        "{at}: there is no flag --{name}{}",
        nearest.map_or(String::new(), |near| format!("; did you mean --{near}?"))
    )]
    Unknown {
        /// Where it was given.
        at: Source,
        /// As given, without dashes.
        name: String,
        /// What was probably meant.
        nearest: Option<&'static str>,
    },
    /// A flag of vLLM that asks for what Quire does not do.
    #[error("{at}: {given} is not supported{}: {note}", accepted(fine))]
    Unsupported {
        /// Where it was given.
        at: Source,
        /// Flag and value.
        given: String,
        /// Values that are accepted.
        fine: &'static [&'static str],
        /// Why, or what to do instead.
        note: &'static str,
    },
    /// The value does not fit the flag.
    #[error("{at}: --{name} {value}: {problem}")]
    Value {
        /// Where it was given.
        at: Source,
        /// Long name.
        name: &'static str,
        /// As given.
        value: String,
        /// What is wrong.
        problem: String,
    },
    /// A flag without its value.
    #[error("{at}: --{name} needs a value")]
    Missing {
        /// Where it was given.
        at: Source,
        /// Long name.
        name: String,
    },
    /// Something that is no flag, after the model.
    #[error("`{word}` is one argument too many: the model is `{model}` already")]
    Extra {
        /// As given.
        word: String,
        /// The model.
        model: String,
    },
    /// The file of flags cannot be used.
    #[error("--config {path}: {problem}")]
    File {
        /// The file.
        path: String,
        /// What is wrong.
        problem: String,
    },
}

/// ` (only 1)`.
fn accepted(fine: &[&str]) -> String {
    match fine {
        [] | [""] => String::new(),
        fine => format!(" (only {})", fine.join(" or ")),
    }
}

/// Where a flag was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// On the command line.
    CommandLine,
    /// In a file.
    File(String),
    /// In the environment.
    Environment,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::CommandLine => f.write_str("command line"),
            Self::File(path) => f.write_str(path),
            Self::Environment => f.write_str("environment"),
        }
    }
}
