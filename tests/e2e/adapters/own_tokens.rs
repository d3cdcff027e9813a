//! Adapters with tokens of their own: split, rendered and written by their own tokenizers, beside the base, which never
//! sees these tokens.

use std::path::Path;

use anyhow::{Context, ensure};
use e2e_tests::{Client, Server, max_workers, zoo};
use futures::future::{try_join, try_join_all};
use serde_json::{Value, json};

use super::ways::replace;

const BASE: &str = "rope_yarn";
const ADAPTERS: [&str; 2] = ["lora-vocab-saved", "lora-vocab-low-rank"];
const RUNTIME: [(&str, &str); 1] = [("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")];
/// What the base's tokenizer splits into words and letters.
const TEXT: &str = "ab<|sql|>cdTab7e";

async fn serve(adapters: &[(&str, &Path)], flags: &[&str]) -> anyhow::Result<Server> {
    let base = zoo::path(BASE).display().to_string();
    let modules: Vec<String> = adapters.iter().map(|(name, path)| format!("{name}={}", path.display())).collect();
    let mut args = vec![base.as_str(), "--served-model-name", "base", "--dtype", "float32", "--enable-lora"];
    args.extend(["--enable-lora-modules-to-save", "--max-loras", "2"]);
    args.extend(flags);
    if !modules.is_empty() {
        args.push("--lora-modules");
        args.extend(modules.iter().map(String::as_str));
    }
    Server::start_with(&args, &RUNTIME).await
}

async fn both(flags: &[&str]) -> anyhow::Result<Server> {
    let [saved, low_rank] = ADAPTERS.map(zoo::path);
    serve(&[(ADAPTERS[0], &saved), (ADAPTERS[1], &low_rank)], flags).await
}

/// All prompts of base and adapters at once.
async fn check(client: &Client) -> anyhow::Result<()> {
    let mut asked = Vec::new();
    for (model, folder) in [("base", BASE)].into_iter().chain(ADAPTERS.map(|name| (name, name))) {
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

async fn tokenize(client: &Client, model: &str, body: Value) -> anyhow::Result<Vec<u32>> {
    let mut body = body;
    body["model"] = model.into();
    let (status, answer) = client.post("/tokenize", &body).await?;
    ensure!(status == 200, "{status}: {answer}");
    Ok(serde_json::from_value(answer["tokens"].clone())?)
}

/// The streamed text of a prompt's greedy continuation.
async fn streamed(client: &Client, model: &str, prompt: &[u32], skip: bool) -> anyhow::Result<String> {
    let body = json!({"model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": true,
        "skip_special_tokens": skip, "stream": true});
    let (status, mut stream) = client.stream("/v1/completions", &body).await?;
    ensure!(status == 200, "{status}");
    let mut text = String::new();
    while let Some(event) = stream.next().await? {
        text.push_str(event["choices"][0]["text"].as_str().unwrap_or_default());
    }
    Ok(text)
}

/// What an adapter's own tokenizer makes of prompts and answers.
async fn speaks(client: &Client, model: &str) -> anyhow::Result<()> {
    let ids = tokenize(client, model, json!({"prompt": TEXT})).await?;
    ensure!(ids == [26, 27, 64, 28, 29, 65, 30], "{ids:?}");
    let (status, answer) = client.post("/detokenize", &json!({"model": model, "tokens": ids})).await?;
    ensure!(status == 200 && answer["prompt"] == TEXT, "{status}: {answer}");
    // Its chat template; the base has none.
    let messages = json!([{"role": "user", "content": "ab"}]);
    let ids = tokenize(client, model, json!({"messages": messages})).await?;
    ensure!(ids == [64, 26, 27], "{ids:?}");
    // The same tokens, given as text and as ids.
    let asked = |prompt: Value| json!({"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0});
    let (text, ids) = (asked(json!(TEXT)), asked(json!([26, 27, 64, 28, 29, 65, 30])));
    let (text, ids) = try_join(client.post("/v1/completions", &text), client.post("/v1/completions", &ids)).await?;
    ensure!(text.0 == 200 && text.1["choices"] == ids.1["choices"], "{} is not {}", text.1, ids.1);
    let chat = json!({"model": model, "messages": messages, "max_tokens": 4, "temperature": 0});
    let (status, answer) = client.post("/v1/chat/completions", &chat).await?;
    ensure!(status == 200 && answer["usage"]["prompt_tokens"] == 3, "{status}: {answer}");
    for case in zoo::cases(model).context("a reference")? {
        let (status, answer) = client.post("/detokenize", &json!({"model": model, "tokens": case.greedy})).await?;
        ensure!(status == 200, "{status}: {answer}");
        let whole = answer["prompt"].as_str().context("text")?;
        let text = streamed(client, model, &case.prompt, false).await?;
        ensure!(text == whole && whole.contains("<|sql|>") == case.greedy.contains(&64), "{text:?}, not {whole:?}");
        let text = streamed(client, model, &case.prompt, true).await?;
        ensure!(text == whole.replace("<|sql|>", ""), "{text:?} is {whole:?} without what is special");
    }
    Ok(())
}

/// The base does not know these tokens, in whatever field they are named.
async fn base_knows_none(client: &Client) -> anyhow::Result<()> {
    let ids = tokenize(client, "base", json!({"prompt": "Tab7"})).await?;
    ensure!(ids == [19, 26, 27, 59], "{ids:?}");
    for (field, value) in [
        ("prompt", json!([26, 64])),
        ("allowed_token_ids", json!([64])),
        ("logit_bias", json!({"64": 5})),
        ("stop_token_ids", json!([64])),
    ] {
        let mut body = json!({"model": "base", "prompt": "ab", "max_tokens": 2});
        body[field] = value;
        let (status, answer) = client.post("/v1/completions", &body).await?;
        let is_refused = status == 400 && answer.to_string().contains("64");
        ensure!(is_refused || field == "stop_token_ids", "{field}: {status}: {answer}");
        body["model"] = ADAPTERS[0].into();
        let (status, answer) = client.post("/v1/completions", &body).await?;
        ensure!(status == 200, "{field}: {status}: {answer}");
    }
    let (status, answer) = client.post("/v1/completions", &json!({"model": ADAPTERS[0], "prompt": [67]})).await?;
    ensure!(status == 400 && answer.to_string().contains("67"), "{status}: {answer}");
    Ok(())
}

/// Log-probabilities of all tokens that a model knows, of the answer and of the prompt; likeliest texts of a beam
/// search; draws at a high temperature.
async fn whole_rows(client: &Client, model: &str) -> anyhow::Result<Value> {
    let body = json!({"model": model, "prompt": [26, 27, 28], "max_tokens": 3, "temperature": 0, "logprobs": -1,
        "prompt_logprobs": -1, "return_tokens_as_token_ids": true});
    let (status, answer) = client.post("/v1/completions", &body).await?;
    ensure!(status == 200, "{status}: {answer}");
    let beams = json!({"model": model, "prompt": [26, 27, 28], "n": 3, "use_beam_search": true, "max_tokens": 6,
        "return_token_ids": true});
    let (status, beams) = client.post("/v1/completions", &beams).await?;
    ensure!(status == 200, "{status}: {beams}");
    let drawn = json!({"model": model, "prompt": [26, 27, 28], "temperature": 2, "seed": 5, "max_tokens": 100,
        "ignore_eos": true, "return_token_ids": true});
    let (status, drawn) = client.post("/v1/completions", &drawn).await?;
    ensure!(status == 200, "{status}: {drawn}");
    let of = |answer: &Value, name: &str| answer["choices"][0][name].clone();
    let beams: Vec<Value> = (0..3).map(|choice| beams["choices"][choice]["token_ids"].clone()).collect();
    Ok(json!([of(&answer, "logprobs"), of(&answer, "prompt_logprobs"), beams, of(&drawn, "token_ids")]))
}

#[tokio::test]
async fn own_tokens_beside_a_base_without_them() -> anyhow::Result<()> {
    let flags = ["--lora-extra-vocab-size", "8", "--max-logprobs", "-1"];
    let server = both(&flags).await?;
    let client = server.client();
    let model = ADAPTERS[0];
    try_join_all((0..3).map(|_| check(&client))).await?;
    base_knows_none(&client).await?;
    try_join_all(ADAPTERS.map(|name| speaks(&client, name))).await?;
    // Beside the adapters' rows, and without room for such tokens, the base says the same.
    let (beside, _) = try_join(whole_rows(&client, "base"), check(&client)).await?;
    ensure!(beside[0]["top_logprobs"][0].as_object().context("a row")?.len() == 64, "{beside}");
    let own = whole_rows(&client, model).await?;
    ensure!(own[0]["top_logprobs"][0].as_object().context("a row")?.len() == 67, "{own}");
    ensure!(own[3].as_array().context("tokens")?.iter().any(|token| token.as_u64() >= Some(64)), "{own}");
    // Structured output is of the model's own tokens.
    let digits = json!({"model": model, "prompt": TEXT, "structured_outputs": {"regex": "[0-9]{6}"}, "max_tokens": 30});
    let (status, answer) = client.post("/v1/completions", &digits).await?;
    let text = answer["choices"][0]["text"].as_str().unwrap_or_default();
    ensure!(status == 200 && text.len() == 6 && text.bytes().all(|byte| byte.is_ascii_digit()), "{status}: {answer}");
    drop(server);
    let without = serve(&[], &flags[2..]).await?;
    let alone = whole_rows(&without.client(), "base").await?;
    ensure!(beside == alone, "{beside} is not {alone}");
    Ok(())
}

#[tokio::test]
async fn ranks_and_stages_have_their_part() -> anyhow::Result<()> {
    let ways: &[&[&str]] =
        if max_workers() < 2 { &[] } else { &[&["--tensor-parallel-size", "2"], &["--pipeline-parallel-size", "2"]] };
    for way in ways {
        // The model has one key head, which both ranks have.
        let server = both(&[way, &["--lora-extra-vocab-size", "3"][..]].concat()).await?;
        check(&server.client()).await?;
        speaks(&server.client(), ADAPTERS[1]).await?;
    }
    Ok(())
}

#[tokio::test]
async fn processes_that_are_killed_know_them_again() -> anyhow::Result<()> {
    let mut server = both(&["--lora-extra-vocab-size", "8"]).await?;
    let client = server.client();
    for role in ["tokenizer", "detokenizer", "scheduler", "worker", "gateway"] {
        replace(&mut server, role).await?;
        check(&client).await.with_context(|| format!("after the {role}"))?;
        speaks(&client, ADAPTERS[0]).await.with_context(|| format!("after the {role}"))?;
    }
    Ok(())
}

/// Texts of an adapter end where its own tokenizer says, too.
#[tokio::test]
async fn its_own_end_of_text_ends_a_text() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    copy(ADAPTERS[0], dir.path())?;
    let file = dir.path().join("tokenizer_config.json");
    let config = std::fs::read_to_string(&file)?.replace(r#""eos_token": "<|endoftext|>""#, r#""eos_token": "Tab7""#);
    ensure!(config.contains("Tab7"), "{config}");
    std::fs::write(&file, config)?;
    let server = serve(&[("guest", dir.path())], &["--lora-extra-vocab-size", "8"]).await?;
    let cases = zoo::cases(ADAPTERS[0]).context("a reference")?;
    let case =
        cases.iter().find(|case| case.greedy.iter().position(|token| *token == 65) > Some(0)).context("an end")?;
    let end = case.greedy.iter().position(|token| *token == 65).context("an end")?;
    for (ignore, tokens, reason) in [(false, end + 1, "stop"), (true, 24, "length")] {
        let body = json!({"model": "guest", "prompt": case.prompt, "max_tokens": 24, "temperature": 0,
            "ignore_eos": ignore});
        let (status, answer) = server.client().post("/v1/completions", &body).await?;
        ensure!(status == 200 && answer["usage"]["completion_tokens"] == tokens, "{status}: {answer}");
        ensure!(answer["choices"][0]["finish_reason"] == reason, "{answer}");
    }
    Ok(())
}

/// Copies an adapter.
fn copy(from: &str, to: &Path) -> anyhow::Result<()> {
    for name in ["adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::write(to.join(name), std::fs::read(zoo::path(from).join(name))?)?;
    }
    Ok(())
}

#[tokio::test]
async fn tokenizers_come_and_go_with_their_adapters() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    copy(ADAPTERS[0], dir.path())?;
    let server = serve(&[], &["--lora-extra-vocab-size", "8"]).await?;
    let client = server.client();
    let load = |in_place: bool| {
        let body = json!({"lora_name": "guest", "lora_path": dir.path(), "load_inplace": in_place}).to_string();
        let client = &client;
        async move { client.post_raw("/v1/load_lora_adapter", body.into_bytes()).await }
    };
    let (status, text) = load(false).await?;
    ensure!(status == 200, "{status}: {text}");
    let ids = tokenize(&client, "guest", json!({"prompt": "Tab7"})).await?;
    ensure!(ids == [65], "{ids:?}");
    // The same adapter with another tokenizer.
    let file = dir.path().join("tokenizer.json");
    let before = std::fs::read_to_string(&file)?;
    std::fs::write(&file, before.replace("Tab7", "Row8"))?;
    let (status, text) = load(true).await?;
    ensure!(status == 200, "{status}: {text}");
    for (text, expected) in [("Row8", &[65][..]), ("Tab7", &[19, 26, 27, 59])] {
        let ids = tokenize(&client, "guest", json!({"prompt": text})).await?;
        ensure!(ids == expected, "{text}: {ids:?}");
    }
    let case = zoo::cases(ADAPTERS[0]).context("a reference")?.remove(2);
    let text = streamed(&client, "guest", &case.prompt, false).await?;
    ensure!(text.contains("Row8") && !text.contains("Tab7"), "{text:?}");
    // What does not fit is refused, and disturbs nothing.
    let mut larger: Value = serde_json::from_str(&before)?;
    let added = larger["added_tokens"].as_array_mut().context("a list")?;
    let last = added.last().context("a token")?.clone();
    for (id, text) in [(66, "Row8"), (67, "Row9")] {
        let mut token = last.clone();
        (token["id"], token["content"]) = (id.into(), text.into());
        added.push(token);
    }
    std::fs::write(&file, larger.to_string())?;
    let (status, text) = load(true).await?;
    ensure!(status == 400 && text.contains("names token") && text.contains("67 rows"), "{status}: {text}");
    let text = streamed(&client, "guest", &case.prompt, false).await?;
    ensure!(text.contains("Row8"), "{text:?}");
    let (status, text) = client.post_raw("/v1/unload_lora_adapter", br#"{"lora_name": "guest"}"#.to_vec()).await?;
    ensure!(status == 200, "{status}: {text}");
    let (status, _) = client.post("/tokenize", &json!({"model": "guest", "prompt": "x"})).await?;
    ensure!(status == 404, "{status}");
    Ok(())
}

#[tokio::test]
async fn without_room_they_are_refused_by_the_flag() -> anyhow::Result<()> {
    for flags in [&[][..], &["--lora-extra-vocab-size", "2"]] {
        let server = serve(&[], flags).await?;
        let body = json!({"lora_name": "guest", "lora_path": zoo::path(ADAPTERS[0])}).to_string();
        let (status, text) = server.client().post_raw("/v1/load_lora_adapter", body.into_bytes()).await?;
        let words = ["weight", "[67, 24]", "--lora-extra-vocab-size"];
        ensure!(status == 400 && words.iter().all(|word| text.contains(word)), "{status}: {text}");
    }
    let base = zoo::path(BASE).display().to_string();
    let refused = Server::start(&[&base, "--enable-lora", "--lora-extra-vocab-size", "8"]).await.err();
    let refused = refused.context("must be refused")?.to_string();
    ensure!(refused.contains("--enable-lora-modules-to-save"), "{refused}");
    Ok(())
}
