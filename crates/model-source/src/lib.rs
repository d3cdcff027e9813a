//! Turns what a user types as `MODEL` into a folder with a model in it, or a GGUF file: either by its path, a Hugging
//! Face id found in the local cache or downloaded into it (`owner/name:Q4_K_M` where a repository holds several GGUF
//! files), or the model that ships with Quire.
//!
//! The cache has the layout of the Hugging Face libraries (`models--org--name/{blobs,refs,snapshots}`), so both sides
//! share what either has downloaded. What is complete in the cache is used without asking the network.

mod cache;
mod download;
mod error;
mod folder;
mod hub;
mod name;
mod options;
mod snapshot;

use std::path::{Path, PathBuf};

pub use error::SourceError;
pub use options::Options;

use cache::Cache;
use folder::Wanted;

/// A model that is ready to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Folder with `config.json`, tokenizer files and weights; or a GGUF file, which holds all of them.
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
    /// Configuration and tokenizer: `--load-format dummy`.
    NoWeights,
    /// A tokenizer: a separate `--tokenizer`.
    Tokenizer,
    /// A LoRA adapter as PEFT writes it: its configuration and weights.
    Adapter,
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
    if path.is_dir() || path.is_file() && path.extension().is_some_and(|extension| extension == "gguf") {
        Wanted { need, variant: None }.check(path)?;
        // Processes get the path as it is; make it independent of their working directory.
        let path = std::path::absolute(path).map_err(|source| SourceError::io("open", path, source))?;
        return Ok(Model { path, name, origin: Origin::Folder });
    }
    if looks_like_path(model) || model.ends_with(".gguf") {
        return Err(SourceError::NoFolder { path: path.to_owned() });
    }
    let (id, variant) = model.split_once(':').map_or((model, None), |(id, variant)| (id, Some(variant)));
    if !is_id(id) || variant.is_some_and(|variant| !is_variant(variant)) {
        return Err(SourceError::BadId { id: name });
    }
    let (cache, wanted) = (Cache::new(&options.hub_cache, id), Wanted { need, variant });
    if let Some(snapshot) = cache.complete_snapshot(&options.revision, wanted) {
        return Ok(Model { path: wanted.path(&snapshot), name, origin: Origin::Cache });
    }
    if options.offline {
        return Err(SourceError::Offline { id: name, cache: options.hub_cache.clone() });
    }
    let snapshot = snapshot::download(&hub::Hub::new(options)?, id, wanted, &cache, progress).await?;
    Ok(Model { path: wanted.path(&snapshot), name, origin: Origin::Downloaded })
}

/// The model that ships with Quire, laid out under `cache`.
fn built_in(cache: &Path) -> Result<Model, SourceError> {
    let path = default_model::extract(cache).map_err(SourceError::BuiltIn)?;
    Ok(Model { path, name: default_model::NAME.to_owned(), origin: Origin::BuiltIn })
}

/// Whether an adapter's path can only be a Hugging Face id: `owner/name`, and no folder here.
pub fn is_adapter_id(path: &str) -> bool {
    path.contains('/') && !looks_like_path(path) && is_id(path) && !Path::new(path).exists()
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

/// What may stand behind the colon of an id: part of a file's name.
fn is_variant(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_told_from_paths() {
        for id in ["gpt2", "Qwen/Qwen3-0.6B", "a_b/c.d-e"] {
            assert!(is_id(id) && !looks_like_path(id) && is_adapter_id(id) == id.contains('/'), "{id}");
        }
        for path in ["/models/a", "./a", "../a/b", "~/a", "a/b/c", "models/"] {
            assert!(looks_like_path(path) && !is_adapter_id(path), "{path}");
        }
        for bad in ["a b", "a/..b", "-a", "a//b", "a--b/c", ""] {
            assert!(!is_id(bad) && !is_adapter_id(bad), "{bad}");
        }
    }
}
