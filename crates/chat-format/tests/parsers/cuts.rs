//! However a text is cut, it says the same; whatever it is, nothing of it is lost and nothing panics.

use chat_format::parsers::{Message, Parser};
use proptest::{collection::vec, prelude::*};

use crate::{
    examples::{reasoning_rows, tool_rows},
    offered, play, setup,
};

/// Parts of markers, letters, and what JSON is made of.
const PIECE: &str = "(<|>|\\||tool|call|[a-z]{1,3}|\\PC|[\"{}\\[\\]:,\n ])";

/// Every example, with its setup.
fn rows() -> Vec<(chat_format::parsers::Setup, String)> {
    let tools = tool_rows().into_iter().map(|(name, text)| (setup(name, ""), text));
    let reasoning = reasoning_rows().into_iter().map(|(name, text)| (setup("hermes", name), text));
    tools.chain(reasoning).collect()
}

#[test]
fn every_cut_of_every_example_says_the_same() {
    for (setup, text) in rows() {
        let whole = Message::read(&text, setup.clone());
        for (at, _) in text.char_indices() {
            let mut parser = Parser::new(setup.clone());
            let mut message = Message::default();
            message.extend(parser.push(&text[..at]));
            message.extend(parser.push(&text[at..]));
            message.extend(parser.finish());
            assert_eq!(message, whole, "{:?} {:?} cut at {at}: {text}", setup.tools, setup.reasoning);
        }
        (0..16).for_each(|cut| play::same_when_cut(&text, &setup, cut));
    }
}

#[test]
fn every_beginning_of_every_example_is_read() {
    for (setup, text) in rows() {
        text.char_indices().for_each(|(at, _)| play::same_when_cut(&text[..at], &setup, at));
    }
}

/// A word put anywhere is found again, unless it stands in the head of a tag or a message, where nothing but attributes
/// counts.
#[test]
fn no_word_is_lost() {
    const WORD: &str = "ZQZ";
    for (setup, text) in rows() {
        for (at, _) in text.char_indices() {
            let with = format!("{}{WORD}{}", &text[..at], &text[at..]);
            let message = Message::read(&with, setup.clone());
            let calls = message.calls.iter().flat_map(|call| [&call.name, &call.arguments]);
            let ids = message.calls.iter().filter_map(|call| call.id.as_ref());
            let found = calls.chain(ids).chain([&message.content, &message.reasoning]).any(|text| text.contains(WORD));
            let first_head =
                (text.starts_with(" to=") || text.starts_with("<|channel|>")) && !text[..at].contains("<|message|>");
            assert!(
                found || first_head || in_head(&text[..at]),
                "{:?} {:?} loses a word: {with}",
                setup.tools,
                setup.reasoning
            );
        }
    }
}

/// Whether a text ends within the head of a tag or a message.
fn in_head(before: &str) -> bool {
    const HEADS: [(&str, &str); 19] = [
        ("<|call|>", "<|message|>"),
        ("<|end|>", "<|message|>"),
        ("<|eom|>", "<|message|>"),
        ("<invoke", ">"),
        ("<parameter", ">"),
        ("<function", ">"),
        ("<param", ">"),
        ("<｜DSML｜invoke", ">"),
        ("<｜DSML｜parameter", ">"),
        ("<｜DSML｜ invoke", ">"),
        ("<｜DSML｜ parameter", ">"),
        ("<steptml:", ">"),
        ("<atem:", ">"),
        ("<ifm|arg_type>", "</ifm|arg_type>"),
        ("<|open|>", "<|sep|>"),
        ("<|channel|>", "<|message|>"),
        ("<|start|>", "<|message|>"),
        ("<|message_model|>", "<|content_"),
        (" to=", "<|message|>"),
    ];
    HEADS.iter().any(|(open, close)| before.rfind(open).is_some_and(|at| !before[at..].contains(close)))
}

#[test]
fn what_waits_is_bounded() {
    for (name, opener) in [
        ("hermes", "<tool_call>{\"arguments\": \""),
        ("hermes", "<tool_call>{\"x\": \""),
        ("glm45", "<tool_call>"),
        ("qwen3_coder", "<function=get_weather><parameter=days>"),
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>"),
        ("lfm2", "<|tool_call_start|>f(a='"),
        ("gemma4", "<|tool_call>"),
        ("minimax_m3", "]<]minimax[>[<tool_call>"),
    ] {
        let mut parser = Parser::new(setup(name, ""));
        let mut message = Message::default();
        message.extend(parser.push(opener));
        let chunk = "x".repeat(4096);
        for _ in 0..300 {
            message.extend(parser.push(&chunk));
        }
        let seen = message.content.len() + message.calls.iter().map(|call| call.arguments.len()).sum::<usize>();
        assert!(seen > 100 * 4096, "{name} holds {} bytes back", 300 * 4096 - seen);
    }
}

/// Random texts of the fuzz target, from a fixed seed.
#[test]
fn twenty_thousand_hostile_texts() {
    let offered = offered();
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes = Vec::new();
    for _ in 0..20_000 {
        bytes.clear();
        let length = 3 + random() as usize % 40;
        bytes.extend((0..length).map(|_| random() as u8));
        play::play(&bytes, &offered);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn spliced_examples_say_the_same(rows_at in any::<[u16; 4]>(), cut in 0_usize..64) {
        let rows = rows();
        let [one, other, from, to] = rows_at.map(usize::from);
        let ((setup, text), (_, second)) = (&rows[one % rows.len()], &rows[other % rows.len()]);
        let front: String = text.chars().take(from % 400).collect();
        let back: String = second.chars().skip(to % 400).collect();
        play::same_when_cut(&format!("{front}{back}"), setup, cut);
    }

    #[test]
    fn any_text_says_the_same(row in 0_usize..1000, pieces in vec(PIECE, 0..40), cut in 0_usize..64) {
        let rows = rows();
        play::same_when_cut(&pieces.concat(), &rows[row % rows.len()].0, cut);
    }
}
