//! `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen 2.5 and 3, Granite 4, ERNIE 4.5, and the model
//! that ships.

use std::sync::Arc;

use crate::parsers::{
    shapes::{Shape, json::Format},
    tools::Tools,
};

/// Calls of the Hermes format.
pub(super) fn tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const HERMES: Format = Format { openers: &["<tool_call>"], closers: &["</tool_call>"], ..Format::PLAIN };
    HERMES.shape(tools)
}
