//! For any ids: the streamed pieces together are the text of all ids at once, whatever the context.

mod folders;

use std::{fs, sync::LazyLock};

use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizer::{Context, DecodeOptions, DecoderShape, IncrementalDecoder, Tokenizer};

static TOKENIZERS: LazyLock<Vec<(String, Tokenizer)>> = LazyLock::new(|| {
    let load = |dir: &std::path::Path| Tokenizer::load(dir).expect("a tokenizer");
    let mut all: Vec<_> = folders::tokenizers().into_iter().map(|(name, dir)| (name, load(&dir))).collect();
    all.extend(windowed());
    all
});

/// The byte-level tokenizer with its decoder written so unusually that the window has to decode it.
fn windowed() -> Option<(String, Tokenizer)> {
    let (_, dir) = folders::tokenizers().into_iter().find(|(name, _)| name == "bpe")?;
    let mut json: Value = serde_json::from_slice(&fs::read(dir.join("tokenizer.json")).ok()?).ok()?;
    let byte_level = json["decoder"].clone();
    json["decoder"] = json!({"type": "Sequence", "decoders": [byte_level, {"type": "Fuse"}]});
    let folder = tempfile::tempdir().ok()?;
    fs::write(folder.path().join("tokenizer.json"), json.to_string()).ok()?;
    let tokenizer = Tokenizer::load(folder.path()).expect("a tokenizer");
    assert_eq!(*tokenizer.shape(), DecoderShape::Other);
    Some(("windowed".to_owned(), tokenizer))
}

/// Streams `ids` and checks that each piece can stand in a stream.
fn streamed(tokenizer: &Tokenizer, ids: &[u32], options: DecodeOptions, context: Context<'_>) -> String {
    let mut decoder = IncrementalDecoder::new(tokenizer, options, context).expect("a decoder");
    let mut text = String::new();
    for &id in ids {
        decoder.push(tokenizer, id, &mut text).expect("a token");
    }
    decoder.finish(&mut text);
    text
}

fn check(ids: &[u32], skip_special_tokens: bool, split: usize) {
    for (name, tokenizer) in TOKENIZERS.iter() {
        // Ids over the end name no token and must do no harm.
        let ids: Vec<u32> = ids.iter().map(|id| id % (tokenizer.vocab_size() + 3)).collect();
        let options = DecodeOptions { skip_special_tokens, spaces_between_special_tokens: true };
        let whole = tokenizer.decode(&ids, skip_special_tokens).expect("text");
        let at_once = streamed(tokenizer, &ids, options, Context::default());
        if name == "windowed" {
            // Invalid bytes may be shown as fewer or more marks; whole characters are the same.
            assert_eq!(at_once.replace('\u{FFFD}', ""), whole.replace('\u{FFFD}', ""), "{name} {ids:?}");
            continue;
        }
        assert_eq!(at_once, whole, "{name} {ids:?}");
        let (before, after) = ids.split_at(split.min(ids.len()));
        let context = Context { ids: before, is_tail: false };
        let rest = streamed(tokenizer, after, options, context);
        assert!(whole.ends_with(&rest), "{name} {ids:?} {split}: {rest:?} does not end {whole:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn random_ids(ids in prop::collection::vec(any::<u32>(), 0..60), skip in any::<bool>(), split in 0..60usize) {
        check(&ids, skip, split);
    }

    /// Small ids: in these vocabularies they are the bytes and the special tokens.
    #[test]
    fn random_bytes(ids in prop::collection::vec(0..270u32, 0..60), skip in any::<bool>(), split in 0..60usize) {
        check(&ids, skip, split);
    }

    #[test]
    fn random_text(text in "\\PC{0,80}") {
        for (name, tokenizer) in TOKENIZERS.iter() {
            let ids = tokenizer.encode(&text, true).expect("ids");
            let options = DecodeOptions::default();
            let whole = tokenizer.decode(&ids, true).expect("text");
            let parts = streamed(tokenizer, &ids, options, Context::default());
            prop_assert_eq!(&parts, &whole, "{}", name);
            if matches!(name.as_str(), "bpe" | "default" | "spbpe" | "windowed") {
                prop_assert_eq!(&parts, &text, "{}", name);
            }
        }
    }
}
