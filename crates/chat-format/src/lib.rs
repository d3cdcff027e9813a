//! Chat templates as Hugging Face renders them, and [`parsers`] of the tool calls and the reasoning in what models
//! answer.
//!
//! [`ChatFormat`] holds a model's templates, compiled once; a [`Conversation`] is rendered to the text that the model
//! was trained to continue. Time is an argument, execution is bounded, and what a client gets wrong is told apart from
//! what the model's files get wrong.

mod config;
mod content;
mod conversation;
mod detect;
mod error;
mod finality;
mod format;
pub mod parsers;
mod python;

pub use config::{TemplateSource, template_source};
pub use content::{ContentFormat, part_text};
pub use conversation::{ChatText, Conversation};
pub use error::ChatError;
pub use format::{ChatFormat, ChatSettings};
