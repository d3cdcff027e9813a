//! Linters of shell scripts and Containerfiles, and Grafana's own model of its dashboards.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::ensure;
use e2e_tests::root;

use super::tools;

/// Files below some folders.
fn files(folders: &[&str], wanted: impl Fn(&Path) -> bool) -> anyhow::Result<Vec<PathBuf>> {
    let mut open: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    let mut found = Vec::new();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else if wanted(&path) {
                found.push(path);
            }
        }
    }
    Ok(found)
}

#[test]
fn shell_scripts_have_no_findings() -> anyhow::Result<()> {
    let is_script = |path: &Path| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().next().is_some_and(|first| first.starts_with("#!") && first.ends_with("sh"))
    };
    let scripts = files(&["deploy", "xtask", ".ci", "crates/link/tests"], is_script)?;
    ensure!(scripts.len() >= 6, "{scripts:?}");
    let shellcheck = tools::python()?.with_file_name("shellcheck");
    tools::run(Command::new(shellcheck).args(scripts)).map(drop)
}

#[test]
fn containerfiles_have_no_findings() -> anyhow::Result<()> {
    let named = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("Containerfile"));
    let found = files(&["deploy/docker"], named)?;
    ensure!(found.len() == 2, "{found:?}");
    let hadolint = tools::python()?.with_file_name("hadolint");
    // Versions of Debian's packages come with the base image.
    tools::run(Command::new(hadolint).args(["--ignore", "DL3008", "--failure-threshold", "style"]).args(found))
        .map(drop)
}

/// What is checked is in tests/deploy/dashboards.py.
#[test]
fn grafana_knows_all_that_its_dashboards_say() -> anyhow::Result<()> {
    let boards = files(&["deploy/grafana"], |path| path.extension().is_some_and(|it| it == "json"))?;
    ensure!(boards.len() >= 2, "{boards:?}");
    tools::run(Command::new(tools::python()?).arg(root().join("tests/deploy/dashboards.py")).args(boards)).map(drop)
}
