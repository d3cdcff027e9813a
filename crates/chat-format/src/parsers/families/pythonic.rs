//! `[NAME(KEY=VALUE, …), …]`: Llama 3.2, ToolACE.

use std::sync::Arc;

use crate::parsers::{
    shapes::{Shape, pythonic::Format},
    tools::Tools,
};

/// Calls as a list in Python.
pub(super) fn tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const PYTHONIC: Format = Format { openers: &[], closers: &[], bare: true };
    PYTHONIC.shape(tools)
}
