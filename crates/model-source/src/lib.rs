//! Turns what a user types as `MODEL` into a folder with a model in it: a folder, a Hugging Face id found in the local cache or
//! downloaded into it, or the model that ships with Quire.
//!
//! The cache has the layout of the Hugging Face libraries (`models--org--name/{blobs,refs,snapshots}`), so both sides share what
//! either has downloaded. What is complete in the cache is used without asking the network.

mod cache;
mod download;
mod error;
mod folder;
mod hub;
mod options;

use std::path::{Path, PathBuf};

pub use error::SourceError;
pub use options::Options;

use cache::Cache;

/// A model that is ready to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Folder with `config.json`, tokenizer files and weights.
    pub path: PathBuf,
    /// What the user called it; the default of `--served-model-name`.
    pub name: String,
    /// Where it came from.
    pub origin: Origin,
}

/// Where a model came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It ships with Quire.
    BuiltIn,
    /// The user's own folder.
    Folder,
    /// Complete in the local cache; the network was not asked.
    Cache,
    /// Downloaded just now.
    Downloaded,
}

/// Which files must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Configuration, tokenizer and weights.
    Everything,
    /// Configuration and tokenizer: `--load-format dummy`, or a separate `--tokenizer`.
    NoWeights,
}

/// What happens during a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A file begins; `have_bytes` of `total_bytes` were already there from an interrupted download.
    Begin {
        /// Name in the repository.
        file: &'a str,
        /// Size.
        total_bytes: u64,
        /// Already on disk.
        have_bytes: u64,
    },
    /// More bytes of a file are on disk.
    Advance {
        /// Name in the repository.
        file: &'a str,
        /// How many more.
        bytes: u64,
    },
    /// A file is complete and checked.
    Done {
        /// Name in the repository.
        file: &'a str,
    },
}

/// Listens to a download. Called from several tasks of one thread at a time.
pub trait Progress: Sync {
    /// One thing happened.
    fn event(&self, event: Event<'_>);
}

/// Listens to nothing.
pub struct Quiet;

impl Progress for Quiet {
    fn event(&self, _: Event<'_>) {}
}

/// Finds `model`, downloading it if need be; without a name, the model that ships with Quire.
pub async fn resolve(
    model: Option<&str>,
    need: Need,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Model, SourceError> {
    let Some(model) = model else { return built_in(&options.quire_cache) };
    let name = model.to_owned();
    let path = Path::new(model);
    if path.is_dir() {
        folder::check(path, need)?;
        // Processes get the path as it is; make it independent of their working directory.
        let path = path.canonicalize().map_err(|source| SourceError::io("open", path, source))?;
        return Ok(Model { path, name, origin: Origin::Folder });
    }
    if looks_like_path(model) {
        return Err(SourceError::NoFolder { path: path.to_owned() });
    }
    if !is_id(model) {
        return Err(SourceError::BadId { id: name });
    }
    let cache = Cache::new(&options.hub_cache, model);
    if let Some(path) = cache.complete_snapshot(&options.revision, need) {
        return Ok(Model { path, name, origin: Origin::Cache });
    }
    if options.offline {
        return Err(SourceError::Offline { id: name, cache: options.hub_cache.clone() });
    }
    let path = hub::Hub::new(options)?.download(model, need, &cache, progress).await?;
    Ok(Model { path, name, origin: Origin::Downloaded })
}

/// The model that ships with Quire, laid out under `cache`.
fn built_in(cache: &Path) -> Result<Model, SourceError> {
    let path = default_model::extract(cache).map_err(SourceError::BuiltIn)?;
    Ok(Model { path, name: default_model::NAME.to_owned(), origin: Origin::BuiltIn })
}

fn looks_like_path(model: &str) -> bool {
    model.starts_with(['/', '.', '~']) || model.ends_with('/') || model.matches('/').count() > 1
}

/// `name` or `owner/name`, as the hub spells them.
fn is_id(model: &str) -> bool {
    let part = |text: &str| {
        !text.is_empty()
            && !text.contains("--")
            && !text.contains("..")
            && !text.starts_with(['-', '.'])
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    model.len() <= 200 && model.split('/').all(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_told_from_paths() {
        for id in ["gpt2", "Qwen/Qwen3-0.6B", "a_b/c.d-e"] {
            assert!(is_id(id) && !looks_like_path(id), "{id}");
        }
        for path in ["/models/a", "./a", "../a/b", "~/a", "a/b/c", "models/"] {
            assert!(looks_like_path(path), "{path}");
        }
        for bad in ["a b", "a/..b", "-a", "a//b", "a--b/c", ""] {
            assert!(!is_id(bad), "{bad}");
        }
    }
}
