//! Adapters that are named by Hugging Face ids: downloaded into the cache, as models are.

#[path = "../../../crates/model-source/tests/fake_hub/mod.rs"]
mod fake_hub;

use std::collections::BTreeMap;

use anyhow::ensure;
use e2e_tests::{Client, Server};
use fake_hub::{Behaviour, FakeHub};
use futures::future::{join, try_join_all};
use serde_json::json;

use super::{check_as, folder, serve_modules};

const ID: &str = "owner/name";

async fn load(client: &Client, id: &str) -> anyhow::Result<(u16, String)> {
    load_as(client, "late", id).await
}

async fn load_as(client: &Client, name: &str, id: &str) -> anyhow::Result<(u16, String)> {
    let body = json!({"lora_name": name, "lora_path": id}).to_string();
    client.post_raw("/v1/load_lora_adapter", body.into_bytes()).await
}

async fn start(modules: &[String], environment: &[(&str, &str)]) -> anyhow::Result<Option<Server>> {
    let runtime = ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1");
    serve_modules(modules, &[], &[&[runtime], environment].concat()).await
}

/// An adapter's files, as the hub has them.
fn hub_of(adapter: &str) -> anyhow::Result<Option<FakeHub>> {
    let Some(path) = folder(adapter) else { return Ok(None) };
    let names = ["adapter_config.json", "adapter_model.safetensors"];
    let read = |name| std::fs::read(path.join(name)).map(|content| (name, content));
    let files: BTreeMap<_, _> = names.into_iter().map(read).collect::<Result<_, _>>()?;
    Ok(Some(FakeHub::start(files, Behaviour::default())))
}

#[tokio::test]
async fn adapters_are_downloaded_once() -> anyhow::Result<()> {
    let Some(hub) = hub_of("lora-llama-r8-all")? else { return Ok(()) };
    let cache = tempfile::tempdir()?;
    let at = [("HF_ENDPOINT", hub.endpoint.as_str()), ("HF_HUB_CACHE", cache.path().to_str().unwrap_or_default())];
    let Some(server) = start(&[format!("early={ID}")], &at).await? else { return Ok(()) };
    let client = server.client();
    check_as(&client, "early", "lora-llama-r8-all").await?;
    let (status, text) = client.get("/v1/models").await?;
    ensure!(status == 200 && text.contains(r#""root":"owner/name""#), "{status}: {text}");
    let (status, text) = load(&client, "owner/other").await?;
    let expected = "Loading lora late failed: No adapter found for owner/other";
    ensure!(status == 404 && text.contains(expected), "{status}: {text}");
    ensure!(load(&client, ID).await?.0 == 200, "from the cache");
    check_as(&client, "late", "lora-llama-r8-all").await?;
    ensure!(hub.seen("GET /storage/adapter_model.safetensors") == 1, "one download");
    drop(server);
    // What is complete in the cache needs no network; other things are refused by the variable that forbids it.
    let offline = [&at[..], &[("HF_HUB_OFFLINE", "1")]].concat();
    let Some(server) = start(&[], &offline).await? else { return Ok(()) };
    let client = server.client();
    let (status, text) = load(&client, "owner/other").await?;
    ensure!(status == 400 && text.contains("HF_HUB_OFFLINE"), "{status}: {text}");
    ensure!(load(&client, ID).await?.0 == 200, "from the cache");
    check_as(&client, "late", "lora-llama-r8-all").await
}

#[tokio::test]
async fn all_who_ask_share_a_download() -> anyhow::Result<()> {
    let Some(hub) = hub_of("lora-llama-r8-all")? else { return Ok(()) };
    let cache = tempfile::tempdir()?;
    let at = [("HF_ENDPOINT", hub.endpoint.as_str()), ("HF_HUB_CACHE", cache.path().to_str().unwrap_or_default())];
    let Some(server) = start(&[], &at).await? else { return Ok(()) };
    let client = &server.client();
    let names: Vec<String> = (0..12).map(|number| format!("guest-{number}")).collect();
    let missing = |number| format!("owner/missing-{number}");
    let (found, lost) = join(
        try_join_all(names.iter().map(|name| load_as(client, name, ID))),
        try_join_all((0..12).map(|number| async move { load_as(client, &missing(number), &missing(number)).await })),
    )
    .await;
    for (status, text) in found? {
        ensure!(status == 200, "{status}: {text}");
    }
    for (status, text) in lost? {
        ensure!(status == 404 && text.contains("No adapter found for owner/missing-"), "{status}: {text}");
    }
    ensure!(hub.seen("GET /api/models/owner/name/revision/main") == 1, "one download");
    check_as(client, &names[11], "lora-llama-r8-all").await
}
