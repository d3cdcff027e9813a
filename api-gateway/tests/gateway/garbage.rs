//! Bodies and bytes that are wrong: always a clear 4xx that names the field, and the gateway lives on.

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{client::request, stage::Stage};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

#[tokio::test]
async fn wrong_fields_are_named() {
    let stage = Stage::new(&[]).await;
    let shared = [
        (json!({"n": 0}), "n"),
        (json!({"n": -1}), "n"),
        (json!({"n": 16385}), "n"),
        (json!({"n": 1.5}), "n"),
        (json!({"n": "1"}), "n"),
        (json!({"best_of": 2}), "best_of"),
        (json!({"temperature": -0.1}), "temperature"),
        (json!({"temperature": 2.1}), "temperature"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"top_p": 0}), "top_p"),
        (json!({"top_p": 1.1}), "top_p"),
        (json!({"top_k": -2}), "top_k"),
        (json!({"top_k": 0.5}), "top_k"),
        (json!({"min_p": 1.5}), "min_p"),
        (json!({"repetition_penalty": 0}), "repetition_penalty"),
        (json!({"repetition_penalty": 1e300}), "repetition_penalty"),
        (json!({"repetition_penalty": 1e-300}), "repetition_penalty"),
        (json!({"presence_penalty": 3}), "presence_penalty"),
        (json!({"frequency_penalty": -3}), "frequency_penalty"),
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": 4, "min_tokens": 5}), "min_tokens"),
        (json!({"min_tokens": -1}), "min_tokens"),
        (json!({"seed": "x"}), "seed"),
        (json!({"stop": 5}), "stop"),
        (json!({"stop": ["a", ""]}), "stop"),
        (json!({"stop_token_ids": [-1]}), "stop_token_ids"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stream_options": {"include_usage": true}}), "stream_options"),
        (json!({"stream": true, "stream_options": 1}), "stream_options"),
        (json!({"stream": true, "stream_options": {"include_usage": 1}}), "stream_options.include_usage"),
        (json!({"stream": true, "prompt_logprobs": 1}), "prompt_logprobs"),
        (json!({"prompt_logprobs": -1}), "prompt_logprobs"),
        (json!({"prompt_logprobs": 21}), "prompt_logprobs"),
        (json!({"logit_bias": {"a": 1}}), "logit_bias"),
        (json!({"logit_bias": {"1": "x"}}), "logit_bias"),
        (json!({"logit_bias": [1]}), "logit_bias"),
        (json!({"allowed_token_ids": []}), "allowed_token_ids"),
        (json!({"allowed_token_ids": [1, "2"]}), "allowed_token_ids"),
        (json!({"bad_words": [""]}), "bad_words"),
        (json!({"truncate_prompt_tokens": -2}), "truncate_prompt_tokens"),
        (json!({"truncate_prompt_tokens": 0}), "truncate_prompt_tokens"),
        (json!({"truncation_side": "up"}), "truncation_side"),
        (json!({"cache_salt": ""}), "cache_salt"),
        (json!({"priority": 1e12}), "priority"),
        (json!({"stream_interval": 0}), "stream_interval"),
        (json!({"model": 5}), "model"),
        (json!({"structured_outputs": {"regex": "a+", "choice": ["a"]}}), "structured_outputs"),
        (json!({"guided_json": [1]}), "guided_json"),
        (json!({"use_beam_search": "yes"}), "use_beam_search"),
        (json!({"early_stopping": true}), "early_stopping"),
        (json!({"regex": 7}), "regex"),
        (json!({"json_schema": [1]}), "json_schema"),
        (json!({"ebnf": 5}), "ebnf"),
        (json!({"grammar": 1}), "grammar"),
        (json!({"dry_multiplier": 0.8}), "dry_multiplier"),
        (json!({"mirostat": 2}), "mirostat"),
        (json!({"xtc_probability": 0.5}), "xtc_probability"),
        (json!({"response_format": {"type": "json_schema"}}), "response_format"),
    ];
    for (fields, param) in shared {
        for path in [CHAT, TEXT] {
            check(&stage, path, &fields, param).await;
        }
    }
    stage.load_is(0).await;
}

/// A good body with `fields` over it is refused, naming `param`.
async fn check(stage: &Stage, path: &str, fields: &Value, param: &str) {
    let mut body = json!({"prompt": "x", "messages": [{"role": "user", "content": "x"}]});
    let object = body.as_object_mut().expect("an object");
    object.extend(fields.as_object().expect("an object").clone());
    let answer = stage.client.post(path, &body).await;
    assert_eq!(answer.status, 400, "{path} {fields}: {:?}", answer.body);
    let (message, named) = answer.error();
    assert_eq!(named, param, "{path} {fields}: {message}");
    assert!(!message.is_empty());
}

#[tokio::test]
async fn wrong_prompts_are_named() {
    let stage = Stage::new(&[]).await;
    let prompts = [
        json!(""),
        json!([]),
        json!([""]),
        json!([[]]),
        json!([["a"]]),
        json!([1, "a"]),
        json!(5),
        json!([-1]),
        json!(null),
    ];
    for prompt in prompts {
        check(&stage, TEXT, &json!({ "prompt": prompt }), "prompt").await;
    }
    check(&stage, TEXT, &json!({"suffix": 5}), "suffix").await;
    check(&stage, TEXT, &json!({"suffix": "x", "echo": true}), "suffix").await;
    check(&stage, TEXT, &json!({"use_beam_search": true, "stop": "x"}), "stop").await;
    check(&stage, TEXT, &json!({"use_beam_search": true, "prompt_logprobs": 1}), "prompt_logprobs").await;
    check(&stage, TEXT, &json!({"repetition_detection": {"max_pattern_size": 3}}), "repetition_detection").await;
    check(&stage, TEXT, &json!({"logprob_token_ids": [], "top_a": 2}), "top_a").await;
    check(&stage, TEXT, &json!({"logprobs": 21}), "logprobs").await;
    check(&stage, TEXT, &json!({"logprobs": true}), "logprobs").await;
    check(&stage, TEXT, &json!({"echo": 1}), "echo").await;
}

#[tokio::test]
async fn wrong_conversations_are_named() {
    let stage = Stage::new(&[]).await;
    let conversations = [
        json!([]),
        json!(null),
        json!("hi"),
        json!(["hi"]),
        json!([{}]),
        json!([{"role": "user"}]),
        json!([{"role": "user", "content": null}]),
        json!([{"role": "user", "content": 5}]),
        json!([{"role": "", "content": "x"}]),
        json!([{"role": 1, "content": "x"}]),
        json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        json!([{"role": "user", "content": [{"type": "text"}]}]),
        json!([{"role": "user", "content": [5]}]),
        json!([{"role": "assistant", "content": [{"type": "thinking", "text": "x"}]}]),
    ];
    for messages in conversations {
        check(&stage, CHAT, &json!({ "messages": messages }), "messages").await;
    }
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    let rows = [
        (json!({"tools": tool}), "tools"),
        (json!({"tools": 5}), "tools"),
        (json!({"tools": tool, "tool_choice": "auto"}), "tools"),
        (json!({"tool_choice": {"type": "function", "function": {"name": "f"}}}), "tool_choice"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"logprobs": 1}), "logprobs"),
        (json!({"chat_template": "{{ 1 }}"}), "chat_template"),
        (json!({"chat_template_kwargs": []}), "chat_template_kwargs"),
        (json!({"documents": "x"}), "documents"),
        (json!({"documents": [{"text": "a"}], "chat_template_kwargs": {"documents": []}}), "chat_template_kwargs"),
        (json!({"tools": tool, "tool_choice": "none", "chat_template_kwargs": {"tools": [1]}}), "chat_template_kwargs"),
        (
            json!({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}),
            "chat_template_kwargs",
        ),
        (
            json!({"add_generation_prompt": true, "chat_template_kwargs": {"add_generation_prompt": false}}),
            "chat_template_kwargs",
        ),
        (json!({"continue_final_message": true}), "continue_final_message"),
        (json!({"max_completion_tokens": 0}), "max_completion_tokens"),
    ];
    for (fields, param) in rows {
        check(&stage, CHAT, &fields, param).await;
    }
}

#[tokio::test]
async fn bodies_that_are_not_json_are_refused() {
    let stage = Stage::new(&[]).await;
    let deep = "[".repeat(200_000);
    let bodies: [&[u8]; 10] = [
        b"",
        b"null",
        b"[]",
        b"{\"prompt\":\"x\"",
        b"{\"prompt\":\"x\",\"temperature\":NaN}",
        b"{\"prompt\":\"x\",\"temperature\":Infinity}",
        b"{\"prompt\":\"\xff\xfe\"}",
        b"{\"prompt\":\"\\ud800\"}",
        b"\x00\x01\x02",
        deep.as_bytes(),
    ];
    for body in bodies {
        for path in [CHAT, TEXT, "/tokenize", "/detokenize"] {
            let answer = stage.client.send(request(Method::POST, path, Bytes::copy_from_slice(body))).await;
            let shown = &body[..body.len().min(40)];
            assert_eq!(answer.status, 400, "{path} {:?}", String::from_utf8_lossy(shown));
            answer.error();
        }
    }
    let nested = format!("{{\"messages\":[{{\"role\":\"user\",\"content\":{deep}}}]}}");
    assert_eq!(stage.client.send(request(Method::POST, CHAT, nested.into())).await.status, 400);
    stage.healthy().await;
}

#[tokio::test]
async fn unknown_fields_and_null_are_harmless() {
    let mut stage = Stage::new(&[]).await;
    let body =
        json!({"prompt": "x", "n": null, "stop": null, "who": {"knows": [1]}, "user": "me", "seed": -5, "top_k": -1});
    let answer = stage.client.spawn(TEXT, &body);
    let request = stage.engine.request().await;
    let sampling = request.sampling.clone().unwrap();
    assert_eq!((sampling.seed, sampling.top_k, request.n), (Some(-5i64 as u64), 0, 1));
    stage.engine.answer(&request, &["ok"]).await;
    assert_eq!(answer.await.unwrap().status, 200);
}

#[tokio::test]
async fn bytes_that_are_not_http_close_the_connection() {
    let stage = Stage::new(&["--http-keep-alive=0.05"]).await;
    for bytes in [&b"\x16\x03\x01\x00\xff"[..], b"GET\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"] {
        let mut socket = stage.client.connect().await;
        socket.write_all(bytes).await.unwrap();
        let mut rest = Vec::new();
        // The last one is a head that never ends: the connection is closed all the same.
        let _ = socket.read_to_end(&mut rest).await;
        assert!(!rest.starts_with(b"HTTP/1.1 2"), "{rest:?}");
    }
    stage.healthy().await;
}

#[tokio::test]
async fn a_body_that_does_not_come_times_out() {
    let stage = Stage::new(&["--body-timeout=0.05"]).await;
    let mut socket = stage.client.connect().await;
    let head =
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut rest = Vec::new();
    let _ = socket.read_to_end(&mut rest).await;
    assert!(rest.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&rest));
}
