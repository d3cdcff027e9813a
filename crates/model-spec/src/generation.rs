//! `generation_config.json`: tokens that end a sequence, and the model's sampling defaults.

use std::path::Path;

use serde_json::Value;

use crate::config::ConfigFile;
use crate::error::ConfigError;

/// What `generation_config.json` says; an absent file says nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Tokens that end a sequence.
    pub eos_token_ids: Vec<u32>,
    /// Token that begins a sequence.
    pub bos_token_id: Option<u32>,
    /// Padding token.
    pub pad_token_id: Option<u32>,
    /// Defaults for requests that leave a parameter out.
    pub sampling: SamplingDefaults,
}

/// Sampling parameters that a model asks for; absent ones stay at the server's defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingDefaults {
    /// Temperature.
    pub temperature: Option<f64>,
    /// Number of likeliest tokens to choose from.
    pub top_k: Option<u32>,
    /// Probability mass to choose from.
    pub top_p: Option<f64>,
    /// Least probability relative to the best token's.
    pub min_p: Option<f64>,
    /// Repetition penalty.
    pub repetition_penalty: Option<f64>,
    /// Limit on output tokens.
    pub max_new_tokens: Option<usize>,
}

impl GenerationConfig {
    /// Reads `generation_config.json` of a model folder.
    pub fn read(dir: &Path) -> Result<Self, ConfigError> {
        let file = ConfigFile::read_optional(&dir.join("generation_config.json"))?;
        file.map_or_else(|| Ok(Self::default()), |file| Self::from_config(&file))
    }

    fn from_config(file: &ConfigFile) -> Result<Self, ConfigError> {
        Ok(Self {
            eos_token_ids: file.token_ids("eos_token_id")?,
            bos_token_id: file.token_ids("bos_token_id")?.first().copied(),
            pad_token_id: file.token_ids("pad_token_id")?.first().copied(),
            sampling: SamplingDefaults {
                temperature: file.number_opt("temperature")?,
                // 0 and negative values switch top-k off, as if it were absent.
                top_k: file.number_opt("top_k")?.filter(|&k| k >= 1.0).map(|k| k as u32),
                top_p: file.number_opt("top_p")?,
                min_p: file.number_opt("min_p")?,
                repetition_penalty: file.number_opt("repetition_penalty")?,
                max_new_tokens: file.size_opt("max_new_tokens")?,
            },
        })
    }
}

/// All tokens that end a sequence, sorted: those of `config.json`, of `generation_config.json`, and the tokenizer's own, which people who
/// tune a model for chats often change there alone.
pub fn eos_token_ids(dir: &Path, config: &ConfigFile) -> Result<Vec<u32>, ConfigError> {
    let mut ids = config.token_ids("eos_token_id")?;
    ids.extend(GenerationConfig::read(dir)?.eos_token_ids);
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
    fn reads_and_merges() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(GenerationConfig::read(dir.path()).unwrap(), GenerationConfig::default());
        let text = r#"{"eos_token_id": [4, 2], "temperature": 0.7, "top_k": -1, "top_p": 0.9, "bos_token_id": 1}"#;
        std::fs::write(dir.path().join("generation_config.json"), text).unwrap();
        let generation = GenerationConfig::read(dir.path()).unwrap();
        assert_eq!((generation.sampling.temperature, generation.sampling.top_p), (Some(0.7), Some(0.9)));
        assert_eq!((generation.sampling.top_k, generation.bos_token_id), (None, Some(1)));
        let config = ConfigFile::parse(Path::new("config.json"), br#"{"eos_token_id": 9}"#).unwrap();
        assert_eq!(eos_token_ids(dir.path(), &config).unwrap(), [2, 4, 9]);
        for eos in [r#""<|im_end|>""#, r#"{"content": "<|im_end|>"}"#] {
            let added = r#"{"6": {"content": "<s>"}, "7": {"content": "<|im_end|>"}}"#;
            let text = format!(r#"{{"eos_token": {eos}, "added_tokens_decoder": {added}}}"#);
            std::fs::write(dir.path().join("tokenizer_config.json"), text).unwrap();
            assert_eq!(eos_token_ids(dir.path(), &config).unwrap(), [2, 4, 7, 9]);
        }
        std::fs::write(dir.path().join("tokenizer_config.json"), r#"{"eos_token": null}"#).unwrap();
        assert_eq!(eos_token_ids(dir.path(), &config).unwrap(), [2, 4, 9]);
    }

    #[test]
    fn a_broken_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("generation_config.json"), r#"{"top_p": "high"}"#).unwrap();
        let message = GenerationConfig::read(dir.path()).unwrap_err().to_string();
        assert!(message.contains("generation_config.json") && message.contains("top_p"), "{message}");
    }
}
