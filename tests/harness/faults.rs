//! Small C programs that do to a worker and its GPU what only accidents do, built when a test needs them.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, ensure};

/// A library that, preloaded into a worker, breaks its CUDA context on SIGUSR1.
pub fn break_context(folder: &Path) -> anyhow::Result<PathBuf> {
    compile(folder, "break_context", &["-shared", "-fPIC", "-pthread"])
}

/// A library that, preloaded into a worker, makes its compute thread never return on SIGUSR1.
pub fn hang_thread(folder: &Path) -> anyhow::Result<PathBuf> {
    compile(folder, "hang_thread", &["-shared", "-fPIC", "-pthread"])
}

/// A folder of libraries that pretend to be the driver of two GPUs, NVRTC, cuBLASLt and NCCL.
pub fn pretended_driver(folder: &Path) -> anyhow::Result<PathBuf> {
    let library = compile(folder, "pretend_driver", &["-shared", "-fPIC"])?;
    for name in
        ["libcuda.so.1", "libcuda.so", "libnvrtc-builtins.so.12", "libnvrtc.so", "libcublasLt.so", "libnccl.so.2"]
    {
        std::os::unix::fs::symlink(&library, folder.join(name))?;
    }
    Ok(folder.to_owned())
}

/// A process that holds all memory of the first GPU while it lives.
pub struct MemoryHolder(Child);

impl MemoryHolder {
    /// Starts it, and waits until no memory is left.
    pub fn start(folder: &Path) -> anyhow::Result<Self> {
        let program = compile(folder, "hold_memory", &[])?;
        let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        let output = child.stdout.take().context("a pipe")?;
        let holder = Self(child);
        BufReader::new(output).read_line(&mut line)?;
        ensure!(line == "held\n", "no memory was taken: {line:?}");
        Ok(holder)
    }
}

impl Drop for MemoryHolder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn compile(folder: &Path, name: &str, flags: &[&str]) -> anyhow::Result<PathBuf> {
    let (source, program) = (crate::root().join(format!("tests/faults/{name}.c")), folder.join(name));
    let compiled = Command::new("cc").args(flags).arg("-o").arg(&program).arg(source).arg("-ldl").output();
    let compiled = compiled.context("cc, which builds the programs of tests/faults")?;
    ensure!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    Ok(program)
}
