//! The chat renderings recorded for the reference tokenizers, and the model that ships.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use chat_format::{ChatError, ChatFormat, ChatSettings, ChatText, ContentFormat, Conversation};
use jiff::Zoned;
use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// `$QUIRE_ZOO`, else `../shared/zoo` beside the repository, else the copies in `tests/fixtures/zoo`. Says which it
/// was.
fn zoo() -> Option<PathBuf> {
    let places = [
        env::var_os("QUIRE_ZOO").map(PathBuf::from),
        Some(root().join("../shared/zoo")),
        Some(root().join("tests/fixtures/zoo")),
    ];
    let found = places.into_iter().flatten().find(|place| place.join("tokenizer").is_dir())?;
    println!("reference tokenizers: {}", found.display());
    Some(found)
}

fn default_model() -> Option<PathBuf> {
    ["crates/default-model/files/model", "../shared/default-model/model"]
        .into_iter()
        .map(|place| root().join(place))
        .find(|dir| dir.join("chat_template.jinja").is_file())
}

fn moment() -> Zoned {
    "2026-01-02T03:04:05[UTC]".parse().expect("a moment")
}

fn conversation(messages: &Value) -> Conversation {
    let text = messages.to_string();
    Conversation::parse(ChatText { messages: &text, ..ChatText::default() }).expect("messages")
}

#[test]
fn recorded_renderings() {
    let Some(zoo) = zoo() else { return };
    let mut checked = 0;
    for name in ["bpe", "spbpe"] {
        let dir = zoo.join("tokenizer").join(name);
        let Ok(text) = fs::read_to_string(dir.join("reference.json")) else { continue };
        let reference: Value = serde_json::from_str(&text).expect("reference.json");
        let format = ChatFormat::load(&dir, ChatSettings::default()).expect("a template");
        for case in reference["chat"].as_array().expect("cases") {
            let mut conversation = conversation(&case["messages"]);
            conversation.add_generation_prompt = case["add_generation_prompt"] == true;
            let rendered = format.render(&conversation, &moment()).expect("a text");
            assert_eq!(rendered, case["text"].as_str().expect("a text"), "{name}");
            checked += 1;
        }
    }
    assert!(checked > 0, "no renderings found in {}", zoo.display());
}

/// The templates and special tokens inside a GGUF file are those of the tokenizer that it was made from.
#[test]
fn gguf_files_hold_templates() {
    let Some(zoo) = zoo() else { return };
    let (file, dir) = (zoo.join("llama-gguf-q8_0/model.gguf"), zoo.join("tokenizer/bpe"));
    if !file.is_file() {
        return;
    }
    let [inside, beside] =
        [file, dir].map(|model| ChatFormat::load(&model, ChatSettings::default()).expect("a template"));
    let mut one = conversation(&json!([{"role": "user", "content": "x"}]));
    one.add_generation_prompt = true;
    assert_eq!(inside.render(&one, &moment()).expect("a text"), beside.render(&one, &moment()).expect("a text"));
    one.chat_template = Some("{{ bos_token }}{{ eos_token }}".to_owned());
    assert_eq!(inside.render(&one, &moment()).expect("a text"), "<|bos|><|endoftext|>");
}

#[test]
fn the_model_that_ships() {
    let Some(dir) = default_model() else { return };
    let format = ChatFormat::load(&dir, ChatSettings::default()).expect("a template");
    assert!(format.has_template());
    let messages = json!([
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}]},
        {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": "{\"x\":1}"}}]},
    ]);
    let mut conversation = conversation(&messages);
    conversation.tools = Some(vec![json!({"type": "function", "function": {"name": "f"}})]);
    conversation.add_generation_prompt = true;
    let rendered = format.render(&conversation, &moment()).expect("a text");
    let expected = "<|im_start|>system\nBe kind.\n\nYou can call these tools:\n\
        {\"type\": \"function\", \"function\": {\"name\": \"f\"}}\n\
        To call a tool, write:\n<tool_call>\n{\"name\": \"...\", \"arguments\": {...}}\n</tool_call><|im_end|>\n\
        <|im_start|>user\nHi\nthere<|im_end|>\n\
        <|im_start|>assistant\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call><|im_end|>\n\
        <|im_start|>assistant\n";
    assert_eq!(rendered, expected);
}

fn with_config(config: &Value) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).expect("a file");
    dir
}

#[test]
fn templates_are_chosen_by_name() {
    let dir = with_config(&json!({
        "bos_token": {"content": "<s>", "lstrip": false},
        "chat_template": [
            {"name": "default", "template": "plain{{ bos_token }}"}, {"name": "tool_use", "template": "tools"}],
    }));
    let format = ChatFormat::load(dir.path(), ChatSettings::default()).expect("templates");
    let mut one = conversation(&json!([]));
    assert_eq!(format.render(&one, &moment()).expect("a text"), "plain<s>");
    one.tools = Some(Vec::new());
    assert_eq!(format.render(&one, &moment()).expect("a text"), "tools");
    one.chat_template = Some("mine{{ bos_token }}".to_owned());
    assert_eq!(format.render(&one, &moment()).expect("a text"), "mine<s>");
    fs::write(dir.path().join("chat_template.jinja"), "file").expect("a file");
    let format = ChatFormat::load(dir.path(), ChatSettings::default()).expect("templates");
    assert_eq!(format.render(&conversation(&json!([])), &moment()).expect("a text"), "file");
}

#[test]
fn a_final_message_is_continued() {
    let settings = ChatSettings {
        template: Some("{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}".to_owned()),
        content_format: None,
    };
    let dir = with_config(&json!({}));
    let format = ChatFormat::load(dir.path(), settings).expect("a template");
    let mut one = conversation(&json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "Once "}]));
    one.continue_final_message = true;
    assert_eq!(format.render(&one, &moment()).expect("a text"), "<user>x</><assistant>Once");
    one.add_generation_prompt = true;
    let error = format.render(&one, &moment()).expect_err("both at once");
    assert_eq!(error.param(), Some("continue_final_message"));
}

#[test]
fn hostile_templates_end() {
    let dir = with_config(&json!({}));
    let format = ChatFormat::load(dir.path(), ChatSettings::default()).expect("no template");
    assert!(!format.has_template());
    assert!(matches!(format.render(&conversation(&json!([])), &moment()), Err(ChatError::NoTemplate)));
    let mut one = conversation(&json!([]));
    let render = |conversation: &Conversation| format.render(conversation, &moment());
    one.chat_template = Some("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}".to_owned());
    assert!(matches!(render(&one), Err(ChatError::Limit { .. })));
    one.chat_template = Some("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}".to_owned());
    assert!(matches!(render(&one), Err(ChatError::Render { .. })));
    one.chat_template = Some("{% for".to_owned());
    assert!(matches!(render(&one), Err(ChatError::Render { .. })));
    one.chat_template = Some("{{ messages.nothing.deeper }}".to_owned());
    assert!(matches!(render(&one), Err(ChatError::Render { .. })));
}

#[test]
fn the_format_can_be_forced() {
    let dir = with_config(&json!({}));
    let template = "{{ messages[0].content is string }}";
    let one = conversation(&json!([{"role": "user", "content": "x"}]));
    for (content_format, expected) in
        [(None, "True"), (Some(ContentFormat::String), "True"), (Some(ContentFormat::OpenAi), "False")]
    {
        let settings = ChatSettings { template: Some(template.to_owned()), content_format };
        let format = ChatFormat::load(dir.path(), settings).expect("a template");
        assert_eq!(format.render(&one, &moment()).expect("a text"), expected);
    }
}
