//! `functools[{"name": …, "arguments": {…}}]`.

use std::sync::Arc;

use crate::parsers::{
    shapes::{Shape, json::Format},
    tools::Tools,
};

/// Calls of Phi-4 mini.
pub(super) fn tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const PHI: Format = Format { openers: &["functools"], ..Format::PLAIN };
    PHI.shape(tools)
}
