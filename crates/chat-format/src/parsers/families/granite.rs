//! Granite 3: `<|tool_call|>[{"name": …, "arguments": {…}}]` or `<tool_call>[…]` without an end; the 20B model
//! `<function_call>{…}`. Its reasoning is announced in words.

use std::sync::Arc;

use super::Reasoning;
use crate::parsers::{
    shapes::{Shape, json::Format},
    tools::Tools,
};

/// Calls of Granite 3.
pub(super) fn tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const GRANITE: Format = Format { openers: &["<|tool_call|>", "<tool_call>"], ..Format::PLAIN };
    GRANITE.shape(tools)
}

/// Calls of Granite 20B.
pub(super) fn function_calling(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const GRANITE_20B: Format = Format { openers: &["<function_call>"], ..Format::PLAIN };
    GRANITE_20B.shape(tools)
}

/// `Here is my thought process: … Here is my response: …`
pub(super) const REASONING: Reasoning = Reasoning {
    open: &["Here is my thought process:", "Here's my thought process:"],
    close: &["Here is my response:", "Here's my response:"],
    ..Reasoning::THINK
};
