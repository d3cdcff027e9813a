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
    stage("CUDA kernels compile", &|| kernels(root))?;
    match args.no_e2e {
        true => stage("unit and conformance tests", &|| {
            cargo(root, &["test", "--workspace", "--exclude", "e2e-tests"], None)
        }),
        false => stage("all tests", &|| cargo(root, &["test", "--workspace"], None)),
    }?;
    Ok(())
}

/// Compiles every CUDA kernel for each generation of GPUs, which needs no GPU but NVRTC; installs that under target/.
fn kernels(root: &Path) -> anyhow::Result<()> {
    let environment = root.join("target/nvrtc");
    let python = environment.join("bin/python3");
    let run =
        |program: &Path, args: &[&str]| Command::new(program).args(args).status().is_ok_and(|ended| ended.success());
    let made = python.exists() || run(Path::new("python3"), &["-m", "venv", &environment.to_string_lossy()]);
    if !made || !run(&python, &["-m", "pip", "install", "--quiet", "--disable-pip-version-check", NVRTC]) {
        println!("{NVRTC} cannot be installed here: skipped");
        return Ok(());
    }
    let cache = root.join("target/kernels");
    let mut build = Command::new(root.join("target/debug/quire"));
    build.args(["kernels", "build", "--arch", "sm_75,sm_80,sm_90a,sm_100a", "--cache"]).arg(cache);
    if !build.env("VIRTUAL_ENV", environment).status().context("quire kernels build")?.success() {
        bail!("a CUDA kernel does not compile");
    }
    Ok(())
}

/// The compiler of kernels, as a Python package.
const NVRTC: &str = "nvidia-cuda-nvrtc==13.0.*";

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
