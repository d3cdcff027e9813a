//! `cargo xtask test`: everything that must hold, in the order in which it fails fastest.

mod kernels;
mod long;
mod schemas;
mod tools;

use std::{path::Path, process::Command, time::Instant};

use anyhow::{Context, bail};

/// How much to run.
#[derive(clap::Args)]
pub struct Args {
    /// Leave out the tests that start servers
    #[arg(long)]
    no_e2e: bool,
    /// Run the second tier too: long runs that no single change needs (docs/long-tests.md)
    #[arg(long, conflicts_with = "no_e2e")]
    all: bool,
    /// Run these stages of the second tier, and nothing else
    #[arg(long, value_name = "STAGE", value_parser = long::names(), conflicts_with_all = ["no_e2e", "all"])]
    only: Vec<String>,
}

/// Runs all tests; stops at the first stage that fails.
pub fn run(root: &Path, args: &Args) -> anyhow::Result<()> {
    if !args.only.is_empty() {
        return long::run(root, |stage| args.only.iter().any(|name| name == stage));
    }
    first_tier(root, args)?;
    if args.all { long::run(root, |_| true) } else { Ok(()) }
}

fn first_tier(root: &Path, args: &Args) -> anyhow::Result<()> {
    stage("tidy", || crate::tidy::run(root))?;
    stage("licences, banned packages and sources (cargo-deny)", || deny(root))?;
    stage("model checking of the ring (loom)", || {
        cargo(root, &["test", "-p", "shm-ring", "--test", "loom", "--target-dir", "target/loom"], Some("--cfg loom"))
    })?;
    stage("undefined behaviour in the ring (miri)", || miri(root))?;
    // The same selection of packages throughout, so that dependencies are built once.
    stage("the quire command", || cargo(root, &["build", "--workspace", "--bin", "quire"], None))?;
    stage("CUDA kernels compile", || kernels::compile(root))?;
    match args.no_e2e {
        true => stage("unit and conformance tests", || {
            cargo(root, &["test", "--workspace", "--exclude", "e2e-tests"], None)
        }),
        false => stage("all tests", || cargo(root, &["test", "--workspace"], None)),
    }
}

/// Runs one stage and prints how long it took.
fn stage(name: &str, run: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    println!("── {name}");
    let start = Instant::now();
    run().with_context(|| name.to_owned())?;
    println!("── {name}: passed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// What deny.toml asks of the dependencies. Advisories are left out: their database comes from the network and changes
/// without us.
fn deny(root: &Path) -> anyhow::Result<()> {
    let Some(deny) = tools::CARGO_DENY.find(root) else {
        println!("cargo-deny is neither here nor can be installed: licences, bans and sources are not checked");
        return Ok(());
    };
    println!("advisories are not checked: that needs their database (cargo deny check advisories)");
    let mut check = Command::new(deny);
    check.args(["--log-level", "error", "check", "licenses", "bans", "sources"]).current_dir(root);
    match check.status().context("cargo-deny")?.success() {
        true => Ok(()),
        false => bail!("dependencies break deny.toml"),
    }
}

/// Runs the ring's tests under miri where the toolchain has it (`rustup +nightly component add miri`), and says where
/// not.
fn miri(root: &Path) -> anyhow::Result<()> {
    let probe = Command::new("cargo").args(["+nightly", "miri", "--version"]).current_dir(root).output();
    if !probe.is_ok_and(|answer| answer.status.success()) {
        println!("miri is not installed here: skipped");
        return Ok(());
    }
    let target = ["--target-dir", "target/miri"];
    cargo(
        root,
        &[&["+nightly", "miri", "test", "-p", "shm-ring", "--lib", "--test", "model"][..], &target].concat(),
        None,
    )
}

fn cargo(root: &Path, args: &[&str], rustflags: Option<&str>) -> anyhow::Result<()> {
    let mut command = Command::new("cargo");
    command.args(args).current_dir(root);
    if let Some(flags) = rustflags {
        command.env("RUSTFLAGS", flags);
    }
    let status = command.status().context("cargo")?;
    if !status.success() {
        bail!("cargo {} failed", args.join(" "));
    }
    Ok(())
}
