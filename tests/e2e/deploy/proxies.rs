//! Three engines behind real load balancers, with the configurations that ship. Needs nginx and HAProxy, which Debian
//! has; second tier (`cargo xtask test --all`).

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use e2e_tests::{Client, Server, alone, free_port, root};
use rustix::process::{Signal, kill_process};
use serde_json::json;

/// How long an engine may take to be ready.
const READY: Duration = Duration::from_secs(120);
/// How long it may take to end, with running requests.
const END: Duration = Duration::from_secs(60);
/// Clients; each has one request at a time.
const CLIENTS: usize = 6;

/// A load balancer that runs as long as a test.
struct Proxy {
    child: Child,
    client: Client,
}

/// What starts one with these engines.
type Start = fn(&Path, u16, &[u16; 3]) -> anyhow::Result<Child>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "second tier: starts six servers"]
async fn nginx_loses_no_request() -> anyhow::Result<()> {
    behind("nginx", nginx).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "second tier: starts six servers"]
async fn haproxy_loses_no_request() -> anyhow::Result<()> {
    behind("haproxy", haproxy).await
}

async fn behind(program: &str, start: Start) -> anyhow::Result<()> {
    if Command::new(program).arg("-v").output().is_err() {
        println!("skipped: {program} is not here");
        return Ok(());
    }
    let _alone = alone().await;
    let mut engines = Vec::new();
    for _ in 0..3 {
        engines.push(Server::launch(free_port()?, &[], &[])?);
    }
    for engine in &mut engines {
        engine.healthy(READY).await?;
    }
    let folder = tempfile::tempdir()?;
    let port = free_port()?;
    let ports = [engines[0].port, engines[1].port, engines[2].port];
    let child = start(folder.path(), port, &ports)?;
    let proxy = Proxy { child, client: Client::new(format!("http://127.0.0.1:{port}")) };
    proxy.answers().await?;
    let told = || fs::read_to_string(folder.path().join("error.log")).unwrap_or_default();
    streams_pass_as_they_come(&proxy.client, &engines).await.context("streams")?;
    rolling_restart(&proxy.client, &mut engines).await.with_context(told).context("rolling restart")?;
    sudden_death(&proxy.client, &mut engines).await.with_context(told).context("kill -9")
}

/// The first event is here while the engine still generates.
async fn streams_pass_as_they_come(client: &Client, engines: &[Server]) -> anyhow::Result<()> {
    let body = json!({"prompt": "Once", "max_tokens": 900, "ignore_eos": true, "stream": true});
    let (status, mut stream) = client.stream("/v1/completions", &body).await?;
    ensure!(status == 200, "{status}");
    stream.next().await?.context("an event")?;
    let mut running = 0.0;
    for engine in engines {
        running += engine.client().metric("vllm:num_requests_running", "").await?;
    }
    ensure!(running == 1.0, "the first event came when all was over");
    while stream.next().await?.is_some() {}
    Ok(())
}

/// All three are restarted, one after the other, and nobody notices.
async fn rolling_restart(client: &Client, engines: &mut [Server]) -> anyhow::Result<()> {
    let load = Load::start(client);
    for engine in engines {
        load.goes_on(CLIENTS).await?;
        kill_process(engine.pid(), Signal::TERM)?;
        let status = engine.ended(END)?;
        ensure!(status.success(), "{status}: {}", engine.log());
        *engine = Server::launch(engine.port, &[], &[])?;
        engine.healthy(READY).await?;
    }
    load.goes_on(2 * CLIENTS).await?;
    let failures = load.end().await?;
    ensure!(failures.is_empty(), "{failures:#?}");
    Ok(())
}

/// One engine is killed as a whole: each client may lose the request that was there, in a way that says "again".
async fn sudden_death(client: &Client, engines: &mut [Server]) -> anyhow::Result<()> {
    let load = Load::start(client);
    load.goes_on(CLIENTS).await?;
    kill_process(engines[0].pid(), Signal::KILL)?;
    engines[0].ended(END)?;
    load.goes_on(5 * CLIENTS).await?;
    let failures = load.end().await?;
    println!("{} requests were lost: {failures:?}", failures.len());
    ensure!(failures.iter().all(|failure| failure.again), "{failures:#?}");
    let mut clients: Vec<_> = failures.iter().map(|failure| failure.client).collect();
    clients.dedup();
    ensure!(clients.len() == failures.len(), "a client failed twice: {failures:#?}");
    Ok(())
}

impl Proxy {
    async fn answers(&self) -> anyhow::Result<()> {
        let start = Instant::now();
        while self.client.health().await != Some(200) {
            ensure!(start.elapsed() < Duration::from_secs(20), "the balancer does not answer");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = kill_process(rustix::process::Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

/// A request that was lost.
#[derive(Debug)]
#[expect(dead_code, reason = "shown by failing assertions")]
struct Failure {
    client: usize,
    /// It was a 503, or a stream that had begun and broke off.
    again: bool,
    what: String,
}

/// Clients that ask one thing after the other, every second one as a stream.
struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    clients: Vec<tokio::task::JoinHandle<Vec<Failure>>>,
}

impl Load {
    fn start(client: &Client) -> Self {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let run = |number| {
            let (client, stop, answered) = (client.clone(), stop.clone(), answered.clone());
            tokio::spawn(async move {
                let mut failures = Vec::new();
                for turn in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    match ask(&client, (number + turn) % 2 == 0).await {
                        Ok(()) => drop(answered.fetch_add(1, Ordering::Relaxed)),
                        Err(Lost { again, what }) => failures.push(Failure { client: number, again, what }),
                    }
                }
                failures
            })
        };
        let clients = (0..CLIENTS).map(run).collect();
        Self { stop, answered, clients }
    }

    /// Waits until `count` more requests have been answered.
    async fn goes_on(&self, count: usize) -> anyhow::Result<()> {
        let (start, wanted) = (Instant::now(), self.answered.load(Ordering::Relaxed) + count);
        while self.answered.load(Ordering::Relaxed) < wanted {
            if start.elapsed() > READY {
                bail!("requests are not answered");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    async fn end(self) -> anyhow::Result<Vec<Failure>> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for client in self.clients {
            all.extend(client.await?);
        }
        Ok(all)
    }
}

struct Lost {
    again: bool,
    what: String,
}

async fn ask(client: &Client, stream: bool) -> Result<(), Lost> {
    let body = json!({"prompt": "Once upon a time", "max_tokens": 60, "ignore_eos": true, "stream": stream});
    let lost = |again, what: String| Err(Lost { again, what });
    if !stream {
        return match client.post("/v1/completions", &body).await {
            Ok((200, _)) => Ok(()),
            Ok((status, answer)) => lost(status == 503, format!("{status}: {answer}")),
            Err(error) => lost(false, format!("{error:#}")),
        };
    }
    let (status, mut events) = match client.stream("/v1/completions", &body).await {
        Ok(begun) => begun,
        Err(error) => return lost(false, format!("{error:#}")),
    };
    if status != 200 {
        return lost(status == 503, format!("{status} for a stream"));
    }
    let mut finished = false;
    loop {
        match events.next().await {
            Ok(Some(event)) if event["error"].is_null() => finished |= !event["choices"][0]["finish_reason"].is_null(),
            Ok(Some(event)) => return lost(event["error"]["code"] == 503, event.to_string()),
            Ok(None) if finished => return Ok(()),
            Ok(None) => return lost(true, "a stream broke off".to_owned()),
            Err(error) => return lost(true, format!("{error:#}")),
        }
    }
}

/// A configuration that ships, with the test's ports.
fn shipped(path: &str, listen: &str, port: u16, engines: &[u16; 3]) -> anyhow::Result<String> {
    let mut text = fs::read_to_string(root().join("deploy").join(path))?;
    ensure!(text.contains(listen), "{path} listens elsewhere");
    text = text.replace(listen, &format!("{}127.0.0.1:{port}", listen.trim_end_matches(|c| c != ' ')));
    for (number, engine) in engines.iter().enumerate() {
        text = text.replace(&format!("127.0.0.1:800{}", number + 1), &format!("127.0.0.1:{engine}"));
    }
    Ok(text)
}

fn nginx(folder: &Path, port: u16, engines: &[u16; 3]) -> anyhow::Result<Child> {
    fs::write(folder.join("quire.conf"), shipped("nginx/quire.conf", "listen 8000", port, engines)?)?;
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary: String =
        temporary.iter().map(|name| format!("{name}_temp_path {}/{name};\n", folder.display())).collect();
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let around = format!(
        "{user} daemon off; worker_processes 2; pid {0}/pid; error_log {0}/error.log; events {{}}\n\
         http {{ access_log off; {temporary} include {0}/quire.conf; }}\n",
        folder.display()
    );
    fs::write(folder.join("nginx.conf"), around)?;
    spawn(Command::new("nginx").arg("-c").arg(folder.join("nginx.conf")).arg("-p").arg(folder))
}

fn haproxy(folder: &Path, port: u16, engines: &[u16; 3]) -> anyhow::Result<Child> {
    let path = folder.join("haproxy.cfg");
    fs::write(&path, shipped("haproxy/haproxy.cfg", "bind :8000", port, engines)?)?;
    spawn(Command::new("haproxy").arg("-db").arg("-f").arg(path))
}

fn spawn(command: &mut Command) -> anyhow::Result<Child> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().context("a balancer")
}
