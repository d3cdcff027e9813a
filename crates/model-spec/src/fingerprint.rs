//! A model folder's fingerprint: processes compare it when they meet, so that nobody serves half of one model with half
//! of another.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use model_files::{Gguf, gguf_of};
use sha2::{Digest, Sha256};

use crate::error::ConfigError;

/// Endings of files that hold weights.
const WEIGHT_ENDINGS: [&str; 4] = [".safetensors", ".safetensors.index.json", ".bin", ".gguf"];

/// SHA-256 (hex) over `config.json`, the names and sizes of the weight files, and `tokenizer.json`; of a GGUF file over
/// its header, which holds all of these.
///
/// No weight is read, so it takes milliseconds. It is the same wherever the folder lies. A folder that lacks weights or
/// tokenizer (dummy weights need neither) has a fingerprint too; one that lacks `config.json` is an error.
pub fn fingerprint(model: &Path) -> Result<String, ConfigError> {
    let mut hash = Sha256::new();
    let weights = match gguf_of(model)? {
        Some(file) => {
            update(&mut hash, "header", &header(&file)?);
            vec![file]
        }
        None => {
            let config = model.join("config.json");
            let text = std::fs::read(&config).map_err(|source| ConfigError::Read { file: config, source })?;
            update(&mut hash, "config.json", &text);
            weight_files(model)?
        }
    };
    for file in weights {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Follows links: the hub's cache is made of them.
        let found = std::fs::metadata(&file).map_err(|source| ConfigError::Read { file, source })?;
        update(&mut hash, &name, &found.len().to_le_bytes());
    }
    if let Ok(tokenizer) = std::fs::read(model.join("tokenizer.json")) {
        update(&mut hash, "tokenizer.json", &tokenizer);
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Everything before the first tensor.
fn header(file: &Path) -> Result<Vec<u8>, ConfigError> {
    let data = Gguf::read(file)?.tensors().iter().map(|tensor| tensor.start).min();
    let mut bytes = Vec::new();
    let failed = |source| ConfigError::Read { file: file.to_owned(), source };
    let reader = File::open(file).map_err(failed)?;
    reader.take(data.map_or(u64::MAX, |start| start as u64)).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Name and content, each with its length in front, so that no two lists of files give the same bytes.
fn update(hash: &mut Sha256, name: &str, content: &[u8]) {
    for part in [name.as_bytes(), content] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
}

fn weight_files(dir: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let failed = |source| ConfigError::Read { file: dir.to_owned(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if WEIGHT_ENDINGS.iter().any(|ending| name.ends_with(ending)) {
            files.push(file);
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
