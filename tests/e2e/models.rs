//! What the files of a model say is honoured, or refused in words that help.

use std::{fs, os::unix::fs::symlink, path::Path};

use anyhow::{Context, ensure};
use e2e_tests::{Server, zoo};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A folder of the zoo with one of its JSON files changed.
fn changed(model: &str, file: &str, changes: &Value) -> anyhow::Result<TempDir> {
    let (from, to) = (zoo::folder().join(model).canonicalize()?, tempfile::tempdir()?);
    for entry in fs::read_dir(&from)? {
        let name = entry?.file_name();
        if name != file {
            symlink(from.join(&name), to.path().join(&name))?;
        }
    }
    let mut json: Value = serde_json::from_slice(&fs::read(from.join(file))?)?;
    for (key, value) in changes.as_object().context("an object")? {
        json[key] = value.clone();
    }
    fs::write(to.path().join(file), json.to_string())?;
    Ok(to)
}

async fn serve(folder: &Path, flags: &[&str]) -> anyhow::Result<Server> {
    let folder = folder.display().to_string();
    Server::start(&[&[folder.as_str(), "--dtype", "float32", "--served-model-name", "m"], flags].concat()).await
}

#[tokio::test]
async fn generation_config_gives_defaults_and_ends() -> anyhow::Result<()> {
    let case = zoo::cases("llama").context("in every zoo")?.pop().context("a prompt")?;
    let (end, at) = (case.greedy[7], case.greedy.iter().position(|token| *token == case.greedy[7]).context("there")?);
    let defaults = json!({"temperature": 0.0, "max_new_tokens": 20, "eos_token_id": [511, end]});
    let folder = changed("llama", "generation_config.json", &defaults)?;
    let ask = json!({"prompt": case.prompt, "max_tokens": 24, "return_token_ids": true, "add_special_tokens": false});
    let with = |key: &str, value: Value| {
        let mut ask = ask.clone();
        ask[key] = value;
        ask
    };
    let tokens = |answer: &Value| -> Vec<u64> {
        answer["choices"][0]["token_ids"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
    };
    {
        let server = serve(folder.path(), &[]).await?;
        let (_, answer) = server.client().post("/v1/completions", &ask).await?;
        let greedy: Vec<u64> = case.greedy.iter().map(|token| u64::from(*token)).collect();
        // The end token is counted and returned, as vLLM does.
        ensure!(tokens(&answer) == greedy[..=at], "greedy by default, up to the second end token {end}: {answer}");
        let choice = &answer["choices"][0];
        // The tokenizer's own end token is another one, so this one is named.
        ensure!(choice["finish_reason"] == "stop" && choice["stop_reason"] == end, "{choice}");
        let (_, answer) = server.client().post("/v1/completions", &with("allowed_token_ids", json!([504]))).await?;
        let choice = &answer["choices"][0];
        ensure!(choice["finish_reason"] == "stop" && choice["stop_reason"].is_null(), "the tokenizer's own: {choice}");
        let (_, answer) = server.client().post("/v1/completions", &with("ignore_eos", true.into())).await?;
        ensure!(tokens(&answer) == greedy[..20], "max_new_tokens is a cap: {answer}");
        ensure!(answer["choices"][0]["finish_reason"] == "length", "{answer}");
        let hot = with("temperature", 2.0.into());
        let (_, answer) = server.client().post("/v1/completions", &hot).await?;
        ensure!(tokens(&answer) != greedy[..=at], "the request's temperature wins: {answer}");
    }
    let server = serve(folder.path(), &["--generation-config", "vllm"]).await?;
    let (_, answer) = server.client().post("/v1/completions", &with("ignore_eos", true.into())).await?;
    ensure!(tokens(&answer).len() == 24, "no cap without the model's defaults: {answer}");
    Ok(())
}

#[tokio::test]
async fn an_unknown_architecture_is_told_what_there_is() -> anyhow::Result<()> {
    let folder = changed("llama", "config.json", &json!({"architectures": ["Llama4ForCausalLM"]}))?;
    let error = serve(folder.path(), &[]).await.err().context("must be refused")?.to_string();
    for words in ["Llama4ForCausalLM", "nearest: LlamaForCausalLM", "Qwen3ForCausalLM", "MixtralForCausalLM"] {
        ensure!(error.contains(words), "{words} is not in: {error}");
    }
    Ok(())
}

#[tokio::test]
async fn what_a_token_takes_is_said_at_start() -> anyhow::Result<()> {
    let server = serve(&zoo::folder().join("gemma2"), &[]).await?;
    let client = server.client();
    // Two layers keep everything and two a window; keys and values of two heads of 32, in float32.
    for window in ["window=\"0\"", "window=\"16\""] {
        let bytes = client.metric("quire:kv_bytes_per_token", window).await?;
        ensure!(bytes == 1024.0, "{window}: {bytes} bytes");
    }
    let log = server.log();
    ensure!(log.contains("kv_bytes_per_token=2048") && log.contains("window=\"16\""), "{log}");
    let (_, models) = client.get("/v1/models").await?;
    ensure!(!models.contains("prefix_cache_off"), "{models}");
    Ok(())
}

#[tokio::test]
async fn recurrent_states_fit_by_default() -> anyhow::Result<()> {
    if zoo::cases("mamba").is_none() {
        println!("not checked, for it is not in this zoo: mamba");
        return Ok(());
    }
    // Three layers of 128 channels, three inputs and 16 values each, take 29,184 bytes a sequence: 35 fit.
    let server = serve(&zoo::folder().join("mamba"), &["--kv-cache-memory-bytes", "1M"]).await?;
    let log = server.log();
    ensure!(log.contains("max_num_seqs=35") && log.contains("state_bytes_per_sequence=29184"), "{log}");
    let (_, models) = server.client().get("/v1/models").await?;
    ensure!(models.contains("\"prefix_cache_off\":\"the model has a recurrent state"), "{models}");
    Ok(())
}
