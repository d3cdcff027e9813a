//! Adapters whose clients leave, and whose names are unloaded, while steps that name them are on their way.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::ensure;
use e2e_tests::Client;
use futures::future::try_join_all;
use serde_json::json;
use tokio::time::timeout;

use super::{check, folder, serve};

const NAME: &str = "lora-llama-r8-all";
const ROUNDS: u64 = 60;

async fn post(client: &Client, path: &str, body: serde_json::Value) -> anyhow::Result<()> {
    let (status, text) = client.post_raw(path, body.to_string().into_bytes()).await?;
    ensure!(status == 200, "{status}: {text}");
    Ok(())
}

/// A guest is loaded, asked by a client that leaves at some moment, and unloaded at once.
async fn visit(client: &Client, guest: &str, path: &str, round: u64) -> anyhow::Result<()> {
    post(client, "/v1/load_lora_adapter", json!({"lora_name": guest, "lora_path": path})).await?;
    let body = json!({"model": guest, "prompt": [round, 1, 2], "max_tokens": 40, "ignore_eos": true});
    // Leaving before, in and after the step that brings the adapter to the device.
    let _ = timeout(Duration::from_millis(round % 20), client.post("/v1/completions", &body)).await;
    post(client, "/v1/unload_lora_adapter", json!({"lora_name": guest})).await
}

#[tokio::test]
async fn clients_that_leave_do_not_end_other_requests() -> anyhow::Result<()> {
    let Some(path) = folder(NAME) else { return Ok(()) };
    let path = path.display().to_string();
    let runtime = [("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")];
    let flags = ["--max-loras", "2", "--max-cpu-loras", "2"];
    let Some(server) = serve(&["lora-llama-r8-qv"], &flags, &runtime).await? else { return Ok(()) };
    let (client, is_over) = (server.client(), AtomicBool::new(false));
    let traffic = async {
        while !is_over.load(Relaxed) {
            check(&client, &["lora-llama-r8-qv"]).await?;
        }
        anyhow::Ok(())
    };
    let (client, path) = (&client, &path);
    let visits = async {
        let guests = (0..4_u64).map(|number| async move {
            for round in 0..ROUNDS {
                visit(client, &format!("guest-{number}"), path, round * 7 + number).await?;
            }
            anyhow::Ok(())
        });
        try_join_all(guests).await?;
        is_over.store(true, Relaxed);
        anyhow::Ok(())
    };
    futures::try_join!(traffic, visits)?;
    check(client, &["lora-llama-r8-qv"]).await
}
