//! Streams: their concatenation is the whole answer, their shape is the API's, and one reader never disturbs another.

use anyhow::{Context, ensure};
use e2e_tests::{Client, Server};
use serde_json::{Value, json};

const PROMPTS: &[&str] =
    &["Hi, who are you?", "Tell me a story about a brave robot named Bolt.", "Why is the sky blue?", "Count to five."];

#[tokio::test]
async fn a_stream_is_the_answer_in_pieces() -> anyhow::Result<()> {
    let server = Server::start(&[]).await?;
    let client = server.client();
    for (index, prompt) in PROMPTS.iter().enumerate() {
        for temperature in [0.0, 0.9] {
            let body = json!({
                "messages": [{"role": "user", "content": prompt}], "max_tokens": 60, "temperature": temperature,
                "seed": 7 + index, "stream_options": {"include_usage": true},
            });
            let (text, usage) = streamed(&client, &body).await?;
            let mut whole = body.clone();
            whole.as_object_mut().context("an object")?.remove("stream_options");
            let (status, answer) = client.post("/v1/chat/completions", &whole).await?;
            ensure!(status == 200, "{answer}");
            ensure!(answer["choices"][0]["message"]["content"] == text.as_str(), "{answer} is not {text}");
            ensure!(answer["usage"]["completion_tokens"] == usage["completion_tokens"], "{answer} {usage}");
            ensure!(answer["usage"]["prompt_tokens"] == usage["prompt_tokens"], "{answer} {usage}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn stop_strings_cut_the_text() -> anyhow::Result<()> {
    let server = Server::start(&[]).await?;
    let client = server.client();
    let ask = |extra: Value| {
        let mut body = json!({"prompt": "Once upon a time", "max_tokens": 48, "temperature": 0});
        body.as_object_mut().expect("object").extend(extra.as_object().expect("object").clone());
        let client = client.clone();
        async move { client.post("/v1/completions", &body).await }
    };
    let (_, whole) = ask(json!({})).await?;
    let text = whole["choices"][0]["text"].as_str().context("text")?.to_owned();
    // A stop string that spans tokens: three characters from the middle of the text.
    let middle = text.char_indices().nth(text.chars().count() / 2).context("long enough")?.0;
    let stop: String = text[middle..].chars().take(3).collect();
    let (_, cut) = ask(json!({"stop": [stop]})).await?;
    let first = text.find(&stop).context("it is there")?;
    ensure!(cut["choices"][0]["text"] == text[..first], "{cut}");
    ensure!(cut["choices"][0]["finish_reason"] == "stop", "{cut}");
    ensure!(cut["choices"][0]["stop_reason"] == stop.as_str(), "{cut}");
    let (_, kept) = ask(json!({"stop": [stop], "include_stop_str_in_output": true})).await?;
    ensure!(kept["choices"][0]["text"] == text[..first + stop.len()], "{kept}");
    Ok(())
}

#[tokio::test]
async fn seeds_repeat_whatever_else_runs() -> anyhow::Result<()> {
    // In 16 bits the last bits of a row may change with its company on a GPU.
    let server = Server::start(&["--dtype", "float32"]).await?;
    let client = server.client();
    let body = json!({"prompt": "The little dog", "max_tokens": 40, "temperature": 1.0, "seed": 42, "top_p": 0.95});
    let (_, alone) = client.post("/v1/completions", &body).await?;
    let crowd = (0..48).map(|number| {
        let (client, body) = (client.clone(), body.clone());
        async move {
            let mut body = body;
            if number % 4 != 0 {
                body["seed"] = json!(1000 + number);
                body["temperature"] = json!(1.3);
                body["prompt"] = json!(format!("Number {number} said"));
            }
            client.post("/v1/completions", &body).await.map(|(_, answer)| (number, answer))
        }
    });
    for (number, answer) in futures::future::try_join_all(crowd).await? {
        if number % 4 == 0 {
            ensure!(answer["choices"][0]["text"] == alone["choices"][0]["text"], "{number}: {answer} is not {alone}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn parallel_choices_share_the_prompt() -> anyhow::Result<()> {
    let server = Server::start(&[]).await?;
    let client = server.client();
    let prompt = "a long shared beginning ".repeat(20);
    let body = json!({"prompt": prompt, "n": 4, "max_tokens": 12, "temperature": 1.0, "seed": 3});
    let (status, answer) = client.post("/v1/completions", &body).await?;
    ensure!(status == 200, "{answer}");
    let choices = answer["choices"].as_array().context("choices")?;
    let mut indices: Vec<u64> = choices.iter().filter_map(|choice| choice["index"].as_u64()).collect();
    indices.sort_unstable();
    ensure!(indices == [0, 1, 2, 3], "{answer}");
    let (_, again) = client.post("/v1/completions", &body).await?;
    for choice in choices {
        let twin = again["choices"].as_array().context("choices")?.iter().find(|c| c["index"] == choice["index"]);
        ensure!(twin.is_some_and(|twin| twin["text"] == choice["text"]), "{answer} {again}");
    }
    Ok(())
}

/// The text of a streamed chat answer, and its usage.
async fn streamed(client: &Client, body: &Value) -> anyhow::Result<(String, Value)> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let (status, mut stream) = client.stream("/v1/chat/completions", &body).await?;
    ensure!(status == 200, "status {status}");
    let (mut text, mut usage, mut finished) = (String::new(), Value::Null, 0);
    while let Some(chunk) = stream.next().await? {
        ensure!(chunk["object"] == "chat.completion.chunk", "{chunk}");
        for choice in chunk["choices"].as_array().context("choices")? {
            text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
            finished += usize::from(!choice["finish_reason"].is_null());
        }
        if !chunk["usage"].is_null() {
            usage = chunk["usage"].clone();
        }
    }
    ensure!(finished == 1, "one finish, not {finished}");
    Ok((text, usage))
}
