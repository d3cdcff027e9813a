//! An idle system sleeps: no process uses CPU time, and a drained one ends in order.

use std::time::Duration;

use anyhow::ensure;
use e2e_tests::{Server, cpu_ticks, descendants};
use serde_json::json;

#[tokio::test]
async fn idle_means_no_cpu_time() -> anyhow::Result<()> {
    let server = Server::start(&[]).await?;
    // It has worked once, so everything that starts lazily has started.
    server.client().post("/v1/completions", &json!({"prompt": "Hello", "max_tokens": 4})).await?;
    // Not a wait for a condition: the span over which idleness is measured, after a pause for log flushing and the
    // like.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let processes = descendants(server.pid());
    ensure!(processes.len() >= 5, "five processes: {processes:?}");
    let before: Vec<u64> = processes.iter().map(|process| cpu_ticks(process.pid)).collect();
    tokio::time::sleep(Duration::from_secs(10)).await;
    for (process, before) in processes.iter().zip(before) {
        let used = cpu_ticks(process.pid) - before;
        // One tick is 10 ms: accounting may hit a process once by chance.
        ensure!(used <= 1, "{} used {used} ticks in ten idle seconds", process.role);
    }
    Ok(())
}

#[tokio::test]
async fn sigterm_drains_and_leaves_nothing_behind() -> anyhow::Result<()> {
    let mut server = Server::start(&[]).await?;
    let client = server.client();
    let body = json!({"prompt": "Once upon a time", "max_tokens": 300, "ignore_eos": true, "stream": true});
    let (_, mut stream) = client.stream("/v1/completions", &body).await?;
    ensure!(stream.next().await?.is_some(), "the stream has begun");
    let processes = descendants(server.pid());
    let ending = std::thread::spawn(move || server.end().map(|status| (status, server.log())));
    let mut tokens = 1;
    while let Some(chunk) = stream.next().await? {
        ensure!(chunk["error"].is_null(), "a drained stream ends in order: {chunk}");
        tokens += 1;
    }
    ensure!(tokens > 2, "the stream went on to its end");
    let (status, log) = ending.join().expect("no panic")?;
    ensure!(status.success(), "{status}: {log}");
    for process in processes {
        ensure!(
            !std::path::Path::new(&format!("/proc/{}", process.pid.as_raw_nonzero())).exists(),
            "{process:?} is left"
        );
    }
    Ok(())
}
