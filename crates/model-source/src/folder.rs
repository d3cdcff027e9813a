//! What makes a folder a complete model, and which of a repository's files that takes.

use std::{collections::BTreeSet, path::Path};

use serde::Deserialize;

use crate::{Need, SourceError};

pub(crate) const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// Small files worth having when a repository has them, sorted.
const SMALL: &[&str] = &[
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "preprocessor_config.json",
    "processor_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
];

/// The weight files that the index of a sharded model names.
#[derive(Deserialize)]
struct Index {
    weight_map: std::collections::BTreeMap<String, String>,
}

/// Refuses a folder that lacks something it obviously needs.
pub(crate) fn check(folder: &Path, need: Need) -> Result<(), SourceError> {
    match missing(folder, need) {
        None => Ok(()),
        Some(missing) => Err(SourceError::Incomplete { folder: folder.to_owned(), missing }),
    }
}

/// What a folder lacks, if anything.
pub(crate) fn missing(folder: &Path, need: Need) -> Option<String> {
    let has = |name: &str| folder.join(name).is_file();
    if !has("config.json") {
        return Some("config.json".to_owned());
    }
    if need == Need::NoWeights || has(SINGLE) && !has(INDEX) {
        return None;
    }
    if let Ok(text) = std::fs::read(folder.join(INDEX)) {
        return match shards(&text) {
            None => Some(format!("a readable {INDEX}")),
            Some(shards) => shards.into_iter().find(|shard| !has(shard)),
        };
    }
    let mut names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    if names.any(|name| name.to_str().is_some_and(is_weights)) {
        return None;
    }
    Some("a .safetensors file".to_owned())
}

/// The small files to fetch from a repository with these files.
pub(crate) fn small_files(names: &[String], need: Need) -> Vec<&str> {
    let wanted = |name: &&str| SMALL.contains(name) || need == Need::Everything && *name == INDEX;
    names.iter().map(String::as_str).filter(wanted).collect()
}

/// The weight files to fetch: those that the index names, else the single file, else every one.
///
/// Some repositories hold the same weights twice under different names; the index says which set belongs to `config.json`.
pub(crate) fn weight_files<'a>(names: &'a [String], index: Option<&[u8]>) -> Vec<&'a str> {
    let all = || names.iter().map(String::as_str).filter(|name| is_weights(name));
    if let Some(shards) = index.and_then(shards) {
        return all().filter(|name| shards.contains(*name)).collect();
    }
    if all().any(|name| name == SINGLE) {
        return vec![SINGLE];
    }
    all().collect()
}

fn is_weights(name: &str) -> bool {
    name.ends_with(".safetensors") && !name.contains('/') && !name.starts_with('.')
}

fn shards(index: &[u8]) -> Option<BTreeSet<String>> {
    let index: Index = serde_json::from_slice(index).ok()?;
    let shards: BTreeSet<_> = index.weight_map.into_values().collect();
    shards.iter().all(|shard| is_weights(shard)).then_some(shards)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn weights_follow_the_index() {
        let index = br#"{"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-1.safetensors"}}"#;
        let repository = names(&["consolidated.safetensors", "m-1.safetensors", "m-2.safetensors", "x/y.safetensors"]);
        assert_eq!(weight_files(&repository, Some(index)), ["m-1.safetensors", "m-2.safetensors"]);
        assert_eq!(weight_files(&names(&["consolidated.safetensors", SINGLE]), None), [SINGLE]);
        assert_eq!(weight_files(&names(&["a.safetensors", "b.bin"]), None), ["a.safetensors"]);
        assert!(weight_files(&names(&["b.bin"]), None).is_empty());
    }

    #[test]
    fn an_index_cannot_point_outside() {
        assert!(shards(br#"{"weight_map": {"a": "../../etc/x.safetensors"}}"#).is_none());
        assert!(shards(br#"{"weight_map": 3}"#).is_none());
    }

    #[test]
    fn missing_names_the_first_gap() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let gap = |need| missing(folder.path(), need);
        assert_eq!(gap(Need::NoWeights).as_deref(), Some("config.json"));
        write("config.json", "{}");
        assert_eq!(gap(Need::NoWeights), None);
        assert_eq!(gap(Need::Everything).as_deref(), Some("a .safetensors file"));
        write(INDEX, r#"{"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}"#);
        write("m-1.safetensors", "");
        assert_eq!(gap(Need::Everything).as_deref(), Some("m-2.safetensors"));
        write("m-2.safetensors", "");
        assert_eq!(gap(Need::Everything), None);
        write(INDEX, "not json");
        assert_eq!(gap(Need::Everything).as_deref(), Some("a readable model.safetensors.index.json"));
    }
}
