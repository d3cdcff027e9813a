//! Sets up a gateway with its fake engine.

use std::time::Duration;

use service_kit::{Process, parse_flags};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::{client::Client, engine::Engine};

/// A running gateway.
pub struct Stage {
    pub client: Client,
    pub engine: Engine,
    pub process: Process,
    pub gateway: JoinHandle<anyhow::Result<()>>,
    /// Deleted at the end.
    _folder: TempDir,
}

impl Stage {
    /// A gateway whose links are up.
    pub async fn new(flags: &[&str]) -> Self {
        let mut stage = Self::without_engine(flags).await;
        stage.engine.connected().await;
        stage.healthy().await;
        stage
    }

    /// A gateway without other processes.
    pub async fn without_engine(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("http.sock");
        let (requests, events) = Engine::addresses(folder.path());
        let base = [
            "api-gateway".to_owned(),
            format!("--tokenizer={requests}"),
            format!("--detokenizer={events}"),
            format!("--uds={}", socket.display()),
            "--model=wren".into(),
        ];
        let args = parse_flags(base.into_iter().chain(flags.iter().map(|flag| (*flag).to_owned())));
        let process = Process::new("api-gateway");
        let gateway = tokio::spawn(api_gateway::serve(args.expect("flags"), process.clone()));
        while !socket.exists() && !gateway.is_finished() {
            tokio::task::yield_now().await;
        }
        let client = Client::new(&socket);
        Self { client, engine: Engine::new(folder.path()), process, gateway, _folder: folder }
    }

    /// Waits until `/health` says yes. Its own deadline makes a gateway that never does so fail.
    pub async fn healthy(&self) {
        self.health_is(200).await;
    }

    /// Waits until `/health` says so.
    pub async fn health_is(&self, status: u16) {
        let wait = async {
            while self.client.get("/health").await.status != status {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), wait).await.expect("health changes");
    }

    /// Waits until `count` requests are in flight.
    pub async fn load_is(&self, count: u64) {
        let wait = async {
            while self.client.get("/load").await.json()["server_load"] != count {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), wait).await.expect("load changes");
    }

    /// The value of a series of `/metrics`.
    pub async fn metric(&self, series: &str) -> f64 {
        let answer = self.client.get("/metrics").await;
        let line = answer.text().lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {series} in\n{}", answer.text())).parse().expect("a number")
    }
}
