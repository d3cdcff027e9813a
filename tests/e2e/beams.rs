//! Beam search gives what Hugging Face's `generate(num_beams=5, max_new_tokens=50)` gives, whatever runs beside it.
//!
//! `tests/fixtures/beams.json` was recorded with transformers 5.23.0 and torch 2.15.0 (CPU, float32, eager attention):
//! prompts of the reference models, texts of up to 50 tokens, best first, among them searches that end early. (Prompts
//! with token 0 are not among them: `generate` takes it for padding there.)

use anyhow::{Context, ensure};
use e2e_tests::{Client, Server, root, zoo};
use futures::future::try_join_all;
use serde_json::{Value, json};

/// Ways to run that must not change a text; the last one preempts.
const WAYS: &[&[&str]] = &[
    &[],
    &["--no-enable-prefix-caching", "--no-async-scheduling"],
    &["--num-gpu-blocks-override", "22", "--max-model-len", "128"],
];

#[tokio::test]
async fn texts_are_those_of_hugging_face() -> anyhow::Result<()> {
    let recorded: Vec<Value> = serde_json::from_slice(&std::fs::read(root().join("tests/fixtures/beams.json"))?)?;
    let mut models: Vec<&str> = recorded.iter().filter_map(|case| case["model"].as_str()).collect();
    models.dedup();
    for model in models {
        let Some(prompts) = zoo::cases(model) else {
            println!("{model}: not in this zoo");
            continue;
        };
        let path = zoo::folder().join(model);
        let ways = if model == "llama" { WAYS } else { &WAYS[..1] };
        for flags in ways {
            let path = path.to_string_lossy();
            let mut args = vec![&*path, "--served-model-name", model, "--dtype", "float32"];
            args.extend_from_slice(flags);
            let server = Server::start(&args).await?;
            let client = server.client();
            // Each twice, so that searches meet.
            let cases = recorded.iter().chain(&recorded).filter(|case| case["model"] == model);
            let checks =
                cases.map(|case| check(&client, case, &prompts[case["prompt"].as_u64().unwrap_or(0) as usize].prompt));
            try_join_all(checks).await.with_context(|| format!("{model} {flags:?}"))?;
            if flags.contains(&"--num-gpu-blocks-override") {
                let preemptions = client.metric("vllm:num_preemptions_total", "").await?;
                ensure!(preemptions > 0.0, "these searches do not fit 22 blocks");
            }
            let shared = client.metric("quire:kv_blocks_shared", "").await?;
            ensure!(shared == 0.0, "{shared} blocks are still held");
        }
    }
    Ok(())
}

async fn check(client: &Client, case: &Value, prompt: &[u32]) -> anyhow::Result<()> {
    let (status, answer) = client
        .post(
            "/v1/completions",
            &json!({
                "prompt": prompt, "max_tokens": 50, "n": 5, "use_beam_search": true, "return_token_ids": true,
                "ignore_eos": true, "stop_token_ids": case["stop_token_ids"],
                "early_stopping": case["early_stopping"], "length_penalty": case["length_penalty"],
            }),
        )
        .await?;
    ensure!(status == 200, "{answer}");
    let texts: Vec<&Value> =
        answer["choices"].as_array().context("choices")?.iter().map(|choice| &choice["token_ids"]).collect();
    let expected: Vec<&Value> = case["texts"].as_array().context("texts")?.iter().collect();
    ensure!(texts == expected, "{case}\ngave {texts:?}");
    Ok(())
}
