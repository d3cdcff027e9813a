//! `<|action_start|><|plugin|>{"name": …, "parameters": {…}}<|action_end|>`.

use std::sync::Arc;

use crate::parsers::{
    shapes::{Shape, json::Format},
    tools::Tools,
};

/// Calls of InternLM 2.
pub(super) fn tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const INTERNLM: Format = Format {
        openers: &["<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"],
        closers: &["<|action_end|>"],
        ..Format::PLAIN
    };
    INTERNLM.shape(tools)
}
