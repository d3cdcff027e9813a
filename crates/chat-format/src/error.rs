//! Why a conversation cannot be rendered, and whose fault that is.

use std::path::PathBuf;

use model_files::FilesError;

/// Why a conversation cannot be rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The template itself refused the conversation (`raise_exception`).
    #[error("{message}")]
    InvalidTemplateUse {
        /// The template's words.
        message: String,
    },
    /// A field of the request is not what it should be.
    #[error("{message}")]
    InvalidRequest {
        /// The field.
        param: &'static str,
        /// What is wrong with it.
        message: String,
    },
    /// The template cannot be applied to this conversation.
    #[error("the chat template cannot be applied: {message}")]
    Render {
        /// Where and why.
        message: String,
    },
    /// The template ran too long or wrote too much.
    #[error("the chat template was stopped: {limit} exceeded")]
    Limit {
        /// Which bound it hit.
        limit: &'static str,
    },
    /// Neither the model nor the request has a template.
    #[error("the model has no chat template: give one with --chat-template, or use completions")]
    NoTemplate,
    /// The template of the model or the command line does not parse.
    #[error("chat template `{name}` does not parse: {message}")]
    Syntax {
        /// Its name.
        name: String,
        /// Where and why.
        message: String,
    },
    /// A file of the model, or the one given with `--chat-template`, cannot be read.
    #[error("reading {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The model's files themselves.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// A file of the model is not the JSON that it should be.
    #[error("{path} is not valid: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// `--chat-template` names no file and is no template either.
    #[error("--chat-template `{text}` is neither a file nor a template")]
    NoSuchTemplate {
        /// What was given.
        text: String,
    },
}

impl ChatError {
    /// The request field at fault, when it is the request's fault.
    pub fn param(&self) -> Option<&'static str> {
        match self {
            Self::InvalidRequest { param, .. } => Some(param),
            Self::InvalidTemplateUse { .. } | Self::Render { .. } | Self::Limit { .. } | Self::NoTemplate => {
                Some("messages")
            }
            _ => None,
        }
    }
}
