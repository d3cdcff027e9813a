//! `<|tool_call_start|>[NAME(KEY=VALUE)]<|tool_call_end|>`.

use std::sync::Arc;

use crate::parsers::{
    shapes::{Shape, pythonic::Format},
    tools::Tools,
};

/// Calls of LFM2.
pub(super) fn tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const PYTHONIC: Format = Format { openers: &["<|tool_call_start|>"], closers: &["<|tool_call_end|>"], bare: false };
    PYTHONIC.shape(tools)
}
