//! `<longcat_tool_call>{"name": …, "arguments": {…}}</longcat_tool_call>`.

use std::sync::Arc;

use crate::parsers::{
    shapes::{Shape, json::Format},
    tools::Tools,
};

/// Calls of LongCat.
pub(super) fn tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const LONGCAT: Format =
        Format { openers: &["<longcat_tool_call>"], closers: &["</longcat_tool_call>"], ..Format::PLAIN };
    LONGCAT.shape(tools)
}
