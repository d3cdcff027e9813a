//! Kimi K3: elements between `<|open|>`, `<|close|>` and `<|sep|>`; a call is
//! `<|open|>call tool="NAME" index="1"<|sep|><|open|>argument key="KEY"
//! type="string"<|sep|>VALUE<|close|>argument<|sep|><|close|>call<|sep|>`.

use std::sync::Arc;

use super::Reasoning;
use crate::parsers::{
    shapes::{
        Shape,
        tagged::{Format, Typing},
    },
    tools::Tools,
};

/// Calls of Kimi K3.
pub(super) fn tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const K3: Format = Format {
        openers: &["<|open|>tools<|sep|>"],
        sections: &[("<|open|>tools<|sep|>", "<|close|>tools<|sep|>")],
        call: "<|open|>call",
        call_head_end: Some("<|sep|>"),
        call_end: "<|close|>call<|sep|>",
        key: "<|open|>argument",
        key_end: "<|sep|>",
        value_end: "<|close|>argument<|sep|>",
        name_attribute: "tool",
        key_attribute: "key",
        typing: Typing::TypeAttribute,
        ..Format::INVOKE
    };
    K3.shape(tools)
}

/// The `think` element beside the `response` element.
pub(super) const REASONING: Reasoning = Reasoning {
    open: &["<|open|>think<|sep|>"],
    close: &["<|close|>think<|sep|>"],
    repeats: true,
    ended_by_call: true,
    dropped: &["<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"],
    ..Reasoning::THINK
};
