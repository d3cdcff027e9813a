//! PLaMo 3: requests of tools between long markers.

use std::sync::Arc;

use super::Reasoning;
use crate::parsers::{
    shapes::{
        Shape,
        named::{Format, Head},
    },
    tools::Tools,
};

/// Calls of PLaMo 3.
pub(super) fn tools(_: &Arc<Tools>) -> Box<dyn Shape> {
    const PLAMO: Format = Format {
        openers: &["<|plamo:begin_tool_requests:plamo|>"],
        sections: &[("<|plamo:begin_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|>")],
        open: "<|plamo:begin_tool_name:plamo|>",
        separator: "<|plamo:end_tool_name:plamo|>",
        close: "<|plamo:end_tool_arguments:plamo|>",
        ignored: &["<|plamo:begin_tool_request:plamo|>", "<|plamo:end_tool_request:plamo|>"],
        fences: &["<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>"],
        head: Head::plain,
    };
    PLAMO.shape()
}

/// Reasoning between markers of its own.
pub(super) const REASONING: Reasoning = Reasoning {
    open: &["<|plamo:begin_think:plamo|>"],
    close: &["<|plamo:end_think:plamo|>"],
    implicit: true,
    ended_by_call: true,
    dropped: &["<|plamo:tag|>"],
    ..Reasoning::THINK
};
