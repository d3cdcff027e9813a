//! A pod of a manifest as processes of this machine: its containers' command lines, variables and probes.

use std::{
    fs::{self, File},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use e2e_tests::{Client, quire_binary, root};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// What stands in Secrets.
pub(super) const API_KEY: &str = "key-of-a-secret";

/// Ports that an engine of one scheduler takes for gateways of their own.
pub(super) const GATEWAY_PORTS: u16 = 4;

/// How long a probe may fail; debug builds on busy machines are slow.
const PROBED: Duration = Duration::from_secs(120);

/// A port of the manifest, and the one that stands for it here.
#[derive(Clone, Copy)]
pub(super) struct Port {
    named: u16,
    here: u16,
}

/// Running containers.
pub(super) struct Pod {
    containers: Vec<Container>,
    pub(super) ports: Vec<Port>,
    place: Place,
}

struct Container {
    name: String,
    manifest: Value,
    child: Child,
    log: std::path::PathBuf,
}

impl Pod {
    /// Runs the init containers of a workload's pod to their ends, then starts the others. Volumes lie in `folder`;
    /// `others` are the ports of pods that it talks to.
    pub(super) async fn start(workload: &Value, folder: &Path, others: &[Port]) -> anyhow::Result<Self> {
        Self::of(&workload["spec"]["template"]["spec"], folder, others, 0).await
    }

    /// The same of a pod's own `spec`, as number `index` of its group.
    pub(super) async fn of(spec: &Value, folder: &Path, others: &[Port], index: u32) -> anyhow::Result<Self> {
        let containers = spec["containers"].as_array().context("containers")?;
        let ports = containers.iter().flat_map(|it| it["ports"].as_array().into_iter().flatten());
        let ports: Vec<Port> = ports.map(Port::of).collect::<anyhow::Result<_>>()?;
        let place = Place { folder: folder.to_owned(), ports: [&ports[..], others].concat(), index };
        for volume in ["run", "tmp", "models"] {
            fs::create_dir_all(folder.join(volume))?;
        }
        secrets(folder)?;
        for init in spec["initContainers"].as_array().into_iter().flatten() {
            let mut command = place.command(init)?;
            super::tools::run(&mut command)?;
        }
        let started: anyhow::Result<Vec<_>> = containers.iter().map(|it| Container::start(it, &place)).collect();
        Ok(Self { containers: started?, ports, place })
    }

    /// Where a port of the manifest is.
    pub(super) fn port(&self, named: u16) -> anyhow::Result<u16> {
        self.ports.iter().find(|port| port.named == named).map(|port| port.here).context("no such port")
    }

    /// What its containers wrote.
    pub(super) fn log(&self) -> String {
        self.containers.iter().map(Container::log).collect()
    }

    /// Startup, readiness and liveness probes succeed, in this order, as they would have to in a cluster.
    pub(super) async fn passes_its_probes(&mut self) -> anyhow::Result<()> {
        for container in &mut self.containers {
            for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
                let start = Instant::now();
                while let Err(error) = probed(&container.manifest, &container.manifest[probe], &self.ports).await {
                    if container.child.try_wait()?.is_some() || start.elapsed() > PROBED {
                        bail!("{} of {}: {error:#}\n{}", probe, container.name, container.log());
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        Ok(())
    }

    /// Kills its containers, as a machine that runs out of memory does, and waits until nothing of them is left.
    pub(super) async fn kill(&mut self) -> anyhow::Result<()> {
        for container in &mut self.containers {
            container.child.kill()?;
            container.child.wait()?;
        }
        let start = Instant::now();
        // Their processes die with them, but not before the kernel has got round to it.
        while self.ports.iter().any(|port| TcpListener::bind(("127.0.0.1", port.here)).is_err()) {
            ensure!(start.elapsed() < PROBED, "a port is taken for ever");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Starts its containers again, as the kubelet does.
    pub(super) fn start_again(&mut self) -> anyhow::Result<()> {
        for container in &mut self.containers {
            *container = Container::start(&container.manifest, &self.place)?;
        }
        Ok(())
    }

    /// Ends it as the kubelet does; every process must end well.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        for container in &self.containers {
            kill_process(Pid::from_child(&container.child), Signal::TERM)?;
        }
        for container in &mut self.containers {
            let status = container.child.wait()?;
            ensure!(status.success(), "{} ended with {status}\n{}", container.name, container.log());
        }
        Ok(())
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        for container in &mut self.containers {
            let _ = container.child.kill();
            let _ = container.child.wait();
        }
    }
}

impl Port {
    fn of(manifest: &Value) -> anyhow::Result<Self> {
        let named = manifest["containerPort"].as_u64().context("containerPort")?;
        // The ports behind that one are taken, too.
        let count = if manifest["name"] == "gateways" { GATEWAY_PORTS } else { 1 };
        Ok(Self { named: u16::try_from(named)?, here: free(count)? })
    }
}

/// The first of so many ports that follow each other and are free.
fn free(count: u16) -> anyhow::Result<u16> {
    for _ in 0..100 {
        let first = TcpListener::bind("127.0.0.1:0")?;
        let port = first.local_addr()?.port();
        let rest = (1..count).map(|offset| TcpListener::bind(("127.0.0.1", port.saturating_add(offset))));
        if rest.collect::<Result<Vec<_>, _>>().is_ok() {
            return Ok(port);
        }
    }
    bail!("no {count} ports in a row are free")
}

impl Container {
    fn start(manifest: &Value, place: &Place) -> anyhow::Result<Self> {
        let name = manifest["name"].as_str().context("name")?.to_owned();
        let log = tempfile::Builder::new().prefix(&name).tempfile_in(&place.folder)?.into_temp_path().keep()?;
        let mut command = place.command(manifest)?;
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?).spawn()?;
        Ok(Self { name, manifest: manifest.clone(), child, log })
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// Where a pod's volumes and ports are on this machine.
struct Place {
    folder: PathBuf,
    ports: Vec<Port>,
    /// The pod's number in its group.
    index: u32,
}

/// What Secrets bring into pods, as files: the token of links, and certificates for loopback. They are there before
/// the first pod of a folder, and no later pod touches them: processes of the first may be reading them.
fn secrets(folder: &Path) -> anyhow::Result<()> {
    let [links, tls] = ["links", "tls"].map(|name| folder.join(name));
    if links.exists() {
        return Ok(());
    }
    fs::create_dir_all(&links)?;
    fs::create_dir_all(&tls)?;
    fs::write(links.join("token"), "the-token-of-a-secret\n")?;
    let made = root().join("crates/link/tests/tls");
    for (name, key) in [("node.pem", "tls.crt"), ("node.key", "tls.key"), ("authority.pem", "ca.crt")] {
        fs::copy(made.join(name), tls.join(key))?;
    }
    Ok(())
}

impl Place {
    fn command(&self, container: &Value) -> anyhow::Result<Command> {
        let mut command = Command::new(quire_binary());
        command.env_clear();
        let args = container["args"].as_array().context("args")?;
        let mut words: Vec<_> = args.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        // LeaderWorkerSet's controller adds this one.
        expand(&mut words, "LWS_LEADER_ADDRESS", "127.0.0.1");
        for variable in container["env"].as_array().into_iter().flatten() {
            let name = variable["name"].as_str().context("name")?;
            let value = self.value(variable)?;
            expand(&mut words, name, &value);
            command.env(name, value);
        }
        command.args(words.iter().map(|word| self.here(word)));
        Ok(command)
    }

    /// What a variable of a container is here.
    fn value(&self, variable: &Value) -> anyhow::Result<String> {
        if let Some(value) = variable["value"].as_str() {
            return Ok(self.here(value));
        }
        let from = &variable["valueFrom"];
        match from["fieldRef"]["fieldPath"].as_str() {
            Some("status.podIP") => Ok("127.0.0.1".to_owned()),
            Some("metadata.labels['leaderworkerset.sigs.k8s.io/worker-index']") => Ok(self.index.to_string()),
            Some(path) => bail!("{path} is not known here"),
            None if from["secretKeyRef"].is_object() => Ok(API_KEY.to_owned()),
            None => bail!("no value: {variable}"),
        }
    }

    /// A word of a command line or a variable, with the addresses and folders of this machine.
    fn here(&self, word: &str) -> String {
        let mut word = word.replace("0.0.0.0", "127.0.0.1");
        for service in ["chat-quire-engine-links", "chat-quire-engine"] {
            word = word.replace(service, "127.0.0.1");
        }
        let volumes = [
            ("/tmp", "tmp"),
            ("/run/quire", "run"),
            ("/models", "models"),
            ("/etc/quire/links", "links"),
            ("/etc/quire/tls", "tls"),
        ];
        for (inside, volume) in volumes {
            if let Some(at) = word.find(inside).filter(|at| *at == 0 || [b'=', b':'].contains(&word.as_bytes()[at - 1]))
            {
                word.replace_range(at..at + inside.len(), &self.folder.join(volume).to_string_lossy());
                break;
            }
        }
        for port in &self.ports {
            let bare = word.strip_suffix(&port.named.to_string()).filter(|bare| bare.ends_with([':', '=']));
            if let Some(bare) = bare {
                return format!("{bare}{}", port.here);
            }
        }
        word
    }
}

/// Puts a variable's value where words have `$(NAME)`, as the kubelet does.
fn expand(words: &mut [String], name: &str, value: &str) {
    let reference = format!("$({name})");
    for word in words {
        *word = word.replace(&reference, value);
    }
}

/// Asks once what a probe asks.
async fn probed(container: &Value, probe: &Value, ports: &[Port]) -> anyhow::Result<()> {
    let number = |port: &Value| match port.as_str() {
        None => port.as_u64(),
        Some(name) => container["ports"].as_array()?.iter().find(|it| it["name"] == name)?["containerPort"].as_u64(),
    };
    let here = |port: &Value| {
        let number = number(port).context("a port")?;
        ports.iter().find(|it| u64::from(it.named) == number).map(|it| it.here).context("a port of the pod")
    };
    if let Some(path) = probe["httpGet"]["path"].as_str() {
        let client = Client::new(format!("http://127.0.0.1:{}", here(&probe["httpGet"]["port"])?));
        let (status, text) = client.get(path).await?;
        ensure!((200..400).contains(&status), "{status}: {text}");
        return Ok(());
    }
    bail!("an unknown kind of probe: {probe}")
}
