//! Tokenizers in other files than `tokenizer.json` give the ids and texts that are recorded for it.

mod folders;

use std::{
    fs,
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};
use tokenizer::{Context, DecodeOptions, IncrementalDecoder, Tokenizer};

/// A folder with some files of another one.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn copy(self, from: &Path, names: &[&str]) -> Self {
        for name in names {
            fs::copy(from.join(name), self.0.path().join(name)).expect("copied");
        }
        self
    }

    fn write(self, name: &str, text: impl AsRef<[u8]>) -> Self {
        fs::write(self.0.path().join(name), text).expect("written");
        self
    }

    fn load(&self) -> Tokenizer {
        Tokenizer::load(self.0.path()).unwrap_or_else(|error| panic!("{error}"))
    }

    fn refused(&self, words: &[&str]) {
        let message = Tokenizer::load(self.0.path()).err().expect("must be refused").to_string();
        assert!(words.iter().all(|word| message.contains(word)), "{message} lacks one of {words:?}");
    }
}

fn tokenizer(name: &str) -> PathBuf {
    folders::tokenizers().into_iter().find(|(found, _)| found == name).expect("a tokenizer").1
}

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON")
}

/// `tokenizer_config.json` of a folder with another class.
fn config(dir: &Path, class: &str) -> String {
    let mut config = json_of(&dir.join("tokenizer_config.json"));
    config["tokenizer_class"] = class.into();
    config.to_string()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32], skip_special_tokens: bool) -> String {
    let options = DecodeOptions { skip_special_tokens, ..DecodeOptions::default() };
    let mut decoder = IncrementalDecoder::new(tokenizer, options, Context::default()).expect("a decoder");
    let mut text = String::new();
    ids.iter().for_each(|id| decoder.push(tokenizer, *id, &mut text).expect("a token"));
    decoder.finish(&mut text);
    text
}

/// The recorded text that Qwen's classes compose first, as `tokenizer.json` does not.
const DECOMPOSED: &str = "a\u{301} combining";

/// Ids, texts and special tokens are those of the folder's `tokenizer.json` and `reference.json`.
fn same_as_recorded(tokenizer: &Tokenizer, dir: &Path) {
    same_but_for(tokenizer, dir, "");
}

fn same_but_for(tokenizer: &Tokenizer, dir: &Path, other: &str) {
    let (recorded, original) = (json_of(&dir.join("reference.json")), Tokenizer::load(dir).expect("a tokenizer"));
    assert_eq!(tokenizer.shape(), original.shape());
    assert_eq!(tokenizer.vocab_size(), original.vocab_size());
    for case in recorded["encode"].as_array().expect("cases") {
        let text = case["text"].as_str().expect("a text");
        if text == other && !other.is_empty() {
            continue;
        }
        let (plain, special) = (ids(&case["ids"]), ids(&case["ids_with_special"]));
        assert_eq!(tokenizer.encode(text, false).expect("ids"), plain, "{text:?}");
        assert_eq!(tokenizer.encode(text, true).expect("ids"), special, "{text:?}");
        assert_eq!(streamed(tokenizer, &plain, false), case["decoded"].as_str().expect("a text"), "{text:?}");
        assert_eq!(streamed(tokenizer, &special, true), case["decoded_skip_special"].as_str().expect("a text"));
    }
    for case in recorded["chat"].as_array().into_iter().flatten() {
        let text = case["text"].as_str().expect("a text");
        assert_eq!(tokenizer.encode(text, false).expect("ids"), ids(&case["ids"]), "{text:?}");
    }
    for id in 0..tokenizer.vocab_size() {
        assert_eq!(tokenizer.id_to_token(id), original.id_to_token(id), "{id}");
        assert_eq!(tokenizer.is_special(id), original.is_special(id), "{id}");
    }
}

#[test]
fn sentencepiece() {
    let dir = tokenizer("spbpe");
    let all = Folder::new().copy(&dir, &["tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"]);
    same_as_recorded(&all.load(), &dir);
    // Alone it says as much.
    let alone = Folder::new().copy(&dir, &["tokenizer.model"]).load();
    same_as_recorded(&alone, &dir);
    assert_eq!(alone.special_tokens().get("eos_token"), Some("</s>"));
}

#[test]
fn tokens_of_other_files_get_their_ids() {
    let dir = tokenizer("spbpe");
    let added = json!({"510": {"content": "<|im_start|>", "special": true}, "514": {"content": "<tool>"}});
    let config =
        json!({"tokenizer_class": "InternLM2Tokenizer", "added_tokens_decoder": added, "add_bos_token": false});
    let folder = Folder::new().copy(&dir, &["tokenizer.model"]).write("tokenizer_config.json", config.to_string());
    let tokenizer = folder.load();
    let found = tokenizer.encode("<|im_start|><tool>", true).expect("ids");
    assert_eq!(found, [510, 514]);
    assert!(tokenizer.is_special(510) && !tokenizer.is_special(514));
    let folder = folder.write("tokenizer_config.json", "{}").write("added_tokens.json", r#"{"<tool>": 512}"#);
    assert_eq!(folder.load().encode("<tool>", false).expect("ids"), [512]);
    folder.write("added_tokens.json", r#"{"<tool>": 4000000000}"#).refused(&["<tool>", "4000000000"]);
}

#[test]
fn vocab_and_merges() {
    let dir = tokenizer("bpe");
    let files = ["vocab.json", "merges.txt", "special_tokens_map.json"];
    let folder = Folder::new().copy(&dir, &files).write("tokenizer_config.json", config(&dir, "Qwen2Tokenizer"));
    same_but_for(&folder.load(), &dir, DECOMPOSED);
    let composed = folder.load().encode("\u{e1} combining", false).expect("ids");
    assert_eq!(folder.load().encode(DECOMPOSED, false).expect("ids"), composed);
    folder
        .write("tokenizer_config.json", config(&dir, "StrangeTokenizer"))
        .refused(&["StrangeTokenizer", "--tokenizer"]);
}

/// A rank file of a byte-level vocabulary.
fn ranks(dir: &Path) -> String {
    let original = Tokenizer::load(dir).expect("a tokenizer");
    let vocab: Map<String, Value> =
        serde_json::from_slice(&fs::read(dir.join("vocab.json")).expect("a file")).expect("JSON");
    let mut ids: Vec<u64> = vocab.values().filter_map(Value::as_u64).collect();
    ids.sort_unstable();
    ids.iter().map(|id| format!("{} {id}\n", STANDARD.encode(original.token_bytes(*id as u32)))).collect()
}

#[test]
fn tiktoken() {
    let dir = tokenizer("bpe");
    for name in ["qwen.tiktoken", "tokenizer.model", "tiktoken.model"] {
        let folder =
            Folder::new().write(name, ranks(&dir)).write("tokenizer_config.json", config(&dir, "QWenTokenizer"));
        let tokenizer = folder.load();
        // The class has its own special tokens behind the ranks; those that the folder lists have taken the first
        // places.
        assert_eq!(tokenizer.token_to_id("<|extra_204|>"), Some(504 + 207));
        let recorded = json_of(&dir.join("reference.json"));
        for case in recorded["encode"].as_array().expect("cases") {
            let text = case["text"].as_str().expect("a text");
            if text == DECOMPOSED {
                continue;
            }
            assert_eq!(tokenizer.encode(text, true).expect("ids"), ids(&case["ids_with_special"]), "{name}: {text:?}");
            assert_eq!(streamed(&tokenizer, &ids(&case["ids"]), false), case["decoded"].as_str().expect("a text"));
        }
    }
    let llama = Folder::new().write("tokenizer.model", ranks(&dir)).load();
    assert_eq!((llama.token_to_id("<|begin_of_text|>"), llama.token_to_id("<|eot_id|>")), (Some(504), Some(513)));
    assert_eq!(llama.vocab_size(), 504 + 256);
    assert_eq!(llama.encode("a<|eot_id|>", true).expect("ids")[0], 504);
    let broken = ranks(&dir).replacen(" 300\n", " x\n", 1);
    Folder::new().write("qwen.tiktoken", broken).refused(&["qwen.tiktoken", "line 301"]);
    Folder::new().write("qwen.tiktoken", "YQ== 4000000000\n").refused(&["qwen.tiktoken", "ranks"]);
}

#[test]
fn gguf() {
    let Some(zoo) = tokenizer("bpe").ancestors().nth(2).map(Path::to_owned) else { return };
    for name in ["llama-gguf-f16", "llama-gguf-q4_k"] {
        let file = zoo.join(name).join("model.gguf");
        if file.is_file() {
            let tokenizer = Tokenizer::load(&file).expect("a tokenizer");
            same_as_recorded(&tokenizer, &self::tokenizer("bpe"));
            assert_eq!(tokenizer.special_tokens().get("eos_token"), Some("<|endoftext|>"));
        }
    }
}

#[test]
fn missing_and_broken_files_are_named() {
    Folder::new().refused(&["tokenizer.json", "tokenizer.model", "*.tiktoken", "vocab.json", ".gguf", "--tokenizer"]);
    const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
    Folder::new().write("tokenizer.json", POINTER).refused(&["tokenizer.json", "git lfs pull"]);
    Folder::new().write("tokenizer.model", POINTER).refused(&["tokenizer.model", "git lfs pull"]);
    Folder::new().write("tokenizer.model", "").refused(&["tokenizer.model", "no pieces"]);
    Folder::new().write("tokenizer.model", "garbage").refused(&["tokenizer.model", "no SentencePiece model"]);
}

/// Cut anywhere and with bytes changed: a tokenizer that encodes, or an error; never a panic.
#[test]
fn damage_never_panics() {
    let dir = tokenizer("spbpe");
    let good = fs::read(dir.join("tokenizer.model")).expect("a file");
    let attempt = |bytes: &[u8]| {
        let folder = Folder::new().write("tokenizer.model", bytes);
        if let Ok(tokenizer) = Tokenizer::load(folder.0.path()) {
            let _ = tokenizer.encode("The model ät 12  <s>", true);
            let _ = tokenizer.decode(&[0, 5, 300, 511], false);
        }
    };
    (0..good.len()).step_by(97).for_each(|end| attempt(&good[..end]));
    for (round, at) in (0..good.len()).step_by(53).enumerate() {
        let mut bytes = good.clone();
        bytes[at] ^= [1, 0x10, 0x80, 0xff][round % 4];
        attempt(&bytes);
    }
}

/// Each family's prompt, by the tokens that it is known by.
#[test]
fn prompts_for_the_middle() {
    let dir = tokenizer("bpe");
    let plain = Tokenizer::load(&dir).expect("a tokenizer");
    assert_eq!(plain.fill_in_the_middle("a", "b", true).expect("texts"), None);
    let part = |text: &str| plain.encode(text, false).expect("ids");
    let (prefix, suffix) = (part("def f(x):"), part("return y"));
    for (tokens, suffix_first) in [
        (["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"], false),
        (["<fim_prefix>", "<fim_suffix>", "<fim_middle>"], false),
        (["<fim-prefix>", "<fim-suffix>", "<fim-middle>"], false),
        (["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"], false),
        (["▁<PRE>", "▁<SUF>", "▁<MID>"], false),
        (["[PREFIX]", "[SUFFIX]", ""], true),
    ] {
        let mut json = json_of(&dir.join("tokenizer.json"));
        let first = plain.vocab_size();
        let added = json["added_tokens"].as_array_mut().expect("a list");
        for (id, content) in (first..).zip(tokens).filter(|(_, content)| !content.is_empty()) {
            let token = json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
                               "rstrip": false, "normalized": false});
            added.push(token);
        }
        let folder = Folder::new().copy(&dir, &["tokenizer_config.json"]).write("tokenizer.json", json.to_string());
        let ids = folder.load().fill_in_the_middle("def f(x):", "return y", false).expect("texts").expect("a prompt");
        let expected = match suffix_first {
            true => [&[first + 1], &suffix[..], &[first], &prefix].concat(),
            false => [&[first], &prefix[..], &[first + 1], &suffix, &[first + 2]].concat(),
        };
        assert_eq!(ids, expected, "{tokens:?}");
        let begun = folder.load().fill_in_the_middle("def f(x):", "return y", true).expect("texts").expect("a prompt");
        let beginning =
            folder.load().encode("x", true).expect("ids").len() - folder.load().encode("x", false).expect("ids").len();
        assert!(begun.ends_with(&expected) && begun.len() <= expected.len() + beginning);
    }
}
