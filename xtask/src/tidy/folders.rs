//! A folder of many files hides its order: past a bound, folders by purpose go inside it.

use std::collections::BTreeMap;

use super::sources::Source;

/// Source files that one folder may hold.
const MOST_FILES: usize = 20;

/// Folders in which each file is one case of one idea: their length is their purpose.
const LISTS: &[&str] = &["arch", "families", "parsers", "quant", "routes", "rules"];

/// Folders that are left from before the rule.
const FLAT: &[&str] = &["kernels/src/cpu"];

pub(super) fn check(files: &[Source]) -> Vec<String> {
    let mut counts = BTreeMap::<String, usize>::new();
    for file in files {
        let folder = file.path.parent().unwrap_or(&file.path);
        if !LISTS.iter().any(|list| folder.ends_with(list)) {
            *counts.entry(folder.display().to_string()).or_default() += 1;
        }
    }
    counts.retain(|_, count| *count > MOST_FILES);
    for folder in FLAT.iter().filter(|folder| !counts.contains_key(**folder)) {
        println!("tidy: {folder} is no longer flat: take it out of the list in xtask/src/tidy/folders.rs");
    }
    let flat = counts.iter().filter(|(folder, _)| !FLAT.contains(&folder.as_str()));
    flat.map(|(folder, count)| format!("{folder} holds {count} source files, more than {MOST_FILES}")).collect()
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
