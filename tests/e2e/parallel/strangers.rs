//! An engine whose processes are started one by one and meet over TCP alone: members find each other, a stranger who
//! dials any of the ports gets nothing.

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, ensure};
use e2e_tests::{Client, alone, free_port, quire_binary, zoo};
use serde_json::json;
use tokio::time::timeout;
use tonic::{Code, transport::Endpoint};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

/// Within this, processes find each other (debug builds load slowly).
const READY: Duration = Duration::from_secs(60);

/// A port for each link and each control plane.
struct Ports {
    requests: u16,
    encoded: u16,
    steps: u16,
    tokens: u16,
    events: u16,
    /// By process, in the order of [`Engine::start`].
    controls: [u16; 5],
    http: u16,
}

impl Ports {
    fn new() -> anyhow::Result<Self> {
        let [requests, encoded, steps, tokens, events, http] = [(); 6].map(|()| free_port());
        let [a, b, c, d, e] = [(); 5].map(|()| free_port());
        let (requests, encoded, steps, tokens) = (requests?, encoded?, steps?, tokens?);
        Ok(Self { requests, encoded, steps, tokens, events: events?, controls: [a?, b?, c?, d?, e?], http: http? })
    }

    /// Where strangers try: every port but that of the public API.
    fn all(&self) -> Vec<u16> {
        [self.requests, self.encoded, self.steps, self.tokens, self.events].into_iter().chain(self.controls).collect()
    }
}

/// The processes, killed when dropped.
struct Engine {
    processes: Vec<Child>,
    folder: tempfile::TempDir,
}

impl Engine {
    /// Starts each process with its flags, whose links and control planes take the token of `token`.
    fn start(ports: &Ports, token: &Path) -> anyhow::Result<Self> {
        let model = zoo::folder().join("llama");
        let at = |port: u16| format!("grpc://127.0.0.1:{port}");
        let (encoded, tokens, events) = (at(ports.encoded), at(ports.tokens), at(ports.events));
        let [detokenizer, scheduler, tokenizer, worker, gateway] = ports.controls;
        let shown = model.display();
        let lines = [
            ("detokenizer", detokenizer, format!("--listen-tokens={tokens} --listen-events={events} --model={shown}")),
            (
                "scheduler",
                scheduler,
                format!(
                    "--listen-requests={encoded} --listen-workers={} --detokenizer={tokens} --served-model-name=llama",
                    at(ports.steps)
                ),
            ),
            ("tokenizer", tokenizer, format!("--listen={} --scheduler={encoded} --model={shown}", at(ports.requests))),
            (
                "worker",
                worker,
                format!("--scheduler={} --model={shown} --device=cpu --dtype=float32 --rank=0", at(ports.steps)),
            ),
            (
                "gateway",
                gateway,
                format!(
                    "--tokenizer={} --detokenizer={events} --model=llama --host=127.0.0.1 --port={} \
                     --detokenizer-control={} --scheduler-control={} --tokenizer-control={} --worker-control={}",
                    at(ports.requests),
                    ports.http,
                    at(detokenizer),
                    at(scheduler),
                    at(tokenizer),
                    at(worker)
                ),
            ),
        ];
        let mut engine = Self { processes: Vec::new(), folder: tempfile::tempdir()? };
        for (role, control, flags) in lines {
            let log = File::create(engine.folder.path().join(role))?;
            let process = Command::new(quire_binary())
                .args([role.to_owned(), format!("--control={}", at(control))])
                .arg(format!("--link-token-file={}", token.display()))
                .args(flags.split_whitespace())
                .env("XDG_RUNTIME_DIR", engine.folder.path())
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .spawn()?;
            engine.processes.push(process);
        }
        Ok(engine)
    }

    /// What all processes have logged.
    fn log(&self) -> String {
        let roles = ["detokenizer", "scheduler", "tokenizer", "worker", "gateway"];
        roles.map(|role| fs::read_to_string(self.folder.path().join(role)).unwrap_or_default()).concat()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // One that has ended is as good.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// What the health service at a port says to one who shows nothing.
pub(crate) async fn stranger(port: u16) -> anyhow::Result<Code> {
    let channel = Endpoint::from_shared(format!("http://127.0.0.1:{port}"))?.connect().await?;
    let asked = HealthClient::new(channel).check(HealthCheckRequest::default()).await;
    Ok(asked.err().map_or(Code::Ok, |status| status.code()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_meet_over_tcp_answer_members_alone() -> anyhow::Result<()> {
    let cases = zoo::cases("llama").context("in every zoo")?;
    let _alone = alone().await;
    let folder = tempfile::tempdir()?;
    let token = folder.path().join("token");
    fs::write(&token, "the-token-of-this-engine\n")?;
    let ports = Ports::new()?;
    let engine = Engine::start(&ports, &token)?;
    let client = Client::new(format!("http://127.0.0.1:{}", ports.http));
    let healthy = async {
        while client.health().await != Some(200) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(READY, healthy).await.with_context(|| engine.log())?;
    let case = &cases[0];
    let tokens = client.greedy("llama", &case.prompt, case.greedy.len()).await?;
    ensure!(tokens == case.greedy, "{tokens:?}");
    // The tokenizer's own service is at its control plane.
    let (status, answer) = client.post("/tokenize", &json!({"model": "llama", "prompt": "Hello"})).await?;
    ensure!(status == 200, "{status}: {answer}");
    for port in ports.controls {
        ensure!(stranger(port).await? == Code::Unauthenticated, "{port}");
    }
    for port in ports.all() {
        // A link's port has no health service, which a stranger is not told either way.
        let code = stranger(port).await?;
        ensure!(code != Code::Ok, "{port}: {code:?}");
    }
    ensure!(engine.log().matches("does not show this engine's token").count() >= 5, "{}", engine.log());
    Ok(())
}
