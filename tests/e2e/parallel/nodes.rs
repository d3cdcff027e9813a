//! An engine on two nodes of one machine: a `quire serve` each, whose workers meet over TCP.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, ensure};
use e2e_tests::{Client, Server, alone, free_port, zoo};
use rustix::process::{Signal, kill_process};
use serde_json::json;
use tokio::time::timeout;

/// Within this, nodes find each other (debug builds load slowly).
const READY: Duration = Duration::from_secs(60);

/// The flags that all nodes have, but for the token's file.
fn flags(port: u16) -> Vec<String> {
    let model = zoo::folder().join("llama").to_string_lossy().into_owned();
    let words = "--served-model-name llama --dtype float32 --device cpu -pp 2 --nnodes 2 --master-addr localhost";
    let words = words.split_whitespace().map(str::to_owned);
    [model].into_iter().chain(words).chain([format!("--master-port={port}")]).collect()
}

fn node(flags: &[String], rank: u32, token: &Path) -> anyhow::Result<Server> {
    let own = [format!("--node-rank={rank}"), format!("--link-token-file={}", token.display())];
    let words: Vec<&str> = flags.iter().chain(&own).map(String::as_str).collect();
    Server::launch(free_port()?, &words, &[])
}

async fn until(what: &str, holds: impl AsyncFn() -> bool) -> anyhow::Result<()> {
    let waiting = async {
        while !holds().await {
            tokio::task::yield_now().await;
        }
    };
    timeout(READY, waiting).await.with_context(|| format!("{what}: not within {READY:?}"))
}

async fn serves(client: &Client) -> bool {
    let body = json!({"model": "llama", "prompt": [1, 2, 3], "max_tokens": 3});
    client.post("/v1/completions", &body).await.is_ok_and(|(status, _)| status == 200)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_serve_a_model_and_a_lost_one_comes_back() -> anyhow::Result<()> {
    let cases = zoo::cases("llama").context("in every zoo")?;
    let _alone = alone().await;
    let folder = tempfile::tempdir()?;
    let [token, other] = ["token", "other"].map(|name| folder.path().join(name));
    fs::write(&token, "the-token-of-this-engine\n")?;
    fs::write(&other, "the-token-of-another-one\n")?;
    let flags = flags(free_port()?);
    // Any order: the second node waits for the first.
    let second = node(&flags, 1, &token)?;
    let mut head = node(&flags, 0, &token)?;
    head.healthy(READY).await.context(second.log())?;
    let client = head.client();
    for round in 0..2 {
        for case in &cases {
            let tokens = client.greedy("llama", &case.prompt, case.greedy.len()).await?;
            ensure!(tokens == case.greedy, "round {round}: {tokens:?}");
        }
    }
    kill_process(second.pid(), Signal::KILL)?;
    drop(second);
    until("the head notices", async || client.health().await == Some(503)).await?;
    // A node of another engine gets nothing, and is told why.
    let stranger = node(&flags, 1, &other)?;
    until("the stranger is told", async || stranger.log().contains("--link-token-file")).await?;
    // Its processes write to the log by pipes, which may come later than the answer to the stranger.
    until("the head tells", async || head.log().contains("turned a peer away")).await.with_context(|| head.log())?;
    ensure!(client.health().await == Some(503), "{}", head.log());
    drop(stranger);
    let again = node(&flags, 1, &token)?;
    until("the group forms again", async || serves(&client).await).await.with_context(|| again.log())?;
    let tokens = client.greedy("llama", &cases[0].prompt, cases[0].greedy.len()).await?;
    ensure!(tokens == cases[0].greedy, "{tokens:?}");
    Ok(())
}
