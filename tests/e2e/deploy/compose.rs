//! compose.yaml, run by podman-compose: the server as it is confined there, and a Prometheus that finds it by its name.
//! Grafana's image cannot be made here. Second tier (`cargo xtask test --all`).

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use e2e_tests::{Client, alone, free_port, root};

use super::{
    containers::{Buildah, IMAGE, build, healthy, podman},
    tools,
};

/// Within this Prometheus has asked the server.
const SCRAPED: Duration = Duration::from_secs(60);

/// A compose file that is up as long as a test.
struct Composed {
    podman: PathBuf,
    file: PathBuf,
}

impl Composed {
    fn says(&self, args: &[&str]) -> anyhow::Result<String> {
        let mut compose = Command::new("podman-compose");
        compose.arg("--podman-path").arg(&self.podman).args(["--project-name", "quire-test", "-f"]).arg(&self.file);
        tools::run(compose.args(args))
    }

    fn podman(&self, args: &[&str]) -> anyhow::Result<String> {
        tools::run(Command::new(&self.podman).args(args))
    }
}

impl Drop for Composed {
    fn drop(&mut self) {
        let _ = self.says(&["down"]);
        let _ = self.podman(&["network", "rm", "quire-test_default"]);
        let _ = self.podman(&["volume", "rm", "quire-test_models"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "second tier: builds images"]
async fn the_server_runs_confined_and_is_scraped() -> anyhow::Result<()> {
    for program in ["buildah", "podman-compose", "prometheus"] {
        if Command::new(program).arg("--version").output().is_err() {
            println!("skipped: {program} is not here (apt-get install {program})");
            return Ok(());
        }
    }
    let folder = tempfile::tempdir()?;
    let buildah = Buildah(folder.path());
    build(&buildah)?;
    tools::run(&mut buildah.command(&["tag", IMAGE, "quire:0.1.0"]))?;
    prometheus(&buildah)?;
    let Some(podman) = podman(&buildah)? else { return Ok(()) };
    let _alone = alone().await;
    let [api, asked] = [free_port()?, free_port()?].map(|port| port.to_string());
    let composed = Composed { podman, file: files(folder.path(), &api, &asked)? };
    composed.says(&["up", "--detach", "quire", "prometheus"])?;
    let log = || composed.podman(&["logs", "quire-test_quire_1"]).unwrap_or_default();
    healthy(&api).await.with_context(log)?;
    is_scraped(&asked).await.with_context(log)?;
    let confined = "{{.HostConfig.ReadonlyRootfs}} {{.Config.User}} {{.HostConfig.CapAdd}}";
    let confined = composed.podman(&["inspect", "quire-test_quire_1", "--format", confined])?;
    ensure!(confined.trim() == "true 65532:65532 []", "{confined}");
    composed.podman(&["stop", "--time", "45", "quire-test_quire_1"])?;
    let status = composed.podman(&["inspect", "quire-test_quire_1", "--format", "{{.State.ExitCode}}"])?;
    ensure!(status.trim() == "0", "it ended with {status}");
    Ok(())
}

/// An image of this machine's Prometheus, under the name of the one that the file asks for.
fn prometheus(buildah: &Buildah<'_>) -> anyhow::Result<()> {
    let (files, recipe) = (buildah.0.join("prometheus"), buildah.0.join("Containerfile"));
    let program = tools::run(Command::new("which").arg("prometheus"))?;
    let mut layout = Command::new(root().join("deploy/docker/rootfs.sh"));
    tools::run(layout.arg(program.trim()).arg(&files))?;
    // The layout has one program, by our name.
    fs::write(&recipe, "FROM scratch\nCOPY . /\nWORKDIR /prometheus\nENTRYPOINT [\"/usr/bin/quire\"]\n")?;
    let name = named_image("prom/prometheus")?;
    let mut bud = buildah.command(&["bud", "--isolation", "chroot", "-t", &format!("docker.io/{name}")]);
    tools::run(bud.arg("-f").arg(&recipe).arg(&files)).map(drop)
}

/// The image of this repository that compose.yaml asks for.
fn named_image(repository: &str) -> anyhow::Result<String> {
    let text = fs::read_to_string(root().join("deploy/docker/compose.yaml"))?;
    let image =
        text.lines().find_map(|line| line.trim().strip_prefix("image: ").filter(|it| it.starts_with(repository)));
    image.map(str::to_owned).with_context(|| format!("compose.yaml has no {repository}"))
}

/// The files that ship, with other ports on this machine.
fn files(folder: &Path, api: &str, asked: &str) -> anyhow::Result<PathBuf> {
    let copy = folder.join("deploy");
    fs::create_dir_all(&copy)?;
    let shipped = ["docker", "grafana", "prometheus"].map(|name| root().join("deploy").join(name));
    tools::run(Command::new("cp").arg("-r").args(shipped).arg(&copy))?;
    let path = copy.join("docker/compose.yaml");
    let text = fs::read_to_string(&path)?.replace("8000:8000", &format!("127.0.0.1:{api}:8000"));
    fs::write(&path, text.replace("127.0.0.1:9090:9090", &format!("127.0.0.1:{asked}:9090")))?;
    let scraped = copy.join("docker/prometheus.yml");
    fs::write(&scraped, fs::read_to_string(&scraped)?.replace("15s", "1s"))?;
    Ok(path)
}

async fn is_scraped(port: &str) -> anyhow::Result<()> {
    let client = Client::new(format!("http://127.0.0.1:{port}"));
    let start = Instant::now();
    loop {
        let answer = client.get("/api/v1/query?query=up%20%3D%3D%201").await;
        if matches!(&answer, Ok((200, text)) if text.contains("quire:8000")) {
            return Ok(());
        }
        ensure!(start.elapsed() < SCRAPED, "Prometheus does not reach the server: {answer:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
