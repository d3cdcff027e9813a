//! Two nodes whose network goes away, and comes back.

use std::{
    io::Read,
    process::{Child, Output, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use e2e_tests::alone;

use super::{
    namespaces::{ADDRESSES, Hosts},
    tools,
    two_nodes::TwoNodes,
};

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
    let mut nodes = TwoNodes::start(hosts, ADDRESSES[0])?;
    for [lose, restore] in LOSSES {
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
        nodes.serve()?;
    }
    nodes.end()
}
