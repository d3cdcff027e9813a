//! The reference models, and what they must say.

use std::path::PathBuf;

use serde_json::Value;

/// Where the reference models are: the folder in `QUIRE_ZOO`, `../shared/zoo` beside the repository, or the fixtures in
/// it.
pub fn folder() -> PathBuf {
    if let Some(path) = std::env::var_os("QUIRE_ZOO") {
        return path.into();
    }
    let beside = crate::root().join("../shared/zoo");
    if beside.is_dir() { beside } else { crate::root().join("tests/fixtures/zoo") }
}

/// Models that were made for this repository, with references like the zoo's.
const MADE: &str = "tests/fixtures/made";

/// Where a reference model is: in the zoo, or among those that were made for this repository.
pub fn path(model: &str) -> PathBuf {
    let made = crate::root().join(MADE).join(model);
    if made.is_dir() { made } else { folder().join(model) }
}

/// What was recorded of a model.
#[derive(Clone, Debug)]
pub struct Reference {
    /// Prompts and what follows.
    pub cases: Vec<Case>,
    /// Largest difference of a log-probability in float32.
    pub float32: f64,
    /// Bound on the median difference in bfloat16, over positions.
    pub bfloat16_median: f64,
    /// Bound on the 90 % quantile of differences in bfloat16.
    pub bfloat16_p90: f64,
}

/// One prompt of a reference and its greedy continuation.
#[derive(Clone, Debug)]
pub struct Case {
    /// Prompt token ids.
    pub prompt: Vec<u32>,
    /// Greedy tokens in float32.
    pub greedy: Vec<u32>,
    /// Log-probabilities of the prompt's tokens from the second on.
    pub prompt_logprobs: Vec<f64>,
    /// Log-probabilities of the greedy tokens.
    pub greedy_logprobs: Vec<f64>,
    /// How far the best token's logit is above the second's.
    pub greedy_margins: Vec<f64>,
}

impl Case {
    /// Tokens of prompt and continuation.
    pub fn tokens(&self) -> usize {
        self.prompt.len() + self.greedy.len()
    }
}

/// What was recorded of a model of the zoo; `None` when this zoo lacks it, or holds something else under that name.
pub fn reference(model: &str) -> Option<Reference> {
    let reference = std::fs::read_to_string(path(model).join("reference.json")).ok()?;
    let reference: Value = serde_json::from_str(&reference).ok()?;
    let tolerance = |key: &str| reference["tolerance"][key].as_f64();
    Some(Reference {
        cases: reference["prompts"].as_array()?.iter().map(case).collect(),
        float32: tolerance("float32_max_abs_logit_diff")?,
        bfloat16_median: tolerance("bfloat16_median_position_abs_logit_diff")?,
        bfloat16_p90: tolerance("bfloat16_p90_position_abs_logit_diff")?,
    })
}

/// What was recorded of a model that pools: its `reference.json`; `None` when this zoo lacks it.
pub fn pooled(model: &str) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(path(model).join("reference.json")).ok()?).ok()
}

/// A float32 tensor of a model's `reference.safetensors`.
pub fn tensor(model: &str, name: &str) -> Option<Vec<f32>> {
    let bytes = std::fs::read(path(model).join("reference.safetensors")).ok()?;
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let (header, data) = rest.split_at_checked(u64::from_le_bytes(*length) as usize)?;
    let header: Value = serde_json::from_slice(header).ok()?;
    let offset = |index: usize| header[name]["data_offsets"][index].as_u64().map(|offset| offset as usize);
    let (values, _) = data.get(offset(0)?..offset(1)?)?.as_chunks::<4>();
    Some(values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

fn case(prompt: &Value) -> Case {
    Case {
        prompt: ids(&prompt["ids"]),
        greedy: ids(&prompt["greedy_tokens"]),
        prompt_logprobs: numbers(&prompt["prompt_logprobs"]),
        greedy_logprobs: numbers(&prompt["greedy_logprobs"]),
        greedy_margins: numbers(&prompt["greedy_margins"]),
    }
}

/// The cases of a model of the zoo; `None` when this zoo lacks it.
pub fn cases(model: &str) -> Option<Vec<Case>> {
    Some(reference(model)?.cases)
}

/// The models of this zoo, and those made for this repository, that generate text and are stored in a way that is
/// served, sorted. Quantised checkpoints are refused, but for
/// those whose tensors name their type themselves (GGUF), AWQ, FP8 and MXFP4.
pub fn causal_models() -> std::io::Result<Vec<String>> {
    let mut models = Vec::new();
    let made = std::fs::read_dir(crate::root().join(MADE))?;
    for entry in std::fs::read_dir(folder())?.chain(made) {
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
    let folder = path(model);
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap_or_default();
    let config: Value = serde_json::from_str(&config).unwrap_or_default();
    let method = config["quantization_config"]["quant_method"].as_str();
    let has_encoder = config.get("vision_config").is_some() || config["model_type"] == "whisper";
    let is_adapter = folder.join("adapter_config.json").exists();
    let weights = &config["quantization_config"]["config_groups"]["group_0"]["weights"]["type"];
    let is_stored_otherwise = match method {
        None | Some("awq" | "fp8" | "mxfp4") => folder.join("quant_config.json").exists(),
        Some("compressed-tensors") => weights != "float",
        Some(_) => true,
    };
    !has_encoder && !is_adapter && !is_stored_otherwise
}

/// The cases of the model that ships: prompts and greedy tokens alone.
pub fn default_model_cases() -> Vec<Case> {
    let path = crate::root().join("crates/default-model/files/reference.json");
    let text = std::fs::read_to_string(path).expect("the default model's reference");
    let reference: Value = serde_json::from_str(&text).expect("JSON");
    let case = |prompt: &Value| Case {
        prompt: ids(&prompt["prompt_ids"]),
        greedy: ids(&prompt["main"]["ids"]),
        prompt_logprobs: Vec::new(),
        greedy_logprobs: numbers(&prompt["main"]["logprobs"]),
        greedy_margins: Vec::new(),
    };
    reference["prompts"].as_array().expect("prompts").iter().map(case).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().into_iter().flatten().filter_map(|id| id.as_u64().map(|id| id as u32)).collect()
}

/// Numbers of a list, without its nulls: a first token has no probability.
fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}
