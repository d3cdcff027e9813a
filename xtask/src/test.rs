//! `cargo xtask test`: everything that must hold, in the order in which it fails fastest.

use std::{path::Path, process::Command, time::Instant};

use anyhow::{Context, bail};

/// What to leave out, for a quick round while working.
#[derive(clap::Args)]
pub struct Args {
    /// Leave out the tests that start servers
    #[arg(long)]
    no_e2e: bool,
}

/// Runs all tests; stops at the first stage that fails.
pub fn run(root: &Path, args: &Args) -> anyhow::Result<()> {
    let stage = |name: &str, run: &dyn Fn() -> anyhow::Result<()>| -> anyhow::Result<()> {
        println!("── {name}");
        let start = Instant::now();
        run().with_context(|| name.to_owned())?;
        println!("── {name}: passed in {:.0} s", start.elapsed().as_secs_f64());
        Ok(())
    };
    stage("tidy", &|| crate::tidy::run(root))?;
    stage("model checking of the ring (loom)", &|| {
        cargo(root, &["test", "-p", "shm-ring", "--test", "loom", "--target-dir", "target/loom"], Some("--cfg loom"))
    })?;
    stage("undefined behaviour in the ring (miri)", &|| miri(root))?;
    // The same selection of packages throughout, so that dependencies are built once.
    stage("the quire command", &|| cargo(root, &["build", "--workspace", "--bin", "quire"], None))?;
    match args.no_e2e {
        true => stage("unit and conformance tests", &|| {
            cargo(root, &["test", "--workspace", "--exclude", "e2e-tests"], None)
        }),
        false => stage("all tests", &|| cargo(root, &["test", "--workspace"], None)),
    }?;
    Ok(())
}

/// Runs the ring's tests under miri where the toolchain has it (`rustup +nightly component add miri`); says so where it does not.
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
