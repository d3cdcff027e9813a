//! What starts Quire on machines without Kubernetes: systemd's readiness, run_cluster.sh and the Slurm script.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, net::UnixDatagram},
    path::Path,
    process::{Command, Output, Stdio},
    time::Duration,
};

use anyhow::{Context, ensure};
use e2e_tests::{Client, Server, alone, free_port, quire_binary, root};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_manager_hears_when_it_is_ready() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path)?;
    manager.set_read_timeout(Some(Duration::from_secs(120)))?;
    let socket = path.to_str().context("a path")?;
    let mut server = Server::spawn(&[], &[("NOTIFY_SOCKET", socket)]).await?;
    let heard = || -> anyhow::Result<String> {
        let mut buffer = [0; 512];
        let length = manager.recv(&mut buffer)?;
        Ok(String::from_utf8(buffer[..length].to_vec())?)
    };
    let ready = heard().with_context(|| server.log())?;
    ensure!(ready.starts_with("READY=1\nSTATUS=serving wren at http://127.0.0.1:"), "{ready}");
    // Ready means ready: the very next request is answered.
    let (status, answer) = server.client().post("/v1/completions", &json!({"prompt": "Hi", "max_tokens": 1})).await?;
    ensure!(status == 200, "{answer}");
    ensure!(server.end()?.success(), "{}", server.log());
    let stopping = heard()?;
    ensure!(stopping.starts_with("STOPPING=1"), "{stopping}");
    Ok(())
}

fn cluster(args: &[&str], environment: &[(&str, &str)]) -> anyhow::Result<Output> {
    let script = root().join("deploy/run_cluster.sh");
    Ok(Command::new(script).args(args).envs(environment.iter().copied()).output()?)
}

#[test]
fn run_cluster_checks_as_vllms_does() -> anyhow::Result<()> {
    for (args, expected) in [
        (&["quire", "127.0.0.1", "--head"][..], "Usage:"),
        (&["quire", "127.0.0.1", "--leader", "/tmp"], "must be --head or --worker"),
        (&["quire", "127.0.0.1", "--worker", "/tmp"], "say --nnodes after --"),
        (&["quire", "127.0.0.1", "--worker", "/tmp", "--", "--nnodes", "3"], "--node-rank 1 to 2"),
        (&["quire", "127.0.0.1", "--worker", "/tmp", "-e", "VLLM_HOST_IP=127.0.0.1", "--", "--nnodes=2"], "its own"),
        (&["quire", "127.0.0.1", "--head", "/tmp", "--", "--nnodes=2", "-r", "1"], "not --node-rank 1"),
        (&["quire", "127.0.0.1", "--head", "/tmp", "--", "--master-addr=::1"], "is the second argument"),
        (&["quire", "127.0.0.1", "--worker", "/tmp", "--", "--nnodes=two"], "two is not a number of machines"),
        (&["quire", "127.0.0.1", "--worker", "/tmp", "--", "--nnodes=2", "-r", "0"], "--node-rank 0 is the --head"),
        (&["quire", "127.0.0.1", "--worker", "/tmp", "--", "--nnodes=2", "-r", "2"], "have the numbers 0 to 1"),
        (&["quire", "127.0.0.1", "--worker", "/tmp", "--", "--nnodes=2", "-r", "b"], "--node-rank b is not a number"),
        (&["quire", "head", "--head", "/tmp"], "is not an IP address"),
        (&["quire", "999.0.0.1", "--head", "/tmp"], "is not an IP address"),
        (&["quire", "10.0.1", "--head", "/tmp"], "is not an IP address"),
        (&["quire", "cafe", "--head", "/tmp"], "is not an IP address"),
        (&["quire", "127.0.0.1", "--head", "/nonexistent"], "there is no folder"),
        (&["--no-docker", "quire", "127.0.0.1", "--head", "/tmp", "-e", "A=1"], "nobody takes -e A=1"),
    ] {
        let refused = cluster(args, &[])?;
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        ensure!(refused.status.code() == Some(1) && text.contains(expected), "{args:?}: {text}");
    }
    Ok(())
}

/// A container engine that writes down what it is asked for.
#[test]
fn run_cluster_starts_a_container_and_removes_it() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let (engine, asked) = (folder.path().join("engine"), folder.path().join("asked"));
    fs::write(&engine, format!("#!/bin/sh\necho \"$@\" >> {}\n", asked.display()))?;
    fs::set_permissions(&engine, fs::Permissions::from_mode(0o755))?;
    let home = folder.path().join("two words");
    fs::create_dir(&home)?;
    let home = home.to_str().context("a path")?;
    let args = ["quire:1", "10.0.0.1", "--head", home, "-e", "VLLM_HOST_IP=10.0.0.1", "--", "some/model", "--seed=1"];
    let ended = cluster(&args, &[("CONTAINER_ENGINE", engine.to_str().context("a path")?)])?;
    ensure!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let colon = folder.path().join("a:b");
    fs::create_dir(&colon)?;
    let refused = cluster(&["quire:1", "10.0.0.1", "--head", colon.to_str().context("a path")?], &[])?;
    ensure!(String::from_utf8_lossy(&refused.stderr).contains("no folder with a colon"), "{refused:?}");
    let asked = fs::read_to_string(asked)?;
    let lines: Vec<&str> = asked.lines().collect();
    ensure!(lines.len() == 3, "{asked}");
    for expected in [
        "run --name quire-",
        "--network host --shm-size 10.24g",
        &format!(
            "-v {home}:/models -e HF_HOME=/models -e VLLM_HOST_IP=10.0.0.1 quire:1 --host 10.0.0.1 some/model --seed=1"
        ),
    ] {
        ensure!(lines[0].contains(expected), "{} lacks {expected}", lines[0]);
    }
    ensure!(lines[1].starts_with("stop --time") && lines[2].starts_with("rm --force quire-"), "{asked}");
    Ok(())
}

/// Without a container, and as Slurm runs it: both become the program itself, so that signals reach it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_become_the_server() -> anyhow::Result<()> {
    let _alone = alone().await;
    let (folder, program) = (tempfile::tempdir()?, quire_binary());
    let port = free_port()?.to_string();
    let home = folder.path().to_str().context("a path")?;
    let mut cluster = Command::new(root().join("deploy/run_cluster.sh"));
    cluster.arg("--no-docker").arg(&program).args(["127.0.0.1", "--head", home, "--", "--port", &port]);
    serves(&mut cluster, &port, folder.path()).await.context("run_cluster.sh")?;
    let mut slurm = Command::new("bash");
    slurm.arg(root().join("deploy/slurm/quire.sbatch")).args(["--host", "127.0.0.1"]).env("QUIRE", &program);
    // A job of Slurm on a node without GPUs, pretended.
    slurm.envs([("SLURM_JOB_ID", "77"), ("SLURM_JOB_NUM_NODES", "1"), ("QUIRE_PORT", &port), ("TMPDIR", home)]);
    serves(&mut slurm, &port, folder.path()).await.context("quire.sbatch")
}

/// Starts it, asks, and ends it in order.
async fn serves(command: &mut Command, port: &str, folder: &Path) -> anyhow::Result<()> {
    let log = folder.join("log");
    let output = fs::File::create(&log)?;
    let mut child = command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).spawn()?;
    let client = Client::new(format!("http://127.0.0.1:{port}"));
    let ready = async {
        while client.health().await != Some(200) {
            ensure!(child.try_wait()?.is_none(), "it ended: {}", fs::read_to_string(&log)?);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let (status, answer) = client.post("/v1/completions", &json!({"prompt": "Hi", "max_tokens": 1})).await?;
        ensure!(status == 200, "{answer}");
        anyhow::Ok(())
    };
    let served = tokio::time::timeout(Duration::from_secs(120), ready).await;
    let _ = kill_process(Pid::from_child(&child), Signal::TERM);
    let ended = child.wait()?;
    served.with_context(|| fs::read_to_string(&log).unwrap_or_default())??;
    ensure!(ended.success(), "{ended}: {}", fs::read_to_string(&log)?);
    Ok(())
}
