//! Engines that leave and come back while clients are served: nothing is lost.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use anyhow::ensure;
use e2e_tests::{Client, Server, is_on_gpu, max_workers};
use rustix::process::{Signal, kill_process};
use serde_json::json;
use tokio::task::JoinHandle;

use super::replicas::{ENGINES, ask, eventually, is_ready, process};

/// Clients that ask one thing after the other.
const CLIENTS: usize = 8;

/// Answers of a client, and what was wrong with the first one that was.
type Served = JoinHandle<anyhow::Result<usize>>;

/// Asks for answers of few tokens until it is told to stop: many of them end in each step, the last ones included.
fn client(client: Client, number: usize, stop: Arc<AtomicBool>) -> Served {
    tokio::spawn(async move {
        let mut served = 0;
        while !stop.load(Relaxed) {
            let tokens = 1 + (number * 7 + served * 3) % 24;
            let body = json!({
                "prompt": [5 + number, 6, 7 + served % 50], "max_tokens": tokens, "ignore_eos": true, "temperature": 0
            });
            let (status, answer) = client.post("/v1/completions", &body).await?;
            ensure!(status == 200, "{status}: {answer}");
            ensure!(answer["usage"]["completion_tokens"] == tokens, "{answer}");
            served += 1;
        }
        Ok(served)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_that_are_told_to_end_lose_nothing() -> anyhow::Result<()> {
    if is_on_gpu() && max_workers() < 2 {
        return Ok(());
    }
    let server = Server::start(ENGINES).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..CLIENTS).map(|number| client(server.client(), number, stop.clone())).collect();
    let seen = async {
        for round in 0..4 {
            let engine = round % 2;
            let name = ["scheduler", "scheduler 1"][engine];
            let socket = ["/encoded.sock", "/encoded-1.sock"][engine];
            let scheduler = || process(&server, "scheduler", socket);
            let told = scheduler()?;
            kill_process(told, Signal::TERM)?;
            eventually("it ends", || async { scheduler().is_ok_and(|pid| pid != told) }).await?;
            let client = server.client();
            eventually("the engine is back", || async { is_ready(&client, name).await }).await?;
            let served = || async { ask(&server, Some(engine), 2).await.is_ok_and(|(status, _)| status == 200) };
            eventually("it serves", served).await?;
        }
        anyhow::Ok(())
    };
    let seen = seen.await;
    stop.store(true, Relaxed);
    let mut served = 0;
    for client in clients {
        served += client.await?.map_err(|error| error.context(server.log()))?;
    }
    seen?;
    println!("{served} requests");
    ensure!(served > 100, "clients were served all the time");
    Ok(())
}
