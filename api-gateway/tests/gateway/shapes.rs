//! What answers look like, and what the engine is asked for.

use std::collections::BTreeSet;

use proto::{Admitted, Delta, DeltaDetails, Event, FinishReason, TextLogprobs, TopLogprob, event, prompt};
use serde_json::{Value, json};

use crate::{
    client::{events, json as post},
    engine::{admitted, delta, number, text},
    stage::Stage,
};

#[tokio::test]
async fn a_chat_is_answered() {
    let mut stage = Stage::new(&["--enable-prompt-tokens-details"]).await;
    let messages = json!([{"role": "user", "content": "Hello \u{1f600}"}]);
    let body =
        json!({"model": "wren", "messages": messages, "temperature": 0.5, "seed": 7, "stop": "END", "max_tokens": 9});
    let answer = stage.client.spawn("/v1/chat/completions", &body);
    let request = stage.engine.request().await;
    let Some(prompt::Kind::Chat(chat)) = request.prompt.clone().unwrap().kind else { panic!("a chat") };
    assert_eq!(serde_json::from_str::<Value>(&chat.messages_json).unwrap(), messages);
    assert!(chat.add_generation_prompt);
    let sampling = request.sampling.clone().unwrap();
    assert_eq!((sampling.temperature, sampling.top_p, sampling.seed), (0.5, 1.0, Some(7)));
    assert_eq!(request.output.clone().unwrap().stop, ["END"]);
    assert_eq!(request.max_tokens, Some(9));
    stage.engine.answer(&request, &["Hi", " \"you\"\n"]).await;
    let answer = answer.await.unwrap();
    assert_eq!(answer.status, 200);
    let json = answer.json();
    assert_eq!(json["id"], request.request_id);
    assert!(request.request_id.starts_with("chatcmpl-"));
    assert_eq!(json["object"], "chat.completion");
    assert_eq!(json["model"], "wren");
    let choice = &json["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["message"]["content"], "Hi \"you\"\n");
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &Value::Null));
    let usage = json!({"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2,
                       "prompt_tokens_details": {"cached_tokens": 1}});
    assert_eq!(json["usage"], usage);
    stage.load_is(0).await;
}

#[tokio::test]
async fn answers_of_one_choice_tell_where_their_time_went() {
    let mut stage = Stage::new(&["--enable-per-request-metrics"]).await;
    // A rate is told only if time passed, which it may not have in events of one batch.
    let times = |json: &Value| {
        let metrics = json["metrics"].as_object().expect("metrics");
        assert!(metrics.values().all(|value| value.as_f64().is_some_and(|value| value >= 0.0)), "{metrics:?}");
        metrics.keys().filter(|name| *name != "tokens_per_second").cloned().collect::<BTreeSet<_>>()
    };
    let of_one = ["generation_time_ms", "queue_time_ms", "time_to_first_token_ms"].map(str::to_owned);
    let of_two = of_one.iter().cloned().chain(["mean_itl_ms".to_owned()]).collect();
    for (path, body) in [
        ("/v1/completions", json!({"prompt": "x"})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "x"}]})),
    ] {
        let answer = stage.client.spawn(path, &body);
        let request = stage.engine.request().await;
        stage.engine.answer(&request, &["a", "b"]).await;
        assert_eq!(times(&answer.await.unwrap().json()), of_two, "{path}");

        let mut streamed = body.clone();
        streamed["stream"] = true.into();
        streamed["stream_options"] = json!({"include_usage": true});
        let answer = stage.client.spawn(path, &streamed);
        let request = stage.engine.request().await;
        stage.engine.answer(&request, &["a"]).await;
        let chunks = events(answer.await.unwrap().text());
        let (last, before) = chunks.split_last().expect("chunks");
        assert_eq!(times(last), of_one.clone().into(), "{path}");
        assert!(before.iter().all(|chunk| chunk.get("metrics").is_none()));

        let mut several = body.clone();
        several["n"] = 2.into();
        let answer = stage.client.spawn(path, &several);
        let request = stage.engine.request().await;
        stage.engine.answer(&request, &["a"]).await;
        assert_eq!(answer.await.unwrap().json().get("metrics"), None, "{path}");
    }
    let mut silent = Stage::new(&[]).await;
    let answer = silent.client.spawn("/v1/completions", &json!({"prompt": "x"}));
    let request = silent.engine.request().await;
    silent.engine.answer(&request, &["a"]).await;
    assert_eq!(answer.await.unwrap().json().get("metrics"), None);
}

#[tokio::test]
async fn template_variables_that_steer_the_answer_count() {
    let mut stage = Stage::new(&[]).await;
    let variables = json!({"add_generation_prompt": false, "continue_final_message": true, "enable_thinking": false});
    let messages = json!([{"role": "assistant", "content": "And"}]);
    let body = json!({"messages": messages, "chat_template_kwargs": variables});
    let answer = stage.client.spawn("/v1/chat/completions", &body);
    let request = stage.engine.request().await;
    let Some(prompt::Kind::Chat(chat)) = request.prompt.clone().unwrap().kind else { panic!("a chat") };
    assert_eq!((chat.add_generation_prompt, chat.continue_final_message), (false, true));
    assert_eq!(chat.template_kwargs_json, r#"{"enable_thinking":false}"#);
    stage.engine.answer(&request, &["so on"]).await;
    assert_eq!(answer.await.unwrap().status, 200);
    let body = json!({"messages": messages, "chat_template_kwargs": {"add_generation_prompt": "no"}});
    let refused = stage.client.post("/v1/chat/completions", &body).await;
    assert_eq!((refused.status.as_u16(), refused.error().1), (400, json!("chat_template_kwargs")));
}

/// What is said twice alike is said once; what the server presets gives way.
#[tokio::test]
async fn template_variables_may_repeat_the_requests_fields() {
    let preset = json!({"documents": [{"text": "preset"}], "add_generation_prompt": false});
    let mut stage = Stage::new(&[&format!("--default-chat-template-kwargs={preset}")]).await;
    let documents = json!([{"text": "a"}]);
    let body = json!({
        "messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]}],
        "documents": documents,
        "add_generation_prompt": true,
        "chat_template_kwargs": {"documents": documents, "tools": [1], "add_generation_prompt": true},
    });
    let answer = stage.client.spawn("/v1/chat/completions", &body);
    let request = stage.engine.request().await;
    let Some(prompt::Kind::Chat(chat)) = request.prompt.clone().unwrap().kind else { panic!("a chat") };
    assert_eq!((chat.documents_json.as_str(), chat.add_generation_prompt), (r#"[{"text":"a"}]"#, true));
    assert_eq!(chat.template_kwargs_json, r#"{"documents":[{"text":"a"}],"tools":[1]}"#);
    stage.engine.answer(&request, &["so on"]).await;
    assert_eq!(answer.await.unwrap().status, 200);
    let body = json!({
        "messages": [{"role": "user", "content": "x"}], "documents": documents, "add_generation_prompt": true,
    });
    let answer = stage.client.spawn("/v1/chat/completions", &body);
    let request = stage.engine.request().await;
    let Some(prompt::Kind::Chat(chat)) = request.prompt.clone().unwrap().kind else { panic!("a chat") };
    assert!(chat.add_generation_prompt);
    stage.engine.answer(&request, &["so on"]).await;
    assert_eq!(answer.await.unwrap().status, 200);
}

#[tokio::test]
async fn prompts_times_choices_keep_their_order() {
    let mut stage = Stage::new(&[]).await;
    let body = json!({"prompt": ["a", "b"], "n": 2, "best_of": 2, "request_id": "mine"});
    let answer = stage.client.spawn("/v1/completions", &body);
    let first = stage.engine.request().await;
    let second = stage.engine.request().await;
    assert_eq!((first.request_id.as_str(), second.request_id.as_str()), ("cmpl-mine-0", "cmpl-mine-1"));
    assert_eq!((first.n, first.max_tokens), (2, Some(16)));
    let all = vec![
        admitted(&second, 5),
        admitted(&first, 2),
        text(&second, 1, "b1", FinishReason::Length),
        text(&first, 0, "a0", FinishReason::Stop),
        text(&second, 0, "b0", FinishReason::Stop),
        text(&first, 1, "a1", FinishReason::Stop),
    ];
    stage.engine.send(all).await;
    let json = answer.await.unwrap().json();
    let texts: Vec<&str> = json["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["a0", "a1", "b0", "b1"]);
    assert_eq!(json["choices"][3]["finish_reason"], "length");
    assert_eq!(json["usage"]["prompt_tokens"], 7);
    assert_eq!(json["usage"]["completion_tokens"], 4);
}

fn entry(token: &str, id: u32, offset: u32) -> TextLogprobs {
    let top = |token: &str, token_id, logprob| TopLogprob {
        token: token.into(),
        token_bytes: token.as_bytes().to_vec().into(),
        token_id,
        logprob,
    };
    TextLogprobs {
        token: token.into(),
        token_bytes: token.as_bytes().to_vec().into(),
        token_id: id,
        logprob: -1.5,
        rank: 2,
        text_offset: offset,
        top: vec![top("best", 9, -0.5), top(token, id, -1.5), top("never", 8, f32::NEG_INFINITY)],
    }
}

#[tokio::test]
async fn chat_logprobs_have_openais_shape() {
    let mut stage = Stage::new(&[]).await;
    let body = json!({"messages": [{"role": "user", "content": "x"}], "logprobs": true, "top_logprobs": 3});
    let answer = stage.client.spawn("/v1/chat/completions", &body);
    let request = stage.engine.request().await;
    assert_eq!(request.sampling.clone().unwrap().logprobs, Some(3));
    let grown = Delta {
        text: "é".into(),
        token_count: 1,
        finish: FinishReason::Stop.into(),
        details: Some(DeltaDetails { logprobs: vec![entry("é", 4, 0)], ..DeltaDetails::default() }.into()),
        ..Delta::default()
    };
    stage.engine.send(vec![admitted(&request, 1), delta(&request, grown)]).await;
    let json = answer.await.unwrap().json();
    let expected = json!({"content": [{
        "token": "é", "logprob": -1.5, "bytes": [195, 169],
        "top_logprobs": [
            {"token": "best", "logprob": -0.5, "bytes": [98, 101, 115, 116]},
            {"token": "é", "logprob": -1.5, "bytes": [195, 169]},
            {"token": "never", "logprob": -9999.0, "bytes": [110, 101, 118, 101, 114]},
        ],
    }]});
    assert_eq!(json["choices"][0]["logprobs"], expected);
}

#[tokio::test]
async fn completions_echo_the_prompt_with_its_logprobs() {
    let mut stage = Stage::new(&[]).await;
    for max_tokens in [4, 0] {
        let body = json!({"prompt": "ab", "echo": true, "logprobs": 1, "max_tokens": max_tokens,
                          "return_token_ids": true, "stream": false});
        let answer = stage.client.spawn("/v1/completions", &body);
        let request = stage.engine.request().await;
        let sampling = request.sampling.clone().unwrap();
        assert_eq!((sampling.logprobs, sampling.prompt_logprobs), (Some(1), Some(1)));
        assert!(request.output.clone().unwrap().echo);
        assert!(request.max_tokens >= Some(1));
        let facts =
            Admitted { prompt_tokens: 2, prompt_ids: vec![1, 2], prompt_text: "ab".into(), ..Admitted::default() };
        let grown = Delta {
            text: "c".into(),
            token_count: 1,
            token_ids: vec![3],
            finish: FinishReason::Length.into(),
            details: Some(
                DeltaDetails {
                    logprobs: vec![entry("c", 3, 0)],
                    prompt_logprobs: vec![entry("b", 2, 1)],
                    ..DeltaDetails::default()
                }
                .into(),
            ),
            ..Delta::default()
        };
        let opening = Event { number: number(&request), kind: Some(event::Kind::Admitted(facts.into())) };
        stage.engine.send(vec![opening, delta(&request, grown)]).await;
        let json = answer.await.unwrap().json();
        let choice = &json["choices"][0];
        let (text, tokens, generated) =
            if max_tokens > 0 { ("abc", json!(["a", "b", "c"]), 1) } else { ("ab", json!(["a", "b"]), 0) };
        assert_eq!(choice["text"], text);
        assert_eq!(choice["logprobs"]["tokens"], tokens);
        assert_eq!(choice["logprobs"]["token_logprobs"][0], Value::Null);
        assert_eq!(choice["logprobs"]["token_logprobs"][1], -1.5);
        assert_eq!(choice["logprobs"]["top_logprobs"][1], json!({"b": -1.5, "best": -0.5}));
        assert_eq!(choice["logprobs"]["text_offset"][1], 1);
        if max_tokens > 0 {
            assert_eq!(choice["logprobs"]["text_offset"], json!([0, 1, 2]));
        }
        assert_eq!(choice["prompt_token_ids"], json!([1, 2]));
        assert_eq!(json["usage"]["completion_tokens"], generated);
    }
}

#[tokio::test]
async fn prompt_logprobs_are_by_token_id() {
    let mut stage = Stage::new(&[]).await;
    let body = json!({"prompt": [1, 2], "prompt_logprobs": 2});
    let answer = stage.client.spawn("/v1/completions", &body);
    let request = stage.engine.request().await;
    let grown = Delta {
        text: "c".into(),
        token_count: 1,
        finish: FinishReason::Stop.into(),
        details: Some(
            DeltaDetails { prompt_logprobs: vec![entry("b", 2, 1)], stop_token: Some(77), ..DeltaDetails::default() }
                .into(),
        ),
        ..Delta::default()
    };
    stage.engine.send(vec![admitted(&request, 2), delta(&request, grown)]).await;
    let json = answer.await.unwrap().json();
    let choice = &json["choices"][0];
    assert_eq!(choice["prompt_logprobs"][0], Value::Null);
    assert_eq!(choice["prompt_logprobs"][1]["2"], json!({"logprob": -1.5, "rank": 2, "decoded_token": "b"}));
    assert_eq!(choice["prompt_logprobs"][1]["9"], json!({"logprob": -0.5, "rank": 1, "decoded_token": "best"}));
    assert_eq!(choice["stop_reason"], 77);
}

#[tokio::test]
async fn small_routes_answer() {
    let stage = Stage::new(&["--served-model-name", "a", "b/c"]).await;
    let models = stage.client.get("/v1/models").await.json();
    assert_eq!(models["data"][0]["id"], "a");
    assert_eq!(models["data"][0]["root"], "wren");
    assert_eq!(models["data"][0]["permission"].as_array().unwrap().len(), 1);
    assert_eq!(models["data"][1]["id"], "b/c");
    assert_eq!(stage.client.get("/v1/models/b/c").await.json()["id"], "b/c");
    assert_eq!(stage.client.get("/v1/models/nope").await.status, 404);
    assert!(stage.client.get("/version").await.json()["version"].is_string());
    assert_eq!(stage.client.get("/ping").await.status, 200);
    assert_eq!(stage.client.post("/ping", &json!({})).await.status, 200);
    assert_eq!(stage.client.get("/load").await.json(), json!({"server_load": 0}));
}

#[tokio::test]
async fn what_is_counted_is_exact() {
    let mut stage = Stage::new(&[]).await;
    for (stream, pieces) in [(false, &["a", "b", "c"][..]), (true, &["a", "b"][..])] {
        let body = json!({"prompt": "x", "stream": stream});
        let answer = stage.client.spawn("/v1/completions", &body);
        let request = stage.engine.request().await;
        stage.engine.answer(&request, pieces).await;
        assert_eq!(answer.await.unwrap().status, 200);
    }
    stage.load_is(0).await;
    let labels = r#"{model_name="wren",engine="0"}"#;
    let prompt_tokens = |name, source| format!("{name}{{model_name=\"wren\",engine=\"0\",source=\"{source}\"}}");
    let rows = [
        (format!("vllm:prompt_tokens_total{labels}"), 6.0),
        (format!("vllm:prompt_tokens_cached_total{labels}"), 2.0),
        (prompt_tokens("vllm:prompt_tokens_by_source_total", "local_compute"), 4.0),
        (prompt_tokens("vllm:prompt_tokens_by_source_total", "local_cache_hit"), 2.0),
        (prompt_tokens("vllm:prompt_tokens_cached_by_source_total", "device"), 2.0),
        (format!("vllm:request_prefill_kv_computed_tokens_sum{labels}"), 4.0),
        (format!("vllm:generation_tokens_total{labels}"), 5.0),
        (r#"vllm:request_success_total{model_name="wren",engine="0",finished_reason="stop"}"#.into(), 2.0),
        (format!("vllm:time_to_first_token_seconds_count{labels}"), 2.0),
        (format!("vllm:inter_token_latency_seconds_count{labels}"), 3.0),
        (format!("vllm:e2e_request_latency_seconds_count{labels}"), 2.0),
        (format!("vllm:request_prompt_tokens_sum{labels}"), 6.0),
        (format!("vllm:request_generation_tokens_sum{labels}"), 5.0),
        (format!("vllm:request_params_n_count{labels}"), 2.0),
        (r#"http_requests_total{handler="/v1/completions",method="POST",status="2xx"}"#.into(), 2.0),
    ];
    for (series, value) in rows {
        assert_eq!(stage.metric(&series).await, value, "{series}");
    }
}

#[tokio::test]
async fn token_ids_may_stand_for_tokens() {
    let mut stage = Stage::new(&["--return-tokens-as-token-ids"]).await;
    let body = json!({"prompt": "x", "logprobs": 1, "stream": true, "return_token_ids": true});
    let mut open = Box::pin(stage.client.open(post("/v1/completions", &body)));
    let request = tokio::select! { request = stage.engine.request() => request, _ = &mut open => panic!("too early") };
    let grown = Delta {
        text: "c".into(),
        token_count: 1,
        token_ids: vec![3],
        finish: FinishReason::Stop.into(),
        details: Some(DeltaDetails { logprobs: vec![entry("c", 3, 0)], ..DeltaDetails::default() }.into()),
        ..Delta::default()
    };
    stage.engine.send(vec![admitted(&request, 1), delta(&request, grown)]).await;
    let chunks = events(&open.await.rest().await);
    assert_eq!(chunks[0]["choices"][0]["logprobs"]["tokens"], json!(["token_id:3"]));
    assert_eq!(chunks[0]["choices"][0]["logprobs"]["top_logprobs"][0], json!({"token_id:3": -1.5, "token_id:9": -0.5}));
    assert_eq!(chunks[0]["choices"][0]["token_ids"], json!([3]));
}

#[tokio::test]
async fn invocations_are_chats_or_completions_and_need_a_key() {
    let mut stage = Stage::new(&["--api-key", "k"]).await;
    let ask = |body: Value| {
        let mut question = post("/invocations", &body);
        question.headers_mut().insert("authorization", "Bearer k".parse().unwrap());
        question
    };
    for (body, object) in [
        (json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}), "chat.completion"),
        (json!({"prompt": "x", "max_tokens": 2}), "text_completion"),
    ] {
        let client = stage.client.clone();
        let question = ask(body);
        let answer = tokio::spawn(async move { client.send(question).await });
        let request = stage.engine.request().await;
        stage.engine.answer(&request, &["y"]).await;
        assert_eq!(answer.await.unwrap().json()["object"], object);
    }
    assert_eq!(stage.client.send(ask(json!({"model": "wren"}))).await.status, 400);
    assert_eq!(stage.client.post("/invocations", &json!({"prompt": "x"})).await.status, 401);
}
