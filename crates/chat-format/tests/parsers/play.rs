//! Any bytes are a text in one of the formats, cut somehow. The fuzz target runs the same.

use std::sync::Arc;

use chat_format::parsers::{Event, Message, Parser, ReasoningFormat, Setup, ToolFormat, Tools};

/// Pieces of all formats, from which hostile texts are made.
const PIECES: [&str; 64] = [
    "<tool_call>",
    "</tool_call>",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\"name\"",
    ":",
    ",",
    "\"arguments\"",
    "\"f\"",
    "f",
    "(",
    ")",
    "=",
    "<function=",
    "</function>",
    "<parameter=",
    "</parameter>",
    ">",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "\n",
    " ",
    "<think>",
    "</think>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "```json",
    "```",
    "<|channel|>",
    "analysis",
    "<|message|>",
    "<|end|>",
    "<|start|>",
    "to=functions.f",
    "<|tool_call>",
    "<tool_call|>",
    "call:f{",
    "<|\"|>",
    "<invoke name=\"f\">",
    "<parameter name=\"k\">",
    "</invoke>",
    "<｜DSML｜",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|open|>",
    "<|sep|>",
    "<|close|>",
    "call",
    "]<]minimax[>[<",
    "\\",
    "\\ud83d",
    "é",
    "<",
    "|",
];

/// Reads bytes as choices.
pub(crate) struct Choices<'a>(pub(crate) &'a [u8]);

impl Choices<'_> {
    fn next(&mut self) -> Option<usize> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(usize::from(*first))
    }
}

/// Runs one text of one format, whole and in pieces.
pub(crate) fn play(bytes: &[u8], offered: &Arc<Tools>) {
    let mut choices = Choices(bytes);
    let tools: Vec<_> = ToolFormat::names().map(Some).chain([None]).collect();
    let reasoning: Vec<_> = ReasoningFormat::names().map(Some).chain([None]).collect();
    let (Some(one), Some(other), Some(cut)) = (choices.next(), choices.next(), choices.next()) else { return };
    let setup = Setup::new(
        tools[one % tools.len()].and_then(|name| ToolFormat::named(name).ok()),
        reasoning[other % reasoning.len()].and_then(|name| ReasoningFormat::named(name).ok()),
        offered.clone(),
    );
    let mut text = String::new();
    while let Some(choice) = choices.next() {
        match choice {
            0..=15 => text.push(char::from(b'a' + choice as u8)),
            _ => text.push_str(PIECES[choice % PIECES.len()]),
        }
    }
    same_when_cut(&text, &setup, cut);
}

/// Whole and cut, the text says the same; what is no marker is somewhere in it.
pub(crate) fn same_when_cut(text: &str, setup: &Setup, cut: usize) {
    let whole = Message::read(text, setup.clone());
    let mut parser = Parser::new(setup.clone());
    let mut pieces = Message::default();
    let mut rest = text;
    let mut step = cut;
    while !rest.is_empty() {
        step = step.wrapping_mul(31).wrapping_add(7);
        let letters = 1 + step % (1 + cut % 7);
        let end = rest.char_indices().nth(letters).map_or(rest.len(), |(at, _)| at);
        pieces.extend(well_formed(parser.push(&rest[..end]), &pieces));
        rest = &rest[end..];
    }
    pieces.extend(well_formed(parser.finish(), &pieces));
    assert_eq!(pieces, whole, "{:?} {:?}: {text:?} in pieces of {cut}", setup.tools, setup.reasoning);
    assert_eq!(parser.calls() as usize, whole.calls.len());
    let nothing_found = whole.calls.is_empty() && whole.reasoning.is_empty();
    if nothing_found && setup.reasoning.is_none() && setup.tools.is_some_and(|format| !reads_all(format.name)) {
        assert_eq!(whole.content, text, "{:?}", setup.tools);
    }
}

/// Formats that read whole answers take markers away even where no call comes of them.
fn reads_all(name: &str) -> bool {
    matches!(name, "openai" | "muse" | "muse_glimmer" | "musespark1x")
}

/// Events carry text, and arguments follow their call.
fn well_formed(events: Vec<Event>, before: &Message) -> Vec<Event> {
    let mut calls = before.calls.len() as u32;
    for event in &events {
        match event {
            Event::Content(text) | Event::Reasoning(text) => assert!(!text.is_empty()),
            Event::CallStart { index, name, .. } => {
                assert_eq!(*index, calls);
                assert!(!name.is_empty());
                calls += 1;
            }
            Event::Arguments { index, text } => assert!(*index + 1 == calls && !text.is_empty()),
        }
    }
    events
}
