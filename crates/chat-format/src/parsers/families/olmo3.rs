//! `<function_calls>`, a call in Python on each line, `</function_calls>`.

use std::sync::Arc;

use crate::parsers::{
    shapes::{Shape, pythonic::Format},
    tools::Tools,
};

/// Calls of OLMo 3.
pub(super) fn tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const PYTHONIC: Format = Format { openers: &["<function_calls>"], closers: &["</function_calls>"], bare: false };
    PYTHONIC.shape(tools)
}
