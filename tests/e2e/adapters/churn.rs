//! Adapters that are loaded, used, replaced and unloaded again and again while others and the base answer: every answer
//! is its adapter's, and nothing is left behind.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, ensure};
use e2e_tests::{Client, descendants, resident_bytes, zoo};
use futures::future::join;
use serde_json::json;

use super::{check, folder, serve};

const STATIC: [&str; 2] = ["lora-llama-r8-qv", "lora-llama-r16-rslora"];
const GUESTS: [&str; 3] = ["lora-llama-r8-all", "lora-llama-r4-partial", "lora-llama-r16-all"];
/// Room on the host: fewer than there are names.
const HOST: f64 = 2.0;
/// What a worker may grow by after its first rounds. A thousand of these adapters would take 200 MiB.
const MOST_GROWTH: u64 = 32 << 20;

async fn post(client: &Client, path: &str, body: serde_json::Value) -> anyhow::Result<()> {
    let (status, text) = client.post_raw(path, body.to_string().into_bytes()).await?;
    ensure!(status == 200 && text.starts_with("Success"), "{status}: {text}");
    Ok(())
}

/// One guest is loaded and asked; it gives way to another one in place while a request runs, and is unloaded.
async fn round(client: &Client, number: usize) -> anyhow::Result<()> {
    let [first, second] = [number, number + 1].map(|number| GUESTS[number % GUESTS.len()]);
    let load = |name: &str, in_place: bool| {
        let path = zoo::path(name).display().to_string();
        post(
            client,
            "/v1/load_lora_adapter",
            json!({"lora_name": "guest", "lora_path": path, "load_inplace": in_place}),
        )
    };
    let case = |name: &str| zoo::cases(name).and_then(|cases| cases.into_iter().nth(number % 4));
    let (old, new) = (case(first).context("a reference")?, case(second).context("a reference")?);
    load(first, false).await?;
    let (tokens, replaced) = join(client.greedy("guest", &old.prompt, old.greedy.len()), load(second, true)).await;
    replaced?;
    let (tokens, later) = (tokens?, client.greedy("guest", &old.prompt, old.greedy.len()).await?);
    ensure!(tokens == old.greedy || tokens == later, "round {number}: {tokens:?} is neither adapter's");
    let tokens = client.greedy("guest", &new.prompt, new.greedy.len()).await?;
    ensure!(tokens == new.greedy, "round {number}: {tokens:?}, not {:?}", new.greedy);
    post(client, "/v1/unload_lora_adapter", json!({"lora_name": "guest"})).await
}

/// Waits until nothing runs; then all slots, blocks and adapters are accounted for.
async fn nothing_is_left(client: &Client) -> anyhow::Result<()> {
    for _ in 0..1000 {
        if client.metric("vllm:num_requests_running", "").await? == 0.0 {
            break;
        }
    }
    for (name, most) in [
        ("vllm:num_requests_running", 0.0),
        ("vllm:num_requests_waiting", 0.0),
        ("quire:kv_blocks_used", 0.0),
        ("quire:kv_blocks_lost", 0.0),
        ("quire:lora_adapters_loaded", HOST),
        ("quire:worker_lora_adapters", HOST),
    ] {
        let value = client.metric(name, "").await?;
        ensure!(value <= most, "{name} is {value}");
    }
    let (_, metrics) = client.get("/metrics").await?;
    let info =
        metrics.lines().find(|line| line.starts_with("vllm:lora_requests_info{")).context("lora_requests_info")?;
    ensure!(info.contains(r#"running_lora_adapters="""#) && info.contains(r#"waiting_lora_adapters="""#), "{info}");
    Ok(())
}

async fn churn(rounds: usize) -> anyhow::Result<()> {
    if GUESTS.iter().any(|name| folder(name).is_none()) {
        return Ok(());
    }
    let runtime = [("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")];
    // A small cache, all of which is touched soon: each guest has blocks of its own.
    let flags = ["--max-loras", "2", "--max-cpu-loras", "2", "--num-gpu-blocks-override", "256"];
    let Some(server) = serve(&STATIC, &flags, &runtime).await? else { return Ok(()) };
    let (client, is_over) = (server.client(), AtomicBool::new(false));
    let traffic = async {
        while !is_over.load(Relaxed) {
            check(&client, &STATIC).await?;
        }
        anyhow::Ok(())
    };
    let worker = descendants(server.pid()).into_iter().find(|process| process.role == "worker");
    let worker = worker.context("a worker")?.pid;
    let changes = async {
        let mut grown_from = 0;
        for number in 0..rounds {
            if number == rounds / 4 {
                grown_from = resident_bytes(worker);
            }
            round(&client, number).await?;
        }
        is_over.store(true, Relaxed);
        anyhow::Ok(resident_bytes(worker).saturating_sub(grown_from))
    };
    let ((), growth) = futures::try_join!(traffic, changes)?;
    ensure!(growth < MOST_GROWTH, "the worker grew by {growth} bytes in {rounds} rounds");
    nothing_is_left(&client).await
}

#[tokio::test]
async fn nothing_is_left_of_guests() -> anyhow::Result<()> {
    churn(12).await
}

#[tokio::test]
#[ignore = "second tier: a thousand rounds"]
async fn nothing_is_left_of_a_thousand_guests() -> anyhow::Result<()> {
    churn(1000).await
}
