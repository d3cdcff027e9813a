//! A `quire serve` that lives as long as a test.

use std::{
    collections::BTreeSet,
    fs::File,
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{self, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};

use crate::{
    Client,
    gpu::{device, is_on_gpu},
};

/// How long a server may take to be ready; debug builds on busy machines are slow.
const READY: Duration = Duration::from_secs(120);
/// How long it may take to end.
const END: Duration = Duration::from_secs(40);

/// Memory for past tokens on a GPU, where several tests may run at the same time, unless a test says otherwise.
const GPU_CACHE: [&str; 2] = ["--kv-cache-memory-bytes", "512M"];

/// One server at a time: a test machine has few cores, and idleness is measured.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Waits until no other test's server runs, and keeps it so.
pub async fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().await
}

/// A running `quire serve`; dropping it ends it.
pub struct Server {
    _alone: Option<MutexGuard<'static, ()>>,
    child: Child,
    /// Where it listens.
    pub port: u16,
    dir: TempDir,
}

/// The program under test: `QUIRE_BIN`, or what `cargo build -p quire` made.
pub fn quire_binary() -> PathBuf {
    match std::env::var_os("QUIRE_BIN") {
        Some(path) => path.into(),
        None => crate::root().join("target/debug/quire"),
    }
}

impl Server {
    /// Starts `quire serve` with `args` on a free port and waits until it is healthy.
    pub async fn start(args: &[&str]) -> anyhow::Result<Self> {
        Self::start_with(args, &[]).await
    }

    /// The same with environment variables.
    pub async fn start_with(args: &[&str], environment: &[(&str, &str)]) -> anyhow::Result<Self> {
        let mut server = Self::spawn(args, environment).await?;
        server.healthy(READY).await?;
        Ok(server)
    }

    /// Starts it without waiting.
    pub async fn spawn(args: &[&str], environment: &[(&str, &str)]) -> anyhow::Result<Self> {
        let alone = alone().await;
        let mut server = Self::launch(free_port()?, args, environment)?;
        server._alone = Some(alone);
        Ok(server)
    }

    /// Starts one more for a test that holds [`alone`]'s guard, at a port that the test chooses.
    pub fn launch(port: u16, args: &[&str], environment: &[(&str, &str)]) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let log = File::create(dir.path().join("log"))?;
        let child = Command::new(quire_binary())
            .arg("serve")
            .args(GPU_CACHE.iter().filter(|_| is_on_gpu()))
            .args(args)
            .args(device().iter().flat_map(|device| ["--device", device]))
            .args(["--host", "127.0.0.1", "--port", &port.to_string()])
            .env("XDG_RUNTIME_DIR", dir.path())
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("{} (build it with `cargo build -p quire`)", quire_binary().display()))?;
        Ok(Self { _alone: None, child, port, dir })
    }

    /// Waits until `/health` says 200.
    pub async fn healthy(&mut self, deadline: Duration) -> anyhow::Result<()> {
        let start = Instant::now();
        let client = self.client();
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("quire serve ended with {status}:\n{}", self.log());
            }
            if client.health().await == Some(200) {
                return Ok(());
            }
            if start.elapsed() > deadline {
                bail!("quire serve is not healthy after {deadline:?}:\n{}", self.log());
            }
            // A probe's interval: readiness is only visible from outside by asking again.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// A client for it.
    pub fn client(&self) -> Client {
        Client::new(format!("http://127.0.0.1:{}", self.port))
    }

    /// The supervisor.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// All that it and its processes have logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Sends SIGTERM and waits for the end.
    pub fn end(&mut self) -> anyhow::Result<ExitStatus> {
        let _ = kill_process(self.pid(), Signal::TERM);
        self.ended(END)
    }

    /// Waits for the end.
    pub fn ended(&mut self, deadline: Duration) -> anyhow::Result<ExitStatus> {
        let start = Instant::now();
        while start.elapsed() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("quire serve did not end within {deadline:?}:\n{}", self.log())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.end().is_err() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A port at which no process listens, another one each time.
pub fn free_port() -> anyhow::Result<u16> {
    static GIVEN: sync::Mutex<BTreeSet<u16>> = sync::Mutex::new(BTreeSet::new());
    loop {
        // A port that is let go may be drawn again before it is listened on.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        if GIVEN.lock().unwrap_or_else(PoisonError::into_inner).insert(port) {
            return Ok(port);
        }
    }
}
