//! A second worker of a rank, started by hand beside the one that serves.

use std::{fs, process::Stdio};

use anyhow::{Context, ensure};
use e2e_tests::{Server, descendants, quire_binary};
use serde_json::json;
use tokio::process::Command;

/// What a process exits with that is to be started again: `EX_TEMPFAIL`.
const TRY_AGAIN: i32 = 75;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_worker_says_why_it_is_refused_and_the_first_serves_on() -> anyhow::Result<()> {
    let server = Server::start(&[]).await?;
    let client = server.client();
    let first = descendants(server.pid()).into_iter().find(|process| process.role == "worker").context("a worker")?;
    // The same command line, but for the supervisor's own.
    let line = fs::read_to_string(format!("/proc/{}/cmdline", first.pid.as_raw_nonzero()))?;
    let is_supervisors = |word: &&str| word.starts_with("--control=") || word.starts_with("--supervised-by=");
    let words: Vec<&str> = line.split_terminator('\0').skip(1).filter(|word| !is_supervisors(word)).collect();
    for _ in 0..3 {
        let mut second = Command::new(quire_binary());
        second.args(&words).stdin(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut ending = std::pin::pin!(second.spawn()?.wait_with_output());
        let ended = loop {
            tokio::select! {
                ended = &mut ending => break ended?,
                health = client.health() => ensure!(health == Some(200), "{health:?}\n{}", server.log()),
            }
        };
        let said = String::from_utf8_lossy(&ended.stderr);
        ensure!(ended.status.code() == Some(TRY_AGAIN), "{}: {said}", ended.status);
        ensure!(said.contains("rank 0 is already served by worker"), "{said}");
        let (status, answer) = client.post("/v1/completions", &json!({"prompt": "Hello", "max_tokens": 5})).await?;
        ensure!(status == 200, "{status}: {answer}");
    }
    ensure!(server.log().contains("refused a worker: rank 0 is already served"), "{}", server.log());
    Ok(())
}
