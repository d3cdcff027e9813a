//! The JSON Schema Test Suite: whatever is generated under one of its schemas validates.

use std::{path::Path, process::Command};

use anyhow::{Context, bail};

use super::cargo;

/// The package that carries the suite.
const PACKAGE: &str = "jsonschema==4.23.0";
/// Texts of each schema.
const SEEDS: &str = "40";
/// Vocabularies: single bytes, and that of the model that ships.
const TOKENIZERS: [&str; 2] = ["bytes", "crates/default-model/files/model/tokenizer.json"];

/// Generates texts under all schemas of the suite; says so where it cannot be had.
pub(super) fn run(root: &Path) -> anyhow::Result<()> {
    let folder = root.join("target/json-schema-test-suite");
    let suite = folder.join("jsonschema-4.23.0/json/tests");
    if !suite.is_dir() && !fetch(&folder)? {
        println!("the JSON Schema Test Suite cannot be had here: skipped");
        return Ok(());
    }
    let suite = suite.to_str().context("a path that is text")?;
    for tokenizer in TOKENIZERS {
        cargo(root, &["run", "--release", "-p", "grammar", "--example", "suite", "--", SEEDS, tokenizer, suite], None)?;
    }
    Ok(())
}

/// Downloads and unpacks the package; whether it could be downloaded.
fn fetch(folder: &Path) -> anyhow::Result<bool> {
    std::fs::create_dir_all(folder)?;
    let download = ["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", PACKAGE];
    if !Command::new("python3").args(download).current_dir(folder).status().context("python3")?.success() {
        return Ok(false);
    }
    let unpack = ["-xzf", "jsonschema-4.23.0.tar.gz"];
    if !Command::new("tar").args(unpack).current_dir(folder).status().context("tar")?.success() {
        bail!("the package cannot be unpacked");
    }
    Ok(true)
}
