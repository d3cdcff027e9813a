//! What else a request may ask for, asked of an adapter: several choices, beams, constraints, embeddings; and workers
//! that are lost meanwhile.

use anyhow::{Context, ensure};
use e2e_tests::{Client, Server, descendants, max_workers, zoo};
use futures::future::try_join;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use super::{ADAPTERS, check, folder, serve};

const NAME: &str = "lora-llama-r8-all";

async fn choices(client: &Client, model: &str, prompt: &[u32], asked: &Value) -> anyhow::Result<Vec<Value>> {
    let mut body = json!({"model": model, "prompt": prompt, "return_token_ids": true, "ignore_eos": true});
    let members = body.as_object_mut().context("an object")?;
    members.extend(asked.as_object().context("an object")?.clone());
    let (status, answer) = client.post("/v1/completions", &body).await?;
    ensure!(status == 200, "{status}: {answer}");
    Ok(answer["choices"].as_array().context("choices")?.clone())
}

async fn ids(client: &Client, model: &str, prompt: &[u32], asked: &Value) -> anyhow::Result<Vec<Value>> {
    Ok(choices(client, model, prompt, asked).await?.into_iter().map(|choice| choice["token_ids"].clone()).collect())
}

async fn all_ways(flags: &[&str]) -> anyhow::Result<()> {
    let Some(server) = serve(&ADAPTERS, flags, &[]).await? else { return Ok(()) };
    let client = server.client();
    let case = zoo::cases(NAME).and_then(|cases| cases.into_iter().nth(2)).context("a reference")?;
    let several = json!({"n": 3, "temperature": 0, "max_tokens": case.greedy.len()});
    let beams = json!({"n": 2, "use_beam_search": true, "max_tokens": 12});
    let alone = ids(&client, NAME, &case.prompt, &beams).await?;
    ensure!(alone != ids(&client, "base", &case.prompt, &beams).await?, "the adapter makes other beams: {alone:?}");
    let crowded = async {
        for text in ids(&client, NAME, &case.prompt, &several).await? {
            ensure!(text == json!(case.greedy), "{text}, not {:?}", case.greedy);
        }
        let beside = ids(&client, NAME, &case.prompt, &beams).await?;
        ensure!(beside == alone, "beams beside others: {beside:?}, not {alone:?}");
        let digits = json!({"structured_outputs": {"regex": "[0-9]{6}"}, "ignore_eos": false, "max_tokens": 30});
        for choice in choices(&client, NAME, &case.prompt, &digits).await? {
            let text = choice["text"].as_str().unwrap_or_default();
            ensure!(text.len() == 6 && text.bytes().all(|byte| byte.is_ascii_digit()), "{text:?}");
        }
        Ok(())
    };
    try_join(check(&client, &ADAPTERS), crowded).await.map(drop)
}

#[tokio::test]
async fn choices_beams_and_constraints_have_their_adapter() -> anyhow::Result<()> {
    all_ways(&["--max-loras", "2", "--num-gpu-blocks-override", "60", "--max-model-len", "256"]).await?;
    match max_workers() {
        1 => Ok(()),
        _ => all_ways(&["--max-loras", "5", "--tensor-parallel-size", "2", "--fully-sharded-loras"]).await,
    }
}

/// Kills a process, and waits until another one serves in its place.
pub(super) async fn replace(server: &mut Server, role: &str) -> anyhow::Result<()> {
    let found = |server: &Server| descendants(server.pid()).into_iter().find(|process| process.role == role);
    let killed = found(server).with_context(|| format!("no {role}"))?.pid;
    kill_process(killed, Signal::KILL)?;
    while found(server).is_none_or(|process| process.pid == killed) {
        tokio::task::yield_now().await;
    }
    server.healthy(std::time::Duration::from_secs(30)).await
}

#[tokio::test]
async fn a_killed_process_comes_back_with_its_adapters() -> anyhow::Result<()> {
    let names = ["lora-llama-r8-all", "lora-llama-r4-partial"];
    let runtime = [("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")];
    let Some(mut server) = serve(&names, &[], &runtime).await? else { return Ok(()) };
    let client = server.client();
    let path = zoo::path("lora-llama-r8-qv").display().to_string();
    let body = json!({"lora_name": "lora-llama-r8-qv", "lora_path": path}).to_string();
    let (status, text) = client.post_raw("/v1/load_lora_adapter", body.into_bytes()).await?;
    ensure!(status == 200, "{status}: {text}");
    let all = [names[0], names[1], "lora-llama-r8-qv"];
    check(&client, &all).await?;
    let (_, before) = client.get("/v1/models").await?;
    let roots = |text: &str| -> anyhow::Result<Vec<Value>> {
        let cards: Value = serde_json::from_str(text)?;
        let cards = cards["data"].as_array().context("cards")?;
        Ok(cards.iter().map(|card| json!([card["id"], card["root"], card["parent"]])).collect())
    };
    for role in ["worker", "scheduler"] {
        replace(&mut server, role).await?;
        check(&client, &all).await?;
        ensure!(roots(&before)? == roots(&client.get("/v1/models").await?.1)?, "{role}: the same adapters are served");
    }
    let body = json!({"lora_name": names[0]}).to_string();
    let (status, text) = client.post_raw("/v1/unload_lora_adapter", body.into_bytes()).await?;
    ensure!(status == 200, "{status}: {text}");
    replace(&mut server, "scheduler").await?;
    check(&client, &all[1..]).await?;
    let served = roots(&client.get("/v1/models").await?.1)?;
    ensure!(served.iter().all(|card| card[0] != names[0]), "what was unloaded stays so: {served:?}");
    Ok(())
}

/// The embedding of a prompt.
async fn embedding(client: &Client, model: &str) -> anyhow::Result<Value> {
    let input: Vec<u32> = (10..60).collect();
    let (status, answer) = client.post("/v1/embeddings", &json!({"model": model, "input": input})).await?;
    ensure!(status == 200, "{status}: {answer}");
    Ok(answer["data"][0]["embedding"].clone())
}

#[tokio::test]
async fn models_that_pool_have_adapters() -> anyhow::Result<()> {
    let [Some(base), Some(adapter)] = ["llama", NAME].map(folder) else { return Ok(()) };
    let (base, dir) = (base.display().to_string(), tempfile::tempdir()?);
    std::os::unix::fs::symlink(&adapter, dir.path().join("found"))?;
    let dir = dir.path().display().to_string();
    let args = [base.as_str(), "--served-model-name", "base", "--dtype", "float32", "--runner", "pooling"];
    let args = [&args[..], &["--enable-lora", "--max-loras", "2", "--lora-dir", &dir]].concat();
    let server = Server::start(&args).await?;
    let client = server.client();
    // Its first use, too.
    let adapted = embedding(&client, "found").await?;
    ensure!(adapted != embedding(&client, "base").await?, "the adapter changes what is pooled");
    let together = try_join(embedding(&client, "found"), embedding(&client, "base")).await?;
    ensure!(together.0 == adapted && together.1 != adapted, "each has its own beside the other");
    Ok(())
}

/// In stages: all adapters and the base at once, what the scheduler does with few blocks, and one that no stage can
/// use.
#[tokio::test]
async fn stages_have_their_part_of_adapters() -> anyhow::Result<()> {
    let runtime = [("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")];
    let two = ["--pipeline-parallel-size", "2"];
    let few = ["--max-loras", "2", "--max-cpu-loras", "3", "--max-num-batched-tokens", "16", "--max-num-seqs", "16"];
    let small = ["--max-loras", "3", "--num-gpu-blocks-override", "24", "--max-model-len", "128"];
    let split = ["--max-loras", "5", "--tensor-parallel-size", "2"];
    let ways: &[&[&str]] = if max_workers() < 4 { &[&few, &small] } else { &[&few, &small, &split] };
    for way in ways {
        let Some(server) = serve(&ADAPTERS, &[way, &two[..]].concat(), &runtime).await? else { return Ok(()) };
        let client = server.client();
        check(&client, &ADAPTERS).await?;
        check(&client, &ADAPTERS).await?;
        let Some(other) = folder("lora-qwen2-r8-all") else { return Ok(()) };
        let body = json!({"lora_name": "other", "lora_path": other.display().to_string()}).to_string();
        let (status, text) = client.post_raw("/v1/load_lora_adapter", body.into_bytes()).await?;
        ensure!(status == 400 && text.contains("this model needs"), "{status}: {text}");
        check(&client, &ADAPTERS).await?;
    }
    Ok(())
}
