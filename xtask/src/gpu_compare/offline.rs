//! Engines without servers: one start of a program measures all cases of a model.

use std::fs;

use anyhow::Context;

use super::{process, results::Results, side::Stage};

/// Runs a side; its lines land in the results even when it fails half-way.
pub fn run(stage: &Stage<'_>, results: &Results) -> anyhow::Result<()> {
    let cases = stage.work.join(format!("{}.jsonl", stage.shape));
    fs::write(&cases, stage.cases()?).with_context(|| cases.display().to_string())?;
    let output = results.lines_of(stage.side, stage.shape);
    // Lines of an earlier run would be taken for this one's.
    if output.exists() {
        fs::remove_file(&output)?;
    }
    process::run(stage.offline(&cases, &output)?)
}
