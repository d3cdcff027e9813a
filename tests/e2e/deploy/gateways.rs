//! Gateways as pods of their own, in front of an engine of several workers: the chart's pods as processes here.

use std::{
    io::Write,
    net::TcpStream,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

use anyhow::{Context, bail, ensure};
use e2e_tests::Client;
use serde_json::{Value, json};
use tokio::task::{JoinHandle, spawn_blocking};
use tonic::Code;

use super::{
    chart::{answers, find, ready_in_metrics},
    pods::{API_KEY, GATEWAY_PORTS, Pod},
};
use crate::parallel::{replicas::eventually, strangers::stranger};

/// Clients that ask one thing after the other while gateways are rolled.
const CLIENTS: usize = 4;

/// An engine in one container, with two workers in each of two stages, and two gateways.
pub(super) async fn in_front_of_an_engine(objects: &Value) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut engine = Pod::start(find(objects, "StatefulSet", "-engine")?, folder.path(), &[]).await?;
    let mut gateways = [start(objects, folder.path(), &engine).await?, start(objects, folder.path(), &engine).await?];
    engine.passes_its_probes().await?;
    for gateway in &mut gateways {
        gateway.passes_its_probes().await?;
        answers(gateway, objects, Some(API_KEY)).await?;
    }
    each_shows_its_own(&engine, &gateways).await.context("metrics")?;
    strangers_get_nothing(&engine).await.context("strangers")?;
    let mut gateways = rolled(objects, folder.path(), &engine, gateways).await.context("gateways are rolled")?;
    is_killed(&mut engine, &mut gateways).await.context("the engine is killed")?;
    ends_in_order(engine, &gateways).await.context("the engine ends")?;
    gateways.into_iter().try_for_each(Pod::end)
}

/// A gateway in front of an engine on two nodes.
pub(super) async fn in_front_of_nodes(objects: &Value) -> anyhow::Result<()> {
    let set = &find(objects, "LeaderWorkerSet", "-engine")?["spec"]["leaderWorkerTemplate"];
    let folders = [tempfile::tempdir()?, tempfile::tempdir()?];
    let mut head = Pod::of(&set["leaderTemplate"]["spec"], folders[0].path(), &[], 0).await?;
    let node = Pod::of(&set["workerTemplate"]["spec"], folders[1].path(), &head.ports, 1).await?;
    let mut gateway = start(objects, folders[0].path(), &head).await?;
    head.passes_its_probes().await.with_context(|| node.log())?;
    gateway.passes_its_probes().await?;
    answers(&gateway, objects, None).await?;
    gateway.end()?;
    head.end()?;
    node.end()
}

async fn start(objects: &Value, folder: &Path, engine: &Pod) -> anyhow::Result<Pod> {
    Pod::start(find(objects, "Deployment", "-gateway")?, folder, &engine.ports).await
}

fn client(pod: &Pod) -> anyhow::Result<Client> {
    Client::with_key(format!("http://127.0.0.1:{}", pod.port(8000)?), API_KEY)
}

/// The engine shows its processes and no API; a gateway shows what it counts itself.
async fn each_shows_its_own(engine: &Pod, gateways: &[Pod]) -> anyhow::Result<()> {
    ready_in_metrics(engine).await?;
    for worker in 0..4 {
        let label = format!("process=\"worker {worker}\"");
        ensure!(client(engine)?.metric("quire:process_ready", &label).await? == 1.0, "{label}");
    }
    let (status, answer) = client(engine)?.post("/v1/completions", &json!({"prompt": "Hello"})).await?;
    ensure!(status == 404 && answer.to_string().contains("gateways serve the API"), "{status}: {answer}");
    let (_, of_engine) = client(engine)?.get("/metrics").await?;
    for series in ["vllm:num_requests_running", "quire:worker_steps_total", "quire:process_ready"] {
        ensure!(of_engine.contains(series), "the engine does not show {series}");
        for gateway in gateways {
            let (_, text) = client(gateway)?.get("/metrics").await?;
            ensure!(!text.contains(series), "a gateway shows the engine's {series}");
            ensure!(client(gateway)?.metric("vllm:request_success_total", "").await? > 0.0, "{text}");
        }
    }
    Ok(())
}

/// Who has no token hears nothing at the ports for gateways, and garbage does no harm.
async fn strangers_get_nothing(engine: &Pod) -> anyhow::Result<()> {
    let first = engine.port(9001)?;
    for port in first..first + GATEWAY_PORTS {
        ensure!(stranger(port).await? != Code::Ok, "{port} answers a stranger");
        let mut connection = TcpStream::connect(("127.0.0.1", port))?;
        connection.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n\x00\xff\x00\xff")?;
    }
    // Behind the links of requests and events there are the control planes.
    for port in first + 2..first + GATEWAY_PORTS {
        ensure!(stranger(port).await? == Code::Unauthenticated, "{port}");
    }
    ensure!(client(engine)?.health().await == Some(200), "the engine minds garbage: {}", engine.log());
    Ok(())
}

/// What a Service does: each request goes to one of the gateways that it has.
#[derive(Clone)]
struct Service(Arc<Mutex<Vec<Client>>>);

impl Service {
    fn choose(&self, number: usize) -> anyhow::Result<Client> {
        let clients = self.0.lock().map_err(|_| anyhow::anyhow!("a client panicked"))?;
        Ok(clients[number % clients.len()].clone())
    }

    /// It has this one, and the first one no longer.
    fn replace_first(&self, new: Client) -> anyhow::Result<()> {
        let mut clients = self.0.lock().map_err(|_| anyhow::anyhow!("a client panicked"))?;
        clients.remove(0);
        clients.push(new);
        Ok(())
    }
}

/// Every gateway is replaced while clients ask: a new one is ready before an old one ends, and nothing fails.
async fn rolled(objects: &Value, folder: &Path, engine: &Pod, gateways: [Pod; 2]) -> anyhow::Result<Vec<Pod>> {
    let service = Service(Arc::new(Mutex::new(gateways.iter().map(client).collect::<anyhow::Result<_>>()?)));
    let (answered, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let clients: Vec<_> =
        (0..CLIENTS).map(|number| asking(number, service.clone(), answered.clone(), stop.clone())).collect();
    let mut new = Vec::new();
    for old in gateways {
        let before = answered.load(Relaxed);
        let mut gateway = start(objects, folder, engine).await?;
        gateway.passes_its_probes().await?;
        service.replace_first(client(&gateway)?)?;
        new.push(gateway);
        // It finishes what it has; its port is closed to others by then.
        spawn_blocking(move || old.end()).await??;
        eventually("answers", || async { answered.load(Relaxed) > before + 2 * CLIENTS }).await?;
    }
    stop.store(true, Relaxed);
    for client in clients {
        client.await??;
    }
    Ok(new)
}

/// Asks until it is told to stop; every second answer is streamed.
fn asking(
    number: usize,
    service: Service,
    answered: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
) -> JoinHandle<anyhow::Result<()>> {
    tokio::spawn(async move {
        for turn in number.. {
            if stop.load(Relaxed) {
                break;
            }
            let mut stream = Answer::begin(&service.choose(turn)?, 40).await?;
            ensure!(stream.rest().await? == 40, "an answer broke off");
            answered.fetch_add(1, Relaxed);
        }
        Ok(())
    })
}

/// Requests that run hear of it as a 503, gateways are ready again once the engine is.
async fn is_killed(engine: &mut Pod, gateways: &mut [Pod]) -> anyhow::Result<()> {
    let mut streams = Vec::new();
    for gateway in gateways.iter() {
        streams.push(Answer::begin(&client(gateway)?, 900).await?);
    }
    engine.kill().await?;
    for stream in &mut streams {
        let error = stream.rest().await.err().context("a stream outlives its engine")?.to_string();
        ensure!(error.contains("503"), "{error}");
    }
    for gateway in gateways.iter() {
        let client = client(gateway)?;
        eventually("gateways are not ready", || async { client.health().await == Some(503) }).await?;
        let (status, answer) = client.post("/v1/completions", &json!({"prompt": "Hello"})).await?;
        ensure!(status == 503, "{status}: {answer}");
    }
    engine.start_again()?;
    engine.passes_its_probes().await?;
    for gateway in gateways {
        gateway.passes_its_probes().await?;
        ensure!(Answer::begin(&client(gateway)?, 10).await?.rest().await? == 10, "an answer broke off");
    }
    Ok(())
}

/// An engine that is told to end finishes what gateways have asked for, and takes nothing more.
async fn ends_in_order(engine: Pod, gateways: &[Pod]) -> anyhow::Result<()> {
    let mut streams = Vec::new();
    for gateway in gateways {
        streams.push(Answer::begin(&client(gateway)?, 600).await?);
    }
    let ended = spawn_blocking(move || engine.end());
    let first = client(&gateways[0])?;
    eventually("the engine drains", || async { first.health().await == Some(503) }).await?;
    let (status, answer) = first.post("/v1/completions", &json!({"prompt": "Hello"})).await?;
    ensure!(status == 503, "{status}: {answer}");
    for stream in &mut streams {
        ensure!(stream.rest().await? == 600, "an answer broke off");
    }
    ended.await?
}

/// An answer of a chat that is being streamed.
struct Answer {
    stream: e2e_tests::Stream,
    tokens: u64,
}

impl Answer {
    /// Asks for so many tokens, and waits for the first.
    async fn begin(client: &Client, max_tokens: u64) -> anyhow::Result<Self> {
        let body = json!({
            "messages": [{"role": "user", "content": "Tell me a story about a brave robot."}],
            "max_tokens": max_tokens, "ignore_eos": true, "stream": true, "stream_options": {"include_usage": true},
        });
        let (status, mut stream) = client.stream("/v1/chat/completions", &body).await?;
        ensure!(status == 200, "{status}");
        stream.next().await?.context("an event")?;
        Ok(Self { stream, tokens: 0 })
    }

    /// Reads it to its end: how many tokens it had. An error event is an error.
    async fn rest(&mut self) -> anyhow::Result<u64> {
        while let Some(event) = self.stream.next().await? {
            if !event["error"].is_null() {
                bail!("{event}");
            }
            self.tokens = event["usage"]["completion_tokens"].as_u64().unwrap_or(self.tokens);
        }
        Ok(self.tokens)
    }
}
