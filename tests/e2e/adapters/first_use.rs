//! Adapters of a folder, loaded when a request first names them, whichever route it takes.

use std::path::Path;

use anyhow::{Context, ensure};
use e2e_tests::Server;
use serde_json::json;

use super::{check, folder, serve};

/// Serves the base with the adapters that lie in a folder.
async fn resolving(dir: &Path, flags: &[&str]) -> anyhow::Result<Option<Server>> {
    let dir = dir.display().to_string();
    let resolver = [("VLLM_PLUGINS", "lora_filesystem_resolver"), ("VLLM_LORA_RESOLVER_CACHE_DIR", &*dir)];
    serve(&[], flags, &resolver).await
}

#[tokio::test]
async fn adapters_of_a_folder_are_loaded_at_first_use() -> anyhow::Result<()> {
    let Some(path) = folder("lora-llama-r8-all") else { return Ok(()) };
    let Some(server) = resolving(path.parent().context("the zoo")?, &[]).await? else { return Ok(()) };
    let client = server.client();
    check(&client, &["lora-llama-r8-all"]).await?;
    // A model is no adapter, and a name does not lead out of the folder.
    for name in ["qwen2", "../zoo/lora-llama-r8-qv", ""] {
        let (status, answer) = client.post("/v1/completions", &json!({"model": name, "prompt": "x"})).await?;
        let expected = if name.is_empty() { 200 } else { 404 };
        ensure!(status == expected, "{name}: {status}: {answer}");
    }
    // One for another model is found, and cannot be loaded.
    for _ in 0..2 {
        let body = json!({"model": "lora-qwen2-r8-all", "prompt": "x"});
        let (status, answer) = client.post("/v1/completions", &body).await?;
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        let begin = "LoRA adapter 'lora-qwen2-r8-all' was found but could not be loaded: tensor";
        ensure!(status == 400 && message.starts_with(begin), "{status}: {answer}");
    }
    Ok(())
}

#[tokio::test]
async fn every_route_knows_a_name_at_its_first_use() -> anyhow::Result<()> {
    let Some(path) = folder("lora-llama-r8-all") else { return Ok(()) };
    let dir = tempfile::tempdir()?;
    let messages = json!([{"role": "user", "content": "x"}]);
    let routes = [
        ("/v1/completions", json!({"prompt": [1, 2], "max_tokens": 1})),
        ("/tokenize", json!({"prompt": "x"})),
        ("/detokenize", json!({"tokens": [1, 2]})),
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 1})),
        ("/v1/responses", json!({"input": "x", "max_output_tokens": 1})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 1})),
        ("/v1/messages/count_tokens", json!({"messages": messages})),
    ];
    for (number, _) in routes.iter().enumerate() {
        std::os::unix::fs::symlink(&path, dir.path().join(format!("a{number}")))?;
    }
    let Some(server) = resolving(dir.path(), &["--chat-template", "{{ messages[0].content }}"]).await? else {
        return Ok(());
    };
    let client = server.client();
    for (number, (route, body)) in routes.into_iter().enumerate() {
        let mut body = body;
        body["model"] = format!("a{number}").into();
        let (status, answer) = client.post(route, &body).await?;
        ensure!(status == 200, "{route}: {status}: {answer}");
    }
    Ok(())
}
