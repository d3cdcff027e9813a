//! `<tool_calls>[{"name": …, "arguments": {…}}]</tool_calls>`: Jamba, Hunyuan A13B, MiniMax M1 (there without the
//! list).

use std::sync::Arc;

use crate::parsers::{
    shapes::{Shape, json::Format},
    tools::Tools,
};

/// Calls of Jamba.
pub(super) fn tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const JAMBA: Format = Format { openers: &["<tool_calls>"], closers: &["</tool_calls>"], ..Format::PLAIN };
    JAMBA.shape(tools)
}
