//! Sorted tables: every file of a folder that multiplies is in its `mod.rs`, in order.

use std::{fs, path::Path};

/// Folders in which one idea is one file plus one line.
const TABLES: &[&str] = &["api-gateway/src/routes", "crates/models/src/arch", "crates/sampling/src/rules"];

pub(super) fn check(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for folder in TABLES {
        let table = fs::read_to_string(root.join(folder).join("mod.rs")).unwrap_or_default();
        let modules: Vec<&str> = table.lines().filter_map(module_of).collect();
        if modules.is_empty() {
            found.push(format!("{folder}/mod.rs lists nothing"));
        }
        if !modules.is_sorted() {
            found.push(format!("{folder}/mod.rs is not sorted"));
        }
        let Ok(entries) = fs::read_dir(root.join(folder)) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if name != "mod" && !modules.contains(&name.as_str()) {
                found.push(format!("{folder}/{name} is not in the table"));
            }
        }
    }
    Ok(found)
}

fn module_of(line: &str) -> Option<&str> {
    line.strip_prefix("mod ")
        .or_else(|| line.strip_prefix("pub mod "))
        .or_else(|| line.strip_prefix("pub(crate) mod "))?
        .strip_suffix(';')
}
