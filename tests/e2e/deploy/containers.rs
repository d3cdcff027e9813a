//! The image: built by Debian's buildah without a registry, run by buildah, and by podman through run_cluster.sh.
//! Second tier (`cargo xtask test --all`).

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use e2e_tests::{Client, alone, descendants, free_port, quire_binary, root};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::tools;

const READY: Duration = Duration::from_secs(120);
pub(super) const IMAGE: &str = "localhost/quire:test";
/// podman's own are higher than some machines allow.
const LIMITS: &str = "--ulimit=nofile=1024:4096 --ulimit=nproc=1024:1024";

/// buildah with a storage of its own.
pub(super) struct Buildah<'a>(pub &'a Path);

impl Buildah<'_> {
    pub(super) fn command(&self, args: &[&str]) -> Command {
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
    let container = tools::run(&mut buildah.command(&["from", IMAGE]))?.trim().to_owned();
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
    by_podman(&buildah).await.context("podman")
}

/// run_cluster.sh with a real container engine: it serves, finishes a request when it is ended, and leaves nothing.
async fn by_podman(buildah: &Buildah<'_>) -> anyhow::Result<()> {
    let Some(podman) = podman(buildah)? else { return Ok(()) };
    let port = free_port()?.to_string();
    let (home, log) = (buildah.0.join("home"), fs::File::create(buildah.0.join("log"))?);
    fs::create_dir_all(&home)?;
    let mut script = Command::new(root().join("deploy/run_cluster.sh"));
    script.args([IMAGE, "127.0.0.1", "--head"]).arg(&home);
    script.args(["--read-only", "--tmpfs=/tmp", "--user=65532:65532", "--", "--port", &port]);
    script.env("CONTAINER_ENGINE", &podman).stdout(log.try_clone()?).stderr(log);
    let mut child = script.stdin(Stdio::null()).spawn()?;
    let ended = drains(&port, Pid::from_child(&child)).await;
    // Once more, as of somebody who cannot wait.
    let _ = kill_process(Pid::from_child(&child), Signal::TERM);
    let status = child.wait()?;
    ended.with_context(|| fs::read_to_string(buildah.0.join("log")).unwrap_or_default())?;
    ensure!(status.code() == Some(143), "{status}");
    let left =
        tools::run(Command::new(&podman).args(["ps", "--all", "--format", "{{.Names}} {{.Image}} {{.Status}}"]))?;
    ensure!(left.trim().is_empty(), "containers are left: {left}");
    Ok(())
}

/// Ends the script while the server answers.
async fn drains(port: &str, script: Pid) -> anyhow::Result<()> {
    let client = healthy(port).await?;
    let body = json!({"prompt": "Once", "max_tokens": 400, "ignore_eos": true, "stream": true});
    let (status, mut events) = client.stream("/v1/completions", &body).await?;
    ensure!(status == 200, "{status}");
    events.next().await?.context("an event")?;
    kill_process(script, Signal::TERM)?;
    let mut finished = false;
    while let Some(event) = events.next().await? {
        ensure!(event["error"].is_null(), "{event}");
        finished |= !event["choices"][0]["finish_reason"].is_null();
    }
    ensure!(finished, "the answer was not finished");
    Ok(())
}

/// A program that runs podman on the images of buildah; absent, with a message, where it runs no containers.
pub(super) fn podman(buildah: &Buildah<'_>) -> anyhow::Result<Option<PathBuf>> {
    // crun refuses machines with cgroups of both versions.
    let runtime = if Command::new("runc").arg("--version").output().is_ok() { "--runtime=runc" } else { "" };
    let (path, at) = (buildah.0.join("podman"), buildah.0.display());
    let text = format!(
        "#!/bin/sh\nif [ \"$1\" = run ]; then shift; set -- run {LIMITS} \"$@\"; fi\n\
         STORAGE_DRIVER=vfs exec podman --root {at}/store --runroot {at}/run --cgroup-manager=cgroupfs \
         {runtime} \"$@\"\n"
    );
    fs::write(&path, text)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    let mut probe = Command::new(&path);
    if let Err(error) = tools::run(probe.args(["run", "--rm", "--entrypoint=/usr/bin/quire", IMAGE, "--help"])) {
        println!("skipped: podman does not run containers here: {error:#}");
        return Ok(None);
    }
    Ok(Some(path))
}

/// The image for processors.
pub(super) fn build(buildah: &Buildah<'_>) -> anyhow::Result<()> {
    let mut layout = Command::new(root().join("deploy/docker/rootfs.sh"));
    tools::run(layout.arg(quire_binary()).arg(buildah.0.join("files/rootfs")))?;
    from_files(buildah, "Containerfile.cpu", "quire:test")
}

/// A Containerfile, with a file system in the place of the stage that compiles.
fn from_files(buildah: &Buildah<'_>, file: &str, tag: &str) -> anyhow::Result<()> {
    let empty = buildah.0.join("empty");
    fs::create_dir_all(&empty)?;
    let stage = format!("build={}", buildah.0.join("files").display());
    let mut build = buildah.command(&["bud", "--isolation", "chroot", "--build-context", &stage, "-t", tag]);
    tools::run(build.arg("-f").arg(root().join("deploy/docker").join(file)).arg(&empty)).map(drop)
}

/// The image for GPUs, without one: its libraries can be loaded there, and its kernels are found.
#[test]
#[ignore = "second tier: compiles kernels, and builds an image"]
fn the_image_for_gpus_has_its_libraries_and_kernels() -> anyhow::Result<()> {
    let nvrtc = root().join("target/nvrtc");
    if Command::new("buildah").arg("--version").output().is_err() || !nvrtc.is_dir() {
        println!("skipped: buildah is not here (apt-get install buildah), or NVRTC (`cargo xtask test` installs it)");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let (buildah, files) = (Buildah(folder.path()), folder.path().join("files/rootfs"));
    let found = tools::run(Command::new("find").arg(&nvrtc).args(["-name", "libnvrtc*.so*"]))?;
    let libraries: Vec<&str> = found.lines().filter(|path| !path.contains(".alt.")).collect();
    ensure!(libraries.len() == 2, "{libraries:?}");
    let mut layout = Command::new(root().join("deploy/docker/rootfs.sh"));
    tools::run(layout.arg(quire_binary()).arg(&files).args(libraries))?;
    let kernels = ["kernels", "build", "--arch", "sm_80"];
    let mut ahead = Command::new(quire_binary());
    tools::run(ahead.args(kernels).arg("--cache").arg(files.join("opt/quire/kernels")).env("VIRTUAL_ENV", &nvrtc))?;
    from_files(&buildah, "Containerfile.cuda", "quire:test-cuda")?;
    let container = tools::run(&mut buildah.command(&["from", "localhost/quire:test-cuda"]))?.trim().to_owned();
    has_no_shell(&buildah, &container)?;
    // As root, since kernels that are compiled ahead belong to who builds the image.
    let run = ["run", "--user=0", "--isolation", "chroot", &container, "--", "/usr/bin/quire"];
    let said = tools::run(&mut buildah.command(&[&run[..], &kernels].concat()))?;
    ensure!(said.contains("/opt/quire/kernels: 0 kernel files compiled, "), "{said}");
    Ok(())
}

fn has_no_shell(buildah: &Buildah<'_>, container: &str) -> anyhow::Result<()> {
    let folder = tools::run(&mut buildah.command(&["mount", container]))?;
    let mut programs = Vec::new();
    for place in ["bin", "usr/bin", "sbin", "usr/sbin"] {
        let entries = fs::read_dir(Path::new(folder.trim()).join(place));
        programs.extend(entries.into_iter().flatten().flatten().map(|entry| entry.file_name()));
    }
    ensure!(programs == ["quire"], "{programs:?}");
    tools::run(&mut buildah.command(&["umount", container]))?;
    Ok(())
}

async fn serves(port: &str, above: Pid) -> anyhow::Result<()> {
    let client = healthy(port).await?;
    let (status, answer) = client.post("/v1/completions", &json!({"prompt": "Hello", "max_tokens": 3})).await?;
    ensure!(status == 200, "{answer}");
    let worker = descendants(above).into_iter().find(|it| it.role == "worker").context("a worker")?;
    let status = fs::read_to_string(format!("/proc/{}/status", worker.pid.as_raw_nonzero()))?;
    let user = status.lines().find(|line| line.starts_with("Uid:")).context("Uid")?;
    ensure!(user.split_whitespace().nth(1) == Some("65532"), "{user}");
    Ok(())
}

pub(super) async fn healthy(port: &str) -> anyhow::Result<Client> {
    let client = Client::new(format!("http://127.0.0.1:{port}"));
    let start = Instant::now();
    while client.health().await != Some(200) {
        ensure!(start.elapsed() < READY, "the image does not serve");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(client)
}
