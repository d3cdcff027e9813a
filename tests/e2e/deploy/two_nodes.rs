//! An engine of two stages on two machines, a node each, and a client of it.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{bail, ensure};
use e2e_tests::quire_binary;

use super::namespaces::{Hosts, Script};

/// Within this the nodes find each other, again too.
const READY: Duration = Duration::from_secs(60);

pub(super) struct TwoNodes {
    pub(super) hosts: Hosts,
    head: Script,
    second: Script,
    _folder: tempfile::TempDir,
}

impl TwoNodes {
    /// Starts both, and returns once they have answered; `master` is the first machine's address.
    pub(super) fn start(hosts: Hosts, master: &str) -> anyhow::Result<Self> {
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
                master,
            ]);
            command.arg(format!("--node-rank={host}")).arg(format!("--link-token-file={}", token.display()));
            Script::start(&mut command, folder.path().join(format!("node-{host}")))
        };
        let (second, head) = (start(1)?, start(0)?);
        let mut nodes = Self { hosts, head, second, _folder: folder };
        nodes.serve()?;
        Ok(nodes)
    }

    pub(super) fn logs(&self) -> String {
        format!("{}\n{}", self.head.log(), self.second.log())
    }

    /// A client on the first machine.
    pub(super) fn client(&self, tokens: &str) -> Command {
        let mut command = self.hosts.on(0, &quire_binary());
        command.args(["complete", "--quick=Once", "--temperature=0", "--max-tokens", tokens]);
        command
    }

    /// Asks until there is an answer.
    pub(super) fn serve(&mut self) -> anyhow::Result<()> {
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

    pub(super) fn end(self) -> anyhow::Result<()> {
        self.head.end(0)?;
        self.second.end(0)
    }
}
