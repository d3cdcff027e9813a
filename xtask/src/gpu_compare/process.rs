//! Children: where their output goes, and how they end.

use std::{
    fs::OpenOptions,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process_group};

/// The first line that a command prints, if there is such a command and it succeeds.
pub fn first_line(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok().filter(|output| output.status.success())?;
    String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_owned)
}

/// Appends what a command says to the log in `out`.
pub fn log_to(command: &mut Command, out: &Path) -> anyhow::Result<()> {
    let log = OpenOptions::new().create(true).append(true).open(out.join("log.txt")).context("log.txt")?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Ok(())
}

/// Runs a command to its end.
pub fn run(mut command: Command) -> anyhow::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| program.clone())?;
    if !status.success() {
        bail!("{program} ended with {status}");
    }
    Ok(())
}

/// A server with all processes that it starts; they end with this.
pub struct Server {
    child: Child,
    pub port: u16,
}

/// How long a server may take to start, the compilations of the peer included.
const START_LIMIT: Duration = Duration::from_secs(600);
/// How long a server may take to end by itself.
const END_LIMIT: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(20);

impl Server {
    /// Starts a server and waits until it is healthy; tells how long that took.
    pub fn start(command: impl FnOnce(u16) -> anyhow::Result<Command>) -> anyhow::Result<(Self, Duration)> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut command = command(port)?;
        let start = Instant::now();
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.process_group(0).spawn().with_context(|| program.clone())?;
        let mut server = Self { child, port };
        while server.get("/health").is_none_or(|(status, _)| status != 200) {
            if let Some(status) = server.child.try_wait()? {
                bail!("{program} ended with {status} before it was ready");
            }
            if start.elapsed() > START_LIMIT {
                bail!("{program} was not ready after {} s", START_LIMIT.as_secs());
            }
            sleep(LOOK);
        }
        Ok((server, start.elapsed()))
    }

    /// Waits until `count` requests run, which both programs' metrics tell.
    pub fn wait_for_running(&self, count: f64) -> anyhow::Result<()> {
        let start = Instant::now();
        while self.running().is_none_or(|running| running < count) {
            if start.elapsed() > START_LIMIT {
                bail!("{count} requests did not run at once within {} s", START_LIMIT.as_secs());
            }
            sleep(LOOK);
        }
        Ok(())
    }

    fn running(&self) -> Option<f64> {
        let (_, text) = self.get("/metrics")?;
        text.lines().find(|line| line.starts_with("vllm:num_requests_running"))?.split(' ').next_back()?.parse().ok()
    }

    /// Status and body of an answer.
    fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let status = answer.split(' ').nth(1)?.parse().ok()?;
        Some((status, answer))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let signal = |signal| group.is_some_and(|group| kill_process_group(group, signal).is_ok());
        if !matches!(self.child.try_wait(), Ok(None)) {
            // Its children may have outlived it.
            signal(Signal::KILL);
            return;
        }
        signal(Signal::TERM);
        let asked = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && asked.elapsed() < END_LIMIT {
            sleep(LOOK);
        }
        signal(Signal::KILL);
        // It has been killed: this does not wait long, and there is nothing to do about a failure.
        let _ = self.child.wait();
    }
}
