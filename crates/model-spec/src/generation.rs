//! `generation_config.json`: tokens that end a sequence, and the model's sampling defaults.

use std::path::Path;

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

/// All tokens that end a sequence, sorted: those of `config.json` and those of `generation_config.json`.
pub fn eos_token_ids(config: &ConfigFile, generation: &GenerationConfig) -> Result<Vec<u32>, ConfigError> {
    let mut ids = config.token_ids("eos_token_id")?;
    ids.extend(&generation.eos_token_ids);
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
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
        assert_eq!(eos_token_ids(&config, &generation).unwrap(), [2, 4, 9]);
    }

    #[test]
    fn a_broken_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("generation_config.json"), r#"{"top_p": "high"}"#).unwrap();
        let message = GenerationConfig::read(dir.path()).unwrap_err().to_string();
        assert!(message.contains("generation_config.json") && message.contains("top_p"), "{message}");
    }
}
