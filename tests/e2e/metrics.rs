//! The metrics: exact counters, scraped by a real Prometheus.

use std::{
    fs,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use e2e_tests::{Client, Server, free_port};
use serde_json::{Value, json};

#[tokio::test]
async fn counters_are_exact() -> anyhow::Result<()> {
    let server = Server::start(&[]).await?;
    let client = server.client();
    let (mut prompt_tokens, mut generated) = (0, 0);
    for number in 0..5 {
        let body = json!({"prompt": "count these tokens please ".repeat(number + 1), "max_tokens": 7 + number});
        let (_, count) = client.post("/tokenize", &json!({"prompt": body["prompt"]})).await?;
        let (status, answer) = client.post("/v1/completions", &body).await?;
        ensure!(status == 200, "{answer}");
        ensure!(answer["usage"]["prompt_tokens"] == count["count"], "{answer} {count}");
        prompt_tokens += count["count"].as_u64().context("count")?;
        generated += answer["usage"]["completion_tokens"].as_u64().context("usage")?;
    }
    settles_at(&client, "vllm:prompt_tokens_total", prompt_tokens as f64).await?;
    settles_at(&client, "vllm:generation_tokens_total", generated as f64).await?;
    settles_at(&client, "vllm:request_success_total", 5.0).await?;
    settles_at(&client, "vllm:e2e_request_latency_seconds_count", 5.0).await?;
    settles_at(&client, "vllm:time_to_first_token_seconds_count", 5.0).await?;
    settles_at(&client, "vllm:num_requests_running", 0.0).await?;
    settles_at(&client, "quire:kv_blocks_used", 0.0).await?;
    let (_, text) = client.get("/metrics").await?;
    let types: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
    let mut unique = types.clone();
    unique.sort_unstable();
    unique.dedup();
    ensure!(types.len() == unique.len(), "a metric is described twice");
    let documented = fs::read_to_string(e2e_tests::root().join("docs/metrics.md"))?;
    for name in types.iter().filter_map(|line| line.split(' ').nth(2)) {
        ensure!(documented.contains(&format!("| `{name}` |")), "docs/metrics.md does not list {name}");
    }
    Ok(())
}

#[tokio::test]
async fn a_repeated_prompt_hits_the_prefix_cache() -> anyhow::Result<()> {
    let server = Server::start(&[]).await?;
    let client = server.client();
    let body =
        json!({"prompt": "the same long beginning again and again ".repeat(8), "max_tokens": 4, "temperature": 0});
    let (_, cold) = client.post("/v1/completions", &body).await?;
    let before = client.metric("vllm:prefix_cache_hits_total", "").await?;
    let (_, warm) = client.post("/v1/completions", &body).await?;
    ensure!(cold["choices"][0]["text"] == warm["choices"][0]["text"], "{cold} {warm}");
    let prompt = cold["usage"]["prompt_tokens"].as_u64().context("usage")?;
    settles_at(&client, "vllm:prefix_cache_hits_total", before + ((prompt - 1) / 16 * 16) as f64).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_prometheus_scrapes_it() -> anyhow::Result<()> {
    let server = Server::start(&[]).await?;
    let (status, _) = server.client().post("/v1/completions", &json!({"prompt": "Hello", "max_tokens": 9})).await?;
    ensure!(status == 200, "{status}");
    let prometheus = Prometheus::start(server.port).await?;
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if prometheus.query("sum(vllm:generation_tokens_total)").await.is_some_and(|value| value == 9.0) {
            break;
        }
        ensure!(Instant::now() < deadline, "Prometheus has not seen the tokens: {}", prometheus.log());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    ensure!(prometheus.query("up").await == Some(1.0), "the target is up: {}", prometheus.log());
    Ok(())
}

/// Waits until a metric has a value; it is exact, but counted by several processes, each a moment after the answer.
pub async fn settles_at(client: &Client, name: &str, expected: f64) -> anyhow::Result<()> {
    becomes(client, name, |value| value == expected).await.with_context(|| format!("expected {expected}"))
}

/// Waits until a metric's value is as wanted.
pub async fn becomes(client: &Client, name: &str, wanted: impl Fn(f64) -> bool) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let value = client.metric(name, "").await?;
        if wanted(value) {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("{name} stays at {value}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A real Prometheus; dropping it ends it.
pub struct Prometheus {
    child: Child,
    client: Client,
    dir: tempfile::TempDir,
}

impl Prometheus {
    async fn start(target: u16) -> anyhow::Result<Self> {
        let config = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs:\n- job_name: quire\n  static_configs:\n  \
             - targets: ['127.0.0.1:{target}']\n"
        );
        Self::with_config(&config).await
    }

    /// Starts it with a configuration and waits until it answers; installs it where it is not there.
    pub async fn with_config(config: &str) -> anyhow::Result<Self> {
        if Command::new("prometheus").arg("--version").output().is_err() {
            install_prometheus()?;
        }
        let dir = tempfile::tempdir()?;
        let port = free_port()?;
        fs::write(dir.path().join("prometheus.yml"), config)?;
        let log = fs::File::create(dir.path().join("log"))?;
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", dir.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        let mut prometheus = Self { child, client: Client::new(format!("http://127.0.0.1:{port}")), dir };
        prometheus.answers().await?;
        Ok(prometheus)
    }

    /// Waits until it has read its storage and serves queries.
    async fn answers(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !matches!(self.client.get("/-/ready").await, Ok((200, _))) {
            if let Some(status) = self.child.try_wait()? {
                bail!("Prometheus ended with {status}: {}", self.log());
            }
            ensure!(Instant::now() < deadline, "Prometheus does not answer: {}", self.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    async fn query(&self, expression: &str) -> Option<f64> {
        self.ask(expression).await.ok()?.first().copied()
    }

    /// The values of all series that an expression gives now.
    pub async fn ask(&self, expression: &str) -> anyhow::Result<Vec<f64>> {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let (status, text) = self.client.get(&format!("/api/v1/query?query={encoded}")).await?;
        ensure!(status == 200, "{expression}: {text}");
        let answer: Value = serde_json::from_str(&text)?;
        let series = answer["data"]["result"].as_array().context("result")?;
        Ok(series.iter().filter_map(|one| one["value"][1].as_str()?.parse().ok()).collect())
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Debian's package, where the test may install it.
fn install_prometheus() -> anyhow::Result<()> {
    let apt = |args: &[&str]| Command::new("apt-get").args(args).env("DEBIAN_FRONTEND", "noninteractive").status();
    apt(&["update", "-qq"])?;
    let status = apt(&["install", "-y", "-qq", "--no-install-recommends", "prometheus"])?;
    ensure!(status.success(), "prometheus is not there and cannot be installed: apt-get install prometheus");
    Ok(())
}
