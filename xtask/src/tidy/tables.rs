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
    found.extend(unlisted_models(root));
    Ok(found)
}

/// Classes of the table of architectures that `docs/models.md` lacks.
fn unlisted_models(root: &Path) -> Vec<String> {
    let table = fs::read_to_string(root.join("crates/models/src/arch/mod.rs")).unwrap_or_default();
    let docs = fs::read_to_string(root.join("docs/models.md")).unwrap_or_default();
    let class = |line: &str| line.trim().strip_prefix("(\"")?.split_once('"').map(|(class, _)| class.to_owned());
    let classes: Vec<String> = table.lines().filter_map(class).collect();
    if classes.is_empty() {
        return vec!["crates/models/src/arch/mod.rs lists no class".to_owned()];
    }
    let missing = classes.into_iter().filter(|class| !docs.contains(&format!("| `{class}` |")));
    missing.map(|class| format!("docs/models.md lacks {class}: run `cargo xtask models`")).collect()
}

fn module_of(line: &str) -> Option<&str> {
    line.strip_prefix("mod ")
        .or_else(|| line.strip_prefix("pub mod "))
        .or_else(|| line.strip_prefix("pub(crate) mod "))?
        .strip_suffix(';')
}
