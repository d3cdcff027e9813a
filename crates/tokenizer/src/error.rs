//! Why a tokenizer could not be loaded or used.

use std::path::PathBuf;

/// Why a tokenizer could not be loaded or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The folder has no `tokenizer.json`.
    #[error("{path} does not exist: the model has no fast tokenizer")]
    Missing {
        /// The file looked for.
        path: PathBuf,
    },
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
    /// `tokenizer.json` describes something that cannot be built.
    #[error("{path} cannot be used: {reason}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The reference implementation's words.
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
