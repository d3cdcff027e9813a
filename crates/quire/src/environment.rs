//! The environment variables that the command reads, read once.

use std::{ffi::OsString, path::PathBuf};

use model_source::Options;

use crate::serve::variables::{self, Variables};

/// What the environment says.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Where models are and come from.
    pub models: Options,
    /// The user's folder for sockets, `XDG_RUNTIME_DIR`.
    pub runtime_dir: Option<PathBuf>,
    /// Folders of CUDA's libraries, `QUIRE_CUDA_LIBRARY_PATH`.
    pub cuda_library_path: Option<OsString>,
    /// Where compiled GPU kernels are kept: `QUIRE_KERNEL_CACHE`, else the worker's own place for them.
    pub kernel_cache: Option<PathBuf>,
    /// The Python environment in use, `VIRTUAL_ENV`.
    pub virtual_env: Option<OsString>,
    /// `PATH`.
    pub path: Option<OsString>,
    /// Variables that stand for flags, and all of vLLM's.
    pub variables: Variables,
    /// The socket of a service manager that wants to be told of readiness, `NOTIFY_SOCKET`.
    pub notify_socket: Option<OsString>,
}

impl Environment {
    /// Reads it.
    pub fn read() -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            models: Options::from_env(variable),
            runtime_dir: variable("XDG_RUNTIME_DIR").map(PathBuf::from),
            cuda_library_path: std::env::var_os("QUIRE_CUDA_LIBRARY_PATH"),
            kernel_cache: variable("QUIRE_KERNEL_CACHE").map(PathBuf::from).or_else(worker_svc::default_kernel_cache),
            virtual_env: std::env::var_os("VIRTUAL_ENV"),
            path: std::env::var_os("PATH"),
            variables: std::env::vars_os().filter_map(|(name, value)| known(name, value)).collect(),
            notify_socket: std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()),
        }
    }
}

/// A variable that concerns `quire serve`, if it is one.
fn known(name: OsString, value: OsString) -> Option<(String, String)> {
    let name = name.into_string().ok().filter(|name| variables::concerns(name))?;
    Some((name, value.into_string().ok()?))
}
