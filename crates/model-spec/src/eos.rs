//! Tokens that end a sequence, as a model's files name them.

use std::path::Path;

use serde_json::Value;

use crate::config::ConfigFile;
use crate::error::ConfigError;

/// All tokens that end a sequence, sorted: those of `config.json`, of `generation_config.json`, and the tokenizer's
/// own, which people who tune a model for chats often change there alone.
pub fn eos_token_ids(dir: &Path, config: Option<&ConfigFile>) -> Result<Vec<u32>, ConfigError> {
    let generation = ConfigFile::read_optional(&dir.join("generation_config.json"))?;
    let mut ids = Vec::new();
    for file in config.into_iter().chain(&generation) {
        ids.extend(file.token_ids("eos_token_id")?);
    }
    ids.extend(eos_of_tokenizer(dir)?);
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// The id that `tokenizer_config.json` lists for its `eos_token`.
fn eos_of_tokenizer(dir: &Path) -> Result<Option<u32>, ConfigError> {
    let Some(file) = ConfigFile::read_optional(&dir.join("tokenizer_config.json"))? else { return Ok(None) };
    let text = |token: &Value| token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_owned);
    let Some(eos) = file.get("eos_token").and_then(text) else { return Ok(None) };
    let listed = file.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten();
    Ok(listed.filter(|(_, token)| text(token).is_some_and(|text| text == eos)).find_map(|(id, _)| id.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_merged() {
        let dir = tempfile::tempdir().unwrap();
        assert!(eos_token_ids(dir.path(), None).unwrap().is_empty());
        std::fs::write(dir.path().join("generation_config.json"), r#"{"eos_token_id": [4, 2]}"#).unwrap();
        let config = ConfigFile::parse(Path::new("config.json"), br#"{"eos_token_id": 9}"#).unwrap();
        assert_eq!(eos_token_ids(dir.path(), None).unwrap(), [2, 4]);
        assert_eq!(eos_token_ids(dir.path(), Some(&config)).unwrap(), [2, 4, 9]);
        for eos in [r#""<|im_end|>""#, r#"{"content": "<|im_end|>"}"#] {
            let added = r#"{"6": {"content": "<s>"}, "7": {"content": "<|im_end|>"}}"#;
            let text = format!(r#"{{"eos_token": {eos}, "added_tokens_decoder": {added}}}"#);
            std::fs::write(dir.path().join("tokenizer_config.json"), text).unwrap();
            assert_eq!(eos_token_ids(dir.path(), Some(&config)).unwrap(), [2, 4, 7, 9]);
        }
        std::fs::write(dir.path().join("tokenizer_config.json"), r#"{"eos_token": null}"#).unwrap();
        assert_eq!(eos_token_ids(dir.path(), Some(&config)).unwrap(), [2, 4, 9]);
    }

    #[test]
    fn a_broken_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("generation_config.json"), r#"{"eos_token_id": "two"}"#).unwrap();
        let message = eos_token_ids(dir.path(), None).unwrap_err().to_string();
        assert!(message.contains("generation_config.json") && message.contains("eos_token_id"), "{message}");
    }
}
