//! K2 Horizon: GLM's tags under names of its own, with an optional type.

use std::sync::Arc;

use super::Reasoning;
use crate::parsers::{
    shapes::{Shape, tagged::Format},
    tools::Tools,
};

/// Calls of K2 Horizon (its `xml` and `xml_typed` forms).
pub(super) fn tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const HORIZON: Format = Format {
        openers: &["<ifm|tool_calls>"],
        sections: &[("<ifm|tool_calls>", "</ifm|tool_calls>")],
        call: "<ifm|tool_call>",
        call_end: "</ifm|tool_call>",
        key: "<ifm|arg_key>",
        key_end: "</ifm|arg_key>",
        type_tag: Some(("<ifm|arg_type>", "</ifm|arg_type>")),
        value: Some("<ifm|arg_value>"),
        value_end: "</ifm|arg_value>",
        ..Format::ARG_KEY
    };
    HORIZON.shape(tools)
}

/// A pair of markers for each effort.
pub(super) const REASONING: Reasoning = Reasoning {
    open: &["<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"],
    close: &["</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"],
    implicit: true,
    ended_by_call: true,
    ..Reasoning::THINK
};
