//! MiniMax M2: `<minimax:tool_call><invoke name="NAME"><parameter
//! name="KEY">VALUE</parameter></invoke></minimax:tool_call>`.

use std::sync::Arc;

use super::Reasoning;
use crate::parsers::{
    shapes::{Shape, tagged::Format},
    tools::Tools,
};

/// Calls of MiniMax M2.
pub(super) fn tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const M2: Format = Format {
        openers: &["<minimax:tool_call>"],
        sections: &[("<minimax:tool_call>", "</minimax:tool_call>")],
        ..Format::INVOKE
    };
    M2.shape(tools)
}

/// The reasoning's marker is never written, only its end.
pub(super) const REASONING: Reasoning = Reasoning { implicit: true, ended_by_call: true, ..Reasoning::THINK };

/// The reasoning stays in the content, with the marker that the prompt ended with.
pub(super) const APPENDED: Reasoning = Reasoning { open: &[], close: &[], prefix: "<think>", ..Reasoning::THINK };
