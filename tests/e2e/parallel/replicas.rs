//! Several engines behind one server: who serves what, and that one that dies takes only its own requests with it.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use e2e_tests::{Client, Server, descendants, is_on_gpu, max_workers};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Requests of each engine that run when one of them dies.
const REQUESTS: usize = 6;
/// What one engine may take to be back.
const BACK: Duration = Duration::from_secs(60);

pub(super) const ENGINES: &[&str] = &["-dp", "2", "--kv-cache-memory-bytes", "64M"];

/// Asks at an engine, or where the server chooses; the status, and the body.
pub(super) async fn ask(server: &Server, rank: Option<usize>, max_tokens: usize) -> anyhow::Result<(u16, Value)> {
    let url = format!("http://127.0.0.1:{}/v1/completions", server.port);
    let body = json!({"prompt": [5, 6, 7], "max_tokens": max_tokens, "ignore_eos": true, "temperature": 0.0});
    let mut request = reqwest::Client::new().post(url).json(&body);
    if let Some(rank) = rank {
        request = request.header("X-data-parallel-rank", rank.to_string());
    }
    let answer = request.send().await?;
    Ok((answer.status().as_u16(), answer.json().await?))
}

type Answers = Vec<JoinHandle<anyhow::Result<(u16, Value)>>>;

/// Long requests that run in an engine.
async fn load(server: &Server, rank: usize) -> anyhow::Result<Answers> {
    let (port, url) = (server.port, "v1/completions");
    let begin = move || async move {
        let body = json!({"prompt": [5, 6, 7], "max_tokens": 600, "ignore_eos": true, "temperature": 0.0});
        let request = reqwest::Client::new().post(format!("http://127.0.0.1:{port}/{url}")).json(&body);
        let answer = request.header("X-data-parallel-rank", rank.to_string()).send().await?;
        Ok((answer.status().as_u16(), answer.json().await?))
    };
    let answers = (0..REQUESTS).map(|_| tokio::spawn(begin())).collect();
    let running = || async {
        let running = server.client().metric("vllm:num_requests_running", &format!("engine=\"{rank}\"")).await;
        running.is_ok_and(|running| running == REQUESTS as f64)
    };
    eventually("the load runs", running).await?;
    Ok(answers)
}

async fn statuses(answers: Answers) -> anyhow::Result<Vec<u16>> {
    let mut statuses = Vec::new();
    for answer in answers {
        let (status, body) = answer.await??;
        if status == 200 {
            ensure!(body["usage"]["completion_tokens"] == 600, "{body}");
        }
        statuses.push(status);
    }
    Ok(statuses)
}

pub(crate) async fn eventually<F: Future<Output = bool>>(
    what: &str,
    mut holds: impl FnMut() -> F,
) -> anyhow::Result<()> {
    let start = Instant::now();
    while !holds().await {
        ensure!(start.elapsed() < BACK, "not within {BACK:?}: {what}");
        // Only asking again shows it from outside.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// The process that was started with a word that ends so.
pub(super) fn process(server: &Server, role: &str, word: &str) -> anyhow::Result<Pid> {
    let has_word = |pid: Pid| {
        let line = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|argument| argument.ends_with(word.as_bytes()))
    };
    let all = descendants(server.pid());
    let found = all.iter().find(|process| process.role == role && has_word(process.pid));
    Ok(found.with_context(|| format!("no {role} with {word}"))?.pid)
}

pub(super) async fn is_ready(client: &Client, process: &str) -> bool {
    client.metric("quire:process_ready", &format!("process=\"{process}\"")).await.is_ok_and(|ready| ready == 1.0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_dies_takes_its_own_requests_alone() -> anyhow::Result<()> {
    if is_on_gpu() && max_workers() < 2 {
        return Ok(());
    }
    let server = Server::start(ENGINES).await?;
    for (role, word, name) in
        [("scheduler", "--data-parallel-rank=1", "scheduler 1"), ("worker", "--local-rank=1", "worker 1")]
    {
        let (spared, struck) = (load(&server, 0).await?, load(&server, 1).await?);
        kill_process(process(&server, role, word)?, Signal::KILL)?;
        let struck = statuses(struck).await?;
        ensure!(struck.iter().all(|status| *status == 503), "{name}: {struck:?}\n{}", server.log());
        // The server serves, and what comes now goes where it is served.
        for _ in 0..4 {
            let (status, body) = ask(&server, None, 2).await?;
            ensure!(status == 200, "{name}: {body}\n{}", server.log());
        }
        ensure!(server.client().health().await == Some(200), "{}", server.log());
        let spared = statuses(spared).await?;
        ensure!(spared.iter().all(|status| *status == 200), "{name}: {spared:?}\n{}", server.log());
        let client = server.client();
        eventually("the engine is back", || async { is_ready(&client, name).await }).await?;
        eventually("it serves", || async { ask(&server, Some(1), 2).await.is_ok_and(|(status, _)| status == 200) })
            .await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_prefixes_meet_and_ranks_are_honoured() -> anyhow::Result<()> {
    if is_on_gpu() && max_workers() < 2 {
        return Ok(());
    }
    let server = Server::start(ENGINES).await?;
    let client = server.client();
    let prompt: Vec<u32> = (0..400).map(|token| 100 + token % 300).collect();
    for _ in 0..8 {
        client.greedy("wren", &prompt, 1).await?;
    }
    let hits = |engine: usize| {
        let client = &client;
        async move { client.metric("vllm:prefix_cache_hits_total", &format!("engine=\"{engine}\"")).await }
    };
    let hits = [hits(0).await?, hits(1).await?];
    // All but the first found all but its last block.
    ensure!(hits.iter().sum::<f64>() >= 7.0 * 384.0 && hits.contains(&0.0), "{hits:?}");
    for rank in [1, 0, 1] {
        ensure!(ask(&server, Some(rank), 1).await?.0 == 200);
    }
    let (status, body) = ask(&server, Some(2), 1).await?;
    ensure!(status == 400 && body["error"]["message"].as_str().is_some_and(|text| text.contains("0 to 1")), "{body}");
    let served = client.metric("vllm:request_success_total", "engine=\"1\",finished_reason=\"length\"").await?;
    ensure!(served >= 2.0, "{served}");
    Ok(())
}
