//! Calls of tools and reasoning: what requests may ask for, and what answers look like, whole and streamed.

use proto::{Admitted, Delta, Event, FinishReason, Request, constraint, event, prompt};
use serde_json::{Value, json};

use crate::{
    client::events,
    engine::{delta, number},
    stage::Stage,
};

/// Pieces of an answer with two calls.
const CALLS: [&str; 7] = [
    "I look.\n",
    "<tool_c",
    "all>\n{\"name\": \"get_weather\", \"argu",
    "ments\": {\"city\": \"Ro",
    "me\"}}\n</tool_call>\n<tool_call>{\"name\": \"get_time\",",
    " \"arguments\": {}}</tool_",
    "call>",
];

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
            "properties": {"city": {"type": "string"}}}}},
        {"type": "function", "function": {"name": "get_time"}},
    ])
}

fn ask(extra: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Weather?"}], "tools": tools()});
    let fields = extra.as_object().expect("an object").clone();
    body.as_object_mut().expect("an object").extend(fields);
    body
}

/// Answers with these pieces, a token each with the given id, behind a prompt that ended so.
async fn answer(stage: &mut Stage, request: &Request, tail: &str, pieces: &[(&str, u32)]) {
    let admitted = Admitted { prompt_tokens: 3, prompt_tail: tail.into(), ..Admitted::default() };
    let mut all = vec![Event { number: number(request), kind: Some(event::Kind::Admitted(admitted.into())) }];
    for (index, (text, id)) in pieces.iter().enumerate() {
        let last = index + 1 == pieces.len();
        let finish = if last { FinishReason::Stop } else { FinishReason::Unspecified };
        let (text, token_ids) = ((*text).to_owned(), vec![*id]);
        all.push(delta(request, Delta { text, token_count: 1, token_ids, finish: finish.into(), ..Delta::default() }));
    }
    stage.engine.send(all).await;
}

fn calls() -> Vec<(&'static str, u32)> {
    CALLS.iter().map(|piece| (*piece, 1)).collect()
}

/// The first choice of each chunk of a stream.
fn choices(text: &str) -> Vec<Value> {
    events(text).iter().filter_map(|chunk| chunk["choices"].get(0).cloned()).collect()
}

#[tokio::test]
async fn calls_are_told_from_content() {
    let mut stage = Stage::new(&["--tool-call-parser=hermes"]).await;
    let asked = stage.client.spawn("/v1/chat/completions", &ask(json!({})));
    let request = stage.engine.request().await;
    let output = request.output.clone().expect("an output");
    assert!(!output.skip_special_tokens, "markers may be special tokens");
    let Some(prompt::Kind::Chat(chat)) = request.prompt.clone().expect("a prompt").kind else { panic!("a chat") };
    assert_eq!(serde_json::from_str::<Value>(&chat.tools_json).expect("JSON"), tools());
    answer(&mut stage, &request, "", &calls()).await;
    let choice = asked.await.expect("an answer").json()["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "tool_calls");
    let message = &choice["message"];
    assert_eq!(message["content"], "I look.");
    assert_eq!(message["reasoning"], Value::Null);
    let shown: Vec<_> = message["tool_calls"].as_array().expect("calls").iter().map(|call| &call["function"]).collect();
    assert_eq!(shown[0], &json!({"name": "get_weather", "arguments": "{\"city\": \"Rome\"}"}));
    assert_eq!(shown[1], &json!({"name": "get_time", "arguments": "{}"}));
    let ids: Vec<_> = (0..2).map(|index| message["tool_calls"][index]["id"].as_str().expect("an id")).collect();
    assert!(ids[0].starts_with("chatcmpl-tool-") && ids[0] != ids[1], "{ids:?}");
    assert_eq!(message["tool_calls"][0]["type"], "function");
}

#[tokio::test]
async fn streamed_calls_concatenate_to_the_whole() {
    let mut stage = Stage::new(&["--tool-call-parser=hermes"]).await;
    let asked = stage.client.spawn("/v1/chat/completions", &ask(json!({"stream": true})));
    let request = stage.engine.request().await;
    answer(&mut stage, &request, "", &calls()).await;
    let stream = asked.await.expect("an answer");
    let (mut content, mut calls) = (String::new(), Vec::<(String, String)>::new());
    for choice in choices(stream.text()) {
        let delta = &choice["delta"];
        content.push_str(delta["content"].as_str().unwrap_or_default());
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().expect("an index") as usize;
            if let Some(name) = call["function"]["name"].as_str() {
                assert!(call["id"].is_string() && call["type"] == "function", "{call}");
                assert_eq!(index, calls.len());
                calls.push((name.to_owned(), String::new()));
            }
            calls[index].1.push_str(call["function"]["arguments"].as_str().expect("arguments"));
        }
    }
    assert_eq!(content, "I look.");
    let expected = [("get_weather", "{\"city\": \"Rome\"}"), ("get_time", "{}")];
    assert_eq!(calls, expected.map(|(name, arguments)| (name.to_owned(), arguments.to_owned())));
    let last = choices(stream.text()).pop().expect("a chunk");
    assert_eq!(last["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn one_call_at_a_time_may_be_asked_for() {
    let mut stage = Stage::new(&["--tool-call-parser=hermes"]).await;
    let asked = stage.client.spawn("/v1/chat/completions", &ask(json!({"parallel_tool_calls": false})));
    let request = stage.engine.request().await;
    answer(&mut stage, &request, "", &calls()).await;
    let message = asked.await.expect("an answer").json()["choices"][0]["message"].clone();
    assert_eq!(message["tool_calls"].as_array().expect("calls").len(), 1);
}

#[tokio::test]
async fn what_cannot_be_honoured_is_refused_by_name() {
    let stage = Stage::new(&["--tool-call-parser=hermes"]).await;
    let rows = [
        (json!({"tool_choice": "required", "tools": []}), "tool_choice"),
        (json!({"tool_choice": "required", "structured_outputs": {"regex": "a"}}), "tool_choice"),
        (json!({"tool_choice": {"type": "function", "function": {"name": "get_nothing"}}}), "tool_choice"),
        (json!({"tool_choice": {"type": "allowed_tools"}}), "tool_choice"),
        (json!({"tool_choice": "sometimes"}), "tool_choice"),
        (json!({"tools": [{"type": "web_search"}]}), "tools"),
        (json!({"tools": [{"type": "function", "function": {"name": ""}}]}), "tools"),
        (json!({"thinking_token_budget": 7}), "thinking_token_budget"),
    ];
    for (extra, param) in rows {
        let refused = stage.client.post("/v1/chat/completions", &ask(extra.clone())).await;
        assert_eq!((refused.status.as_u16(), refused.error().1), (400, json!(param)), "{extra}");
    }
    let tagged = Stage::new(&["--tool-call-parser=qwen3_coder"]).await;
    let strict = json!([{"type": "function", "function": {"name": "f", "strict": true}}]);
    let refused = tagged.client.post("/v1/chat/completions", &ask(json!({"tools": strict}))).await;
    assert_eq!((refused.status.as_u16(), refused.error().1), (400, json!("tools")));
    let unknown = Stage::new(&[]).await;
    let refused = unknown.client.post("/v1/chat/completions", &ask(json!({}))).await;
    assert_eq!((refused.status.as_u16(), refused.error().1), (400, json!("tools")));
}

#[tokio::test]
async fn tools_that_may_not_be_called_are_only_shown() {
    let mut stage = Stage::new(&["--tool-call-parser=hermes"]).await;
    let asked = stage.client.spawn("/v1/chat/completions", &ask(json!({"tool_choice": "none"})));
    let request = stage.engine.request().await;
    answer(&mut stage, &request, "", &[("<tool_call>{}</tool_call>", 1)]).await;
    let message = asked.await.expect("an answer").json()["choices"][0]["message"].clone();
    assert_eq!((&message["content"], message.get("tool_calls")), (&json!("<tool_call>{}</tool_call>"), None));
}

#[tokio::test]
async fn reasoning_has_a_field_of_its_own() {
    let mut stage = Stage::new(&["--reasoning-parser=qwen3"]).await;
    let pieces = [("hm", 1), (" well", 2), ("</think>", 3), ("\n\nyes", 4)];
    for (extra, reasoning) in [(json!({}), json!("hm well")), (json!({"include_reasoning": false}), Value::Null)] {
        let mut body = ask(extra);
        body["tool_choice"] = "none".into();
        let asked = stage.client.spawn("/v1/chat/completions", &body);
        let request = stage.engine.request().await;
        assert_eq!(request.output.clone().expect("an output").prompt_tail.as_deref(), Some(""));
        answer(&mut stage, &request, "<|im_start|>assistant\n<think>\n", &pieces).await;
        let message = asked.await.expect("an answer").json()["choices"][0]["message"].clone();
        assert_eq!((&message["reasoning"], &message["reasoning_content"]), (&reasoning, &reasoning));
        assert_eq!(message["content"], "yes");
    }
    let body = json!({"messages": [{"role": "user", "content": "?"}], "stream": true});
    let asked = stage.client.spawn("/v1/chat/completions", &body);
    let request = stage.engine.request().await;
    answer(&mut stage, &request, "<think>", &pieces).await;
    let stream = asked.await.expect("an answer");
    let of = |name: &str| {
        let all = choices(stream.text()).into_iter();
        all.filter_map(|choice| choice["delta"][name].as_str().map(str::to_owned)).collect::<String>()
    };
    assert_eq!(
        (of("reasoning"), of("reasoning_content"), of("content")),
        ("hm well".into(), "hm well".into(), "yes".into())
    );
}

#[tokio::test]
async fn anthropics_messages_are_chats() {
    let mut stage = Stage::new(&["--tool-call-parser=hermes", "--reasoning-parser=qwen3"]).await;
    let body = json!({
        "model": "wren", "max_tokens": 9, "system": [{"type": "text", "text": "Be kind."}], "stop_sequences": ["END"],
        "tools": [{"name": "get_weather", "input_schema": {"type": "object"}}],
        "messages": [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Oslo"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "rain"},
                {"type": "text", "text": "And Rome?"}]},
        ],
    });
    let asked = stage.client.spawn("/v1/messages", &body);
    let request = stage.engine.request().await;
    let Some(prompt::Kind::Chat(chat)) = request.prompt.clone().expect("a prompt").kind else { panic!("a chat") };
    let function = json!({"name": "get_weather", "arguments": "{\"city\":\"Oslo\"}"});
    let expected = json!([
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "reasoning": "hm",
         "tool_calls": [{"id": "t1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "t1", "content": "rain"},
        {"role": "user", "content": "And Rome?"},
    ]);
    assert_eq!(serde_json::from_str::<Value>(&chat.messages_json).expect("JSON"), expected);
    assert_eq!(request.output.clone().expect("an output").stop, ["END"]);
    let pieces = [("hm</think>", 1), ("Yes.", 1), ("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}", 1)];
    answer(&mut stage, &request, "<think>", &pieces).await;
    let message = asked.await.expect("an answer").json();
    assert_eq!((&message["type"], &message["stop_reason"]), (&json!("message"), &json!("tool_use")));
    assert_eq!(message["content"][0], json!({"type": "thinking", "thinking": "hm", "signature": ""}));
    assert_eq!(message["content"][1], json!({"type": "text", "text": "Yes."}));
    assert_eq!((&message["content"][2]["name"], &message["content"][2]["input"]), (&json!("f"), &json!({"a": 1})));
    assert_eq!(message["usage"]["output_tokens"], 3);

    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let asked = stage.client.spawn("/v1/messages", &streamed);
    let request = stage.engine.request().await;
    answer(&mut stage, &request, "<think>", &pieces).await;
    let stream = asked.await.expect("an answer");
    let data = stream.text().lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.map(|data| serde_json::from_str(data).expect("JSON")).collect();
    let opened = events.iter().filter(|event| event["type"] == "content_block_start");
    let kinds: Vec<_> = opened.map(|event| event["content_block"]["type"].as_str().expect("a type")).collect();
    assert_eq!(kinds, ["thinking", "text", "tool_use"]);
    let input = events.iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect::<String>();
    assert_eq!(input, "{\"a\": 1}");
    assert_eq!(events[events.len() - 2]["delta"]["stop_reason"], "tool_use");
    assert_eq!(events.last().expect("an event")["type"], "message_stop");
}

#[tokio::test]
async fn anthropics_errors_have_their_shape() {
    let stage = Stage::new(&[]).await;
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let image = json!([{"role": "user", "content": [{"type": "image", "source": {}}]}]);
    let rows = [
        (json!({"messages": messages}), 400, "invalid_request_error"),
        (json!({"messages": image, "max_tokens": 1}), 400, "invalid_request_error"),
        (json!({"messages": messages, "max_tokens": 1, "model": "nobody"}), 404, "not_found_error"),
        (
            json!({"messages": messages, "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 5}}),
            400,
            "invalid_request_error",
        ),
    ];
    for (body, status, kind) in rows {
        let refused = stage.client.post("/v1/messages", &body).await;
        assert_eq!((refused.status.as_u16(), &refused.json()["error"]["type"]), (status, &json!(kind)), "{body}");
        assert_eq!(refused.json()["type"], "error");
    }
}

/// The format that the text of a request is held to.
fn held_to(request: &Request) -> Value {
    let constraint = request.sampling.clone().expect("sampling").constraint.expect("a constraint");
    let Some(constraint::Kind::StructuralTag(text)) = constraint.kind else { panic!("a structural tag") };
    serde_json::from_str(&text).expect("JSON")
}

#[tokio::test]
async fn calls_that_are_demanded_are_held_to_their_schemas() {
    let mut stage = Stage::new(&["--tool-call-parser=hermes"]).await;
    let named = json!({"type": "function", "function": {"name": "get_weather"}});
    for (choice, functions) in [(json!("required"), 2), (named, 1)] {
        let asked = stage.client.spawn("/v1/chat/completions", &ask(json!({"tool_choice": choice})));
        let request = stage.engine.request().await;
        let all = &held_to(&request)["elements"][0];
        assert_eq!((&all["at_least_one"], &all["stop_after_first"]), (&json!(true), &json!(functions == 1)));
        let tags = all["tags"].as_array().expect("tags");
        assert_eq!(tags.len(), functions);
        assert_eq!(tags[0]["begin"], "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": ");
        assert_eq!(tags[0]["content"]["json_schema"], tools()[0]["function"]["parameters"]);
        answer(&mut stage, &request, "", &calls()).await;
        assert_eq!(asked.await.expect("an answer").json()["choices"][0]["finish_reason"], "tool_calls");
    }
}

#[tokio::test]
async fn what_cannot_be_demanded_in_the_models_form_is_plain_json() {
    let mut stage = Stage::new(&["--tool-call-parser=qwen3_coder", "--reasoning-parser=qwen3"]).await;
    let asked = stage.client.spawn("/v1/chat/completions", &ask(json!({"tool_choice": "required"})));
    let request = stage.engine.request().await;
    assert_eq!(held_to(&request)["elements"][0], json!({"type": "const_string", "value": "["}));
    let reasoning = request.sampling.clone().expect("sampling").reasoning.expect("what its reasoning looks like");
    assert_eq!((reasoning.format.as_str(), reasoning.budget), ("qwen3", None));
    let call = "[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}]";
    answer(&mut stage, &request, "<think>", &[("hm</think>", 1), (call, 1)]).await;
    let message = asked.await.expect("an answer").json()["choices"][0]["message"].clone();
    let function = &message["tool_calls"][0]["function"];
    assert_eq!(function, &json!({"name": "get_weather", "arguments": "{\"city\": \"Rome\"}"}));
}

#[tokio::test]
async fn strict_functions_are_held_to_their_schemas_where_they_are_called() {
    let mut stage = Stage::new(&["--tool-call-parser=hermes"]).await;
    let mut tools = tools();
    tools[0]["function"]["strict"] = true.into();
    let body = ask(json!({"tools": tools, "response_format": {"type": "json_object"}}));
    let asked = stage.client.spawn("/v1/chat/completions", &body);
    let request = stage.engine.request().await;
    let format = held_to(&request);
    assert_eq!(format["elements"][0]["json_schema"], json!({"type": "object"}), "the text");
    let calls_form = &format["elements"][1];
    assert_eq!((&calls_form["triggers"], &calls_form["at_least_one"]), (&json!(["<tool_call>"]), &json!(true)));
    let schema = |index: usize| &calls_form["tags"][index]["content"]["json_schema"];
    assert_eq!((schema(0), schema(1)), (&tools[0]["function"]["parameters"], &json!({"type": "object"})));
    answer(&mut stage, &request, "", &calls()).await;
    asked.await.expect("an answer");
}

#[tokio::test]
async fn a_budget_of_reasoning_reaches_the_engine() {
    let mut stage = Stage::new(&["--reasoning-parser=qwen3"]).await;
    let messages = json!([{"role": "user", "content": "?"}]);
    let chat = json!({"messages": messages, "thinking_token_budget": 7});
    let message = json!({"messages": messages, "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 7}});
    for (path, body) in [("/v1/chat/completions", chat.clone()), ("/v1/messages", message)] {
        let asked = stage.client.spawn(path, &body);
        let request = stage.engine.request().await;
        let reasoning = request.sampling.clone().expect("sampling").reasoning.expect("a budget");
        assert_eq!(reasoning.budget, Some(7), "{path}");
        answer(&mut stage, &request, "", &[("yes", 1)]).await;
        asked.await.expect("an answer");
    }
    let without = Stage::new(&[]).await;
    let refused = without.client.post("/v1/chat/completions", &chat).await;
    assert_eq!((refused.status.as_u16(), refused.error().1), (400, json!("thinking_token_budget")));
}
