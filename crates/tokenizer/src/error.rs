//! Why a tokenizer could not be loaded or used.

use std::path::PathBuf;

use model_files::FilesError;

/// Why a tokenizer could not be loaded or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The model has no tokenizer.
    #[error(
        "{model} has no tokenizer (looked for tokenizer.json, tokenizer.model, spiece.model, sentencepiece.bpe.model, \
             tiktoken.model, *.tiktoken, vocab.json with merges.txt, and a .gguf file); give \
             --tokenizer a folder that has one"
    )]
    Missing {
        /// The folder.
        model: PathBuf,
    },
    /// Its files are not those that were asked for.
    #[error("the files in {} have changed: load the adapter again", model.display())]
    Changed {
        /// The folder.
        model: PathBuf,
    },
    /// The model's files themselves.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// A file is there and cannot be read.
    #[error("reading {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A file is not the JSON that it should be.
    #[error("{path} is not valid: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A file describes something that cannot be built.
    #[error("{path} cannot be used: {reason}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The text cannot be encoded.
    #[error("the text cannot be encoded: {reason}")]
    Encode {
        /// The reference implementation's words.
        reason: String,
    },
    /// The ids cannot be decoded.
    #[error("the tokens cannot be decoded: {reason}")]
    Decode {
        /// The reference implementation's words.
        reason: String,
    },
}
