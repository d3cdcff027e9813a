//! Why there is no model to load, in words that say what to do about it.

use std::{
    io,
    path::{Path, PathBuf},
};

use model_files::FilesError;

/// Why there is no model to load.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// Looks like a path, and nothing is there.
    #[error("there is no model folder and no GGUF file at `{path}` (a Hugging Face id has the form owner/name)")]
    NoFolder {
        /// As typed.
        path: PathBuf,
    },
    /// The folder lacks a file.
    #[error("`{folder}` is not a complete model folder: {missing} is missing")]
    Incomplete {
        /// The folder.
        folder: PathBuf,
        /// A file name, or a description.
        missing: String,
    },
    /// Neither a folder nor a possible id.
    #[error("`{id}` is neither a folder nor a Hugging Face id of the form owner/name")]
    BadId {
        /// As typed.
        id: String,
    },
    /// The hub knows no such model.
    #[error(
        "the model `{id}` was not found: no folder of that name here, not in the local cache, and {endpoint} does not \
         know it (or keeps it private: pass --hf-token or set HF_TOKEN)"
    )]
    NotFound {
        /// The id.
        id: String,
        /// The hub.
        endpoint: String,
    },
    /// The model has no such branch, tag or commit.
    #[error("the model `{id}` has no revision `{revision}` (see --revision)")]
    RevisionNotFound {
        /// The id.
        id: String,
        /// What was asked for.
        revision: String,
    },
    /// The owner wants to know who downloads.
    #[error("the model `{id}` is gated: accept its terms at {endpoint}/{id}, then {remedy}")]
    Gated {
        /// The id.
        id: String,
        /// The hub.
        endpoint: String,
        /// What to do next.
        remedy: &'static str,
    },
    /// The network must not be asked.
    #[error(
        "the model `{id}` is not complete in the local cache {cache}, and HF_HUB_OFFLINE forbids asking the \
         network (unset it, or give a folder)"
    )]
    Offline {
        /// The id.
        id: String,
        /// The cache.
        cache: PathBuf,
    },
    /// The hub cannot be reached.
    #[error(
        "cannot reach {url}: {reason} (without a network, give a folder, or no model at all to use the built-in \
         one; HF_ENDPOINT names another hub)"
    )]
    Network {
        /// What was asked.
        url: String,
        /// The innermost cause.
        reason: String,
    },
    /// The hub answered with an unexpected status.
    #[error("{url} answered with status {status}")]
    Status {
        /// What was asked.
        url: String,
        /// The HTTP status.
        status: u16,
    },
    /// The hub's answer makes no sense.
    #[error("{url}: {what}")]
    Answer {
        /// What was asked.
        url: String,
        /// What is wrong.
        what: String,
    },
    /// The model is not one that is served; no weights were downloaded.
    #[error("the model `{id}` cannot be served, so its weights were not downloaded: {reason}")]
    NotServed {
        /// The id.
        id: String,
        /// Why not.
        reason: String,
    },
    /// The repository has no weights in a format that Quire reads.
    #[error(
        "the model `{id}` has no weights that can be read: no .safetensors, no pytorch_model.bin and no .gguf file"
    )]
    NoWeights {
        /// The id.
        id: String,
    },
    /// The repository holds an adapter, which is no model.
    #[error("`{id}` holds only a LoRA adapter; serve the model that it was made for")]
    AdapterOnly {
        /// The id.
        id: String,
    },
    /// Several GGUF files, each a whole model.
    #[error(
        "the model `{id}` has several GGUF files ({}); choose one by part of its name, as in {id}:Q4_K_M",
        files.join(", ")
    )]
    SeveralGguf {
        /// The id.
        id: String,
        /// The files, sorted.
        files: Vec<String>,
    },
    /// No GGUF file has the part of a name that was asked for.
    #[error("the model `{id}` has no GGUF file with `{variant}` in its name (there are: {})", files.join(", "))]
    NoVariant {
        /// The id.
        id: String,
        /// What was asked for.
        variant: String,
        /// The GGUF files that there are.
        files: Vec<String>,
    },
    /// The model's files themselves.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// A downloaded file is not what the hub announced.
    #[error("{file} is damaged: its {what} should be {expected}, is {found} (it was removed; try again)")]
    Damaged {
        /// Name in the repository.
        file: String,
        /// "size" or "SHA-256".
        what: &'static str,
        /// As announced.
        expected: String,
        /// As found.
        found: String,
    },
    /// The operating system said no.
    #[error("cannot {doing} {path}: {cause}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// Its error.
        cause: io::Error,
    },
    /// The built-in model could not be laid out.
    #[error("{0} (QUIRE_CACHE names another folder)")]
    BuiltIn(default_model::ExtractError),
}

impl SourceError {
    pub(crate) fn io(doing: &'static str, path: &Path, cause: io::Error) -> Self {
        Self::Io { doing, path: path.to_owned(), cause }
    }

    /// Finds the cause that a person understands under the client library's layers.
    pub(crate) fn network(url: &str, error: &reqwest::Error) -> Self {
        let mut cause: &dyn std::error::Error = error;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        Self::Network { url: url.to_owned(), reason: cause.to_string() }
    }
}
