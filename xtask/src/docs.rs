//! `cargo xtask docs`: writes the pages that are made from the code. The tests that compare them know how; this asks
//! them to write instead.

use std::{path::Path, process::Command};

use anyhow::{Context, bail};

/// Crates and the tests of theirs that render a page.
const PAGES: [(&str, &str); 3] = [
    ("api-gateway", "api_page_is_fresh"),
    ("quire", "configuration_page_is_fresh"),
    ("quire", "metrics_page_is_fresh"),
];

/// Runs the tests that render pages, with leave to write.
pub fn run(root: &Path) -> anyhow::Result<()> {
    for (package, test) in PAGES {
        let mut command = Command::new("cargo");
        command.args(["test", "-p", package, test]).current_dir(root);
        if !command.env("QUIRE_WRITE_DOCS", "1").status().context("cargo")?.success() {
            bail!("the page of {test} was not written");
        }
    }
    Ok(())
}
