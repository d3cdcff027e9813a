//! Greedy tokens equal the reference, however the work is cut: workers, batches, cache, chunks, preemption, run-ahead.

use anyhow::ensure;
use e2e_tests::{Client, MOST_RANKS_OF_WREN, Server, group_sizes, max_workers, root, zoo};
use futures::future::try_join_all;

/// Models of the Llama family in the zoo.
const MODELS: &[&str] = &[
    "llama",
    "llama-rope-dynamic",
    "llama-rope-linear",
    "llama-rope-llama3",
    "llama-rope-yarn",
    "mistral",
    "qwen2",
    "qwen3",
];

/// Ways to run that must not change a token.
const WAYS: &[(&str, &[&str])] = &[
    ("one worker", &[]),
    ("chunks of 16 tokens", &["--max-num-batched-tokens", "16", "--max-num-seqs", "16"]),
    ("in order, no run-ahead", &["--no-async-scheduling"]),
    ("without prefix cache", &["--no-enable-prefix-caching"]),
    ("preemption", &["--num-gpu-blocks-override", "24", "--max-model-len", "128"]),
];

#[tokio::test]
async fn every_model_alone_and_batched() -> anyhow::Result<()> {
    println!("reference models: {}", zoo::folder().display());
    for model in MODELS {
        let Some(cases) = zoo::cases(model) else {
            println!("{model}: not in this zoo");
            continue;
        };
        let path = zoo::folder().join(model);
        let server =
            Server::start(&[&path.to_string_lossy(), "--served-model-name", model, "--dtype", "float32"]).await?;
        check(&server.client(), model, &cases).await?;
    }
    Ok(())
}

#[tokio::test]
async fn every_way_of_running() -> anyhow::Result<()> {
    for model in ["llama", "mistral"] {
        let cases = zoo::cases(model).expect("in every zoo");
        let path = zoo::folder().join(model);
        for (way, flags) in WAYS {
            println!("{model}: {way}");
            let path = path.to_string_lossy();
            let mut args = vec![&*path, "--served-model-name", model, "--dtype", "float32"];
            args.extend_from_slice(flags);
            let server = Server::start(&args).await?;
            check(&server.client(), model, &cases).await?;
            if *way == "preemption" {
                let preemptions = server.client().metric("vllm:num_preemptions_total", "").await?;
                ensure!(preemptions > 0.0, "24 blocks must force preemptions");
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn two_workers_say_the_same() -> anyhow::Result<()> {
    if max_workers() < 2 {
        println!("not checked: there is one GPU");
        return Ok(());
    }
    for model in ["llama", "llama-rope-yarn", "mistral", "qwen3"] {
        let Some(cases) = zoo::cases(model) else { continue };
        let path = zoo::folder().join(model);
        let path = path.to_string_lossy();
        let args = [&path, "--served-model-name", model, "--dtype", "float32", "--tensor-parallel-size", "2"];
        let server = Server::start(&args).await?;
        check(&server.client(), model, &cases).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_model_that_ships() -> anyhow::Result<()> {
    for ranks in group_sizes().filter(|ranks| *ranks <= MOST_RANKS_OF_WREN) {
        let ranks = ranks.to_string();
        let args = ["--dtype", "float32", "--served-model-name", "wren", "--tensor-parallel-size", &ranks];
        let server = Server::start(&args).await?;
        check(&server.client(), "wren", &zoo::default_model_cases()).await?;
    }
    Ok(())
}

/// Every case alone (cold, then warm), then all of them among 64 strangers.
async fn check(client: &Client, model: &str, cases: &[zoo::Case]) -> anyhow::Result<()> {
    for (temperature, round) in [("cold", 0), ("warm", 1)] {
        for (index, case) in cases.iter().enumerate() {
            let tokens = client.greedy(model, &case.prompt, case.greedy.len()).await?;
            ensure!(tokens == case.greedy, "{model}, prompt {index}, alone, {temperature} ({round}): {tokens:?}");
        }
    }
    let strangers = (0..64).map(|number: u32| {
        let prompt: Vec<u32> = (0..5 + number % 40).map(|i| 10 + (number * 37 + i * 11) % 300).collect();
        async move { client.greedy(model, &prompt, 8 + number as usize % 24).await.map(drop) }
    });
    let ours = cases.iter().enumerate().map(|(index, case)| async move {
        let tokens = client.greedy(model, &case.prompt, case.greedy.len()).await?;
        ensure!(tokens == case.greedy, "{model}, prompt {index}, among strangers: {tokens:?}");
        Ok(())
    });
    tokio::try_join!(try_join_all(strangers), try_join_all(ours))?;
    Ok(())
}

#[test]
fn the_fixtures_are_there() {
    assert!(root().join("tests/fixtures/zoo/llama/reference.json").is_file());
}
