//! Every CUDA kernel compiles for each generation of GPUs. That needs no GPU, but NVRTC.

use std::{path::Path, process::Command};

use anyhow::{Context, bail};

use super::tools;

/// Compiles all kernels with `quire kernels build`; says so where NVRTC cannot be had.
pub(super) fn compile(root: &Path) -> anyhow::Result<()> {
    let Some(environment) = tools::NVRTC.install(root) else {
        println!("NVRTC cannot be installed here: kernels are not compiled");
        return Ok(());
    };
    let cache = root.join("target/kernels");
    let mut build = Command::new(root.join("target/debug/quire"));
    build.args(["kernels", "build", "--arch", "sm_75,sm_80,sm_90a,sm_100a", "--cache"]).arg(cache);
    if !build.env("VIRTUAL_ENV", environment).status().context("quire kernels build")?.success() {
        bail!("a CUDA kernel does not compile");
    }
    Ok(())
}
