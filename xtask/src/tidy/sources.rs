//! Rules on source files: their first sentence, where unsafe may be, how long they get.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;

/// A source file of the repository.
pub(super) struct Source {
    /// From the root of the repository.
    pub path: PathBuf,
    pub text: String,
}

/// Folders whose code may be unsafe; each block there has its SAFETY comment (clippy checks that).
const UNSAFE_ALLOWED: &[&str] =
    &["crates/collectives/", "crates/model-files/src/mapped.rs", "crates/shm-ring/", "kernels/"];

/// Lines at which a file must be split by idea.
const MOST_LINES: usize = 700;

/// All Rust files that git tracks or would track.
pub(super) fn rust_files(root: &Path) -> anyhow::Result<Vec<Source>> {
    files(root, &["*.rs"])
}

/// All CUDA files, likewise.
pub(super) fn cuda_files(root: &Path) -> anyhow::Result<Vec<Source>> {
    files(root, &["*.cu", "*.cuh"])
}

fn files(root: &Path, patterns: &[&str]) -> anyhow::Result<Vec<Source>> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .args(patterns)
        .current_dir(root)
        .output()
        .context("git ls-files")?;
    let names = String::from_utf8(listed.stdout)?;
    // A file that was just deleted is still listed.
    let existing = names.lines().filter(|name| root.join(name).is_file());
    existing.map(|name| Ok(Source { path: name.into(), text: fs::read_to_string(root.join(name))? })).collect()
}

pub(super) fn module_docs(files: &[Source]) -> Vec<String> {
    let undocumented = |file: &&Source| {
        let first = file.text.lines().find(|line| !line.starts_with("#!")).unwrap_or_default();
        !first.starts_with("//!")
    };
    files.iter().filter(undocumented).map(|file| file.path.display().to_string()).collect()
}

pub(super) fn unsafe_places(files: &[Source]) -> Vec<String> {
    let stale = |folder: &&&str| !files.iter().any(|file| file.path.starts_with(folder));
    let mut found: Vec<String> =
        UNSAFE_ALLOWED.iter().filter(stale).map(|folder| format!("{folder} is allowed and does not exist")).collect();
    for file in files {
        let path = file.path.to_string_lossy();
        let allowed = UNSAFE_ALLOWED.iter().any(|folder| path.starts_with(folder)) || path.starts_with("xtask/");
        for (number, line) in file.text.lines().enumerate() {
            let code = line.trim_start();
            let is_unsafe =
                ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"].iter().any(|word| code.contains(word));
            if !allowed && is_unsafe && !code.starts_with("//") {
                found.push(format!("{path}:{}", number + 1));
            }
        }
    }
    found
}

pub(super) fn sizes(files: &[Source]) -> Vec<String> {
    let long = files.iter().filter(|file| file.text.lines().count() > MOST_LINES);
    long.map(|file| format!("{} has {} lines", file.path.display(), file.text.lines().count())).collect()
}

/// Paths of the machines it was written on have no place in the repository.
pub(super) fn foreign_words(files: &[Source]) -> Vec<String> {
    let foreign = [concat!("/work", "/main"), concat!("/work", "/shared"), concat!("/", "root/")];
    let mut found = Vec::new();
    for file in files {
        for word in foreign.iter().filter(|word| file.text.contains(**word)) {
            found.push(format!("{} names {word}", file.path.display()));
        }
    }
    found
}
