//! A folder of many files hides its order: past a bound, folders by purpose go inside it.

use std::collections::BTreeMap;

use super::sources::Source;

/// Source files that one folder may hold.
const MOST_FILES: usize = 20;

/// Folders in which each file is one case of one idea: their length is their purpose.
const LISTS: &[&str] = &["arch", "families", "parsers", "quant", "routes", "rules"];

pub(super) fn check(files: &[Source]) -> Vec<String> {
    let mut counts = BTreeMap::<String, usize>::new();
    for file in files {
        let folder = file.path.parent().unwrap_or(&file.path);
        if !LISTS.iter().any(|list| folder.ends_with(list)) {
            *counts.entry(folder.display().to_string()).or_default() += 1;
        }
    }
    counts.retain(|_, count| *count > MOST_FILES);
    let flat = |(folder, count)| format!("{folder} holds {count} source files, more than {MOST_FILES}");
    counts.iter().map(flat).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str, files: usize) -> Vec<Source> {
        let file = |n: usize| Source { path: format!("{name}/{n}.rs").into(), text: String::new() };
        (0..files).map(file).collect()
    }

    #[test]
    fn long_folders_are_named_unless_they_are_lists() {
        assert_eq!(check(&folder("crates/x/src", MOST_FILES)), [""; 0]);
        assert_eq!(check(&folder("crates/x/src", MOST_FILES + 1)).len(), 1);
        assert_eq!(check(&folder("crates/x/src/rules", MOST_FILES + 1)), [""; 0]);
    }
}
