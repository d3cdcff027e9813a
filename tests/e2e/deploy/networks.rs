//! Two nodes whose network goes away, and comes back.

use std::{
    fs,
    io::Read,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use e2e_tests::{alone, quire_binary};

use super::{
    namespaces::{ADDRESSES, Hosts, Script},
    tools,
};

/// Within this the nodes find each other, again too.
const READY: Duration = Duration::from_secs(60);
/// A network that is gone is noticed within 15 s (docs/multi-node.md); the rest is for a busy machine.
const NOTICED: Duration = Duration::from_secs(30);

/// Ways to lose the cable, and to have it back: commands on the second machine.
const LOSSES: [[&[&str]; 2]; 2] = [
    [&["ip", "link", "set", "eth0", "down"], &["ip", "link", "set", "eth0", "up"]],
    // Nothing is refused or reset: packets are gone.
    [
        &["iptables", "-A", "INPUT", "-i", "eth0", "-j", "DROP"],
        &["iptables", "-D", "INPUT", "-i", "eth0", "-j", "DROP"],
    ],
];

struct Nodes {
    hosts: Hosts,
    head: Script,
    second: Script,
}

impl Nodes {
    fn logs(&self) -> String {
        format!("{}\n{}", self.head.log(), self.second.log())
    }

    /// A client on the first machine.
    fn client(&self, tokens: &str) -> Command {
        let mut command = self.hosts.on(0, &quire_binary());
        command.args(["complete", "--quick=Once", "--temperature=0", "--max-tokens", tokens]);
        command
    }

    /// Asks until there is an answer.
    fn serve(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let answer = self.client("4").output()?;
            if answer.status.success() {
                ensure!(!answer.stdout.trim_ascii().is_empty(), "no text");
                return Ok(());
            }
            if self.head.has_ended() || self.second.has_ended() || began.elapsed() > READY {
                bail!("no answer: {}", self.logs());
            }
        }
    }
}

/// A client's end, if that comes in time.
fn end_of(mut client: Child, limit: Duration) -> anyhow::Result<Output> {
    let began = Instant::now();
    while client.try_wait()?.is_none() {
        if began.elapsed() > limit {
            client.kill()?;
            client.wait()?;
            bail!("the request had no end after {limit:?}");
        }
        std::thread::yield_now();
    }
    Ok(client.wait_with_output()?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "second tier: waits for networks that are gone"]
async fn a_lost_network_ends_requests_and_the_group_forms_again() -> anyhow::Result<()> {
    let _alone = alone().await;
    let Some(hosts) = Hosts::make()? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let token = folder.path().join("token");
    fs::write(&token, "the-token-of-two-machines\n")?;
    let start = |host: usize| {
        let mut command = hosts.on(host, &quire_binary());
        command.args([
            "serve",
            "--device=cpu",
            "--pipeline-parallel-size=2",
            "--nnodes=2",
            "--master-addr",
            ADDRESSES[0],
        ]);
        command.arg(format!("--node-rank={host}")).arg(format!("--link-token-file={}", token.display()));
        Script::start(&mut command, folder.path().join(format!("node-{host}")))
    };
    let (second, head) = (start(1)?, start(0)?);
    let mut nodes = Nodes { hosts, head, second };
    for [lose, restore] in LOSSES {
        nodes.serve()?;
        let mut running = nodes.client("900").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        running.stdout.as_mut().context("piped")?.read_exact(&mut [0])?;
        let on_second = |words: &[&str]| {
            let mut command = nodes.hosts.on(1, words[0].as_ref());
            tools::run(command.args(&words[1..]))
        };
        on_second(lose)?;
        let ended = end_of(running, NOTICED).with_context(|| format!("{lose:?}\n{}", nodes.logs()))?;
        let said = String::from_utf8_lossy(&ended.stderr);
        ensure!(!ended.status.success() && said.contains("worker 1"), "{lose:?}: {said}\n{}", nodes.logs());
        on_second(restore)?;
    }
    nodes.serve()?;
    let Nodes { head, second, .. } = nodes;
    head.end(0)?;
    second.end(0)
}
