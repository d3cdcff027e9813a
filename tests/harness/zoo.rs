//! The reference models, and what they must say.

use std::path::PathBuf;

use serde_json::Value;

/// Where the reference models are: the folder in `QUIRE_ZOO`, `../shared/zoo` beside the repository, or the fixtures in it.
pub fn folder() -> PathBuf {
    if let Some(path) = std::env::var_os("QUIRE_ZOO") {
        return path.into();
    }
    let beside = crate::root().join("../shared/zoo");
    if beside.is_dir() { beside } else { crate::root().join("tests/fixtures/zoo") }
}

/// One prompt of a reference and its greedy continuation.
#[derive(Clone, Debug)]
pub struct Case {
    /// Prompt token ids.
    pub prompt: Vec<u32>,
    /// Greedy tokens in float32.
    pub greedy: Vec<u32>,
}

/// The cases of a model of the zoo; `None` when this zoo lacks it.
pub fn cases(model: &str) -> Option<Vec<Case>> {
    let reference = std::fs::read_to_string(folder().join(model).join("reference.json")).ok()?;
    let reference: Value = serde_json::from_str(&reference).ok()?;
    let prompts = reference["prompts"].as_array()?;
    Some(prompts.iter().map(|p| Case { prompt: ids(&p["ids"]), greedy: ids(&p["greedy_tokens"]) }).collect())
}

/// The models of this zoo that generate text and are stored in a way that is served, sorted. Quantised checkpoints are refused, but for
/// those whose tensors name their type themselves (GGUF) and MXFP4.
pub fn causal_models() -> std::io::Result<Vec<String>> {
    let mut models = Vec::new();
    for entry in std::fs::read_dir(folder())? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let generates = cases(&name).is_some_and(|cases| {
            !cases.is_empty() && cases.iter().all(|case| !case.prompt.is_empty() && !case.greedy.is_empty())
        });
        if generates && is_served(&name) {
            models.push(name);
        }
    }
    models.sort_unstable();
    Ok(models)
}

fn is_served(model: &str) -> bool {
    let folder = folder().join(model);
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap_or_default();
    let config: Value = serde_json::from_str(&config).unwrap_or_default();
    let method = config["quantization_config"]["quant_method"].as_str();
    let has_encoder = config.get("vision_config").is_some() || config["model_type"] == "whisper";
    let is_adapter = folder.join("adapter_config.json").exists();
    let is_quantised = method.is_some_and(|method| method != "mxfp4") || folder.join("quant_config.json").exists();
    !has_encoder && !is_adapter && !is_quantised
}

/// The cases of the model that ships.
pub fn default_model_cases() -> Vec<Case> {
    let path = crate::root().join("crates/default-model/files/reference.json");
    let text = std::fs::read_to_string(path).expect("the default model's reference");
    let reference: Value = serde_json::from_str(&text).expect("JSON");
    let prompts = reference["prompts"].as_array().expect("prompts");
    prompts.iter().map(|p| Case { prompt: ids(&p["prompt_ids"]), greedy: ids(&p["main"]["ids"]) }).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().into_iter().flatten().filter_map(|id| id.as_u64().map(|id| id as u32)).collect()
}
