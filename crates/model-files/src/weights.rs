//! The files that hold a model's weights.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::{
    FilesError, Format, Pick, is_lfs_pointer,
    pick::{parts, pick},
};

/// The files that hold a model's weights: all there, none a mere pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightFiles {
    /// How they are stored.
    pub format: Format,
    /// Their paths, in order.
    pub files: Vec<PathBuf>,
}

/// What the index of a sharded model says: which file holds which tensor.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl WeightFiles {
    /// The weight files of a model: of a folder, or the `.gguf` file that `model` itself is.
    ///
    /// # Errors
    /// When there are none, or files that belong to them are missing.
    pub fn find(model: &Path) -> Result<Self, FilesError> {
        let (dir, found) = match model.file_name().and_then(|name| name.to_str()) {
            Some(name) if is_gguf(model) => {
                (model.parent().unwrap_or(Path::new("")), Pick::Files(Format::Gguf, parts(name)))
            }
            _ => (model, pick(names(model)?.iter().map(String::as_str))),
        };
        let (format, names, named_by) = match found {
            Pick::Files(format, files) => (format, files.clone(), files[0].clone()),
            Pick::Index(format, index) => (format, shards(&dir.join(&index))?.into_iter().collect(), index),
            Pick::OneOf(names) => return Err(FilesError::SeveralGguf { dir: dir.to_owned(), names }),
            Pick::Nothing => return Err(nothing(dir)),
        };
        let files: Vec<PathBuf> = names.iter().map(|name| dir.join(name)).collect();
        for file in &files {
            if !file.is_file() {
                return Err(FilesError::MissingShard { file: file.clone(), named_by });
            }
            if is_lfs_pointer(file) {
                return Err(FilesError::LfsPointer { file: file.clone() });
            }
        }
        Ok(Self { format, files })
    }
}

/// The GGUF file that speaks for a model: itself, or the one of a folder that holds no weights in another format. The
/// first one of a split.
///
/// # Errors
/// When the folder holds several, or a part is missing. A folder without any is no error.
pub fn gguf_of(model: &Path) -> Result<Option<PathBuf>, FilesError> {
    let names = if is_gguf(model) { Vec::new() } else { names(model).unwrap_or_default() };
    match pick(names.iter().map(String::as_str)) {
        Pick::Files(Format::Gguf, _) | Pick::OneOf(_) => {}
        _ if is_gguf(model) => {}
        _ => return Ok(None),
    }
    WeightFiles::find(model).map(|found| found.files.into_iter().next())
}

fn is_gguf(model: &Path) -> bool {
    model.extension().is_some_and(|extension| extension == "gguf") && !model.is_dir()
}

fn names(dir: &Path) -> Result<Vec<String>, FilesError> {
    let failed = |source| FilesError::Read { file: dir.to_owned(), source };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    Ok(names)
}

/// The files that an index names.
fn shards(index: &Path) -> Result<BTreeSet<String>, FilesError> {
    let text = std::fs::read(index).map_err(|source| FilesError::Read { file: index.to_owned(), source })?;
    shards_of(&text).map_err(|reason| match is_lfs_pointer(index) {
        true => FilesError::LfsPointer { file: index.to_owned() },
        false => FilesError::Damaged { file: index.to_owned(), reason },
    })
}

/// The files that the text of an index names, sorted.
///
/// # Errors
/// When it is not what an index is; the text says why.
pub fn shards_of(index: &[u8]) -> Result<BTreeSet<String>, String> {
    let Index { weight_map } = serde_json::from_slice(index).map_err(|error| error.to_string())?;
    let shards: BTreeSet<String> = weight_map.into_values().collect();
    // A name with a slash could lead out of the folder.
    match shards.iter().find(|name| name.contains('/') || name.starts_with('.') || name.is_empty()) {
        Some(name) => Err(format!("weight_map names the file {name:?}")),
        None if shards.is_empty() => Err("weight_map is empty".to_owned()),
        None => Ok(shards),
    }
}

/// Says what is there instead.
fn nothing(dir: &Path) -> FilesError {
    let dir = dir.to_owned();
    if let Ok(text) = std::fs::read(dir.join("adapter_config.json")) {
        let config: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
        let base = config.get("base_model_name_or_path").and_then(|name| name.as_str());
        return FilesError::AdapterOnly { dir, base: base.map(|name| format!(" ({name})")).unwrap_or_default() };
    }
    let mut others = names(&dir).unwrap_or_default();
    others.retain(|name| [".bin", ".pt", ".pth", ".safetensors", ".onnx", ".h5"].iter().any(|end| name.ends_with(end)));
    others.sort();
    let found = if others.is_empty() { String::new() } else { format!(" (but {})", others.join(", ")) };
    FilesError::NoWeights { dir, found }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new(files: &[(&str, &str)]) -> Self {
            let folder = tempfile::tempdir().unwrap();
            files.iter().for_each(|(name, text)| std::fs::write(folder.path().join(name), text).unwrap());
            Self(folder)
        }

        fn found(&self) -> (Format, Vec<String>) {
            let found = WeightFiles::find(self.0.path()).unwrap();
            let name = |file: &PathBuf| file.file_name().unwrap().to_str().unwrap().to_owned();
            (found.format, found.files.iter().map(name).collect())
        }

        fn refused(&self, words: &[&str]) {
            let message = WeightFiles::find(self.0.path()).unwrap_err().to_string();
            assert!(words.iter().all(|word| message.contains(word)), "{message} lacks one of {words:?}");
        }
    }

    #[test]
    fn indices_name_files() {
        let index = r#"{"metadata": {}, "weight_map": {"a": "p-2.bin", "b": "p-1.bin", "c": "p-2.bin"}}"#;
        let folder = Folder::new(&[("pytorch_model.bin.index.json", index), ("p-1.bin", ""), ("p-2.bin", "")]);
        assert_eq!(folder.found(), (Format::Torch, vec!["p-1.bin".to_owned(), "p-2.bin".to_owned()]));
        std::fs::remove_file(folder.0.path().join("p-2.bin")).unwrap();
        folder.refused(&["p-2.bin", "pytorch_model.bin.index.json names it"]);
    }

    #[test]
    fn faults_are_named() {
        const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
        let index = "model.safetensors.index.json";
        Folder::new(&[]).refused(&["--load-format dummy"]);
        Folder::new(&[("consolidated.00.pth", "")]).refused(&["(but consolidated.00.pth)"]);
        Folder::new(&[("model.safetensors", POINTER)])
            .refused(&["model.safetensors is a Git LFS pointer", "git lfs pull"]);
        Folder::new(&[(index, POINTER)]).refused(&[index, "git lfs pull"]);
        let adapter = r#"{"base_model_name_or_path": "owner/base"}"#;
        Folder::new(&[("adapter_config.json", adapter), ("adapter_model.safetensors", "")])
            .refused(&["only a LoRA adapter", "owner/base"]);
        for (text, word) in [
            ("{}", "weight_map"),
            ("[", "EOF"),
            (r#"{"weight_map": {}}"#, "empty"),
            (r#"{"weight_map": {"a": "../x"}}"#, "../x"),
            (r#"{"weight_map": {"a": 3}}"#, "invalid type"),
        ] {
            Folder::new(&[(index, text)]).refused(&[index, word]);
        }
        Folder::new(&[("b.gguf", ""), ("a.gguf", "")]).refused(&["a.gguf, b.gguf"]);
    }

    #[test]
    fn a_gguf_file_is_a_model() {
        let folder = Folder::new(&[("b.gguf", ""), ("a.gguf", ""), ("s-00001-of-00002.gguf", "")]);
        let file = |name: &str| folder.0.path().join(name);
        assert_eq!(gguf_of(&file("a.gguf")).unwrap(), Some(file("a.gguf")));
        assert!(gguf_of(&file("s-00001-of-00002.gguf")).is_err());
        assert!(gguf_of(folder.0.path()).is_err());
        let one = Folder::new(&[("m.gguf", ""), ("config.json", "{}")]);
        assert_eq!(gguf_of(one.0.path()).unwrap(), Some(one.0.path().join("m.gguf")));
        let other = Folder::new(&[("m.gguf", ""), ("model.safetensors", "")]);
        assert_eq!(gguf_of(other.0.path()).unwrap(), None);
        assert_eq!(gguf_of(Folder::new(&[]).0.path()).unwrap(), None);
    }
}
