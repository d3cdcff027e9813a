//! Routes, fields and metrics, as a running server has them.

use anyhow::ensure;
use e2e_tests::{Client, Server};
use serde_json::{Value, json};

use super::{Misses, list, names, surface};

/// The generating routes and the schemas of their bodies.
const BODIES: [(&str, &str); 2] =
    [("/v1/completions", "CompletionRequest"), ("/v1/chat/completions", "ChatCompletionRequest")];
/// All routes that are there on demand.
const ON_DEMAND: [&str; 4] = ["--enable-lora", "--enable-tokenizer-info-endpoint", "--profiler-config", "/tmp"];
const DEVELOPMENT: [(&str, &str); 2] = [("VLLM_SERVER_DEV_MODE", "1"), ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True")];

#[tokio::test]
async fn routes_are_there_or_say_why_not() -> anyhow::Result<()> {
    let server = Server::start_with(&ON_DEMAND, &DEVELOPMENT).await?;
    let (client, surface, mut misses) = (server.client(), surface()?, Misses::default());
    for (method, path) in names(&surface["routes"]).filter_map(|route| route.split_once(' ')) {
        let (status, text) = match method {
            "GET" => client.get(path).await?,
            _ => client.post_raw(path, b"{}".to_vec()).await?,
        };
        let refused = text.contains(&format!("`{path}` is not supported by this server: "));
        let told = match status {
            // What a request names may be missing, too.
            404 => refused || text.contains("Response with id"),
            405 | 500.. => false,
            _ => true,
        };
        misses.unless(told, || format!("{method} {path}: {status} {text}"));
    }
    misses.none()
}

#[tokio::test]
async fn fields_are_honoured_or_refused_by_name() -> anyhow::Result<()> {
    let server = Server::start(&[]).await?;
    let (client, surface, mut misses) = (server.client(), surface()?, Misses::default());
    let document: Value = serde_json::from_str(&client.get("/openapi.json").await?.1)?;
    for (route, schema) in BODIES {
        let listed = &document["components"]["schemas"][schema]["properties"];
        for field in names(&surface["fields"][route]) {
            let help = listed[field]["description"].as_str().unwrap_or_default();
            let mut named = false;
            for wrong in [json!({"nonsense": [[-7]]}), json!(-5.5)] {
                let (status, answer) = client.post(route, &with(route, field, &wrong)).await?;
                named |= status == 400 && answer["error"]["message"].to_string().contains(field);
            }
            let told = named || help.starts_with("Has no effect: ");
            misses.unless(told && !listed[field].is_null(), || format!("{route} {field}: {}", listed[field]));
        }
    }
    misses.none()
}

#[tokio::test]
async fn values_have_vllms_ranges() -> anyhow::Result<()> {
    let server = Server::start(&[]).await?;
    let (client, surface, mut misses) = (server.client(), surface()?, Misses::default());
    for (route, _) in BODIES {
        for row in list(&surface["ranges"]) {
            let field = row[0].as_str().unwrap_or_default();
            for good in list(&row[1]) {
                let (status, answer) = client.post(route, &with(route, field, good)).await?;
                misses.unless(status == 200, || format!("{route} {field} = {good}: {status} {answer}"));
            }
            for bad in list(&row[2]) {
                let (status, answer) = client.post(route, &with(route, field, bad)).await?;
                let named = answer["error"]["message"].to_string().contains(field);
                misses.unless(status == 400 && named, || format!("{route} {field} = {bad}: {status} {answer}"));
            }
        }
    }
    misses.none()
}

#[tokio::test]
async fn metrics_are_there_or_listed_with_a_reason() -> anyhow::Result<()> {
    let server = Server::start(&["--max-num-queued-reqs", "8"]).await?;
    let (client, surface, mut misses) = (server.client(), surface()?, Misses::default());
    ensure!(client.post("/v1/completions", &with("/v1/completions", "n", &json!(2))).await?.0 == 200);
    let (_, page) = client.get("/metrics").await?;
    let documented = std::fs::read_to_string(e2e_tests::root().join("docs/metrics.md"))?;
    for kind in ["gauge", "counter", "histogram"] {
        for name in names(&surface["metrics"][kind]) {
            let full = format!("vllm:{name}{}", if kind == "counter" { "_total" } else { "" });
            let there = page.contains(&format!("# TYPE {full} {kind}\n"));
            misses.unless(there || is_listed(&documented, &full), || format!("{kind} {full}"));
        }
    }
    for (name, bounds) in surface["buckets"].as_object().into_iter().flatten() {
        let found = bounds_of(&page, &format!("vllm:{name}_bucket{{"));
        let wanted: Vec<f64> = list(bounds).filter_map(Value::as_f64).collect();
        misses.unless(found == wanted, || format!("buckets of {name}: {found:?}"));
    }
    misses.none()
}

/// What the first sections of vLLM's own documents promise, said in one request each.
#[tokio::test]
async fn prompts_have_all_their_forms() -> anyhow::Result<()> {
    let server = Server::start(&[]).await?;
    let client = server.client();
    for (prompt, choices) in
        [(json!("The robot"), 1), (json!([1, 2]), 1), (json!(["a", "b"]), 2), (json!([[1], [2, 3]]), 2)]
    {
        let (status, answer) = client.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 3})).await?;
        let indices: Vec<_> = list(&answer["choices"]).map(|choice| choice["index"].as_u64()).collect();
        ensure!(status == 200 && indices == (0..choices).map(Some).collect::<Vec<_>>(), "{prompt}: {answer}");
    }
    let parts = json!([{"type": "text", "text": "Hello"}]);
    ensure!(count(&client, &parts).await? == count(&client, &json!("Hello")).await?, "parts are the text");
    let (_, told) = client.post("/tokenize", &json!({"prompt": "héllo wörld", "add_special_tokens": false})).await?;
    let (_, back) = client.post("/detokenize", &json!({"tokens": told["tokens"]})).await?;
    ensure!(back["prompt"] == "héllo wörld", "{told} {back}");
    let (status, answer) = client.post("/v1/completions", &json!({"prompt": "a ".repeat(4000)})).await?;
    ensure!(status == 400 && answer["error"]["type"] == "BadRequestError", "{status} {answer}");
    let (status, answer) = client.post("/v1/completions", &json!({"prompt": "a", "model": "x"})).await?;
    ensure!(status == 404 && answer["error"]["message"] == "The model `x` does not exist.", "{answer}");
    Ok(())
}

/// A short request with one field more.
fn with(route: &str, field: &str, value: &Value) -> Value {
    let mut body = match route {
        "/v1/completions" => json!({"prompt": "The robot", "max_tokens": 2}),
        _ => json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}),
    };
    body[field] = value.clone();
    body
}

async fn count(client: &Client, content: &Value) -> anyhow::Result<Value> {
    let (_, answer) = client.post("/tokenize", &json!({"messages": [{"role": "user", "content": content}]})).await?;
    Ok(answer["tokens"].clone())
}

/// Whether the page on metrics says why a metric is not there; names there may end in `*`.
fn is_listed(page: &str, metric: &str) -> bool {
    let listed = page.lines().filter_map(|line| line.strip_prefix("| `vllm:")?.split('`').next());
    let metric = metric.trim_start_matches("vllm:");
    listed
        .into_iter()
        .any(|name| name == metric || name.strip_suffix('*').is_some_and(|start| metric.starts_with(start)))
}

/// Upper bounds of a histogram's buckets, without the last.
fn bounds_of(page: &str, series: &str) -> Vec<f64> {
    let lines = page.lines().filter(|line| line.starts_with(series));
    lines
        .filter_map(|line| line.split("le=\"").nth(1)?.split('"').next()?.parse().ok())
        .filter(|le: &f64| le.is_finite())
        .collect()
}
