//! `kill -9` of each process under load: everybody gets an answer or an error, nobody hangs, service returns by itself.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use e2e_tests::{Client, MOST_RANKS_OF_WREN, Server, descendants, group_sizes};
use rustix::process::{Signal, kill_process};
use serde_json::json;

/// Streams that run when a process is killed.
const STREAMS: usize = 100;
/// Within this, every client must have heard.
const HEARD: Duration = Duration::from_secs(5);
/// Within this, the service must be back (debug builds load slowly).
const BACK: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_process_may_be_killed() -> anyhow::Result<()> {
    let mut server = Server::start(&[]).await?;
    for role in ["gateway", "tokenizer", "scheduler", "worker", "detokenizer"] {
        survive(&mut server, role).await.with_context(|| format!("killed: {role}\n{}", server.log()))?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_worker_of_a_group_may_be_killed() -> anyhow::Result<()> {
    for ranks in group_sizes().filter(|ranks| (2..=MOST_RANKS_OF_WREN).contains(ranks)) {
        let mut server = Server::start(&["--tensor-parallel-size", &ranks.to_string()]).await?;
        survive(&mut server, "worker").await.with_context(|| server.log())?;
    }
    Ok(())
}

async fn survive(server: &mut Server, role: &str) -> anyhow::Result<()> {
    let client = server.client();
    let streams: Vec<_> = (0..STREAMS).map(|number| tokio::spawn(stream(client.clone(), number))).collect();
    running(&client, STREAMS / 4).await?;
    let victim = descendants(server.pid()).into_iter().rev().find(|process| process.role == role);
    let victim = victim.with_context(|| format!("no {role} among {:?}", descendants(server.pid())))?;
    kill_process(victim.pid, Signal::KILL)?;
    let killed = Instant::now();
    let (mut whole, mut failed) = (0, 0);
    for stream in streams {
        // A request that the kill did not touch may run on; one that it did must hear within the deadline.
        let left = HEARD.saturating_sub(killed.elapsed()) + Duration::from_secs(25);
        match tokio::time::timeout(left, stream).await.context("a client hangs")?? {
            Heard::Answer => whole += 1,
            Heard::Error(at) => {
                let after = at.saturating_duration_since(killed);
                ensure!(after < HEARD, "a client heard of the failure only after {after:?}");
                failed += 1;
            }
        }
    }
    println!("{role}: {whole} answers, {failed} errors");
    server.healthy(BACK).await?;
    println!("{role}: back after {:?}", killed.elapsed());
    let (status, answer) = client.post("/v1/completions", &json!({"prompt": "Hello", "max_tokens": 5})).await?;
    ensure!(status == 200, "{status}: {answer}");
    crate::metrics::settles_at(&client, "quire:kv_blocks_used", 0.0).await
}

enum Heard {
    Answer,
    /// A refusal, an error event, or a broken connection (when the gateway itself is gone).
    Error(Instant),
}

async fn stream(client: Client, number: usize) -> Heard {
    let body = json!({
        "prompt": format!("Story number {number}: once upon a time"), "max_tokens": 200, "ignore_eos": true,
        "stream": true, "seed": number,
    });
    let Ok((200, mut stream)) = client.stream("/v1/completions", &body).await else {
        return Heard::Error(Instant::now());
    };
    let mut finished = false;
    loop {
        match stream.next().await {
            Ok(Some(chunk)) if chunk["error"].is_null() => finished |= !chunk["choices"][0]["finish_reason"].is_null(),
            Ok(Some(_)) | Err(_) => return Heard::Error(Instant::now()),
            Ok(None) if finished => return Heard::Answer,
            Ok(None) => return Heard::Error(Instant::now()),
        }
    }
}

/// Waits until that many requests run.
async fn running(client: &Client, count: usize) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while Instant::now() < deadline {
        if client.metric("vllm:num_requests_running", "").await.is_ok_and(|running| running >= count as f64) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    bail!("{count} requests never ran at once")
}
