//! `cargo xtask docs`: writes `docs/configuration.md`. The test that compares it knows how; this asks it to write instead.

use std::{path::Path, process::Command};

use anyhow::{Context, bail};

/// Runs the test that renders the page, with leave to write.
pub fn run(root: &Path) -> anyhow::Result<()> {
    let mut command = Command::new("cargo");
    command.args(["test", "-p", "quire", "configuration_page_is_fresh"]).current_dir(root);
    if !command.env("QUIRE_WRITE_DOCS", "1").status().context("cargo")?.success() {
        bail!("the page was not written");
    }
    Ok(())
}
