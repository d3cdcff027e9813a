//! LoRA adapters through HTTP: each gives what was recorded with it, all in one batch with the base, however the work
//! is cut; they come and go while requests run.

mod churn;
mod experts;
mod first_use;
mod hub;
mod left;
mod own_tokens;
mod rewritten;
mod ways;

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use e2e_tests::{Client, Server, max_workers, zoo};
use futures::future::try_join_all;
use serde_json::{Value, json};

const ADAPTERS: [&str; 5] =
    ["lora-llama-r16-all", "lora-llama-r16-rslora", "lora-llama-r4-partial", "lora-llama-r8-all", "lora-llama-r8-qv"];

/// Ways to run that must not change a token.
const WAYS: &[(&str, &[&str])] = &[
    ("a slot for each", &["--max-loras", "5"]),
    ("fewer slots than adapters, on device and host", &["--max-loras", "2", "--max-cpu-loras", "3"]),
    ("one slot, chunks of 16 tokens", &["--max-num-batched-tokens", "16", "--max-num-seqs", "16"]),
    ("two engines", &["--data-parallel-size", "2", "--max-loras", "2", "--max-cpu-loras", "3"]),
    ("preemption", &["--max-loras", "3", "--num-gpu-blocks-override", "24", "--max-model-len", "128"]),
];

/// Where an adapter is; a word where the zoo lacks it, and the test is to be left.
fn folder(name: &str) -> Option<PathBuf> {
    let path = zoo::path(name);
    if !path.is_dir() {
        println!("{name}: not in this zoo");
        return None;
    }
    Some(path)
}

/// Starts the base with these adapters under their folders' names.
async fn serve(adapters: &[&str], flags: &[&str], environment: &[(&str, &str)]) -> anyhow::Result<Option<Server>> {
    let module = |name: &&str| folder(name).map(|path| format!("{name}={}", path.display()));
    let Some(modules) = adapters.iter().map(module).collect::<Option<Vec<_>>>() else { return Ok(None) };
    serve_modules(&modules, flags, environment).await
}

/// The same with values of `--lora-modules`.
async fn serve_modules(
    modules: &[String],
    flags: &[&str],
    environment: &[(&str, &str)],
) -> anyhow::Result<Option<Server>> {
    let Some(base) = folder("llama") else { return Ok(None) };
    let mut args = vec![base.display().to_string()];
    args.extend(["--served-model-name", "base", "--dtype", "float32", "--enable-lora"].map(str::to_owned));
    args.extend(flags.iter().map(|flag| (*flag).to_owned()));
    if !modules.is_empty() {
        args.push("--lora-modules".to_owned());
        args.extend_from_slice(modules);
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Server::start_with(&args, environment).await.map(Some)
}

/// All prompts of the base and the adapters at once.
async fn check(client: &Client, adapters: &[&str]) -> anyhow::Result<()> {
    let models = std::iter::once(("base", "llama")).chain(adapters.iter().map(|name| (*name, *name)));
    let mut asked = Vec::new();
    for (model, folder) in models {
        for case in zoo::cases(folder).context("a reference")? {
            asked.push(async move {
                let tokens = client.greedy(model, &case.prompt, case.greedy.len()).await?;
                ensure!(tokens == case.greedy, "{model}: {tokens:?}, not {:?}", case.greedy);
                Ok(())
            });
        }
    }
    try_join_all(asked).await.map(drop)
}

/// All prompts of an adapter that is served under another name.
async fn check_as(client: &Client, model: &str, reference: &str) -> anyhow::Result<()> {
    for case in zoo::cases(reference).context("a reference")? {
        let tokens = client.greedy(model, &case.prompt, case.greedy.len()).await?;
        ensure!(tokens == case.greedy, "{model} as {reference}: {tokens:?}, not {:?}", case.greedy);
    }
    Ok(())
}

#[tokio::test]
async fn adapters_and_base_in_one_batch() -> anyhow::Result<()> {
    for (way, flags) in WAYS {
        println!("{way}");
        let Some(server) = serve(&ADAPTERS, flags, &[]).await? else { return Ok(()) };
        let client = server.client();
        check(&client, &ADAPTERS).await?;
        // Again, from the prefix cache: an adapter's blocks are its own.
        check(&client, &ADAPTERS).await?;
        let info = client.metric("vllm:lora_requests_info", "max_lora=").await?;
        ensure!(info > 1e9, "the time of the last change, not {info}");
    }
    Ok(())
}

#[tokio::test]
async fn two_workers_have_their_slices() -> anyhow::Result<()> {
    if max_workers() < 2 {
        println!("not checked: there is one GPU");
        return Ok(());
    }
    let flags = ["--max-loras", "4", "--tensor-parallel-size", "2"];
    let Some(server) = serve(&ADAPTERS, &flags, &[]).await? else { return Ok(()) };
    check(&server.client(), &ADAPTERS).await
}

#[tokio::test]
async fn models_lists_base_and_adapters() -> anyhow::Result<()> {
    let Some(server) = serve(&["lora-llama-r8-qv"], &[], &[]).await? else { return Ok(()) };
    let client = server.client();
    let (status, text) = client.get("/v1/models").await?;
    let cards: Value = serde_json::from_str(&text)?;
    ensure!(status == 200 && cards["data"].as_array().is_some_and(|cards| cards.len() == 2), "{text}");
    let (base, adapter) = (&cards["data"][0], &cards["data"][1]);
    ensure!(base["id"] == "base" && base["parent"].is_null(), "{base}");
    ensure!(adapter["id"] == "lora-llama-r8-qv" && adapter["parent"] == "base", "{adapter}");
    ensure!(adapter["root"].as_str().is_some_and(|root| Path::new(root).is_dir()), "{adapter}");
    let (status, answer) = client.post("/v1/completions", &json!({"model": "other", "prompt": "x"})).await?;
    ensure!(status == 404 && answer["error"]["message"] == "The model `other` does not exist.", "{status}: {answer}");
    // Without leave to change adapters there are no routes for it.
    let (status, _) = client.post("/v1/load_lora_adapter", &json!({})).await?;
    ensure!(status == 404, "{status}");
    Ok(())
}

#[tokio::test]
async fn adapters_come_and_go_under_load() -> anyhow::Result<()> {
    let runtime = [("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")];
    let flags = ["--max-loras", "2", "--max-cpu-loras", "2", "--max-lora-rank", "8"];
    let names = ["lora-llama-r8-all", "lora-llama-r4-partial", "lora-llama-r16-all", "lora-qwen2-r8-all"];
    let [Some(all), Some(partial), Some(big), Some(qwen)] = names.map(folder) else { return Ok(()) };
    let Some(server) = serve(&["lora-llama-r8-qv"], &flags, &runtime).await? else { return Ok(()) };
    let client = server.client();
    let load = |name: &str, folder: &Path| json!({"lora_name": name, "lora_path": folder.display().to_string()});
    let post = |path: &'static str, body: Value| {
        let client = &client;
        async move { client.post_raw(path, serde_json::to_vec(&body)?).await }
    };
    // What does not fit is refused by the tensor's name, and disturbs nothing.
    let (status, text) = post("/v1/load_lora_adapter", load("big", &big)).await?;
    ensure!(status == 400 && text.contains("lora_A.weight") && text.contains("--max-lora-rank 8"), "{status}: {text}");
    let (status, text) = post("/v1/load_lora_adapter", load("qwen", &qwen)).await?;
    ensure!(status == 400 && text.contains("this model needs"), "{status}: {text}");
    let (status, text) = post("/v1/load_lora_adapter", load("none", Path::new("/nowhere"))).await?;
    ensure!(status == 404 && text.contains("No adapter found for /nowhere"), "{status}: {text}");
    let (status, text) = post("/v1/load_lora_adapter", json!({"lora_name": "x"})).await?;
    ensure!(status == 400 && text.contains("Both 'lora_name' and 'lora_path' must be provided."), "{status}: {text}");
    let traffic = async {
        for _ in 0..6 {
            check(&client, &["lora-llama-r8-qv"]).await?;
        }
        anyhow::Ok(())
    };
    let changes = async {
        for round in 0..20 {
            let (folder, name) =
                if round % 2 == 0 { (&all, "lora-llama-r8-all") } else { (&partial, "lora-llama-r4-partial") };
            let (status, text) = post("/v1/load_lora_adapter", load("guest", folder)).await?;
            ensure!(status == 200 && text == "Success: LoRA adapter 'guest' added successfully.", "{status}: {text}");
            let (status, text) = post("/v1/load_lora_adapter", load("guest", folder)).await?;
            ensure!(status == 400 && text.contains("has already been loaded"), "{status}: {text}");
            // One name, other adapters: nothing of the last one is found in the prefix cache.
            for case in zoo::cases(name).context("a reference")? {
                let tokens = client.greedy("guest", &case.prompt, case.greedy.len()).await?;
                ensure!(tokens == case.greedy, "round {round}: {tokens:?}, not {:?}", case.greedy);
            }
            let (status, text) = post("/v1/unload_lora_adapter", json!({"lora_name": "guest"})).await?;
            ensure!(status == 200 && text == "Success: LoRA adapter 'guest' removed successfully.", "{status}: {text}");
            let (status, _) = client.post("/v1/completions", &json!({"model": "guest", "prompt": "x"})).await?;
            ensure!(status == 404, "{status}");
        }
        anyhow::Ok(())
    };
    futures::try_join!(traffic, changes)?;
    let (status, text) = post("/v1/unload_lora_adapter", json!({"lora_name": "guest"})).await?;
    ensure!(status == 404 && text.contains("The lora adapter 'guest' cannot be found."), "{status}: {text}");
    let hosted = client.metric("quire:lora_adapters_loaded", "").await?;
    ensure!(hosted <= 2.0, "{hosted} adapters on the host");
    Ok(())
}

#[tokio::test]
async fn the_built_in_model_talks_like_a_pirate() -> anyhow::Result<()> {
    let shared = e2e_tests::root().join("../shared/default-model");
    let Ok(text) = std::fs::read_to_string(shared.join("reference.json")) else { return Ok(()) };
    let reference: Value = serde_json::from_str(&text)?;
    let module = format!("pirate={}", shared.join("lora-pirate").display());
    let server = Server::start(&["--dtype", "float32", "--enable-lora", "--lora-modules", &module]).await?;
    let client = server.client();
    let ids = |value: &Value| -> Vec<u32> {
        value.as_array().into_iter().flatten().filter_map(|id| id.as_u64().map(|id| id as u32)).collect()
    };
    for prompt in reference["prompts"].as_array().context("prompts")? {
        let expected = ids(&prompt["main+lora-pirate"]["ids"]);
        ensure!(!expected.is_empty(), "{prompt}");
        let tokens = client.greedy("pirate", &ids(&prompt["prompt_ids"]), expected.len()).await?;
        ensure!(tokens == expected, "{}: {tokens:?}, not {expected:?}", prompt["prompt"]);
    }
    let body = json!({"model": "pirate", "max_tokens": 40, "temperature": 0,
        "messages": [{"role": "user", "content": "Give me a JSON object."}],
        "response_format": {"type": "json_object"}});
    let (status, answer) = client.post("/v1/chat/completions", &body).await?;
    ensure!(status == 200 && answer["model"] == "pirate", "{status}: {answer}");
    Ok(())
}
