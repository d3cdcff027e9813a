//! Why a model's description could not be used; each error names the file, the key and what to do.

use std::path::PathBuf;

use model_files::FilesError;

/// A model folder whose description is missing, malformed or not supported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The model's files themselves.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// A file could not be read.
    #[error("cannot read {}: {source}; is this a Hugging Face model folder?", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not JSON, or not a JSON object.
    #[error("{} is not a JSON object: {reason}; download it again", file.display())]
    NotJson {
        /// The file.
        file: PathBuf,
        /// What the parser said.
        reason: String,
    },
    /// A key that has no default is absent.
    #[error("{} has no key {key:?}; this architecture needs it ({remedy})", file.display())]
    Missing {
        /// The file.
        file: PathBuf,
        /// The key, with dots for nesting.
        key: String,
        /// What the value should be.
        remedy: String,
    },
    /// A key holds another type than expected.
    #[error("{}: {key:?} must be {expected}, but is {found}", file.display())]
    WrongType {
        /// The file.
        file: PathBuf,
        /// The key, with dots for nesting.
        key: String,
        /// What would be right.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// A key's value makes no sense or is not supported.
    #[error("{}: {key:?} is {value}: {reason}", file.display())]
    Unsupported {
        /// The file.
        file: PathBuf,
        /// The key, with dots for nesting.
        key: String,
        /// What is there.
        value: String,
        /// Why it cannot be served, and what could.
        reason: String,
    },
    /// The architecture is not in the table.
    #[error(
        "{}: architecture {name:?} is not supported{}; supported: {}",
        file.display(), did_you_mean(nearest), supported.join(", ")
    )]
    UnknownArchitecture {
        /// The file.
        file: PathBuf,
        /// What the file says.
        name: String,
        /// The most similar name that is supported, if any is similar.
        nearest: Option<String>,
        /// All names that are supported, sorted.
        supported: Vec<String>,
    },
}

fn did_you_mean(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!(" (nearest: {name})")).unwrap_or_default()
}
