//! Two machines on one: network namespaces with a cable between them, and programs that run there.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::ensure;
use e2e_tests::Relay;
use rustix::process::{Pid, Signal, kill_process};

use super::tools;

/// The addresses of the two.
pub(super) const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
/// The same where a relay is between them, and the relay's own.
pub(super) const APART: [&str; 2] = ["10.77.1.1", "10.77.2.1"];
const RELAYS: [&str; 2] = ["10.77.1.2", "10.77.2.2"];

/// Two namespaces of Debian's iproute2, and their names.
pub(super) struct Hosts([String; 2]);

impl Hosts {
    /// Joined by a cable. Absent, with a message, where namespaces cannot be made.
    pub(super) fn make() -> anyhow::Result<Option<Self>> {
        let Some(hosts) = Self::named("joined")? else { return Ok(None) };
        let [head, worker] = &hosts.0;
        ip(&["link", "add", "eth0", "netns", head, "type", "veth", "peer", "name", "eth0", "netns", worker])?;
        for (name, address) in hosts.0.iter().zip(ADDRESSES) {
            ip(&["-n", name, "addr", "add", &format!("{address}/24"), "dev", "eth0"])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
            ip(&["-n", name, "link", "set", "eth0", "up"])?;
        }
        Ok(Some(hosts))
    }

    fn named(how: &str) -> anyhow::Result<Option<Self>> {
        // It drops what is lost between them, and sends the rest through a relay.
        if Command::new("iptables").arg("--version").output().is_err() {
            println!("skipped: iptables is not here (apt-get install iptables)");
            return Ok(None);
        }
        let names = ["head", "worker"].map(|name| format!("quire-{how}-{name}-{}", std::process::id()));
        match ip(&["netns", "add", &names[0]]) {
            Err(error) => {
                println!("skipped: no network namespaces here: {error:#}");
                return Ok(None);
            }
            Ok(()) => ip(&["netns", "add", &names[1]])?,
        }
        Ok(Some(Self(names)))
    }

    /// A command on one of them.
    pub(super) fn on(&self, host: usize, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0[host]]).arg(program).stdin(Stdio::null());
        command
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = ip(&["netns", "delete", name]);
        }
    }
}

fn ip(args: &[&str]) -> anyhow::Result<()> {
    tools::run(Command::new("ip").args(args)).map(drop)
}

/// A third machine between two, through which all goes that they send each other.
pub(super) struct Between {
    name: String,
    /// What its TCP connections go through.
    pub(super) relay: Relay,
}

impl Between {
    /// Two machines and one between them; absent where namespaces cannot be made.
    pub(super) fn make() -> anyhow::Result<Option<(Hosts, Self)>> {
        let Some(hosts) = Hosts::named("apart")? else { return Ok(None) };
        let name = format!("quire-between-{}", std::process::id());
        ip(&["netns", "add", &name])?;
        // From here on, dropping it removes the namespace.
        let between = Self { relay: Relay::start(&Path::new("/run/netns").join(&name))?, name };
        for (side, host) in hosts.0.iter().enumerate() {
            let (cable, [near, far]) = (format!("side{side}"), [APART[side], RELAYS[side]]);
            ip(&[
                "link",
                "add",
                "eth0",
                "netns",
                host,
                "type",
                "veth",
                "peer",
                "name",
                &cable,
                "netns",
                &between.name,
            ])?;
            for (namespace, device, address) in [(host, "eth0", near), (&between.name, cable.as_str(), far)] {
                ip(&["-n", namespace, "addr", "add", &format!("{address}/24"), "dev", device])?;
                ip(&["-n", namespace, "link", "set", "lo", "up"])?;
                ip(&["-n", namespace, "link", "set", device, "up"])?;
            }
            ip(&["-n", host, "route", "add", "default", "via", far])?;
        }
        between.on(&["sysctl", "-qw", "net.ipv4.ip_forward=1"])?;
        let redirect = "iptables -t nat -A PREROUTING -p tcp -j REDIRECT --to-ports";
        let port = between.relay.port.to_string();
        between.on(&redirect.split(' ').chain([port.as_str()]).collect::<Vec<_>>())?;
        Ok(Some((hosts, between)))
    }

    fn on(&self, words: &[&str]) -> anyhow::Result<()> {
        ip(&[&["netns", "exec", &self.name][..], words].concat())
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        let _ = ip(&["netns", "delete", &self.name]);
    }
}

/// A script that runs until it is told to end.
pub(super) struct Script {
    child: Child,
    log: PathBuf,
}

impl Script {
    pub(super) fn start(command: &mut Command, log: PathBuf) -> anyhow::Result<Self> {
        let output = File::create(&log)?;
        let child = command.stdout(output.try_clone()?).stderr(output).spawn()?;
        Ok(Self { child, log })
    }

    pub(super) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Whether it has ended by itself.
    pub(super) fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Ends it as Ctrl-C in another terminal would; `status` is what it must say.
    pub(super) fn end(mut self, status: i32) -> anyhow::Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let ended = self.child.wait()?;
        ensure!(ended.code() == Some(status), "{ended}: {}", self.log());
        Ok(())
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
            let _ = self.child.wait();
        }
    }
}
