//! Ids and texts equal those recorded with the reference library.

mod folders;

use std::{fs, path::Path};

use serde_json::Value;
use tokenizer::{Context, DecodeOptions, DecoderShape, IncrementalDecoder, ModelKind, Tokenizer};

fn load(dir: &Path) -> Tokenizer {
    Tokenizer::load(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32], options: DecodeOptions) -> String {
    let mut decoder = IncrementalDecoder::new(tokenizer, options, Context::default()).expect("a decoder");
    let mut text = String::new();
    for &id in ids {
        decoder.push(tokenizer, id, &mut text).expect("a token");
    }
    decoder.finish(&mut text);
    text
}

#[test]
fn recorded_encodings_and_decodings() {
    for (name, dir) in folders::tokenizers() {
        let Ok(text) = fs::read_to_string(dir.join("reference.json")) else { continue };
        let reference: Value = serde_json::from_str(&text).expect("reference.json");
        let tokenizer = load(&dir);
        assert_eq!(u64::from(tokenizer.vocab_size()), reference["vocab_size"].as_u64().expect("a size"), "{name}");
        for case in reference["encode"].as_array().expect("cases") {
            let text = case["text"].as_str().expect("a text");
            let plain = ids(&case["ids"]);
            let special = ids(&case["ids_with_special"]);
            assert_eq!(tokenizer.encode(text, false).expect("ids"), plain, "{name}: {text:?}");
            assert_eq!(tokenizer.encode(text, true).expect("ids"), special, "{name}: {text:?}");
            let keep = DecodeOptions { skip_special_tokens: false, ..DecodeOptions::default() };
            let decoded = case["decoded"].as_str().expect("a text");
            let skipped = case["decoded_skip_special"].as_str().expect("a text");
            assert_eq!(tokenizer.decode(&plain, false).expect("text"), decoded, "{name}: {text:?}");
            assert_eq!(streamed(&tokenizer, &plain, keep), decoded, "{name}: {text:?}");
            assert_eq!(streamed(&tokenizer, &special, DecodeOptions::default()), skipped, "{name}: {text:?}");
        }
        for case in reference["chat"].as_array().into_iter().flatten() {
            let text = case["text"].as_str().expect("a text");
            assert_eq!(tokenizer.encode(text, false).expect("ids"), ids(&case["ids"]), "{name}: {text:?}");
        }
    }
}

#[test]
fn kinds_and_special_tokens() {
    for (name, dir) in folders::tokenizers() {
        let tokenizer = load(&dir);
        let (kind, pieces, eos) = match name.as_str() {
            "bpe" => (ModelKind::Bpe, false, Some("<|endoftext|>")),
            "default" => (ModelKind::Bpe, false, Some("<|im_end|>")),
            "spbpe" => (ModelKind::Bpe, false, Some("</s>")),
            "unigram" => (ModelKind::Unigram, true, Some("</s>")),
            _ => (ModelKind::WordPiece, true, None),
        };
        assert_eq!(tokenizer.kind(), kind, "{name}");
        assert_eq!(*tokenizer.shape() == DecoderShape::Pieces, pieces, "{name}");
        assert_eq!(tokenizer.special_tokens().get("eos_token"), eos, "{name}");
        if let Some(eos) = eos {
            let id = tokenizer.token_to_id(eos).expect("an id");
            assert!(tokenizer.is_special(id), "{name}");
            assert_eq!(tokenizer.token_text(id).trim(), eos, "{name}");
        }
        assert!(!tokenizer.is_special(u32::MAX), "{name}");
        assert_eq!(tokenizer.token_text(u32::MAX), "", "{name}");
    }
}

#[test]
fn partial_characters_show_their_bytes() {
    for (name, dir) in folders::tokenizers().into_iter().filter(|(name, _)| name != "unigram" && name != "wordpiece") {
        let tokenizer = load(&dir);
        let emoji = "\u{1F9EA}";
        let ids = tokenizer.encode(emoji, false).expect("ids");
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.token_bytes(id)).copied().collect();
        let bytes = bytes.strip_prefix(b" ").unwrap_or(&bytes);
        assert_eq!(bytes, emoji.as_bytes(), "{name}");
        let last = *ids.last().expect("a token");
        assert!(tokenizer.token_text(last).contains('\u{FFFD}'), "{name}");
    }
}

/// The text behind a prompt keeps its leading space; at the very start it loses it.
#[test]
fn context_decides_the_leading_space() {
    for (name, dir) in folders::tokenizers() {
        let tokenizer = load(&dir);
        let prompt = tokenizer.encode("What is", false).expect("ids");
        let all = tokenizer.encode("What is the model", false).expect("ids");
        if !all.starts_with(&prompt) {
            continue;
        }
        let tail = &prompt[prompt.len() - 1..];
        let contexts = [
            Context { ids: &prompt, is_tail: false },
            Context { ids: tail, is_tail: true },
            Context { ids: &[], is_tail: true },
        ];
        for context in contexts {
            let mut decoder =
                IncrementalDecoder::new(&tokenizer, DecodeOptions::default(), context).expect("a decoder");
            let mut text = String::new();
            for &id in &all[prompt.len()..] {
                decoder.push(&tokenizer, id, &mut text).expect("a token");
            }
            decoder.finish(&mut text);
            assert_eq!(text, " the model", "{name}: {context:?}");
        }
    }
}

#[test]
fn special_tokens_side_by_side_need_no_space() {
    let Some((_, dir)) = folders::tokenizers().into_iter().find(|(name, _)| name == "wordpiece") else { return };
    let tokenizer = load(&dir);
    let ids = tokenizer.encode("what [MASK][MASK] is", false).expect("ids");
    let close = DecodeOptions { skip_special_tokens: false, spaces_between_special_tokens: false };
    let wide = DecodeOptions { skip_special_tokens: false, spaces_between_special_tokens: true };
    assert_eq!(streamed(&tokenizer, &ids, close), "what [MASK][MASK] is");
    assert_eq!(streamed(&tokenizer, &ids, wide), "what [MASK] [MASK] is");
}
