//! `<|function_call|>{"name": …, "arguments": {…}}`; older models write a message of the role `function call`.

use std::sync::Arc;

use crate::parsers::{
    shapes::{Shape, json::Format},
    tools::Tools,
};

/// Calls of GigaChat 3.
pub(super) fn tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const GIGACHAT: Format = Format {
        openers: &[
            "<|function_call|>",
            "<|message_sep|><|function_call|>",
            "function call<|role_sep|>\n",
            "<|message_sep|>function call<|role_sep|>\n",
        ],
        ..Format::PLAIN
    };
    GIGACHAT.shape(tools)
}
