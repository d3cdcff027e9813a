//! Harmony, the format of gpt-oss, through HTTP. The echo model says whatever a conversation's last message holds, with
//! a tokenizer that has Harmony's special tokens; so each answer is known, and read whole and in pieces of any size. A
//! tiny gpt-oss of the zoo, with its special tokens named as Harmony's, says what is demanded of it.

use std::{fs, path::Path};

use anyhow::{Context, ensure};
use e2e_tests::{Client, Server, zoo};
use serde_json::{Value, json};
use tempfile::TempDir;

const CHAT: &str = "/v1/chat/completions";
/// Special tokens; the first two end answers.
const SPECIAL: [&str; 8] =
    ["<|return|>", "<|call|>", "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>", "<|endoftext|>"];
/// A template that shows its format in a comment.
const ECHOED: &str = "{#- <|channel|>analysis, functions. -#}{{ messages[-1].content }}<|start|>assistant";
const TURNS: &str = "{#- <|channel|>analysis, functions. -#}{% for message in messages %}<|start|>{{ message.role }}\
                     <|message|>{{ message.content }}<|end|>{% endfor %}<|start|>assistant";

/// An answer and what it says.
struct Case {
    says: &'static str,
    reasoning: &'static str,
    content: &'static str,
    /// Names and arguments.
    calls: &'static [(&'static str, &'static str)],
    finish: &'static str,
    /// Tokens of the reasoning with its header, where they can be told: a token is a byte or a marker.
    counted: Option<u64>,
}

const CASES: [Case; 7] = [
    Case {
        says: "<|channel|>analysis<|message|>I think.<|end|><|start|>assistant<|channel|>final<|message|>Salü.\
               <|return|>",
        reasoning: "I think.",
        content: "Salü.",
        calls: &[],
        finish: "stop",
        counted: Some(18),
    },
    Case {
        says: "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>commentary \
               to=functions.get_weather <|constrain|>json<|message|>{\"city\":\"Rome\",\"days\":2}<|call|>",
        reasoning: "Look.",
        content: "",
        calls: &[("get_weather", r#"{"city":"Rome","days":2}"#)],
        finish: "tool_calls",
        counted: Some(15),
    },
    // A preamble for the user is content.
    Case {
        says: "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary \
               to=functions.get_time<|message|>{}<|call|>",
        reasoning: "",
        content: "I look.",
        calls: &[("get_time", "{}")],
        finish: "tool_calls",
        counted: Some(0),
    },
    // The recipient stands beside the role.
    Case {
        says: "<|channel|>analysis<|message|>x<|end|><|start|>assistant to=functions.get_time<|channel|>commentary\
               <|message|>{}<|call|>",
        reasoning: "x",
        content: "",
        calls: &[("get_time", "{}")],
        finish: "tool_calls",
        counted: Some(11),
    },
    Case {
        says: "<|channel|>commentary to=functions.get_weather<|message|>{\"city\":\"Rome\"}<|end|><|start|>assistant\
               <|channel|>commentary to=functions.get_time<|message|>{}<|call|>",
        reasoning: "",
        content: "",
        calls: &[("get_weather", r#"{"city":"Rome"}"#), ("get_time", "{}")],
        finish: "tool_calls",
        counted: Some(0),
    },
    // Without any header it is content.
    Case {
        says: "Hi there<|return|>",
        reasoning: "",
        content: "Hi there",
        calls: &[],
        finish: "stop",
        counted: Some(0),
    },
    // How many tokens of a later message are reasoning is not told.
    Case {
        says: "<|channel|>commentary<|message|>Now.<|end|><|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>\
               <|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
        reasoning: "Hm.",
        content: "Now.Yes.",
        calls: &[],
        finish: "stop",
        counted: None,
    },
];

/// What an answer came to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Said {
    reasoning: String,
    content: String,
    calls: Vec<(String, String)>,
    finish: String,
}

#[tokio::test]
async fn channels_are_told_apart_whole_and_in_pieces() -> anyhow::Result<()> {
    let folder = echo()?;
    let server = Server::start(&[&folder.path().to_string_lossy(), "--load-format", "dummy"]).await?;
    let client = server.client();
    for case in CASES {
        let calls = case.calls.iter().map(|(name, arguments)| ((*name).to_owned(), (*arguments).to_owned())).collect();
        let expected = Said {
            reasoning: case.reasoning.to_owned(),
            content: case.content.to_owned(),
            calls,
            finish: case.finish.to_owned(),
        };
        let (status, answer) = client.post(CHAT, &ask(case.says, json!({}))).await?;
        ensure!(status == 200 && whole(&answer) == expected, "{status} {answer} of {}", case.says);
        let counted = answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64();
        ensure!(counted == case.counted, "{answer} of {}", case.says);
        for interval in [1, 2, 3, 5, 7, 64] {
            let said = streamed(&client, &ask(case.says, json!({"stream": true, "stream_interval": interval}))).await?;
            ensure!(said == expected, "{said:?} every {interval} tokens of {}", case.says);
        }
        responses_say_the_same(&client, &case).await?;
        messages_say_the_same(&client, &case).await?;
    }
    wherever_it_is_cut_off(&client).await?;
    a_budget_ends_the_message(&client).await?;
    crate::metrics::settles_at(&client, "quire:kv_blocks_used", 0.0).await
}

/// An answer that is cut off anywhere is the beginning of the whole one: no header is taken for text.
async fn wherever_it_is_cut_off(client: &Client) -> anyhow::Result<()> {
    for most in 1..=60 {
        let extra = json!({"max_tokens": most});
        let (status, answer) = client.post(CHAT, &ask(CASES[0].says, extra.clone())).await?;
        let said = whole(&answer);
        // A cut within a character shows it as replaced.
        let is_begun = |whole: &str, part: &str| whole.starts_with(part.trim_end_matches('\u{FFFD}'));
        let fits = is_begun(CASES[0].reasoning, &said.reasoning) && is_begun(CASES[0].content, &said.content);
        ensure!(status == 200 && fits && said.calls.is_empty(), "{said:?} after {most} tokens");
        let mut stream = ask(CASES[0].says, extra);
        stream["stream"] = true.into();
        ensure!(streamed(client, &stream).await? == said, "{said:?} after {most} tokens");
    }
    Ok(())
}

/// Reasoning over its budget: the message is ended, and the final one begun, in the place of tokens.
async fn a_budget_ends_the_message(client: &Client) -> anyhow::Result<()> {
    let says = format!("<|channel|>analysis<|message|>{}<|return|>", "a".repeat(60));
    // The header has 10 tokens, and `<|end|><|start|>assistant<|channel|>final<|message|>` 18.
    let (status, answer) = client.post(CHAT, &ask(&says, json!({"thinking_token_budget": 20, "tools": []}))).await?;
    let said = whole(&answer);
    ensure!(status == 200 && said.reasoning == "a".repeat(10), "{status} {answer}");
    ensure!(said.content == "a".repeat(32) && said.finish == "stop", "{answer}");
    Ok(())
}

async fn responses_say_the_same(client: &Client, case: &Case) -> anyhow::Result<()> {
    let flat: Vec<Value> = tools()
        .as_array()
        .into_iter()
        .flatten()
        .map(|tool| {
            let mut flat = tool["function"].clone();
            flat["type"] = "function".into();
            flat
        })
        .collect();
    let body = json!({"input": case.says, "tools": flat, "max_output_tokens": 400});
    let (status, answer) = client.post("/v1/responses", &body).await?;
    let mut said = (String::new(), String::new(), Vec::new());
    for item in answer["output"].as_array().context("output")? {
        match item["type"].as_str() {
            Some("reasoning") => said.0 += text(&item["content"][0]["text"]),
            Some("message") => said.1 += text(&item["content"][0]["text"]),
            _ => said.2.push((text(&item["name"]), text(&item["arguments"]))),
        }
    }
    ensure!(status == 200 && said == (case.reasoning.into(), case.content.into(), case.calls.to_vec()), "{answer}");
    Ok(())
}

async fn messages_say_the_same(client: &Client, case: &Case) -> anyhow::Result<()> {
    let tools = json!([{"name": "get_weather", "input_schema": {"type": "object"}},
        {"name": "get_time", "input_schema": {"type": "object"}}]);
    let messages = json!([{"role": "user", "content": case.says}]);
    let body = json!({"model": null, "messages": messages, "tools": tools, "max_tokens": 400});
    let (status, answer) = client.post("/v1/messages", &body).await?;
    let blocks = answer["content"].as_array().context("content")?;
    let of = |kind: &str, member: &str| {
        blocks.iter().filter(|block| block["type"] == kind).map(|block| text(&block[member])).collect::<String>()
    };
    let names: Vec<&str> = case.calls.iter().map(|(name, _)| *name).collect();
    ensure!(status == 200 && of("thinking", "thinking") == case.reasoning, "{answer}");
    ensure!(of("text", "text") == case.content && of("tool_use", "name") == names.concat(), "{answer}");
    Ok(())
}

#[tokio::test]
async fn gpt_oss_says_what_is_demanded() -> anyhow::Result<()> {
    let original = zoo::path("gpt-oss");
    if !original.join("model.safetensors").is_file() {
        println!("not checked: the zoo has no gpt-oss here");
        return Ok(());
    }
    let folder = renamed(&original)?;
    let server = Server::start(&[&folder.path().to_string_lossy(), "--dtype", "float32"]).await?;
    let client = server.client();
    let schema = json!({"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"],
        "additionalProperties": false});
    for seed in 0..6 {
        // Random weights reason for as long as they may, and write no header: what they say before is content.
        for budget in [0, 12] {
            let budgeted = json!({"seed": seed, "thinking_token_budget": budget, "max_tokens": 200});
            let mut demand = budgeted.clone();
            demand["tool_choice"] = "required".into();
            demand["tools"] = json!([{"type": "function", "function": {"name": "pick", "parameters": schema}}]);
            let (status, answer) = client.post(CHAT, &ask("Pick.", demand.clone())).await?;
            let said = whole(&answer);
            ensure!(status == 200 && said.calls.len() == 1 && said.calls[0].0 == "pick", "{status} {answer}");
            ensure!(is_pick(&said.calls[0].1) && said.finish == "tool_calls", "{answer}");
            ensure!(said.content.is_empty() || budget > 0, "{answer}");
            demand["stream"] = true.into();
            ensure!(streamed(&client, &ask("Pick.", demand)).await? == said, "seed {seed}: {said:?}");

            let mut demand = budgeted;
            demand["tools"] = json!([]);
            demand["response_format"] =
                json!({"type": "json_schema", "json_schema": {"name": "pick", "schema": schema}});
            let (status, answer) = client.post(CHAT, &ask("Pick.", demand)).await?;
            let content = whole(&answer).content;
            let end = content.rfind('{').map_or("", |at| &content[at..]);
            ensure!(status == 200 && is_pick(if budget == 0 { &content } else { end }), "{status} {answer}");
        }
    }
    Ok(())
}

fn is_pick(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok_and(|value| value["n"] == 1 || value["n"] == 2)
}

/// A conversation of one message, with the tools.
fn ask(message: &str, extra: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": message}], "max_tokens": 400, "tools": tools()});
    body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
    body
}

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}},
        {"type": "function", "function": {"name": "get_time"}},
    ])
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// What a whole answer says.
fn whole(answer: &Value) -> Said {
    let (choice, message) = (&answer["choices"][0], &answer["choices"][0]["message"]);
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    let call =
        |call: &Value| (text(&call["function"]["name"]).to_owned(), text(&call["function"]["arguments"]).to_owned());
    Said {
        reasoning: text(&message["reasoning"]).to_owned(),
        content: text(&message["content"]).to_owned(),
        calls: calls.map(call).collect(),
        finish: text(&choice["finish_reason"]).to_owned(),
    }
}

/// What the pieces of a stream say together.
async fn streamed(client: &Client, body: &Value) -> anyhow::Result<Said> {
    let (status, mut stream) = client.stream(CHAT, body).await?;
    ensure!(status == 200, "{status}");
    let mut said = Said::default();
    while let Some(chunk) = stream.next().await? {
        let (choice, delta) = (&chunk["choices"][0], &chunk["choices"][0]["delta"]);
        said.reasoning += text(&delta["reasoning"]);
        said.content += text(&delta["content"]);
        said.finish += text(&choice["finish_reason"]);
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().context("index")? as usize;
            said.calls.resize(said.calls.len().max(index + 1), Default::default());
            said.calls[index].0 += text(&call["function"]["name"]);
            said.calls[index].1 += text(&call["function"]["arguments"]);
        }
    }
    Ok(said)
}

/// The echo model with a tokenizer of bytes and Harmony's special tokens.
fn echo() -> anyhow::Result<TempDir> {
    let folder = tempfile::tempdir()?;
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let vocabulary: serde_json::Map<String, Value> =
        byte_letters().zip(0..).map(|(letter, id)| (letter.to_string(), json!(id))).collect();
    let added: Vec<Value> = SPECIAL.iter().zip(256..).map(|(text, id)| added_token(id, text)).collect();
    write(
        folder.path(),
        "tokenizer.json",
        &json!({"version": "1.0", "added_tokens": added, "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}),
    )?;
    write(folder.path(), "tokenizer_config.json", &json!({"eos_token": SPECIAL[0], "chat_template": ECHOED}))?;
    write(
        folder.path(),
        "config.json",
        &json!({"architectures": ["EchoForCausalLM"], "model_type": "echo",
        "vocab_size": 264, "max_position_embeddings": 4096, "eos_token_id": [256, 257], "torch_dtype": "float32"}),
    )?;
    Ok(folder)
}

/// The tiny gpt-oss, its eight special tokens called Harmony's.
fn renamed(original: &Path) -> anyhow::Result<TempDir> {
    let folder = tempfile::tempdir()?;
    let read = |name: &str| anyhow::Ok(serde_json::from_slice::<Value>(&fs::read(original.join(name))?)?);
    let mut tokenizer = read("tokenizer.json")?;
    let first = tokenizer["added_tokens"][0]["id"].as_u64().context("an added token")?;
    tokenizer["added_tokens"] = SPECIAL.iter().zip(first..).map(|(text, id)| added_token(id, text)).collect();
    let mut config = read("config.json")?;
    config["eos_token_id"] = json!([first, first + 1]);
    write(folder.path(), "tokenizer.json", &tokenizer)?;
    write(folder.path(), "tokenizer_config.json", &json!({"eos_token": SPECIAL[0], "chat_template": TURNS}))?;
    write(folder.path(), "config.json", &config)?;
    std::os::unix::fs::symlink(original.join("model.safetensors"), folder.path().join("model.safetensors"))?;
    Ok(folder)
}

fn added_token(id: u64, text: &str) -> Value {
    json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": true})
}

/// The letters by which byte-level tokenizers write bytes.
fn byte_letters() -> impl Iterator<Item = char> {
    let is_shown = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut hidden = 256u32..;
    (0..=255u8).filter_map(move |byte| match is_shown(byte) {
        true => Some(char::from(byte)),
        false => hidden.next().and_then(char::from_u32),
    })
}

fn write(folder: &Path, name: &str, value: &Value) -> anyhow::Result<()> {
    Ok(fs::write(folder.join(name), serde_json::to_vec(value)?)?)
}
