//! Very long prompts: encoded beside the others' requests, not before them; and answered with all that is asked of
//! them.

use std::time::Duration;

use anyhow::{Context, ensure};
use e2e_tests::{Server, root};
use serde_json::json;

/// Long prompts at once: as many as there are encoder lanes for them, and more.
const LONG: usize = 8;
/// Short requests that are answered meanwhile.
const SHORT: usize = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_a_prompt_of_100k_tokens() -> anyhow::Result<()> {
    let (echo, tokenizer) =
        (root().join("tests/fixtures/shapes/echo"), root().join("crates/default-model/files/model"));
    let (echo, tokenizer) = (echo.display().to_string(), tokenizer.display().to_string());
    let args = [echo.as_str(), "--load-format", "dummy", "--tokenizer", &tokenizer, "--served-model-name", "echo"];
    let server = Server::start(&args).await?;
    let client = server.client();
    let prompt = "The quick brown fox jumps over the lazy dog. ".repeat(10_000);
    let long: Vec<_> = (0..LONG)
        .map(|_| {
            let (client, body) = (client.clone(), json!({"prompt": prompt, "max_tokens": 1}));
            tokio::spawn(async move { client.post("/v1/completions", &body).await })
        })
        .collect();
    crate::metrics::becomes(&client, "quire:tokenizer_in_flight", |requests| requests >= 1.0).await?;
    for _ in 0..SHORT {
        let (status, answer) = client.post("/v1/completions", &json!({"prompt": "Hello", "max_tokens": 1})).await?;
        ensure!(status == 200, "{status}: {answer}");
    }
    let waiting = long.iter().filter(|request| !request.is_finished()).count();
    ensure!(waiting > 0, "the long prompts were all encoded before {SHORT} short ones");
    for request in long {
        let (status, answer) = tokio::time::timeout(Duration::from_secs(100), request).await.context("hangs")???;
        ensure!(status == 200, "{status}: {answer}");
        let tokens = answer["usage"]["prompt_tokens"].as_u64().context("usage")?;
        ensure!(tokens >= 100_000, "only {tokens} tokens");
    }
    Ok(())
}

/// They are more than any message between two processes holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_probabilities_of_a_prompt_arrive_however_many_they_are() -> anyhow::Result<()> {
    const TOKENS: usize = 300;
    const TOP: usize = 1200;
    let model = root().join("crates/default-model/files/model").display().to_string();
    let server = Server::start(&[&model, "--served-model-name", "m", "--max-logprobs", "-1"]).await?;
    let prompt: Vec<usize> = (100..100 + TOKENS).collect();
    let body = json!({"model": "m", "prompt": prompt, "max_tokens": 1, "prompt_logprobs": TOP});
    let (status, answer) = server.client().post("/v1/completions", &body).await?;
    ensure!(status == 200, "{status}: {answer}");
    let positions = answer["choices"][0]["prompt_logprobs"].as_array().context("prompt_logprobs")?;
    ensure!(positions.len() == TOKENS && positions[0].is_null(), "{} positions", positions.len());
    let given = |position: &serde_json::Value| position.as_object().map_or(0, serde_json::Map::len);
    ensure!(positions[1..].iter().all(|position| given(position) >= TOP), "fewer than {TOP} at a position");
    Ok(())
}
