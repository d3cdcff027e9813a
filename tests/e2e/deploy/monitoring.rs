//! Dashboards and alerts, asked of a real Prometheus that scrapes a real server under load.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use e2e_tests::{Client, Server, is_on_gpu, root};
use serde_json::{Value, json};

use super::{of_vllm, tools};
use crate::metrics::Prometheus;

/// How long the panels may take to have data.
const FILLED: Duration = Duration::from_secs(60);

#[test]
fn alerts_fire_when_they_should() -> anyhow::Result<()> {
    let folder = root().join("deploy/prometheus");
    if Command::new("promtool").arg("--version").output().is_err() {
        println!("skipped: promtool is not here (it comes with Debian's prometheus)");
        return Ok(());
    }
    tools::run(Command::new("promtool").args(["check", "config"]).arg(folder.join("prometheus.yml")))?;
    tools::run(Command::new("promtool").args(["test", "rules"]).arg(root().join("tests/deploy/alerts.test.yml")))?;
    Ok(())
}

#[test]
fn every_alert_is_explained() -> anyhow::Result<()> {
    let alerts = fs::read_to_string(root().join("deploy/prometheus/alerts.yml"))?;
    let tests = fs::read_to_string(root().join("tests/deploy/alerts.test.yml"))?;
    let guide = fs::read_to_string(root().join("docs/operations.md"))?;
    let names: Vec<&str> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    ensure!(names.len() > 8, "{names:?}");
    for name in names {
        ensure!(tests.contains(&format!("alertname: {name}\n")), "{name} has no test");
        ensure!(guide.contains(&format!("`{name}`")), "docs/operations.md does not explain {name}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_panel_is_empty() -> anyhow::Result<()> {
    // So narrow that some requests are refused.
    let server = Server::start(&["--max-num-seqs=2", "--max-num-queued-reqs=1"]).await?;
    let prometheus = Prometheus::with_config(&quick_config(server.port)?).await?;
    let load: Vec<_> = (0..4).map(|number| tokio::spawn(load(server.client(), number))).collect();
    let mut asked = panels()?;
    asked.extend(of_vllm::queries().into_iter().map(|query| ("a dashboard for vLLM".to_owned(), query)));
    ensure!(asked.len() > 150, "{} queries", asked.len());
    let start = Instant::now();
    while !asked.is_empty() {
        let mut empty = Vec::new();
        for (title, query) in asked {
            let values = prometheus.ask(&query).await.with_context(|| prometheus.log())?;
            if values.is_empty() || values.iter().all(|value| value.is_nan()) {
                empty.push((title, query));
            }
        }
        asked = empty;
        ensure!(start.elapsed() < FILLED, "no data: {asked:#?}\n{}", prometheus.log());
    }
    load.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(())
}

/// The configuration that ships, but every second and for this server.
fn quick_config(port: u16) -> anyhow::Result<String> {
    let shipped = fs::read_to_string(root().join("deploy/prometheus/prometheus.yml"))?;
    let alerts = root().join("deploy/prometheus/alerts.yml");
    let quick = shipped.replace("15s", "1s").replace("127.0.0.1:8000", &format!("127.0.0.1:{port}"));
    Ok(quick.replace("[alerts.yml]", &format!("[{}]", alerts.display())))
}

/// The queries of all dashboards by the panels' titles, with their variables filled in.
fn panels() -> anyhow::Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join("deploy/grafana"))? {
        let board: Value = serde_json::from_slice(&fs::read(entry?.path())?)?;
        for panel in board["panels"].as_array().context("panels")? {
            let title = panel["title"].as_str().context("title")?;
            for target in panel["targets"].as_array().into_iter().flatten() {
                let query = target["expr"].as_str().context("expr")?;
                if query.contains("quire:gpu_") && !is_on_gpu() {
                    continue;
                }
                let query = query.replace("$__rate_interval", "10s").replace("$block_size", "16");
                found.push((title.to_owned(), query.replace("$model_name", ".*").replace("$instance", ".*")));
            }
        }
    }
    Ok(found)
}

/// Answers one after the other, with a mistake between them, until the test ends.
async fn load(client: Client, number: usize) -> anyhow::Result<()> {
    let prompt = format!("Tell a story about number {number}, which is as long as this one is. ").repeat(4);
    loop {
        let (status, answer) = client.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 20})).await?;
        ensure!([200, 503].contains(&status), "{answer}");
        let (status, _) = client.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": -1})).await?;
        ensure!(status == 400, "{status}");
    }
}
