//! Harmony, the format of gpt-oss:
//! `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…`; a call is a message
//! `to=functions.NAME` whose body is its arguments.

use std::sync::Arc;

use super::Reasoning;
use crate::parsers::{
    shapes::{
        Shape,
        channels::{Format, Message},
    },
    tools::Tools,
};

const HARMONY: Format = Format {
    in_header: &["<|channel|>", "<|constrain|>"],
    body: "<|message|>",
    ends: &["<|end|>", "<|return|>", "<|call|>"],
    start: "<|start|>",
    classify,
    inner: None,
};

/// Calls of gpt-oss, and all else that it writes.
pub(super) fn tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    HARMONY.shape(true, tools)
}

/// The `analysis` channel.
pub(super) const REASONING: Reasoning = Reasoning {
    open: &[],
    close: &[],
    answer: &["<|channel|>final<|message|>"],
    call: &["<|channel|>commentary to=functions."],
    message_end: &["<|end|>"],
    turn: "<|end|><|start|>assistant",
    whole: Some(|calls, tools| HARMONY.shape(calls, tools)),
    ..Reasoning::THINK
};

fn classify(header: &str) -> Message {
    let mut words = header.split_whitespace();
    let recipient = words.clone().find_map(|word| word.strip_prefix("to="));
    let channel = words.find(|word| *word == "<|channel|>").and_then(|_| words.next());
    match (recipient, channel) {
        (Some(recipient), _) if recipient.starts_with("functions.") && recipient.len() > "functions.".len() => {
            Message::Call(recipient["functions.".len()..].to_owned())
        }
        (_, Some("analysis")) => Message::Reasoning,
        _ => Message::Content,
    }
}
