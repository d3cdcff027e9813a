//! The second tier, `cargo xtask test --all`: runs too long or clients too heavy for every change.
//!
//! docs/long-tests.md records when each was last run, and where.

use std::{path::Path, process::Command};

use anyhow::{Context, bail};

use super::{cargo, schemas, stage, tools};

/// A target of libFuzzer: its crate, its name, and how many seconds it searches.
struct FuzzTarget {
    package: &'static str,
    name: &'static str,
    seconds: u32,
}

const FUZZ_TARGETS: [FuzzTarget; 2] = [
    FuzzTarget { package: "chat-format", name: "parsers", seconds: 60 },
    FuzzTarget { package: "sched-core", name: "worlds", seconds: 300 },
];

/// A stage: its name on the command line, what it does, and how.
type Stage = (&'static str, &'static str, fn(&Path) -> anyhow::Result<()>);

const STAGES: [Stage; 7] = [
    ("simulation", "ten million scheduler events", simulation),
    ("schemas", "texts under the JSON Schema Test Suite", schemas::run),
    ("deploy", "behind load balancers, and as an image", |root| ignored_e2e(root, "deploy::")),
    ("clients", "frameworks on top of the API, and vLLM's own tests", |root| ignored_e2e(root, "clients::")),
    ("adapters", "adapters loaded and unloaded a thousand times", |root| ignored_e2e(root, "adapters::")),
    ("smollm2", "a public model of four bits", |root| ignored_e2e(root, "smollm2::")),
    ("fuzz", "fuzzing parsers and sched-core (libFuzzer)", fuzz),
];

/// The stages' names.
pub(super) fn names() -> [&'static str; STAGES.len()] {
    STAGES.map(|(name, ..)| name)
}

/// Runs the second tier, or those of its stages that are `wanted` by name.
pub(super) fn run(root: &Path, wanted: impl Fn(&str) -> bool) -> anyhow::Result<()> {
    let chosen = STAGES.iter().filter(|(name, ..)| wanted(name));
    chosen.into_iter().try_for_each(|(_, what, run)| stage(what, || run(root)))
}

fn simulation(root: &Path) -> anyhow::Result<()> {
    let test = ["-p", "sched-core", "--test", "simulation", "--", "--ignored", "ten_million_events"];
    cargo(root, &[&["test", "--release"][..], &test].concat(), None)
}

/// The end-to-end tests of a module that the first tier leaves out.
fn ignored_e2e(root: &Path, module: &str) -> anyhow::Result<()> {
    // The same selection of packages as in the first tier, so that dependencies are built once.
    cargo(root, &["build", "--workspace", "--bin", "quire"], None)?;
    cargo(root, &["test", "--workspace", "--test", "e2e", "--", "--ignored", module], None)
}

/// Searches for bytes that break a target. What it finds lies under artifacts/ in the fuzz folder of its crate.
fn fuzz(root: &Path) -> anyhow::Result<()> {
    let nightly = Command::new("cargo").args(["+nightly", "--version"]).current_dir(root).output();
    if !nightly.is_ok_and(|answer| answer.status.success()) {
        println!("there is no nightly toolchain here: nothing is fuzzed");
        return Ok(());
    }
    let Some(fuzz) = tools::CARGO_FUZZ.find(root) else {
        println!("cargo-fuzz is neither here nor can be installed: nothing is fuzzed");
        return Ok(());
    };
    FUZZ_TARGETS.iter().try_for_each(|target| target.run(root, &fuzz))
}

impl FuzzTarget {
    fn run(&self, root: &Path, fuzz: &Path) -> anyhow::Result<()> {
        let Self { package, name, seconds } = self;
        let mut run = Command::new("rustup");
        run.args(["run", "nightly"]).arg(fuzz).args(["run", name, "--target-dir"]).arg(root.join("target/fuzz"));
        run.args(["--", "-max_len=4096", &format!("-max_total_time={seconds}")]);
        match run.current_dir(root.join("crates").join(package)).status().context("cargo-fuzz")?.success() {
            true => Ok(()),
            false => bail!("{package}: `{name}` found bytes that break it; add them to the crate's tests"),
        }
    }
}
