//! Structured output through HTTP: every text is what was demanded, whatever the seed, the route and the neighbours;
//! what cannot be demanded is that request's error alone. With the model that ships.

use anyhow::{Context, ensure};
use e2e_tests::{Client, Server};
use futures::future::{join_all, try_join_all};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn person() -> Value {
    json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer",
        "minimum": 0, "maximum": 150}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}},
        "required": ["name", "age", "tags"], "additionalProperties": false})
}

/// Demands, and whether a text meets them.
type Demand = (Value, fn(&str) -> bool);

fn demands() -> Vec<Demand> {
    let is_person = |text: &str| {
        let value: Value = serde_json::from_str(text).unwrap_or_default();
        let age = value["age"].as_u64().is_some_and(|age| age <= 150);
        let members = value.as_object().map_or(0, |members| members.len());
        age && value["name"].is_string() && value["tags"].is_array() && members == 3
    };
    let is_date = |text: &str| text.len() == 10 && text.split('-').all(|part| part.parse::<u32>().is_ok());
    let is_choice = |text: &str| ["north", "south-west", "Ost"].contains(&text);
    let is_sum = |text: &str| text.split(" + ").all(|number| number.parse::<u32>().is_ok());
    let grammar = "root ::= [0-9]{1,3} (\" + \" [0-9]{1,3}){0,4}";
    vec![
        (json!({"response_format": {"type": "json_schema", "json_schema": {"schema": person()}}}), is_person),
        (json!({"structured_outputs": {"json": person(), "disable_any_whitespace": true}}), is_person),
        (json!({"guided_json": person()}), is_person),
        (json!({"guided_regex": "[0-9]{4}-[0-9]{2}-[0-9]{2}"}), is_date),
        (json!({"structured_outputs": {"choice": ["north", "south-west", "Ost"]}}), is_choice),
        (json!({"structured_outputs": {"grammar": grammar}}), is_sum),
        (json!({"ebnf": grammar}), is_sum),
    ]
}

/// The texts and finishes of all choices.
async fn ask(client: &Client, path: &str, mut body: Value, demand: &Value) -> anyhow::Result<Vec<(String, String)>> {
    let members = body.as_object_mut().context("an object")?;
    members.extend(demand.as_object().context("an object")?.clone());
    match path {
        CHAT => members.insert("messages".into(), json!([{"role": "user", "content": "Tell me of a person."}])),
        _ => members.insert("prompt".into(), "Once upon a time".into()),
    };
    let (status, answer) = client.post(path, &body).await?;
    ensure!(status == 200, "{status}: {answer} to {body}");
    let choices = answer["choices"].as_array().context("choices")?;
    let text = |choice: &Value| {
        let text = choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap_or_default().to_owned();
        (text, choice["finish_reason"].as_str().unwrap_or_default().to_owned())
    };
    Ok(choices.iter().map(text).collect())
}

async fn every_demand_is_met(client: &Client) -> anyhow::Result<()> {
    let asked = demands().into_iter().enumerate().map(|(index, (demand, met))| async move {
        for (path, seed) in [(COMPLETIONS, 1), (CHAT, 2)] {
            let body = json!({"max_tokens": 300, "temperature": 1.0, "seed": 10 * index + seed, "n": 3});
            for (text, finish) in ask(client, path, body, &demand).await? {
                // A name may go on for ever; what was cut off is no sentence.
                ensure!(finish == "length" || met(&text), "{text:?} under {demand}");
                ensure!(finish != "length" || demand.to_string().contains("age"), "{text:?} under {demand}");
            }
        }
        anyhow::Ok(())
    });
    try_join_all(asked).await.map(drop)
}

#[tokio::test]
async fn texts_are_what_was_demanded() -> anyhow::Result<()> {
    let server = Server::start(&[]).await?;
    let client = server.client();
    every_demand_is_met(&client).await?;
    // Log-probabilities are those of all tokens: a text of one way is not certain.
    let body = json!({"max_tokens": 20, "temperature": 0, "logprobs": 2, "prompt": "Hello",
        "structured_outputs": {"choice": ["zebra"]}});
    let (_, answer) = client.post(COMPLETIONS, &body).await?;
    let choice = &answer["choices"][0];
    ensure!(choice["text"] == "zebra" && choice["finish_reason"] == "stop", "{choice}");
    let logprobs = choice["logprobs"]["token_logprobs"].as_array().context("logprobs")?;
    ensure!(logprobs.iter().any(|logprob| logprob.as_f64().is_some_and(|logprob| logprob < -1.0)), "{choice}");
    refusals(&client).await?;
    crate::metrics::settles_at(&client, "quire:kv_blocks_used", 0.0).await
}

/// What cannot be compiled is that request's error, and neighbours go on.
async fn refusals(client: &Client) -> anyhow::Result<()> {
    let deep = format!("{}{{}}{}", r#"{"items":"#.repeat(200), "}".repeat(200));
    let doubling = (0..40).map(|rule| format!("r{rule} ::= r{} r{}\n", rule + 1, rule + 1)).collect::<String>();
    let rows = [
        (json!({"structured_outputs": {"regex": "(a"}}), "structured_outputs"),
        (json!({"guided_json": {"type": "objekt"}}), "guided_json"),
        (json!({"guided_json": {"type": "integer", "minimum": 5, "maximum": 3}}), "guided_json"),
        (json!({"guided_grammar": format!("root ::= r0\n{doubling}r40 ::= \"a\"")}), "guided_grammar"),
        (json!({"guided_regex": "a".repeat(1 << 20)}), "guided_regex"),
        (json!({"guided_json": {"$ref": "#/$defs/none"}}), "guided_json"),
        (json!({"response_format": {"type": "structural_tag", "format": {"type": "nothing"}}}), "response_format"),
    ];
    let free = json!({"prompt": "The", "max_tokens": 30, "temperature": 0});
    let free = client.post(COMPLETIONS, &free);
    let refused = rows.iter().map(|(demand, param)| async move {
        let mut body = json!({"prompt": "Hi", "max_tokens": 9});
        body.as_object_mut().expect("an object").extend(demand.as_object().expect("an object").clone());
        let (status, answer) = client.post(COMPLETIONS, &body).await?;
        ensure!(status == 400 && answer["error"]["param"] == **param, "{status}: {answer} to {param}");
        anyhow::Ok(())
    });
    let (free, refused) = tokio::join!(free, join_all(refused));
    refused.into_iter().collect::<anyhow::Result<()>>()?;
    ensure!(free?.0 == 200);
    let (status, _) = client.post(COMPLETIONS, &json!({"prompt": "Hi", "max_tokens": 4, "guided_json": deep})).await?;
    ensure!(status == 200 || status == 400, "a deep schema: {status}");
    Ok(())
}

/// Within a number of ranks, which the order of sums depends on.
#[tokio::test]
async fn however_the_work_is_cut() -> anyhow::Result<()> {
    let ranks = ["--tensor-parallel-size", &e2e_tests::max_workers().min(2).to_string()];
    let small = ["--num-gpu-blocks-override", "48", "--max-model-len", "512", "--max-num-batched-tokens", "32"];
    let ways: [[Vec<&str>; 2]; 2] = [
        [vec!["--no-enable-jump-forward"], [&["--enable-jump-forward"], &small[..]].concat()],
        [
            [&["--no-enable-jump-forward"], &ranks[..]].concat(),
            [&["--enable-jump-forward", "--no-async-scheduling"], &ranks[..]].concat(),
        ],
    ];
    for [one, other] in ways {
        let texts = [people(&one).await?, people(&other).await?];
        // On a GPU the last bits of 16-bit sums depend on how the work is cut.
        let same = e2e_tests::is_on_gpu() || texts[0] == texts[1];
        ensure!(same, "the same seeds give the same texts with {one:?} and {other:?}: {texts:?}");
    }
    Ok(())
}

/// What a server with these flags makes of some seeds; it jumps ahead where it was told to.
async fn people(flags: &[&str]) -> anyhow::Result<Vec<String>> {
    let server = Server::start(flags).await?;
    let client = server.client();
    every_demand_is_met(&client).await?;
    let demand = json!({"structured_outputs": {"json": person(), "disable_any_whitespace": true}});
    let asked = (0..6).map(|seed| {
        let body = json!({"max_tokens": 120, "temperature": 0.8, "seed": seed});
        let (client, demand) = (&client, &demand);
        async move { ask(client, COMPLETIONS, body, demand).await }
    });
    let answers = try_join_all(asked).await?;
    let jumps = |tokens: f64| (tokens > 0.0) == flags.contains(&"--enable-jump-forward");
    crate::metrics::becomes(&client, "quire:jump_forward_tokens_total", jumps).await?;
    Ok(answers.into_iter().flatten().map(|(text, _)| text).collect())
}

#[tokio::test]
async fn calls_are_made_when_they_are_demanded() -> anyhow::Result<()> {
    let server = Server::start(&[]).await?;
    let client = server.client();
    let arguments = json!({"type": "object", "properties": {"city": {"type": "string", "maxLength": 10},
        "days": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["city", "days"],
        "additionalProperties": false});
    let function = |name: &str, strict: bool| {
        json!({"type": "function", "function": {"name": name,
        "description": "Weather", "parameters": arguments, "strict": strict}})
    };
    let named = json!({"type": "function", "function": {"name": "forecast"}});
    for (choice, strict) in [(json!("required"), false), (named, false), (json!("auto"), true)] {
        let body = json!({"messages": [{"role": "user", "content": "What is the weather in Rome?"}], "max_tokens": 200,
            "tools": [function("forecast", strict), function("climate", false)], "tool_choice": choice,
            "temperature": 1.0, "seed": 5, "n": 3, "parallel_tool_calls": choice == "auto"});
        let (status, answer) = client.post(CHAT, &body).await?;
        ensure!(status == 200, "{status}: {answer}");
        for made in answer["choices"].as_array().context("choices")? {
            let calls = made["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
            let cut = made["finish_reason"] == "length";
            ensure!(cut || choice == "auto" || calls.len() == 1, "{choice}: {made}");
            let held = |call: &&Value| choice != "auto" || call["function"]["name"] == "forecast";
            for call in calls.iter().filter(|call| !cut && held(call)) {
                let given: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap_or_default())?;
                let days = given["days"].as_u64().is_some_and(|days| (1..=9).contains(&days));
                ensure!(days && given["city"].is_string(), "{choice}: {made}");
            }
        }
    }
    crate::metrics::settles_at(&client, "vllm:tool_call_parser_invocations_total", 9.0).await
}

#[tokio::test]
async fn reasoning_ends_when_its_budget_is_spent() -> anyhow::Result<()> {
    let server = Server::start(&["--reasoning-parser", "deepseek_r1"]).await?;
    let client = server.client();
    for budget in [0, 6] {
        let body = json!({"messages": [{"role": "user", "content": "Is it raining?"}], "max_tokens": 60, "n": 2,
            "temperature": 1.0, "seed": 3, "thinking_token_budget": budget,
            "structured_outputs": {"choice": ["yes", "no"]}});
        let (status, answer) = client.post(CHAT, &body).await?;
        ensure!(status == 200, "{status}: {answer}");
        for choice in answer["choices"].as_array().context("choices")? {
            let (message, finish) = (&choice["message"], &choice["finish_reason"]);
            ensure!(message["content"] == "yes" || message["content"] == "no", "{choice}");
            let thought = message["reasoning"].as_str().is_some_and(|reasoning| !reasoning.is_empty());
            ensure!(thought == (budget > 0) && finish == "stop", "{choice}");
        }
    }
    Ok(())
}
