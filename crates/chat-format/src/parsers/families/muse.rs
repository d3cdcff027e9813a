//! Muse: messages to the model itself, to the user, or to a tool, ` to=self<|message|>…<|eom|>`. Calls stand in
//! messages to a tool as `<atem:invoke name="NAME"><atem:parameter name="KEY">VALUE</atem:parameter></atem:invoke>`.

use std::sync::Arc;

use super::Reasoning;
use crate::parsers::{
    shapes::{
        Shape,
        channels::{self, Message},
        tagged::{Format, Typing},
    },
    tools::Tools,
};

const SPARK: channels::Format = channels::Format {
    in_header: &[],
    body: "<|message|>",
    ends: &["<|eom|>", "<|eot|>"],
    start: "<|start|>",
    classify: spark,
    inner: Some(calls),
};

const GLIMMER: channels::Format = channels::Format { classify: glimmer, ..SPARK };

/// Calls of Muse Spark, and all else that it writes.
pub(super) fn spark_tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    SPARK.shape(true, tools)
}

/// Calls of Muse Glimmer, and all else that it writes.
pub(super) fn glimmer_tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    GLIMMER.shape(true, tools)
}

/// Messages of Muse Spark to itself or without a recipient.
pub(super) const SPARK_REASONING: Reasoning = Reasoning {
    open: &[],
    close: &[],
    message_end: &["<|eom|>"],
    whole: Some(|calls, tools| SPARK.shape(calls, tools)),
    ..Reasoning::THINK
};

/// Messages of Muse Glimmer to itself.
pub(super) const GLIMMER_REASONING: Reasoning =
    Reasoning { whole: Some(|calls, tools| GLIMMER.shape(calls, tools)), ..SPARK_REASONING };

fn calls(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const ATEM: Format = Format {
        openers: &["<atem:function_calls>"],
        sections: &[("<atem:function_calls>", "</atem:function_calls>")],
        call: "<atem:invoke",
        call_end: "</atem:invoke>",
        key: "<atem:parameter",
        value_end: "</atem:parameter>",
        typing: Typing::Json,
        ..Format::INVOKE
    };
    ATEM.shape(tools)
}

fn recipient(header: &str) -> Option<&str> {
    header.split_whitespace().find_map(|word| word.strip_prefix("to="))
}

fn spark(header: &str) -> Message {
    match recipient(header) {
        None | Some("self" | "developer") => Message::Reasoning,
        Some("user" | "commentary") => Message::Content,
        Some(_) => Message::Calls,
    }
}

fn glimmer(header: &str) -> Message {
    match recipient(header) {
        Some("self") => Message::Reasoning,
        None | Some("user") => Message::Content,
        Some(_) => Message::Calls,
    }
}
