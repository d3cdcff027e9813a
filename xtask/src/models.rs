//! `cargo xtask models`: writes `docs/models.md`. The test that compares it knows how; this asks it to write instead.

use std::{path::Path, process::Command};

use anyhow::{Context, bail};

/// Runs the test that renders the table, with leave to write.
pub fn run(root: &Path) -> anyhow::Result<()> {
    let mut command = Command::new("cargo");
    command.args(["test", "-p", "models", "--test", "zoo", "table::is_fresh", "--", "--exact"]).current_dir(root);
    if !command.env("QUIRE_WRITE_MODELS", "1").status().context("cargo")?.success() {
        bail!("the table was not written");
    }
    Ok(())
}
