//! The image: built by Debian's buildah without a registry, and run. Second tier (`cargo xtask test --all`).

use std::{
    fs,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use e2e_tests::{Client, alone, descendants, free_port, quire_binary, root};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::tools;

const READY: Duration = Duration::from_secs(120);

/// buildah with a storage of its own.
struct Buildah<'a>(&'a std::path::Path);

impl Buildah<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("buildah");
        command.env("STORAGE_DRIVER", "vfs").arg("--root").arg(self.0.join("store"));
        command.arg("--runroot").arg(self.0.join("run")).args(args);
        command
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "second tier: builds an image"]
async fn an_image_is_built_and_serves() -> anyhow::Result<()> {
    if Command::new("buildah").arg("--version").output().is_err() {
        println!("skipped: buildah is not here (apt-get install buildah)");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let buildah = Buildah(folder.path());
    build(&buildah)?;
    let container = tools::run(&mut buildah.command(&["from", "localhost/quire:test"]))?.trim().to_owned();
    has_no_shell(&buildah, &container)?;
    let _alone = alone().await;
    let port = free_port()?.to_string();
    let run = ["run", "--isolation", "chroot", &container, "--"];
    let serve = ["/usr/bin/quire", "serve", "--host", "127.0.0.1", "--port", &port];
    let mut child = buildah.command(&[&run[..], &serve].concat()).stderr(Stdio::null()).spawn()?;
    let served = serves(&port, Pid::from_child(&child)).await;
    // The program's own process: buildah passes no signals on.
    let programs = descendants(Pid::from_child(&child));
    for program in programs.iter().filter(|it| it.role == "serve") {
        let _ = kill_process(program.pid, Signal::TERM);
    }
    let ended = child.wait()?;
    served?;
    ensure!(ended.success(), "{ended}");
    Ok(())
}

/// The Containerfile, with a file system in the place of the stage that compiles.
fn build(buildah: &Buildah<'_>) -> anyhow::Result<()> {
    let (files, empty) = (buildah.0.join("files"), buildah.0.join("empty"));
    fs::create_dir_all(&empty)?;
    let mut layout = Command::new(root().join("deploy/docker/rootfs.sh"));
    tools::run(layout.arg(quire_binary()).arg(files.join("rootfs")))?;
    let stage = format!("build={}", files.display());
    let mut build = buildah.command(&["bud", "--isolation", "chroot", "--build-context", &stage, "-t", "quire:test"]);
    tools::run(build.arg("-f").arg(root().join("deploy/docker/Containerfile.cpu")).arg(&empty))?;
    Ok(())
}

fn has_no_shell(buildah: &Buildah<'_>, container: &str) -> anyhow::Result<()> {
    let folder = tools::run(&mut buildah.command(&["mount", container]))?;
    let mut programs = Vec::new();
    for place in ["bin", "usr/bin", "sbin", "usr/sbin"] {
        let entries = fs::read_dir(std::path::Path::new(folder.trim()).join(place));
        programs.extend(entries.into_iter().flatten().flatten().map(|entry| entry.file_name()));
    }
    ensure!(programs == ["quire"], "{programs:?}");
    tools::run(&mut buildah.command(&["umount", container]))?;
    Ok(())
}

async fn serves(port: &str, above: Pid) -> anyhow::Result<()> {
    let client = Client::new(format!("http://127.0.0.1:{port}"));
    let start = Instant::now();
    while client.health().await != Some(200) {
        ensure!(start.elapsed() < READY, "the image does not serve");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (status, answer) = client.post("/v1/completions", &json!({"prompt": "Hello", "max_tokens": 3})).await?;
    ensure!(status == 200, "{answer}");
    let worker = descendants(above).into_iter().find(|it| it.role == "worker").context("a worker")?;
    let status = fs::read_to_string(format!("/proc/{}/status", worker.pid.as_raw_nonzero()))?;
    let user = status.lines().find(|line| line.starts_with("Uid:")).context("Uid")?;
    ensure!(user.split_whitespace().nth(1) == Some("65532"), "{user}");
    Ok(())
}
