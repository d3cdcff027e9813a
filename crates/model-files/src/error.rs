//! Why a model's files cannot be used; each error names the file and what to do.

use std::path::PathBuf;

/// A model whose files are missing, incomplete or not what their names say.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilesError {
    /// No weights that can be read.
    #[error("{} holds no weights that can be read: no .safetensors, no pytorch_model.bin and no .gguf file{found}; \
             fetch them, or start with --load-format dummy for random weights", dir.display())]
    NoWeights {
        /// The folder.
        dir: PathBuf,
        /// What it holds instead, as the end of a sentence, or empty.
        found: String,
    },
    /// The folder holds an adapter, which is no model.
    #[error("{} holds only a LoRA adapter; serve the model that it was made for{base}", dir.display())]
    AdapterOnly {
        /// The folder.
        dir: PathBuf,
        /// The model's name in parentheses, where the adapter says, or empty.
        base: String,
    },
    /// Several GGUF files, each a whole model.
    #[error("{} holds several GGUF files ({}); give the path of one of them", dir.display(), names.join(", "))]
    SeveralGguf {
        /// The folder.
        dir: PathBuf,
        /// The files, sorted.
        names: Vec<String>,
    },
    /// A shard that the index (or the name of the first one) promises.
    #[error("{} does not exist, but {named_by} names it; fetch the missing file", file.display())]
    MissingShard {
        /// The file.
        file: PathBuf,
        /// The file that names it.
        named_by: String,
    },
    /// What Git LFS leaves where a large file should be.
    #[error(
        "{} is a Git LFS pointer, not the file itself; run `git lfs pull` in its folder, or download it again",
        file.display()
    )]
    LfsPointer {
        /// The file.
        file: PathBuf,
    },
    /// A file could not be read.
    #[error("cannot read {}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not what its name says.
    #[error("{} is damaged: {reason}; download it again", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A GGUF file of another kind than is read here.
    #[error("{}: {what}", file.display())]
    Unsupported {
        /// The file.
        file: PathBuf,
        /// What is not supported, and what would be.
        what: String,
    },
    /// A metadata key that has no default is absent or holds another type.
    #[error("{}: the metadata key {key:?} must be {expected}, but is {found}", file.display())]
    Metadata {
        /// The file.
        file: PathBuf,
        /// The key.
        key: String,
        /// What would be right.
        expected: &'static str,
        /// What is there.
        found: String,
    },
}
