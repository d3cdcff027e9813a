//! SentencePiece models, from `tokenizer.model` and from GGUF files, give the ids and texts that the sentencepiece
//! library gives.
//!
//! Each JSON file of `sentencepiece/` holds a small model in both formats, and what the library says of awkward texts.

use std::{fs, path::Path};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;
use tokenizer::{Context, DecodeOptions, IncrementalDecoder, Tokenizer};

/// A model with its recorded encodings.
struct Recorded {
    json: Value,
}

impl Recorded {
    fn read(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sentencepiece").join(format!("{name}.json"));
        Self { json: serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON") }
    }

    /// Loads the model that is stored under `key` from a file of the name that its format has.
    fn load(&self, key: &str, file: &str) -> Tokenizer {
        self.load_as(key, file, "{}")
    }

    /// The same beside this `tokenizer_config.json`.
    fn load_as(&self, key: &str, file: &str, config: &str) -> Tokenizer {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("tokenizer_config.json"), config).expect("written");
        let bytes = STANDARD.decode(self.json[key].as_str().expect("a file")).expect("base64");
        fs::write(dir.path().join(file), bytes).expect("written");
        Tokenizer::load(dir.path()).unwrap_or_else(|error| panic!("{error}"))
    }
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let options = DecodeOptions { skip_special_tokens: false, ..DecodeOptions::default() };
    let mut decoder = IncrementalDecoder::new(tokenizer, options, Context::default()).expect("a decoder");
    let mut text = String::new();
    ids.iter().for_each(|id| decoder.push(tokenizer, *id, &mut text).expect("a token"));
    decoder.finish(&mut text);
    text
}

fn check(name: &str, key: &str, file: &str) {
    let recorded = Recorded::read(name);
    let tokenizer = recorded.load(key, file);
    let unknown = recorded.json["unk_id"].as_u64().expect("an id") as u32;
    let mut wrong = Vec::new();
    for case in recorded.json["encode"].as_array().expect("cases") {
        let text = case["text"].as_str().expect("a text");
        let ids: Vec<u32> =
            case["ids"].as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect();
        let found = tokenizer.encode(text, false).expect("ids");
        if found != ids {
            wrong.push(format!("{text:?}: {found:?}, not {ids:?}"));
        }
        let said = streamed(&tokenizer, &ids);
        // The unknown token is shown by its name, as transformers does, and not as a sign of its own.
        if !ids.contains(&unknown) && said != case["decoded"].as_str().expect("a text") {
            wrong.push(format!("{text:?}: {said:?}, not {}", case["decoded"]));
        }
    }
    assert!(wrong.is_empty(), "{name}, {file}:\n{}", wrong.join("\n"));
}

/// Classes whose repositories hold a slow tokenizer and nothing else: SentencePiece, with the token that begins a text
/// unless their files say otherwise.
#[test]
fn slow_tokenizers_begin_texts() {
    for (name, class) in [("bpe-plain", "BaichuanTokenizer"), ("bpe-prefix", "InternLMTokenizer")] {
        let recorded = Recorded::read(name);
        let begin = recorded.json["bos_id"].as_u64().expect("an id") as u32;
        for (config, expected) in [("", Some(begin)), (r#", "add_bos_token": false"#, None)] {
            let config =
                format!(r#"{{"tokenizer_class": "{class}", "bos_token": "<s>", "eos_token": "</s>"{config}}}"#);
            let tokenizer = recorded.load_as("model", "tokenizer.model", &config);
            let (plain, ids) = (tokenizer.encode("The model", false), tokenizer.encode("The model", true));
            let (plain, ids) = (plain.expect("ids"), ids.expect("ids"));
            assert_eq!(ids, [expected.into_iter().collect(), plain].concat(), "{class}");
            assert_eq!(tokenizer.special_tokens().get("eos_token"), Some("</s>"), "{class}");
        }
    }
}

/// Where the space before a text goes is said by the class and its configuration.
#[test]
fn spaces_before_texts_are_those_of_the_class() {
    let (model, recorded) = (Recorded::read("bpe-prefix"), Recorded::read("prefixes").json);
    let mut wrong = Vec::new();
    for case in recorded["cases"].as_array().expect("cases") {
        let config = &case["config"];
        let tokenizer = model.load_as("model", "tokenizer.model", &config.to_string());
        for (at, text) in recorded["texts"].as_array().expect("texts").iter().enumerate() {
            let found = tokenizer.encode(text.as_str().expect("a text"), false).expect("ids");
            let said = streamed(&tokenizer, &found);
            if Value::from(found.clone()) != case["ids"][at] || case["decoded"][at] != said {
                let (ids, decoded) = (&case["ids"][at], &case["decoded"][at]);
                wrong.push(format!("{text} under {config}: {found:?} {said:?}, not {ids} {decoded}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Tests of one model in both formats.
macro_rules! models {
    ($($test:ident: $name:expr;)*) => {$(
        mod $test {
            #[test]
            fn model() {
                super::check($name, "model", "tokenizer.model");
            }

            #[test]
            fn gguf() {
                super::check($name, "gguf", "model.gguf");
            }
        }
    )*};
}

models! {
    bpe_plain: "bpe-plain";
    bpe_prefix: "bpe-prefix";
    unigram_bytes: "unigram-bytes";
    unigram_rules: "unigram-rules";
}
