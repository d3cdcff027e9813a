//! The Slurm script in a real Slurm: Debian's munge, slurmctld, and two slurmd of one machine. Second tier
//! (`cargo xtask test --all`).

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use e2e_tests::{Client, alone, free_port, quire_binary, root};
use serde_json::json;

use super::tools;

/// Within this a job runs and serves, or has ended.
const PATIENCE: Duration = Duration::from_secs(120);

/// Daemons of a cluster with the nodes n1 and n2, and its configuration.
struct Slurm<'a> {
    folder: &'a Path,
    daemons: Vec<Child>,
}

impl<'a> Slurm<'a> {
    /// Absent, with a message, where there is no Slurm.
    fn start(folder: &'a Path) -> anyhow::Result<Option<Self>> {
        for program in ["munged", "slurmctld", "slurmd", "sbatch"] {
            if Command::new(program).arg("--version").output().is_err() {
                println!("skipped: {program} is not here (apt-get install munge slurmctld slurmd slurm-client)");
                return Ok(None);
            }
        }
        let mut slurm = Self { folder, daemons: Vec::new() };
        slurm.configure()?;
        slurm.munge()?;
        slurm.daemon("slurmctld", &["-D", "-c"])?;
        slurm.daemon("slurmd", &["-D", "-N", "n1"])?;
        slurm.daemon("slurmd", &["-D", "-N", "n2"])?;
        let idle = || slurm.says("sinfo", &["--noheader", "--Node", "--format=%T"]);
        slurm.until("two idle nodes", || Ok(idle().is_ok_and(|states| states == "idle\nidle\n")))?;
        Ok(Some(slurm))
    }

    fn configure(&self) -> anyhow::Result<()> {
        let host = fs::read_to_string("/proc/sys/kernel/hostname")?;
        let (host, at) = (host.trim(), self.folder.display());
        let mut text = format!(
            "ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={}\nSlurmUser=root\nSlurmdUser=root\n\
             AuthType=auth/munge\nAuthInfo=socket={at}/munge/socket\nCryptoType=crypto/munge\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nReturnToService=2\n\
             StateSaveLocation={at}/state\nSlurmdSpoolDir={at}/spool.%n\n\
             SlurmctldPidFile={at}/slurmctld.pid\nSlurmdPidFile={at}/slurmd.%n.pid\n\
             PartitionName=all Nodes=n1,n2 Default=YES State=UP\n",
            free_port()?
        );
        for node in ["n1", "n2"] {
            let port = free_port()?;
            text += &format!("NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1\n");
        }
        fs::create_dir(self.folder.join("state"))?;
        fs::write(self.folder.join("slurm.conf"), text)?;
        Ok(())
    }

    /// The daemon that vouches for users, with a key of its own.
    fn munge(&mut self) -> anyhow::Result<()> {
        let folder = self.folder.join("munge");
        fs::create_dir(&folder)?;
        let key = folder.join("key");
        fs::write(&key, [7; 64])?;
        rustix::fs::chmod(&key, rustix::fs::Mode::from_raw_mode(0o600))?;
        let at = |name: &str| folder.join(name).display().to_string();
        let files = [
            format!("--socket={}", at("socket")),
            format!("--key-file={}", at("key")),
            format!("--pid-file={}", at("pid")),
            format!("--seed-file={}", at("seed")),
            format!("--log-file={}", at("log")),
        ];
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        self.daemon("munged", &[&["--foreground", "--force"], &files[..]].concat())?;
        self.until("munge's socket", || Ok(folder.join("socket").exists()))
    }

    fn daemon(&mut self, program: &str, args: &[&str]) -> anyhow::Result<()> {
        let log = File::create(self.folder.join(format!("log.{program}.{}", self.daemons.len())))?;
        let mut command = self.command(program, args);
        self.daemons.push(command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?);
        Ok(())
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).env("SLURM_CONF", self.folder.join("slurm.conf"));
        command
    }

    fn says(&self, program: &str, args: &[&str]) -> anyhow::Result<String> {
        tools::run(&mut self.command(program, args))
    }

    fn until(&self, what: &str, holds: impl Fn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
        let start = Instant::now();
        while !holds()? {
            ensure!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn logs(&self) -> String {
        let files = fs::read_dir(self.folder).into_iter().flatten().flatten();
        let logs = files.filter(|file| file.file_name().to_string_lossy().starts_with("log."));
        logs.map(|log| fs::read_to_string(log.path()).unwrap_or_default()).collect()
    }
}

impl Drop for Slurm<'_> {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "second tier: starts a Slurm"]
async fn jobs_serve_and_finish_requests_when_they_are_told_to_end() -> anyhow::Result<()> {
    let _alone = alone().await;
    let folder = tempfile::tempdir()?;
    let Some(slurm) = Slurm::start(folder.path())? else { return Ok(()) };
    for nodes in ["1", "2"] {
        let log = folder.path().join(format!("log.job.{nodes}"));
        job(&slurm, nodes, &log).await.with_context(|| slurm.logs()).with_context(|| format!("{nodes} nodes"))?;
        let log = fs::read_to_string(&log)?;
        ensure!(log.contains("node 1 of 2, with workers 1 to 1") == (nodes == "2"), "{log}");
    }
    Ok(())
}

/// Submits, asks, and ends a job while it answers.
async fn job(slurm: &Slurm<'_>, nodes: &str, log: &Path) -> anyhow::Result<()> {
    let port = free_port()?.to_string();
    let mut submit = slurm.command("sbatch", &["--parsable", &format!("--nodes={nodes}")]);
    submit.arg("--output").arg(log).arg(root().join("deploy/slurm/quire.sbatch")).arg("--device=cpu");
    submit.args(["--host=127.0.0.1", &format!("--master-port={}", free_port()?)]);
    submit.env("QUIRE", quire_binary()).env("QUIRE_PORT", &port).env("TMPDIR", slurm.folder);
    let number = tools::run(&mut submit)?.trim().to_owned();
    let shows = || slurm.says("scontrol", &["show", "job", "--oneliner", &number]);
    let client = Client::new(format!("http://127.0.0.1:{port}"));
    let start = Instant::now();
    while client.health().await != Some(200) {
        ensure!(start.elapsed() < PATIENCE && !shows()?.contains("JobState=FAILED"), "it does not serve: {}", shows()?);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ensure!(shows()?.contains(&format!(":{port} ")), "its comment lacks the address: {}", shows()?);
    let body = json!({"prompt": "Once", "max_tokens": 400, "n": 16, "ignore_eos": true, "stream": true});
    let (status, mut events) = client.stream("/v1/completions", &body).await?;
    ensure!(status == 200, "{status}");
    events.next().await?.context("an event")?;
    slurm.says("scancel", &["--batch", "--signal=TERM", &number])?;
    let mut finished = 0;
    while let Some(event) = events.next().await? {
        ensure!(event["error"].is_null(), "{event}");
        finished += usize::from(!event["choices"][0]["finish_reason"].is_null());
    }
    ensure!(finished == 16, "{finished} of 16 answers were finished");
    slurm.until("the job has ended", || Ok(shows()?.contains("JobState=COMPLETED")))?;
    let left: Vec<_> = fs::read_dir(slurm.folder)?.flatten().map(|it| it.file_name()).collect();
    ensure!(left.iter().all(|name| !name.to_string_lossy().starts_with("tmp.")), "the token is left: {left:?}");
    Ok(())
}
