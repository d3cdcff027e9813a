//! `--hf-overrides`: keys of the model's `config.json` that count instead of its own.
//!
//! The processes read the model's folder each for itself. They are given a folder of links to its files, with a
//! `config.json` of its own, so that all of them see the same.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::{Map, Value};

const CONFIG: &str = "config.json";

/// The model's folder with these overrides, made inside `room`; the folder itself where there are none.
pub fn overridden(model: &Path, overrides: Option<&str>, room: &Path) -> anyhow::Result<PathBuf> {
    let overrides = parse(overrides.unwrap_or("{}"))?;
    if overrides.is_empty() {
        return Ok(model.to_owned());
    }
    if !model.is_dir() {
        bail!("--hf-overrides: {} has no config.json: it is a GGUF file", model.display());
    }
    let file = model.join(CONFIG);
    let text = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut config: Map<String, Value> =
        serde_json::from_slice(&text).with_context(|| format!("{} is no JSON object", file.display()))?;
    config.extend(overrides);
    let folder = room.join("model");
    link_all(model, &folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::write(folder.join(CONFIG), serde_json::to_vec_pretty(&config)?)?;
    Ok(folder)
}

/// Keys and values; a value that is `null` stands for an absent key.
fn parse(text: &str) -> anyhow::Result<Map<String, Value>> {
    serde_json::from_str(text).with_context(|| format!("--hf-overrides: expected a JSON object, got {text}"))
}

fn link_all(model: &Path, folder: &Path) -> anyhow::Result<()> {
    let model = model.canonicalize()?;
    fs::create_dir(folder)?;
    for entry in fs::read_dir(&model)? {
        let name = entry?.file_name();
        if name != CONFIG {
            symlink(model.join(&name), folder.join(&name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_replaced_and_files_linked() {
        let (model, room) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        fs::write(model.path().join(CONFIG), r#"{"architectures": ["A"], "size": 1}"#).expect("written");
        fs::write(model.path().join("tokenizer.json"), "{}").expect("written");
        fs::create_dir(model.path().join("1_Pooling")).expect("a folder");
        let of = |text: &str| overridden(model.path(), Some(text), room.path());
        assert_eq!(of("{}").expect("nothing to do"), model.path());
        assert_eq!(overridden(model.path(), None, room.path()).expect("nothing to do"), model.path());
        let folder = of(r#"{"architectures": ["B"], "is_causal": false}"#).expect("a folder of links");
        let config: Value = serde_json::from_slice(&fs::read(folder.join(CONFIG)).expect("a file")).expect("JSON");
        assert_eq!(config, serde_json::json!({"architectures": ["B"], "size": 1, "is_causal": false}));
        assert!(folder.join("tokenizer.json").is_file() && folder.join("1_Pooling").is_dir());
        let untouched = fs::read_to_string(model.path().join(CONFIG)).expect("a file");
        assert_eq!(untouched, r#"{"architectures": ["A"], "size": 1}"#);
    }

    #[test]
    fn what_cannot_be_overridden_is_refused() {
        let room = tempfile::tempdir().expect("a folder");
        let refusal = |model: &Path, text: &str| overridden(model, Some(text), room.path()).unwrap_err().to_string();
        assert!(refusal(room.path(), "[1]").contains("expected a JSON object, got [1]"));
        let gguf = room.path().join("m.gguf");
        fs::write(&gguf, "").expect("written");
        assert!(refusal(&gguf, r#"{"a": 1}"#).contains("GGUF"));
        assert!(refusal(room.path(), r#"{"a": 1}"#).contains("config.json"));
    }
}
