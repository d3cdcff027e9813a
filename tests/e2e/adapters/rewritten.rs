//! Adapters whose files are overwritten while they are served.

use std::path::Path;

use anyhow::ensure;
use e2e_tests::{Client, max_workers};

use super::{check_as, folder, serve_modules};

/// Writes an adapter's files over those of another one, in place.
fn write_over(from: &Path, to: &Path) -> anyhow::Result<()> {
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::write(to.join(name), std::fs::read(from.join(name))?)?;
    }
    Ok(())
}

/// All prompts of a reference, one after the other; how many of their tokens were cached.
async fn ask(client: &Client, model: &str, reference: &str) -> anyhow::Result<f64> {
    let hits = "vllm:prefix_cache_hits_total";
    let before = client.metric(hits, "").await?;
    check_as(client, model, reference).await?;
    Ok(client.metric(hits, "").await? - before)
}

/// Two adapters of which the host keeps one: the other is read again at each turn.
async fn overwritten(flags: &[&str]) -> anyhow::Result<()> {
    let other = "lora-llama-r4-partial";
    let [Some(first), Some(second), Some(third)] = ["lora-llama-r8-qv", "lora-llama-r8-all", other].map(folder) else {
        return Ok(());
    };
    let dir = tempfile::tempdir()?;
    write_over(&first, dir.path())?;
    let modules = [("guest", dir.path()), ("other", &third)].map(|(name, path)| format!("{name}={}", path.display()));
    let mut all = vec!["--max-cpu-loras", "1"];
    all.extend(flags);
    let Some(server) = serve_modules(&modules, &all, &[]).await? else { return Ok(()) };
    let client = server.client();
    ask(&client, "guest", "lora-llama-r8-qv").await?;
    ask(&client, "other", other).await?;
    let cached = ask(&client, "guest", "lora-llama-r8-qv").await?;
    ensure!(cached > 32.0, "the same files, read again, find what they computed: {cached} tokens");
    ask(&client, "other", other).await?;
    write_over(&second, dir.path())?;
    let cached = ask(&client, "guest", "lora-llama-r8-all").await?;
    ensure!(cached == 0.0, "{cached} tokens of the old files were found");
    let cached = ask(&client, "guest", "lora-llama-r8-all").await?;
    ensure!(cached > 32.0, "the new ones are found: {cached} tokens");
    ensure!(server.log().contains("the adapter's files have changed"), "it is said");
    Ok(())
}

#[tokio::test]
async fn files_that_change_are_another_adapter() -> anyhow::Result<()> {
    overwritten(&[]).await?;
    match max_workers() {
        1 => Ok(()),
        _ => overwritten(&["--tensor-parallel-size", "2"]).await,
    }
}
