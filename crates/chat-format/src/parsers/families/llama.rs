//! Llama: `{"name": …, "parameters": {…}}` without any marker or behind `<|python_tag|>`, several parted by `;`; Llama
//! 4 also as Python.

use std::sync::Arc;

use crate::parsers::{
    shapes::{Shape, json::Format, pythonic},
    tools::Tools,
};

/// Calls of Llama 3 and 4 as JSON.
pub(super) fn json(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const JSON: Format = Format { openers: &["<|python_tag|>"], bare: &['{', '['], ..Format::PLAIN };
    JSON.shape(tools)
}

/// Calls of Llama 4 as Python, perhaps between its markers.
pub(super) fn pythonic(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const PYTHONIC: pythonic::Format =
        pythonic::Format { openers: &["<|python_start|>"], closers: &["<|python_end|>"], bare: true };
    PYTHONIC.shape(tools)
}
