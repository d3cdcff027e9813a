//! run_cluster.sh on two machines.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use e2e_tests::{alone, quire_binary, root};

use super::namespaces::{ADDRESSES, Hosts, Script};

/// Within this the machines find each other (debug builds load slowly).
const READY: Duration = Duration::from_secs(60);
/// A container engine that starts the program itself, and stops it.
fn container_engine(folder: &Path) -> anyhow::Result<PathBuf> {
    let (path, pid) = (folder.join("engine"), folder.join("pid"));
    let (program, pid) = (quire_binary(), pid.display());
    let text = format!(
        "#!/bin/sh\n\
         case $1 in\n\
         run) while [ \"$1\" != quire:1 ]; do shift; done; shift; echo $$ > {pid}; exec {} serve \"$@\" ;;\n\
         stop) kill \"$(cat {pid})\"; while kill -0 \"$(cat {pid})\"; do sleep 0.1; done ;;\n\
         esac\n",
        program.display()
    );
    fs::write(&path, text)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// The head as a plain program, the worker by a container engine: an engine of two stages, a stage each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_cluster_joins_two_machines() -> anyhow::Result<()> {
    let _alone = alone().await;
    let Some(hosts) = Hosts::make()? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let token = folder.path().join("token");
    fs::write(&token, "the-token-of-two-machines\n")?;
    let token = format!("--link-token-file={}", token.display());
    let flags = ["--", "--device=cpu", "--nnodes=2", "--pipeline-parallel-size=2", &token];
    let script = root().join("deploy/run_cluster.sh");
    let start = |host: usize, first: &[&str], role: &str| {
        let mut command = hosts.on(host, &script);
        command.args(first).args([ADDRESSES[0], role]).arg(folder.path()).args(flags);
        command.env("CONTAINER_ENGINE", container_engine(folder.path())?);
        Script::start(&mut command, folder.path().join(role))
    };
    // The worker first: it waits for the head.
    let worker = start(1, &["quire:1"], "--worker")?;
    let program = quire_binary();
    let mut head = start(0, &["--no-docker", program.to_str().context("a path")?], "--head")?;
    let ask = || hosts.on(1, &program).args(["complete", "--quick=Once", "--max-tokens=4"]).arg(URL).output();
    let began = Instant::now();
    loop {
        let answer = ask()?;
        if answer.status.success() {
            ensure!(!answer.stdout.trim_ascii().is_empty(), "no text");
            break;
        }
        if head.has_ended() || began.elapsed() > READY {
            bail!("no answer: {}\n{}", head.log(), worker.log());
        }
    }
    ensure!(worker.log().contains("node 1 of 2, with workers 1 to 1"), "{}", worker.log());
    head.end(0)?;
    // As of any shell script: 128 and the signal.
    worker.end(143)
}

/// Where a client of the other machine finds the head.
const URL: &str = "--url=http://10.77.0.1:8000/v1";
