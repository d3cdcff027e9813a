//! No line, comments included, is wider than the formatter's width: rustfmt leaves comments, strings and CUDA alone.

use super::sources::Source;

/// Columns of a line, as in rustfmt.toml.
const COLUMNS: usize = 120;

pub(super) fn check(files: &[Source]) -> Vec<String> {
    let found = files.iter().flat_map(|file| {
        let wide = file.text.lines().enumerate().filter(|(_, line)| line.chars().count() > COLUMNS);
        wide.map(|(index, _)| format!("{}:{}: wider than {COLUMNS} columns", file.path.display(), index + 1))
    });
    found.collect()
}
