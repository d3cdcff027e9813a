//! The second tier, `cargo xtask test --all`: runs too long or clients too heavy for every change.
//!
//! docs/long-tests.md records when each was last run, and where.

use std::{path::Path, process::Command};

use anyhow::{Context, bail};

use super::{cargo, schemas, stage, tools};

/// Seconds that libFuzzer searches.
const FUZZ_SECONDS: u32 = 300;

/// Runs the second tier.
pub(super) fn run(root: &Path) -> anyhow::Result<()> {
    stage("ten million scheduler events", || {
        let test = ["-p", "sched-core", "--test", "simulation", "--", "--ignored", "ten_million_events"];
        cargo(root, &[&["test", "--release"][..], &test].concat(), None)
    })?;
    stage("texts under the JSON Schema Test Suite", || schemas::run(root))?;
    stage("behind load balancers, and as an image", || {
        cargo(root, &["test", "-p", "e2e-tests", "--", "--ignored", "deploy::"], None)
    })?;
    stage("frameworks on top of the API, and vLLM's own tests", || {
        cargo(root, &["test", "-p", "e2e-tests", "--", "--ignored", "clients::"], None)
    })?;
    stage("a public model of four bits", || {
        cargo(root, &["test", "-p", "e2e-tests", "--", "--ignored", "smollm2::"], None)
    })?;
    stage("fuzzing sched-core (libFuzzer)", || fuzz(root))
}

/// Searches for a world in which the scheduler breaks. What it finds lies under crates/sched-core/fuzz/artifacts.
fn fuzz(root: &Path) -> anyhow::Result<()> {
    let nightly = Command::new("cargo").args(["+nightly", "--version"]).current_dir(root).output();
    if !nightly.is_ok_and(|answer| answer.status.success()) {
        println!("there is no nightly toolchain here: sched-core is not fuzzed");
        return Ok(());
    }
    let Some(fuzz) = tools::CARGO_FUZZ.find(root) else {
        println!("cargo-fuzz is neither here nor can be installed: sched-core is not fuzzed");
        return Ok(());
    };
    let mut run = Command::new("rustup");
    run.args(["run", "nightly"]).arg(fuzz).args(["run", "worlds", "--target-dir"]).arg(root.join("target/fuzz"));
    run.args(["--", "-max_len=4096", &format!("-max_total_time={FUZZ_SECONDS}")]);
    match run.current_dir(root.join("crates/sched-core")).status().context("cargo-fuzz")?.success() {
        true => Ok(()),
        false => bail!("a world breaks the scheduler: add its bytes to crates/sched-core/tests/simulation.rs"),
    }
}
