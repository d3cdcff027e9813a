//! Command: `<|START_ACTION|>[{"tool_call_id": …, "tool_name": …, "parameters": {…}}]<|END_ACTION|>`, and markers
//! around all else.

use std::sync::Arc;

use super::Reasoning;
use crate::parsers::{
    shapes::{Shape, json::Format},
    tools::Tools,
};

/// Calls of Command.
pub(super) fn tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const COMMAND: Format = Format {
        openers: &["<|START_ACTION|>"],
        closers: &["<|END_ACTION|>"],
        name: &["tool_name", "name"],
        ..Format::PLAIN
    };
    COMMAND.shape(tools)
}

/// `<|START_THINKING|>…<|END_THINKING|><|START_RESPONSE|>…<|END_RESPONSE|>`
pub(super) const REASONING: Reasoning = Reasoning {
    open: &["<|START_THINKING|>"],
    close: &["<|END_THINKING|>"],
    repeats: true,
    dropped: &["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"],
    ..Reasoning::THINK
};
