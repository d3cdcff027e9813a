//! No line, comments included, is wider than the formatter's width: rustfmt leaves comments, strings and CUDA alone.

use super::{ratchet::Ratchet, sources::Source};

/// Columns of a line, as in rustfmt.toml.
const COLUMNS: usize = 120;

/// Wider lines that are left from before the rule.
const WIDE_LEFT: usize = 36;

pub(super) fn check(files: &[Source]) -> Vec<String> {
    let found = files.iter().flat_map(|file| {
        let wide = file.text.lines().enumerate().filter(|(_, line)| line.chars().count() > COLUMNS);
        wide.map(|(index, _)| format!("{}:{}", file.path.display(), index + 1))
    });
    let ratchet = Ratchet {
        what: "lines of Rust and CUDA over 120 columns",
        found: found.collect(),
        limit: WIDE_LEFT,
        recorded_in: "xtask/src/tidy/lines.rs",
    };
    ratchet.check()
}
