//! The house rules as a test. Every rule returns its violations; one violation fails the chore.

mod commits;
mod environment;
mod folders;
mod imports;
mod lines;
mod signatures;
mod sources;
mod tables;

use std::path::Path;

use anyhow::bail;

/// Checks every rule and prints what it finds.
pub fn run(root: &Path) -> anyhow::Result<()> {
    let files = sources::rust_files(root)?;
    let mut with_cuda = sources::rust_files(root)?;
    with_cuda.extend(sources::cuda_files(root)?);
    let found = [
        ("imports go down only", imports::check(root)?),
        ("every file starts with its `//!` sentence", sources::module_docs(&files)),
        ("unsafe lives in few places", sources::unsafe_places(&files)),
        ("no environment reads outside config", environment::check(&files)),
        ("files stay readable", sources::sizes(&with_cuda)),
        ("lines fit a screen", lines::check(&with_cuda)),
        ("folders stay readable", folders::check(&with_cuda)),
        ("parameters have names", signatures::tuple_parameters(&files)),
        ("commit subjects are orders", commits::check(root)),
        ("tables list their folders, sorted", tables::check(root)?),
        ("the repository speaks of Quire alone", sources::foreign_words(&files)),
    ];
    let mut violations = 0;
    for (rule, lines) in &found {
        for line in lines {
            eprintln!("tidy: {rule}: {line}");
        }
        violations += lines.len();
    }
    if violations > 0 {
        bail!("{violations} violations of house rules");
    }
    println!("tidy: {} rules over {} files, no violation", found.len(), with_cuda.len());
    Ok(())
}
