//! What each format's calls and reasoning look like, and what they say.

use std::collections::BTreeSet;

use chat_format::parsers::{Message, ReasoningFormat, ToolFormat, UnknownFormat};
use serde_json::{Value, json};

use crate::{setup, shown};

const ROME: &str = r#"{"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}"#;
const TIME: &str = r#"{"name": "get_time", "arguments": {}}"#;

/// Formats of calls, and an answer in each: text, then two calls.
pub(crate) fn tool_rows() -> Vec<(&'static str, String)> {
    let mut rows = json_rows();
    rows.extend(tag_rows());
    rows.extend(other_rows());
    rows
}

fn json_rows() -> Vec<(&'static str, String)> {
    let two = format!("[{ROME}, {TIME}]");
    let tagged = |tag: &str| format!("I look.\n<{tag}>\n{ROME}\n</{tag}>\n<{tag}>\n{TIME}\n</{tag}>");
    let parameters = two.replace("arguments", "parameters");
    vec![
        ("hermes", tagged("tool_call")),
        ("longcat", tagged("longcat_tool_call")),
        ("jamba", format!("I look.<tool_calls>{two}</tool_calls>")),
        ("apertus", r#"I look.<|tools_prefix|>[{"get_weather": {"city": "Rome", "days": 2}}, {"get_time": {}}]<|tools_suffix|>"#.into()),
        ("phi4_mini_json", format!("I look. functools{two}")),
        ("xlam", format!("I look.\n```json\n{two}\n```")),
        ("internlm", {
            let call = |call: &str| format!("<|action_start|><|plugin|>\n{}<|action_end|>", call.replace("arguments", "parameters"));
            format!("I look.{}{}", call(ROME), call(TIME))
        }),
        ("gigachat3", format!("I look.<|function_call|>{ROME}<|function_call|>{TIME}")),
        ("llama3_json", format!("I look.<|python_tag|>{}; {}", ROME.replace("arguments", "parameters"), TIME)),
        ("granite", format!("I look.<|tool_call|>{two}")),
        ("granite-20b-fc", format!("I look.<function_call> {ROME}<function_call> {TIME}")),
        ("cohere_command3", format!("I look.<|START_ACTION|>{}<|END_ACTION|>", parameters.replace("\"name\"", "\"tool_name\""))),
        ("inkling", {
            let call = |call: &str| format!("<|content_invoke_tool_json|>{}<|end_message|>", call.replace("arguments", "args"));
            format!("I look.{}{}", call(ROME), call(TIME))
        }),
        ("mistral", format!("I look.[TOOL_CALLS]{two}")),
        ("mistral", r#"I look.[TOOL_CALLS]get_weather[ARGS]{"city": "Rome", "days": 2}[TOOL_CALLS]get_time{}"#.into()),
    ]
}

fn tag_rows() -> Vec<(&'static str, String)> {
    let qwen = "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n2\n</parameter>\n\
                </function>\n</tool_call>\n<tool_call>\n<function=get_time>\n</function>\n</tool_call>";
    let glm = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>days</arg_key>\n\
               <arg_value>2</arg_value>\n</tool_call>\n<tool_call>get_time\n</tool_call>";
    let invoke = "<invoke name=\"get_weather\">\n<parameter name=\"city\">Rome</parameter>\n<parameter name=\"days\">2</parameter>\n\
                  </invoke>\n<invoke name=\"get_time\">\n</invoke>\n";
    let dsml = invoke.replace("</", "</｜DSML｜").replace("<in", "<｜DSML｜in").replace("<pa", "<｜DSML｜pa");
    let dsml = dsml.replace("\"city\"", "\"city\" string=\"true\"").replace("\"days\"", "\"days\" string=\"false\"");
    let within = |tag: &str, inside: &str| format!("I look.\n\n<{tag}>\n{inside}</{tag}>");
    let hunyuan = format!("I look.<tool_calls>{glm}</tool_calls>");
    let horizon = hunyuan.replace("</", "</ifm|").replace("<tool", "<ifm|tool").replace("<arg", "<ifm|arg");
    let step = invoke.replace("</", "</steptml:").replace("<in", "<steptml:in").replace("<pa", "<steptml:pa");
    let step = step.replace("<steptml:in", "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:in");
    let step = step.replace("</steptml:invoke>", "</steptml:invoke><｜tool_call_end｜>");
    vec![
        ("qwen3_coder", format!("I look.\n{qwen}")),
        ("mimo", format!("I look.\n{}", qwen.replace(">\nRome\n<", ">Rome<"))),
        ("seed_oss", format!("I look.\n{}", qwen.replace("tool_call>", "seed:tool_call>"))),
        ("glm45", format!("I look.\n{glm}")),
        ("hy_v3", hunyuan.replace("get_weather", "get_weather<tool_sep>").replace("get_time", "get_time<tool_sep>")),
        ("hy_v4", hunyuan.clone()),
        ("k2_horizon", horizon.replace("city</ifm|arg_key>", "city</ifm|arg_key><ifm|arg_type>string</ifm|arg_type>")),
        ("minimax_m2", within("minimax:tool_call", invoke)),
        ("dots", within("dots_function_call", invoke)),
        ("deepseek_v32", within("｜DSML｜function_calls", &dsml)),
        ("deepseek_v4", within("｜DSML｜tool_calls", &dsml)),
        ("deepseek_v41", within("｜DSML｜ calls", &dsml.replace("｜DSML｜", "｜DSML｜ "))),
        ("step3", format!("I look.<｜tool_calls_begin｜>{step}<｜tool_calls_end｜>")),
        ("minicpm5", format!("I look.\n{}", invoke.replace("invoke", "function").replace("parameter", "param").replace("Rome", "<![CDATA[Rome]]>"))),
        ("kimi_k3", "I look.<|open|>tools<|sep|><|open|>call tool=\"get_weather\" index=\"1\"<|sep|><|open|>argument key=\"city\" \
                     type=\"string\"<|sep|>Rome<|close|>argument<|sep|><|open|>argument key=\"days\" type=\"number\"<|sep|>2<|close|>argument<|sep|>\
                     <|close|>call<|sep|><|open|>call tool=\"get_time\" index=\"2\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>".into()),
        ("muse", format!(" to=user<|message|>I look.<|eom|><|start|>assistant to=get_weather<|message|>\n<atem:function_calls>\n{}</atem:function_calls><|eom|>",
                         invoke.replace("</", "</atem:").replace("<in", "<atem:in").replace("<pa", "<atem:pa"))),
        ("minimax_m3", "I look.\n]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"get_weather\">\n]<]minimax[>[<city>Rome]<]minimax[>[</city>\n\
                        ]<]minimax[>[<days>2]<]minimax[>[</days>\n]<]minimax[>[</invoke>\n]<]minimax[>[<invoke name=\"get_time\">\n\
                        ]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>".into()),
    ]
}

fn other_rows() -> Vec<(&'static str, String)> {
    let rome = r#"{"city": "Rome", "days": 2}"#;
    let deepseek = format!(
        "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{rome}<｜tool▁call▁end｜>\
         <｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{{}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    );
    let fenced = deepseek
        .replace("begin｜>get_", "begin｜>function<｜tool▁sep｜>get_")
        .replace("<｜tool▁sep｜>{", "\n```json\n{");
    let python = r#"[get_weather(city="Rome", days=2), get_time()]"#;
    let plamo = |name: &str, arguments: &str| {
        format!(
            "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>{name}<|plamo:end_tool_name:plamo|>\
             <|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{arguments}<|plamo:end_tool_arguments:plamo|>\
             <|plamo:end_tool_request:plamo|>"
        )
    };
    vec![
        ("deepseek_v31", deepseek.clone()),
        ("deepseek_v3", fenced.replace("}<｜tool▁call▁end｜>", "}\n```<｜tool▁call▁end｜>")),
        ("kimi_k2", format!("I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{rome}<|tool_call_end|>\
                             <|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|>{{}}<|tool_call_end|><|tool_calls_section_end|>")),
        ("plamo3", format!("I look.<|plamo:begin_tool_requests:plamo|>{}{}<|plamo:end_tool_requests:plamo|>",
                           plamo("get_weather", rome), plamo("get_time", "{}"))),
        ("llama4_pythonic", format!("I look.<|python_start|>{python}<|python_end|>")),
        ("lfm2", format!("I look.<|tool_call_start|>{python}<|tool_call_end|>")),
        ("olmo3", "I look.\n<function_calls>\nget_weather(city=\"Rome\", days=2)\nget_time()\n</function_calls>".into()),
        ("gemma4", "I look.<|tool_call>call:get_weather{city:<|\"|>Rome<|\"|>,days:2}<tool_call|><|tool_call>call:get_time{}<tool_call|>".into()),
        ("functiongemma", "I look.<start_function_call>call:get_weather{city:<escape>Rome<escape>,days:<escape>2<escape>}<end_function_call>\
                           <start_function_call>call:get_time{}<end_function_call>".into()),
        ("openai", format!("<|channel|>final<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather \
                            <|constrain|>json<|message|>{rome}<|call|><|start|>assistant to=functions.get_time<|channel|>commentary json<|message|>{{}}<|call|>")),
    ]
}

/// Formats of reasoning, and an answer in each: reasoning, then text.
pub(crate) fn reasoning_rows() -> Vec<(&'static str, String)> {
    let between = |open: &str, close: &str| format!("{open}\nI think.\n{close}\n\nHello.");
    vec![
        ("deepseek_r1", between("<think>", "</think>")),
        ("deepseek_r1", between("", "</think>")),
        ("deepseek_v3", between("<think>", "</think>")),
        ("deepseek_v4", between("<think>", "</think>")),
        ("step3p5", between("", "</think>")),
        ("seed_oss", between("<seed:think>", "</seed:think>")),
        ("ernie45", "\nI think.\n</think>\n\n<response>\nHello.</response>\n".into()),
        ("hunyuan_a13b", "<think>\nI think.\n</think>\n<answer>\nHello.\n</answer>".into()),
        ("granite", between("Here is my thought process:", "Here's my response:")),
        ("cohere_command4", "<|START_THINKING|>I think.<|END_THINKING|><|START_TEXT|>Hello.<|END_TEXT|>".into()),
        ("gemma4", "<|channel>thought\nI think.<channel|>Hello.".into()),
        ("minimax_m2", between("", "</think>")),
        ("minimax_m3", between("<mm:think>", "</mm:think>")),
        ("mistral", between("[THINK]", "[/THINK]")),
        ("kimi_k2", between("<think>", "</think>")),
        ("kimi_k3", "<|open|>think<|sep|>I think.<|close|>think<|sep|><|open|>response<|sep|>Hello.<|close|>response<|sep|>".into()),
        ("k2_horizon", between("<ifm|think_fast>", "</ifm|think_fast>")),
        ("plamo3", between("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>")),
        ("inkling", "<|message_model|><|content_thinking|>I think.<|end_message|><|message_model|>x<|content_text|>Hello.<|end_message|>".into()),
        ("openai_gptoss", "<|channel|>analysis<|message|>I think.<|end|><|start|>assistant<|channel|>final<|message|>Hello.<|return|>".into()),
        ("muse", " to=self<|message|>I think.<|eom|><|start|>assistant to=user<|message|>Hello.<|eot|>".into()),
        ("muse_glimmer", " to=self<|message|>I think.<|eom|><|start|>assistant to=user<|message|>Hello.<|eot|>".into()),
    ]
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
    let html = "<function=get_weather><parameter=city>\n<b>a\n</b>\n\"\\\n</parameter><parameter=tags>[\"x\"]</parameter>\
                <parameter=metric>True</parameter><parameter=other>7</parameter></function>";
    let expected = json!({"city": "<b>a\n</b>\n\"\\", "tags": ["x"], "metric": true, "other": "7"});
    check("qwen3_coder", "", html, json!(["", "", [["get_weather", expected]]]));
    let nested = "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<o>]<]minimax[>[<a>1]<]minimax[>[</a>\
                  ]<]minimax[>[<a>2]<]minimax[>[</a>]<]minimax[>[</o>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>";
    check("minimax_m3", "", nested, json!(["", "", [["f", {"o": {"a": ["1", "2"]}}]]]));
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
