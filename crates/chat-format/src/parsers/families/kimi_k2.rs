//! Kimi K2: `<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{…}<|tool_call_end|>` in a section. What
//! names the call is its id.

use std::sync::Arc;

use super::Reasoning;
use crate::parsers::{
    shapes::{
        Shape,
        named::{Format, Head},
    },
    tools::Tools,
};

/// Calls of Kimi K2.
pub(super) fn tools(_: &Arc<Tools>) -> Box<dyn Shape> {
    const K2: Format = Format {
        openers: &["<|tool_calls_section_begin|>"],
        sections: &[("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")],
        open: "<|tool_call_begin|>",
        separator: "<|tool_call_argument_begin|>",
        close: "<|tool_call_end|>",
        ignored: &[],
        fences: &[],
        head,
    };
    K2.shape()
}

/// `functions.NAME:INDEX`, of which nothing but the name must be there.
fn head(text: &str) -> Option<Head> {
    let id = text.trim();
    let named = id.split_once(':').map(|(before, _)| before);
    let plain = Head::plain(named.unwrap_or(id))?;
    let name = plain.name.strip_prefix("functions.").unwrap_or(&plain.name).to_owned();
    (!name.is_empty()).then(|| Head { name, id: named.map(|_| id.to_owned()) })
}

/// `<think>…</think>`, which a call ends too.
pub(super) const REASONING: Reasoning = Reasoning { ended_by_call: true, ..Reasoning::THINK };
