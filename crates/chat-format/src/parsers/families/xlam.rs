//! `[{"name": …, "arguments": {…}}]` as it is, in a block of code, or between the markers of other formats.

use std::sync::Arc;

use crate::parsers::{
    shapes::{Shape, json::Format},
    tools::Tools,
};

/// Calls of xLAM.
pub(super) fn tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const XLAM: Format = Format {
        openers: &["```json", "```", "[TOOL_CALLS]", "<tool_call>"],
        closers: &["```", "</tool_call>"],
        bare: &['['],
        ..Format::PLAIN
    };
    XLAM.shape(tools)
}
