//! A tokenizer of any size for a model that has none: every id is a word, so that both sides turn tokens into text.

use std::{fs, path::Path};

use anyhow::Context;
use serde_json::{Map, Value, json};

/// Writes `tokenizer.json` and `tokenizer_config.json`: byte-level BPE without merges, as most models have it.
pub fn write(folder: &Path, vocab_size: u32) -> anyhow::Result<()> {
    let vocab: Map<String, Value> = (0..vocab_size).map(|id| (token(id), json!(id))).collect();
    let byte_level = |prefix_space: bool| {
        let kind = "ByteLevel";
        json!({"type": kind, "add_prefix_space": prefix_space, "trim_offsets": true, "use_regex": true})
    };
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": byte_level(false),
        "post_processor": null,
        "decoder": byte_level(true),
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": [],
        },
    });
    let config = json!({"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false});
    for (name, value) in [("tokenizer.json", tokenizer), ("tokenizer_config.json", config)] {
        fs::write(folder.join(name), value.to_string()).with_context(|| name.to_owned())?;
    }
    Ok(())
}

/// The first 256 ids are the bytes, the others words with a blank in front.
fn token(id: u32) -> String {
    if let Ok(byte) = u8::try_from(id) {
        return byte_symbol(byte).to_string();
    }
    let mut word = String::from(byte_symbol(b' '));
    let mut rest = id;
    while rest > 0 {
        word.push(char::from(b'a' + (rest % 26) as u8));
        rest /= 26;
    }
    word
}

/// How byte-level BPE (GPT-2) spells a byte: those that print as themselves, the others as the characters from 256 on,
/// in order.
fn byte_symbol(byte: u8) -> char {
    let prints = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if prints(&byte) {
        return char::from(byte);
    }
    let place = (0..byte).filter(|earlier| !prints(earlier)).count() as u32;
    char::from_u32(256 + place).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn bytes_are_spelt_as_gpt2_does() {
        assert_eq!([b' ', b'\n', b'a', 0xad, 0].map(byte_symbol), ['Ġ', 'Ċ', 'a', 'Ń', 'Ā']);
    }

    #[test]
    fn tokens_differ() {
        let tokens: HashSet<String> = (0..20_000).map(token).collect();
        assert_eq!(tokens.len(), 20_000);
        assert!(tokens.iter().all(|token| !token.is_empty()));
    }
}
