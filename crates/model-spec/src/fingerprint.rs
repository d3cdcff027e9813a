//! A model folder's fingerprint: processes compare it when they meet, so that nobody serves half of one model with half of another.

use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::ConfigError;

/// Endings of files that hold weights.
const WEIGHT_ENDINGS: [&str; 4] = [".safetensors", ".safetensors.index.json", ".bin", ".gguf"];

/// SHA-256 (hex) over `config.json`, the names and sizes of the weight files, and `tokenizer.json`.
///
/// No weight is read, so it takes milliseconds. It is the same wherever the folder lies. A folder that lacks weights or tokenizer (dummy
/// weights need neither) has a fingerprint too; one that lacks `config.json` is an error.
pub fn fingerprint(dir: &Path) -> Result<String, ConfigError> {
    let config = dir.join("config.json");
    let text = std::fs::read(&config).map_err(|source| ConfigError::Read { file: config, source })?;
    let mut hash = Sha256::new();
    update(&mut hash, "config.json", &text);
    for (name, size) in weight_files(dir)? {
        update(&mut hash, &name, &size.to_le_bytes());
    }
    if let Ok(tokenizer) = std::fs::read(dir.join("tokenizer.json")) {
        update(&mut hash, "tokenizer.json", &tokenizer);
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Name and content, each with its length in front, so that no two lists of files give the same bytes.
fn update(hash: &mut Sha256, name: &str, content: &[u8]) {
    for part in [name.as_bytes(), content] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
}

fn weight_files(dir: &Path) -> Result<Vec<(String, u64)>, ConfigError> {
    let failed = |source| ConfigError::Read { file: dir.to_owned(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if WEIGHT_ENDINGS.iter().any(|ending| name.ends_with(ending)) {
            // Follows links: the hub's cache is made of them.
            let size = std::fs::metadata(entry.path()).map_err(failed)?.len();
            files.push((name, size));
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_with_what_matters_and_only_then() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        assert!(fingerprint(dir.path()).is_err());
        write("config.json", "{}");
        let mut seen = vec![fingerprint(dir.path()).unwrap()];
        for (name, text) in
            [("tokenizer.json", "a"), ("model.safetensors", "abc"), ("config.json", "{ }"), ("tokenizer.json", "b")]
        {
            write(name, text);
            let now = fingerprint(dir.path()).unwrap();
            assert!(!seen.contains(&now), "{name}");
            seen.push(now);
        }
        let before = fingerprint(dir.path()).unwrap();
        write("README.md", "x");
        assert_eq!(fingerprint(dir.path()).unwrap(), before);
        assert_eq!(before.len(), 64);
    }
}
