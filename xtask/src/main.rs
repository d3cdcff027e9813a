//! Chores, as `cargo xtask <chore>`.

mod charts;
mod docs;
mod gpu_compare;
mod models;
mod release;
mod test;
mod tidy;

use std::path::{Path, PathBuf};

use clap::Parser;

/// Chores of the repository.
#[derive(Parser)]
#[command(name = "cargo xtask")]
enum Chore {
    /// Draw the charts of README and docs/benchmarks.md from docs/results
    Charts,
    /// Write the pages that are made from the code: docs/api.md, docs/configuration.md and docs/metrics.md
    Docs,
    /// Measure Quire and vLLM on the same work, on this machine's GPU, and print the table of both
    GpuCompare(Box<gpu_compare::Args>),
    /// Write docs/models.md: what is served, and how it is checked. Needs all reference models (see
    /// crates/models/tests/zoo)
    Models,
    /// Make the files of a release: archives of the program and the chart, a bill of materials, checksums
    Release(release::Args),
    /// Pass all tests: tidy, licences, unit, model checking, end to end. Installs what the tests need under target/.
    Test(test::Args),
    /// Check the house rules: imports, module docs, unsafe, environment reads, sizes, widths, signatures, commit
    /// subjects
    Tidy,
}

fn main() -> anyhow::Result<()> {
    match Chore::parse() {
        Chore::Charts => charts::run(&root()),
        Chore::Docs => docs::run(&root()),
        Chore::GpuCompare(args) => gpu_compare::run(&args),
        Chore::Models => models::run(&root()),
        Chore::Release(args) => release::run(&root(), &args),
        Chore::Test(args) => test::run(&root(), &args),
        Chore::Tidy => tidy::run(&root()),
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_owned()
}
