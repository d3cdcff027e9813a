//! The environment variables that the command reads, read once.

use std::path::PathBuf;

use model_source::Options;

/// What the environment says.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Where models are and come from.
    pub models: Options,
    /// The user's folder for sockets, `XDG_RUNTIME_DIR`.
    pub runtime_dir: Option<PathBuf>,
    /// `QUIRE_LOG`.
    pub log_level: Option<String>,
    /// `QUIRE_LOG_FORMAT`.
    pub log_format: Option<String>,
}

impl Environment {
    /// Reads it.
    pub fn read() -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            models: Options::from_env(variable),
            runtime_dir: variable("XDG_RUNTIME_DIR").map(PathBuf::from),
            log_level: variable("QUIRE_LOG"),
            log_format: variable("QUIRE_LOG_FORMAT"),
        }
    }
}
