//! The Responses API: what requests become, what answers and their events look like, and what is kept of them.

use http::{HeaderMap, Method};
use proto::{Admitted, Delta, Event, FinishReason, Request, event, failure::Kind, prompt};
use serde_json::{Value, json};

use crate::{
    client::{json as post, request},
    engine::{admitted, delta, failed, number, text},
    stage::Stage,
};

const PATH: &str = "/v1/responses";

/// The events of a stream; each is named as its data is, and they are counted without a gap.
fn events(stream: &str) -> Vec<Value> {
    let all = stream.split("\n\n").filter(|event| !event.is_empty() && !event.starts_with(':'));
    let one = |(number, event): (usize, &str)| {
        let (name, data) = event.split_once("\ndata: ").expect("data");
        let data: Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        assert_eq!(data["sequence_number"], number, "{stream}");
        data
    };
    all.enumerate().map(one).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().expect("a type").trim_start_matches("response.")).collect()
}

/// The texts of the events of a kind, joined.
fn joined(events: &[Value], kind: &str) -> String {
    events.iter().filter(|event| event["type"] == kind).filter_map(|event| event["delta"].as_str()).collect()
}

fn chat_of(request: &Request) -> (Value, Value) {
    let Some(prompt::Kind::Chat(chat)) = request.prompt.clone().expect("a prompt").kind else { panic!("a chat") };
    let tools = if chat.tools_json.is_empty() { "null" } else { &chat.tools_json };
    let json = |text: &str| serde_json::from_str(text).expect("JSON");
    (json(&chat.messages_json), json(tools))
}

/// Answers with these pieces, a token each, behind a prompt that ended so.
async fn answer(stage: &mut Stage, request: &Request, tail: &str, pieces: &[&str]) {
    let prompt = Admitted { prompt_tokens: 3, cached_tokens: 2, prompt_tail: tail.into(), ..Admitted::default() };
    let mut all = vec![Event { number: number(request), kind: Some(event::Kind::Admitted(prompt.into())) }];
    for (index, piece) in pieces.iter().enumerate() {
        let finish = if index + 1 == pieces.len() { FinishReason::Stop } else { FinishReason::Unspecified };
        let (text, finish) = ((*piece).to_owned(), finish.into());
        all.push(delta(request, Delta { text, token_count: 1, finish, ..Delta::default() }));
    }
    stage.engine.send(all).await;
}

fn tools() -> Value {
    json!([{"type": "function", "name": "get_weather", "parameters": {"type": "object"}}])
}

const CALLING: [&str; 5] = [
    "hm",
    "</think>",
    "I look.",
    "<tool_call>{\"name\": \"get_weather\", \"arg",
    "uments\": {\"city\": \"Rome\"}}</tool_call>",
];

#[tokio::test]
async fn a_text_is_answered_with_a_message() {
    let mut stage = Stage::new(&[]).await;
    let body = json!({"input": "Hi", "instructions": "Be kind.", "max_output_tokens": 7, "temperature": 0.5,
        "metadata": {"a": "b"}, "user": "u"});
    let asked = stage.client.spawn(PATH, &body);
    let request = stage.engine.request().await;
    let expected = json!([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]);
    assert_eq!((chat_of(&request).0, request.max_tokens), (expected, Some(7)));
    answer(&mut stage, &request, "", &["Hel", "lo"]).await;
    let response = asked.await.expect("an answer").json();
    let id = response["id"].as_str().expect("an id");
    assert!(id.starts_with("resp_") && request.request_id == id, "{id}");
    for (name, value) in [
        ("object", json!("response")),
        ("status", json!("completed")),
        ("error", Value::Null),
        ("incomplete_details", Value::Null),
        ("instructions", json!("Be kind.")),
        ("model", json!("wren")),
        ("temperature", json!(0.5)),
        ("top_p", json!(1.0)),
        ("store", json!(true)),
        ("metadata", json!({"a": "b"})),
        ("user", json!("u")),
        ("tools", json!([])),
        ("tool_choice", json!("auto")),
        ("text", json!({"format": {"type": "text"}, "verbosity": null})),
        ("truncation", json!("disabled")),
        (
            "usage",
            json!({"input_tokens": 3, "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
                "output_tokens": 2, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 5}),
        ),
    ] {
        assert_eq!(response[name], value, "{name}");
    }
    assert!(response["created_at"].is_u64() && response["completed_at"].is_u64());
    let item = &response["output"][0];
    let part = json!({"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []});
    assert_eq!(
        (&item["type"], &item["role"], &item["status"]),
        (&json!("message"), &json!("assistant"), &json!("completed"))
    );
    assert_eq!(item["content"], json!([part]));
}

#[tokio::test]
async fn events_open_fill_and_close_each_item() {
    let mut stage = Stage::new(&["--tool-call-parser=hermes", "--reasoning-parser=qwen3"]).await;
    let body = json!({"input": "Weather?", "tools": tools(), "stream": true});
    let asked = stage.client.spawn(PATH, &body);
    let request = stage.engine.request().await;
    answer(&mut stage, &request, "<think>", &CALLING).await;
    let stream = asked.await.expect("an answer");
    let events = events(stream.text());
    let mut kinds = kinds(&events);
    kinds.dedup();
    let expected = [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ];
    assert_eq!(kinds, expected);
    assert_eq!(joined(&events, "response.reasoning_text.delta"), "hm");
    assert_eq!(joined(&events, "response.output_text.delta"), "I look.");
    assert_eq!(joined(&events, "response.function_call_arguments.delta"), "{\"city\": \"Rome\"}");
    let response = &events[events.len() - 1]["response"];
    let done: Vec<&Value> =
        events.iter().filter(|e| e["type"] == "response.output_item.done").map(|e| &e["item"]).collect();
    assert_eq!(response["output"].as_array().expect("items").iter().collect::<Vec<_>>(), done);
    assert_eq!(
        done.iter().map(|item| item["type"].as_str().expect("a type")).collect::<Vec<_>>(),
        ["reasoning", "message", "function_call"]
    );
    assert_eq!((&done[2]["name"], &done[2]["arguments"]), (&json!("get_weather"), &json!("{\"city\": \"Rome\"}")));
    let places = events.iter().filter_map(|event| Some((event.get("item_id")?, event["output_index"].as_u64()?)));
    for (id, index) in places {
        assert_eq!(*id, done[index as usize]["id"]);
    }
}

#[tokio::test]
async fn whole_and_streamed_answers_are_alike() {
    let flags = ["--tool-call-parser=hermes", "--reasoning-parser=qwen3"];
    let mut stage = Stage::new(&flags).await;
    let mut seen = Vec::new();
    for stream in [false, true] {
        let body = json!({"input": "Weather?", "tools": tools(), "stream": stream, "reasoning": {"summary": "auto"},
            "include": ["reasoning.encrypted_content"]});
        let asked = stage.client.spawn(PATH, &body);
        let request = stage.engine.request().await;
        answer(&mut stage, &request, "<think>", &CALLING).await;
        let got = asked.await.expect("an answer");
        let response =
            if stream { events(got.text()).pop().expect("an event")["response"].clone() } else { got.json() };
        let mut output = response["output"].clone();
        for item in output.as_array_mut().expect("items") {
            item["id"] = Value::Null;
            item["call_id"] = Value::Null;
        }
        seen.push((output, response["usage"].clone(), response["status"].clone()));
    }
    assert_eq!(seen[0], seen[1]);
    let reasoning = &seen[0].0[0];
    assert_eq!(reasoning["summary"], json!([{"type": "summary_text", "text": "hm"}]));
    assert!(reasoning["encrypted_content"].is_string() && reasoning.get("content").is_none());
}

#[tokio::test]
async fn a_conversation_goes_on_from_what_is_kept() {
    let mut stage = Stage::new(&["--tool-call-parser=hermes"]).await;
    let asked = stage.client.spawn(PATH, &json!({"input": "Weather?", "instructions": "Once.", "tools": tools()}));
    let request = stage.engine.request().await;
    answer(&mut stage, &request, "", &CALLING[3..]).await;
    let first = asked.await.expect("an answer").json();
    let call = &first["output"][0];
    let result = json!([{"type": "function_call_output", "call_id": call["call_id"], "output": "sun"}]);
    let next = json!({"input": result, "previous_response_id": first["id"], "tools": tools(), "store": false});
    let asked = stage.client.spawn(PATH, &next);
    let request = stage.engine.request().await;
    let function = json!({"name": "get_weather", "arguments": "{\"city\": \"Rome\"}"});
    let calls = json!([{"id": call["call_id"], "type": "function", "function": function}]);
    let expected = json!([
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": call["call_id"], "content": "sun"},
    ]);
    let (messages, shown) = chat_of(&request);
    assert_eq!(messages, expected, "instructions are those of one response");
    assert_eq!(
        shown,
        json!([{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}])
    );
    answer(&mut stage, &request, "", &["Sunny."]).await;
    let second = asked.await.expect("an answer").json();
    assert_eq!((&second["previous_response_id"], &second["store"]), (&first["id"], &json!(false)));

    let path = format!("{PATH}/{}", first["id"].as_str().expect("an id"));
    assert_eq!(stage.client.get(&path).await.json(), first);
    let items = stage.client.get(&format!("{path}/input_items?order=asc")).await.json();
    assert_eq!(items["data"][0]["content"], json!([{"type": "input_text", "text": "Weather?"}]));
    let unkept = stage.client.get(&format!("{PATH}/{}", second["id"].as_str().expect("an id"))).await;
    assert_eq!(unkept.status, 404);
    assert_eq!(stage.client.post(&format!("{path}/cancel"), &json!({})).await.status, 400);
    assert_eq!(stage.client.get(&format!("{path}?stream=true")).await.status, 400);
    let deleted = stage.client.send(request_of(Method::DELETE, &path)).await.json();
    assert_eq!(deleted, json!({"id": first["id"], "object": "response", "deleted": true}));
    assert_eq!(stage.client.get(&path).await.status, 404);
    let lost = stage.client.post(PATH, &next).await;
    assert_eq!((lost.status.as_u16(), lost.error().1), (404, json!("previous_response_id")));
}

fn request_of(method: Method, path: &str) -> http::Request<http_body_util::Full<bytes::Bytes>> {
    request(method, path, bytes::Bytes::new())
}

#[tokio::test]
async fn what_gave_way_says_so() {
    let mut stage = Stage::new(&["--max-stored-responses=1"]).await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        let asked = stage.client.spawn(PATH, &json!({"input": "Hi"}));
        let request = stage.engine.request().await;
        answer(&mut stage, &request, "", &["x"]).await;
        ids.push(asked.await.expect("an answer").json()["id"].as_str().expect("an id").to_owned());
    }
    let (message, _) = stage.client.get(&format!("{PATH}/{}", ids[0])).await.error();
    assert!(message.contains("no longer kept") && message.contains("--max-stored-responses"), "{message}");
    assert_eq!(stage.client.get(&format!("{PATH}/{}", ids[1])).await.status, 200);
}

#[tokio::test]
async fn nothing_is_kept_where_that_is_off() {
    let mut stage = Stage::new(&["--max-stored-responses=0"]).await;
    let asked = stage.client.spawn(PATH, &json!({"input": "Hi", "store": true}));
    let request = stage.engine.request().await;
    answer(&mut stage, &request, "", &["x"]).await;
    let response = asked.await.expect("an answer").json();
    assert_eq!(response["store"], false);
    let (message, _) = stage.client.get(&format!("{PATH}/{}", response["id"].as_str().expect("an id"))).await.error();
    assert!(message.contains("keeps no responses"), "{message}");
    let refused = stage.client.post(PATH, &json!({"input": "Hi", "background": true})).await;
    assert_eq!((refused.status.as_u16(), refused.error().1), (400, json!("background")));
}

#[tokio::test]
async fn a_lost_worker_ends_a_stream_once() {
    let mut stage = Stage::new(&[]).await;
    let client = stage.client.clone();
    let opening = tokio::spawn(async move { client.open(post(PATH, &json!({"input": "x", "stream": true}))).await });
    let request = stage.engine.request().await;
    stage.engine.send(vec![admitted(&request, 1), text(&request, 0, "a", FinishReason::Unspecified)]).await;
    let mut open = opening.await.expect("an answer");
    let mut stream = String::from_utf8(open.chunk().await.expect("events").to_vec()).expect("UTF-8");
    stage.engine.send(vec![failed(number(&request), Kind::Unavailable, "a worker was lost", "")]).await;
    stream.push_str(&open.rest().await);
    let events = events(&stream);
    let terminal = ["completed", "incomplete", "failed"];
    let kinds = kinds(&events);
    assert_eq!(kinds.iter().filter(|kind| terminal.contains(kind)).count(), 1);
    assert_eq!(kinds.last(), Some(&"failed"));
    let response = &events[events.len() - 1]["response"];
    assert_eq!(response["error"], json!({"code": "server_error", "message": "a worker was lost"}));
    assert_eq!((&response["status"], &response["output"][0]["status"]), (&json!("failed"), &json!("incomplete")));
    let before = stage.client.spawn(PATH, &json!({"input": "x", "stream": true}));
    let request = stage.engine.request().await;
    stage.engine.send(vec![failed(number(&request), Kind::Invalid, "too long", "prompt")]).await;
    assert_eq!(before.await.expect("an answer").status, 400);
}

#[tokio::test]
async fn an_answer_that_was_cut_is_incomplete() {
    let mut stage = Stage::new(&[]).await;
    let asked = stage.client.spawn(PATH, &json!({"input": "x", "max_output_tokens": 1}));
    let request = stage.engine.request().await;
    stage.engine.send(vec![admitted(&request, 1), text(&request, 0, "a", FinishReason::Length)]).await;
    let response = asked.await.expect("an answer").json();
    assert_eq!(
        (&response["status"], &response["incomplete_details"]),
        (&json!("incomplete"), &json!({"reason": "max_output_tokens"}))
    );
    assert_eq!((&response["output"][0]["status"], &response["completed_at"]), (&json!("incomplete"), &Value::Null));
}

#[tokio::test]
async fn a_response_runs_in_the_background() {
    let mut stage = Stage::new(&[]).await;
    let asked = stage.client.spawn(PATH, &json!({"input": "x", "background": true}));
    let request = stage.engine.request().await;
    let queued = asked.await.expect("an answer").json();
    assert_eq!((&queued["status"], &queued["output"]), (&json!("queued"), &json!([])));
    let path = format!("{PATH}/{}", queued["id"].as_str().expect("an id"));
    let client = stage.client.clone();
    let stream_path = format!("{path}?stream=true");
    let mut following = client.open(request_of(Method::GET, &stream_path)).await;
    let mut seen = String::from_utf8(following.chunk().await.expect("events").to_vec()).expect("UTF-8");
    answer(&mut stage, &request, "", &["Hel", "lo"]).await;
    seen.push_str(&following.rest().await);
    let all = events(&seen);
    assert_eq!(kinds(&all)[..3], ["created", "queued", "in_progress"]);
    assert_eq!((joined(&all, "response.output_text.delta"), kinds(&all).pop()), ("Hello".into(), Some("completed")));
    assert_eq!(stage.client.get(&path).await.json(), all[all.len() - 1]["response"]);
    let later = stage.client.get(&format!("{path}?stream=true&starting_after=1")).await;
    assert!(
        later.text().starts_with(
            "event: response.in_progress\ndata: {\"type\":\"response.in_progress\",\"sequence_number\":2,"
        )
    );
    assert!(seen.ends_with(later.text()));
    assert_eq!(content_type(&later.headers), "text/event-stream; charset=utf-8");
    let past = stage.client.get(&format!("{path}?stream=true&starting_after=999")).await;
    assert_eq!((past.status.as_u16(), past.text()), (200, ""));
    assert_eq!(stage.client.get(&format!("{path}?stream=true&starting_after=x")).await.error().1, "starting_after");
    for path in [format!("{path}?include[]=x"), format!("{path}/input_items?include=x")] {
        assert!(stage.client.get(&path).await.error().0.contains("when the response is created"), "{path}");
    }
}

fn content_type(headers: &HeaderMap) -> &str {
    headers["content-type"].to_str().expect("text")
}

#[tokio::test]
async fn a_background_response_is_cancelled() {
    let mut stage = Stage::new(&[]).await;
    let streaming = stage.client.spawn(PATH, &json!({"input": "x", "background": true, "stream": true}));
    let request = stage.engine.request().await;
    stage.engine.send(vec![admitted(&request, 1), text(&request, 0, "a", FinishReason::Unspecified)]).await;
    let path = format!("{PATH}/{}", request.request_id);
    let early = stage.client.post(PATH, &json!({"input": "x", "previous_response_id": request.request_id})).await;
    assert_eq!((early.status.as_u16(), early.error().1), (400, json!("previous_response_id")));
    let cancelled = stage.client.post(&format!("{path}/cancel"), &json!({})).await.json();
    assert_eq!(cancelled["status"], "cancelled");
    assert_eq!(stage.engine.abort().await, number(&request));
    let events = events(streaming.await.expect("events").text());
    assert_eq!(kinds(&events).last(), Some(&"incomplete"));
    assert_eq!(events[events.len() - 1]["response"], cancelled);
    assert_eq!(stage.client.post(&format!("{path}/cancel"), &json!({})).await.json(), cancelled);
    stage.load_is(0).await;
}

#[tokio::test]
async fn fields_are_honoured_or_refused_by_name() {
    let stage = Stage::new(&["--tool-call-parser=hermes"]).await;
    let rows = [
        (json!({}), "input"),
        (json!({"input": "x", "messages": []}), "messages"),
        (json!({"input": "x", "max_tokens": 5}), "max_tokens"),
        (json!({"input": "x", "max_output_tokens": 0}), "max_output_tokens"),
        (json!({"input": "x", "conversation": "c"}), "conversation"),
        (json!({"input": "x", "prompt": {"id": "p"}}), "prompt"),
        (json!({"input": "x", "n": 2}), "n"),
        (json!({"input": "x", "temperature": 9}), "temperature"),
        (json!({"input": "x", "top_logprobs": 99}), "top_logprobs"),
        (json!({"input": "x", "include": ["all"]}), "include"),
        (json!({"input": "x", "reasoning": {"summary": "concise"}}), "reasoning"),
        (json!({"input": "x", "reasoning": {"effort": 3}}), "reasoning"),
        (json!({"input": "x", "text": {"format": {"type": "xml"}}}), "text"),
        (json!({"input": "x", "truncation": "middle"}), "truncation"),
        (json!({"input": "x", "metadata": {"a": 1}}), "metadata"),
        (json!({"input": "x", "service_tier": "gold"}), "service_tier"),
        (json!({"input": "x", "background": true, "store": false}), "background"),
        (json!({"input": "x", "stream_options": {"include_obfuscation": false}}), "stream_options"),
        (json!({"input": "x", "stream": true, "stream_options": {"include_obfuscation": true}}), "stream_options"),
        (json!({"input": "x", "tools": [{"type": "web_search"}]}), "tools"),
        (json!({"input": "x", "max_tool_calls": 0}), "max_tool_calls"),
    ];
    for (body, param) in rows {
        let refused = stage.client.post(PATH, &body).await;
        assert_eq!((refused.status.as_u16(), refused.error().1), (400, json!(param)), "{body}");
    }
}

#[tokio::test]
async fn fields_of_chats_are_taken_too() {
    let mut stage = Stage::new(&[]).await;
    let body = json!({"input": "x", "top_k": 7, "seed": 5, "stop": ["END"], "ignore_eos": true, "top_p": 0.5,
        "truncation": "auto", "frequency_penalty": 1.5, "logit_bias": {"3": 1}, "unknown": 1});
    let asked = stage.client.spawn(PATH, &body);
    let request = stage.engine.request().await;
    let (sampling, output) = (request.sampling.clone().expect("sampling"), request.output.clone().expect("output"));
    assert_eq!((sampling.top_k, sampling.seed, sampling.ignore_eos, sampling.top_p), (7, Some(5), true, 0.5));
    assert_eq!((sampling.frequency_penalty, sampling.logit_bias.len()), (1.5, 1));
    assert_eq!((output.stop, request.truncate_prompt_tokens), (vec!["END".to_owned()], Some(-1)));
    answer(&mut stage, &request, "", &["y"]).await;
    assert_eq!(asked.await.expect("an answer").status, 200);
    let refused = stage.client.post(PATH, &json!({"input": "x", "guided_regex": 7})).await;
    assert_eq!((refused.status.as_u16(), refused.error().1), (400, json!("guided_regex")));
}
