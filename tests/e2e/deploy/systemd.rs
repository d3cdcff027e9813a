//! The unit for systemd: verified, and run by a real systemd in a container of Debian's systemd-nspawn. The container
//! is second tier (`cargo xtask test --all`).

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use e2e_tests::{Client, alone, descendants, free_port, quire_binary, root};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::tools;

/// Within this the container boots, and a server in it is ready.
const PATIENCE: Duration = Duration::from_secs(120);

/// The unit with the program at another path.
fn unit(program: &str) -> anyhow::Result<String> {
    let unit = fs::read_to_string(root().join("deploy/systemd/quire.service"))?;
    ensure!(unit.contains("\nExecStart=/usr/local/bin/quire serve"), "{unit}");
    Ok(unit.replace("/usr/local/bin/quire", program))
}

#[test]
fn the_unit_is_one() -> anyhow::Result<()> {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        println!("skipped: systemd-analyze is not here");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("quire.service");
    fs::write(&path, unit("/bin/true")?)?;
    let output = Command::new("systemd-analyze").arg("verify").arg(&path).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // Names that it does not know are warnings.
    ensure!(output.status.success() && !said.contains("quire.service"), "{said}");
    // 0 is exposed to nothing, 100 to everything; a service without any of the settings has 96.
    let mut rated = Command::new("systemd-analyze");
    rated.args(["security", "--offline=true", "--no-pager", "--threshold=20"]).arg(&path);
    tools::run(&mut rated).map(drop)
}

/// A systemd of its own over this machine's /usr, with empty /etc and /var.
struct Container {
    nspawn: Child,
    log: std::path::PathBuf,
}

impl Container {
    fn boot(folder: &Path, port: u16) -> anyhow::Result<Self> {
        let (unit_file, settings, log) = (folder.join("unit"), folder.join("settings"), folder.join("log"));
        fs::write(&unit_file, unit("/opt/quire")?)?;
        fs::write(&settings, format!("QUIRE_ARGS=--host 127.0.0.1 --port {port}\n"))?;
        let output = File::create(&log)?;
        let bind = |from: &Path, to: &str| format!("--bind-ro={}:{to}", from.display());
        let mut command = Command::new("systemd-nspawn");
        command.args(["--directory=/", "--volatile=yes", "--register=no", "--keep-unit", "--machine=quire-test"]);
        command.arg(bind(&unit_file, "/etc/systemd/system/quire.service"));
        command.args([bind(&settings, "/etc/quire.conf"), bind(&quire_binary(), "/opt/quire")]).arg("--boot");
        command.args(["systemd.unit=basic.target", "systemd.wants=quire.service", "systemd.firstboot=no"]);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        Ok(Self { nspawn: command.spawn()?, log })
    }

    /// What a command says inside.
    fn says(&self, args: &[&str]) -> anyhow::Result<String> {
        let init = descendants(Pid::from_child(&self.nspawn)).first().context("no container")?.pid;
        let init = init.as_raw_nonzero().to_string();
        tools::run(Command::new("nsenter").args(["--target", &init, "--all"]).args(args))
    }

    fn shows(&self, property: &str) -> anyhow::Result<String> {
        Ok(self.says(&["systemctl", "show", "--value", "--property", property, "quire"])?.trim().to_owned())
    }

    fn supervisor(&self) -> anyhow::Result<Pid> {
        let all = descendants(Pid::from_child(&self.nspawn));
        Ok(all.iter().find(|it| it.role == "serve").context("no supervisor")?.pid)
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // The second signal ends it without a shutdown.
        while matches!(self.nspawn.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.nspawn), Signal::TERM);
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "second tier: boots a systemd"]
async fn a_systemd_starts_restarts_and_drains_it() -> anyhow::Result<()> {
    if Command::new("systemd-nspawn").arg("--version").output().is_err() {
        println!("skipped: systemd-nspawn is not here (apt-get install systemd-container)");
        return Ok(());
    }
    let _alone = alone().await;
    let folder = tempfile::tempdir()?;
    let port = free_port()?;
    let mut container = Container::boot(folder.path(), port)?;
    let client = Client::new(format!("http://127.0.0.1:{port}"));
    if !ready(&client, &mut container).await? {
        println!("skipped: systemd-nspawn does not boot here: {}", container.log());
        return Ok(());
    }
    ensure!(container.shows("ActiveState")? == "active", "{}", container.shows("ActiveState")?);
    let status = container.shows("StatusText")?;
    ensure!(status.starts_with("serving wren at http://127.0.0.1:"), "{status}");
    let first = container.supervisor()?;
    let user = fs::read_to_string(format!("/proc/{}/status", first.as_raw_nonzero()))?;
    let user = user.lines().find_map(|line| line.strip_prefix("Uid:")).context("Uid")?;
    ensure!(!user.split_whitespace().any(|id| id == "0"), "it runs as root: {user}");
    kill_process(first, Signal::KILL)?;
    let start = Instant::now();
    while container.shows("NRestarts")? != "1" || client.health().await != Some(200) {
        ensure!(
            start.elapsed() < PATIENCE,
            "it does not start again: {}",
            container.says(&["journalctl", "-u", "quire"])?
        );
    }
    drains(&client, &container).await
}

/// `systemctl stop` while it answers: the answer is finished.
async fn drains(client: &Client, container: &Container) -> anyhow::Result<()> {
    let body = json!({"prompt": "Once", "max_tokens": 400, "ignore_eos": true, "stream": true});
    let (status, mut events) = client.stream("/v1/completions", &body).await?;
    ensure!(status == 200, "{status}");
    events.next().await?.context("an event")?;
    container.says(&["systemctl", "--no-block", "stop", "quire"])?;
    let mut finished = false;
    while let Some(event) = events.next().await? {
        ensure!(event["error"].is_null(), "{event}");
        finished |= !event["choices"][0]["finish_reason"].is_null();
    }
    ensure!(finished, "the answer was not finished");
    container.says(&["systemctl", "stop", "quire"])?;
    let (state, result) = (container.shows("ActiveState")?, container.shows("Result")?);
    ensure!((state.as_str(), result.as_str()) == ("inactive", "success"), "{state}, {result}");
    Ok(())
}

/// False where the container ended instead, which machines without its namespaces and cgroups make it do.
async fn ready(client: &Client, container: &mut Container) -> anyhow::Result<bool> {
    let start = Instant::now();
    while client.health().await != Some(200) {
        if container.nspawn.try_wait()?.is_some() {
            return Ok(false);
        }
        ensure!(start.elapsed() < PATIENCE, "not ready: {}", container.log());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(true)
}
