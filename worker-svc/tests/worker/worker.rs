//! Workers under test: in this process, or as processes that can be killed.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
};

use link::Address;
use service_kit::{Process, parse_flags};
use tokio::task::JoinHandle;

/// A worker that runs in the test's own process.
pub struct Worker {
    pub process: Process,
    pub ended: JoinHandle<anyhow::Result<()>>,
}

/// Flags of rank `rank` of `world_size`, float32 so that tokens equal the references.
fn flags(model: &Path, scheduler: &Address, (rank, world_size): (u32, u32), more: &[&str]) -> Vec<String> {
    let mut flags = vec![
        format!("--model={}", model.display()),
        format!("--scheduler={scheduler}"),
        format!("--rank={rank}"),
        format!("--tensor-parallel-size={world_size}"),
    ];
    let usual = ["--dtype=float32", "--threads=1", "--max-num-seqs=8"];
    flags.extend(usual.iter().chain(more).map(|flag| (*flag).to_owned()));
    flags
}

/// Starts a worker as tasks of this process.
pub fn start(model: &Path, scheduler: &Address, place: (u32, u32), more: &[&str]) -> Worker {
    let process = Process::new("worker-svc");
    let flags = flags(model, scheduler, place, more);
    let args = parse_flags(std::iter::once("worker".to_owned()).chain(flags)).expect("flags");
    let ended = tokio::spawn(worker_svc::serve(args, process.clone()));
    Worker { process, ended }
}

/// A worker process; dropping it kills it.
pub struct Killable(pub Child);

/// Starts a worker as a process of its own.
pub fn spawn(model: &Path, scheduler: &Address, place: (u32, u32)) -> Killable {
    let child = Command::new(env!("CARGO_BIN_EXE_worker-svc"))
        .args(flags(model, scheduler, place, &["--log-level=warn"]))
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    Killable(child)
}

impl Killable {
    /// SIGKILL, and wait for the end.
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub fn is_alive(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Killable {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
