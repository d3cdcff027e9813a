//! Inkling: blocks that say what they are, `<|message_model|>[NAME]<|content_…|>…<|end_message|>`; a call is
//! `<|content_invoke_tool_json|>{"name": …, "args": {…}}<|end_message|>`.

use std::sync::Arc;

use super::Reasoning;
use crate::parsers::{
    shapes::{Shape, json::Format},
    tools::Tools,
};

/// Calls of Inkling.
pub(super) fn tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const INKLING: Format = Format {
        openers: &["<|content_invoke_tool_json|>"],
        closers: &["<|end_message|>", "<|content_model_end_sampling|>"],
        arguments: &["args"],
        ..Format::PLAIN
    };
    INKLING.shape(tools)
}

/// Blocks of thinking between blocks of text.
pub(super) const REASONING: Reasoning = Reasoning {
    open: &["<|content_thinking|>"],
    close: &["<|end_message|>"],
    repeats: true,
    headers: &["<|message_model|>"],
    dropped: &[
        "<|content_text|>",
        "<|content_invoke_tool_text|>",
        "<|content_tool_error|>",
        "<|content_model_end_sampling|>",
        "<|end_message|>",
    ],
    ..Reasoning::THINK
};
