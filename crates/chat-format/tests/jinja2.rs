//! Renderings equal Jinja2's byte for byte (`fixtures/make.py` made the expected ones).

use std::fs;

use chat_format::{ChatError, ChatFormat, ChatSettings, ChatText, ContentFormat, Conversation};
use jiff::{Zoned, civil::DateTime, tz::TimeZone};
use serde_json::Value;

fn now(text: &str) -> Zoned {
    let civil: DateTime = text.parse().expect("a date");
    civil.to_zoned(TimeZone::UTC).expect("a moment")
}

#[test]
fn byte_equal_to_jinja2() {
    let text = include_str!("fixtures/rendered.json");
    let fixtures: Value = serde_json::from_str(text).expect("rendered.json");
    let now = now(fixtures["now"].as_str().expect("a moment"));
    let dir = tempfile::tempdir().expect("a folder");
    fs::write(dir.path().join("tokenizer_config.json"), fixtures["tokens"].to_string()).expect("a file");
    for (index, case) in fixtures["cases"].as_array().expect("cases").iter().enumerate() {
        let name = case["template"].as_str().expect("a name");
        let template = fixtures["templates"][name].as_str().expect("a template").to_owned();
        let content_format = (name != "parts").then_some(ContentFormat::String);
        let settings = ChatSettings { template: Some(template), content_format };
        let format = ChatFormat::load(dir.path(), settings).expect("a template");
        let json = |field: &str| case.get(field).map(Value::to_string).unwrap_or_default();
        let (messages, tools, documents, kwargs) = (json("messages"), json("tools"), json("documents"), json("kwargs"));
        let text = ChatText { messages: &messages, tools: &tools, documents: &documents, kwargs: &kwargs };
        let mut conversation = Conversation::parse(text).expect("a conversation");
        conversation.add_generation_prompt = case["add_generation_prompt"] == true;
        match (format.render(&conversation, &now), case["raises"].as_str()) {
            (Err(ChatError::InvalidTemplateUse { message }), Some(expected)) => assert_eq!(message, expected),
            (Ok(rendered), None) => {
                assert_eq!(rendered, case["expected"].as_str().expect("a text"), "case {index}, {name}");
            }
            (result, _) => panic!("case {index}, {name}: {result:?}"),
        }
    }
}
