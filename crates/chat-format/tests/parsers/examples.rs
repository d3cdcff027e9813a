//! What each format's calls and reasoning look like, and what they say.

use std::collections::BTreeSet;

use chat_format::parsers::{Message, ReasoningFormat, ToolFormat, UnknownFormat};
use serde_json::{Value, json};

use crate::{setup, shown};

const ROME: &str = r#"{"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}"#;
const TIME: &str = r#"{"name": "get_time", "arguments": {}}"#;

/// An answer in each format: of `calls` a text and two calls, of `reasoning` some of it and a text.
const EXAMPLES: &str = include_str!("examples.jsonl");

/// Formats of calls, and an answer in each.
pub(crate) fn tool_rows() -> Vec<(&'static str, String)> {
    rows("calls", ToolFormat::names().collect())
}

/// Formats of reasoning, and an answer in each.
pub(crate) fn reasoning_rows() -> Vec<(&'static str, String)> {
    rows("reasoning", ReasoningFormat::names().collect())
}

fn rows(kind: &str, names: Vec<&'static str>) -> Vec<(&'static str, String)> {
    let rows = EXAMPLES.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let rows = rows.filter_map(|row| Some((row[kind].as_str()?.to_owned(), row["text"].as_str()?.to_owned())));
    let known = |name: &str| *names.iter().find(|known| **known == name).expect("a name of the table");
    rows.map(|(name, text)| (known(&name), text)).collect()
}

#[test]
fn every_format_of_calls_is_read() {
    let expected = json!(["I look.", "", [["get_weather", {"city": "Rome", "days": 2}], ["get_time", {}]]]);
    for (name, text) in tool_rows() {
        assert_eq!(shown(&Message::read(&text, setup(name, ""))), expected, "{name}: {text}");
    }
}

#[test]
fn every_format_of_reasoning_is_read() {
    for (name, text) in reasoning_rows() {
        let message = Message::read(&text, setup("", name));
        assert_eq!((message.content.trim_end(), &*message.reasoning), ("Hello.", "I think."), "{name}: {text}");
    }
    let appended = Message::read("I think.</think>Hello.", setup("", "minimax_m2_append_think"));
    assert_eq!(appended.content, "<think>I think.</think>Hello.");
}

/// Other names of the formats above: each name of the tables is tried, here or there.
#[test]
fn other_names_are_the_same_formats() {
    let alike = [
        ("cohere_command4", "cohere_command3"),
        ("ernie45", "hermes"),
        ("glm47", "glm45"),
        ("granite4", "hermes"),
        ("hunyuan_a13b", "jamba"),
        ("ling3", "glm45"),
        ("llama4_json", "llama3_json"),
        ("minimax", "jamba"),
        ("musespark1x", "muse"),
        ("muse_glimmer", "muse"),
        ("poolside_v1", "glm45"),
        ("qwen3_json", "hermes"),
        ("qwen3_xml", "qwen3_coder"),
        ("step3p5", "qwen3_coder"),
        ("step5", "qwen3_coder"),
    ];
    let rows = tool_rows();
    let mut tried: BTreeSet<&str> = rows.iter().map(|(name, _)| *name).chain(["pythonic"]).collect();
    for (name, same) in alike {
        for (_, text) in rows.iter().filter(|(known, _)| *known == same) {
            let (one, other) = (Message::read(text, setup(name, "")), Message::read(text, setup(same, "")));
            assert_eq!(one, other, "{name} and {same}");
        }
        tried.insert(name);
    }
    assert_eq!(tried, ToolFormat::names().collect());
}

#[test]
fn unknown_names_are_refused() {
    for name in ["hf", "beam"] {
        assert!(matches!(ToolFormat::named(name), Err(UnknownFormat::Refused { .. })), "{name}");
        assert!(matches!(ReasoningFormat::named(name), Err(UnknownFormat::Refused { .. })), "{name}");
    }
    let error = ToolFormat::named("herms").expect_err("unknown").to_string();
    assert!(error.contains("`herms`") && error.contains("hermes"), "{error}");
}

/// Format, text, and what is read of it.
fn check(tools: &str, reasoning: &str, text: &str, expected: Value) {
    assert_eq!(shown(&Message::read(text, setup(tools, reasoning))), expected, "{tools} {reasoning}: {text}");
}

#[test]
fn answers_without_markers_are_calls_only_for_known_tools() {
    let rome = json!([["get_weather", {"city": "Rome", "days": 2}]]);
    check("llama3_json", "", ROME, json!(["", "", rome]));
    check("llama3_json", "", &format!("\n {ROME}\n"), json!(["", "", rome]));
    check("xlam", "", &format!("[{ROME}]"), json!(["", "", rome]));
    check("pythonic", "", "[get_weather(city='Rome', days=2)]", json!(["", "", rome]));
    let time = json!([["get_time", {}]]);
    check("mistral", "", "[TOOL_CALLS]get_time[CALL_ID]a1b2c3d4e[ARGS]{}", json!(["", "", time]));
    for (format, text) in [
        ("llama3_json", r#"{"name": "Paul", "age": 33}"#),
        ("llama3_json", r#"{"name": "Paul", "arguments": {"age": 33}}"#),
        ("llama3_json", r#"{"name": "get_time"}"#),
        ("xlam", r#"[1, 2, 3]"#),
        ("xlam", "```json\n{\"a\": 1}\n``` done"),
        ("pythonic", "[print(x=1)]"),
        ("pythonic", "[1, 2]"),
        ("phi4_mini_json", "import functools"),
    ] {
        check(format, "", text, json!([text, "", []]));
    }
}

#[test]
fn arguments_come_in_many_dresses() {
    let rome = json!([["get_weather", {"city": "Rome"}]]);
    for inside in [
        r#"{"arguments": {"city": "Rome"}, "name": "get_weather"}"#,
        r#"{"name": "get_weather", "arguments": "{\"city\": \"Rome\"}"}"#,
        r#"{"type": "function", "name": "get_weather", "parameters": {"city": "Rome"}, "id": 7}"#,
        r#"[{"name":"get_weather","arguments":{"city":"Rome"}}]"#,
    ] {
        check("hermes", "", &format!("<tool_call>{inside}</tool_call>"), json!(["", "", rome]));
    }
    let time = json!([["get_time", {}]]);
    for inside in [r#"{"name": "get_time"}"#, r#"{"name": "get_time", "arguments": null}"#] {
        check("hermes", "", &format!("<tool_call>{inside}</tool_call>"), json!(["", "", time]));
    }
    let html = "<function=get_weather><parameter=city>\n<b>a\n</b>\n\"\\\n</parameter>\
                <parameter=tags>[\"x\"]</parameter>\
                <parameter=metric>True</parameter><parameter=other>7</parameter></function>";
    let expected = json!({"city": "<b>a\n</b>\n\"\\", "tags": ["x"], "metric": true, "other": "7"});
    check("qwen3_coder", "", html, json!(["", "", [["get_weather", expected]]]));
    let nested =
        "<tool_call><invoke name=\"f\"><o><a>1</a><a>2</a></o></invoke></tool_call>".replace('<', "]<]minimax[>[<");
    check("minimax_m3", "", &nested, json!(["", "", [["f", {"o": {"a": ["1", "2"]}}]]]));
}

#[test]
fn what_is_broken_stays_text() {
    let rome = json!([["get_weather", {"city": "Rome", "days": 2}]]);
    for (format, text) in [
        ("hermes", "<tool_call>no call</tool_call> at all"),
        ("hermes", "<tool_call></tool_call>"),
        ("hermes", "<tool_call>"),
        ("hermes", r#"<tool_call>{"name": "get_weather"#),
        ("hermes", r#"<tool_call>{"name": "get_weather", "args": {"city": "Rome"}}</tool_call>"#),
        ("qwen3_coder", "<tool_call>\n<function=</tool_call>"),
        ("glm45", "<tool_call></tool_call>"),
        ("deepseek_v31", "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>"),
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>what is this"),
        ("gemma4", "<|tool_call>call:get_weather{city<tool_call|>"),
        ("lfm2", "<|tool_call_start|>[get_weather(city=a+b)]<|tool_call_end|>"),
        ("mistral", "[TOOL_CALLS] two words {"),
    ] {
        check(format, "", text, json!([text, "", []]));
    }
    check(
        "hermes",
        "",
        &format!("a <tool_call>{ROME}</tool_call> b"),
        json!(["a", "", rome]).to_owned().with_content("ab"),
    );
    check("hermes", "", &format!("<tool_call>{ROME} junk</tool_call>"), json!(["junk", "", rome]));
    check("granite", "", &format!("<tool_call>[{ROME}] and text"), json!(["and text", "", rome]));
    let cut = r#"<tool_call>{"name": "get_weather", "arguments": {"city": "Ro"#;
    check("hermes", "", cut, json!(["", "", [["get_weather", "{\"city\": \"Ro"]]]));
    let cut = "<function=get_weather><parameter=city>Ro";
    check("qwen3_coder", "", cut, json!(["", "", [["get_weather", {"city": "Ro"}]]]));
}

trait WithContent {
    fn with_content(self, content: &str) -> Value;
}

impl WithContent for Value {
    fn with_content(mut self, content: &str) -> Value {
        self[0] = content.into();
        self
    }
}

#[test]
fn reasoning_begins_where_the_prompt_says() {
    let read = |tail: &str, text: &str| {
        let mut setup = setup("hermes", "qwen3");
        setup.prompt_tail = Some(tail.to_owned());
        let message = Message::read(text, setup);
        (message.reasoning, message.content, message.calls.len())
    };
    let row = |reasoning: &str, content: &str, calls| (reasoning.to_owned(), content.to_owned(), calls);
    assert_eq!(read("<|im_start|>assistant\n<think>\n", "hm</think>\n\nyes"), row("hm", "yes", 0));
    assert_eq!(read("assistant\n<think>\n\n</think>\n\n", "yes <think> no"), row("", "yes <think> no", 0));
    assert_eq!(read("assistant\n", "<think>\nhm\n</think>\nyes"), row("hm", "yes", 0));
    assert_eq!(read("assistant\n", "yes"), row("", "yes", 0));
    let call = format!("hm<tool_call>{TIME}</tool_call>");
    assert_eq!(read("<think>", &call), row("hm", "", 1));
    assert_eq!(read("<think>", "never ends"), row("never ends", "", 0));
}

#[test]
fn harmony_tells_channels_apart() {
    let text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>Wait.<|end|>\
                <|start|>assistant<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>{}";
    check("openai", "openai_gptoss", text, json!(["Wait.", "hm", [["get_time", {}]]]));
    check("", "openai_gptoss", text, json!(["Wait.{}", "hm", []]));
    check("openai", "", "no markers", json!(["no markers", "", []]));
    let long = "word ".repeat(300);
    check("openai", "", &long, json!([long, "", []]));
}

#[test]
fn the_models_own_ids_are_kept() {
    let (_, text) = tool_rows().into_iter().find(|(name, _)| *name == "kimi_k2").expect("a row");
    let ids: Vec<_> = Message::read(&text, setup("kimi_k2", "")).calls.into_iter().map(|call| call.id).collect();
    assert_eq!(ids, [Some("functions.get_weather:0".to_owned()), Some("functions.get_time:1".to_owned())]);
}
