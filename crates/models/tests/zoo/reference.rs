//! What the reference library recorded for a model.

use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

/// Recorded outputs of a model.
pub struct Reference {
    pub prompts: Vec<Prompt>,
    pub float32: f32,
    pub bfloat16_median: f32,
    pub bfloat16_p90: f32,
}

pub struct Prompt {
    pub ids: Vec<u32>,
    /// At every position `[len][vocab]`; recorded for one prompt only.
    pub all_logits: Vec<Vec<f32>>,
    /// By layer `[len * hidden]`; the same.
    pub hidden: Vec<Vec<f32>>,
    pub last_logits: Vec<f32>,
    pub prompt_logprobs: Vec<f32>,
    pub greedy_tokens: Vec<u32>,
    pub greedy_logprobs: Vec<f32>,
    pub greedy_margins: Vec<f32>,
}

/// Reads `reference.json` and `reference.safetensors` of a folder.
pub fn read(dir: &Path) -> Reference {
    let json: Value =
        serde_json::from_slice(&std::fs::read(dir.join("reference.json")).expect("reference.json")).expect("JSON");
    let bytes = std::fs::read(dir.join("reference.safetensors")).expect("reference.safetensors");
    let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
    let get = |name: &str| floats(&tensors, name);
    let prompts = json["prompts"].as_array().expect("prompts").iter().enumerate();
    let vocab = get("prompt0.last_logits").expect("logits").len();
    let rows = |all: Vec<f32>| all.chunks_exact(vocab).map(<[f32]>::to_vec).collect();
    let prompts = prompts.map(|(k, prompt)| Prompt {
        ids: ids(&prompt["ids"]),
        all_logits: get(&format!("prompt{k}.all_logits")).map_or_else(Vec::new, rows),
        hidden: (0..).map_while(|layer| get(&format!("prompt{k}.hidden.{layer}"))).collect(),
        last_logits: get(&format!("prompt{k}.last_logits")).expect("logits"),
        prompt_logprobs: get(&format!("prompt{k}.prompt_logprobs")).expect("logprobs"),
        greedy_tokens: ids(&prompt["greedy_tokens"]),
        greedy_logprobs: numbers(&prompt["greedy_logprobs"]),
        greedy_margins: numbers(&prompt["greedy_margins"]),
    });
    let prompts: Vec<Prompt> = prompts.collect();
    let tolerance = |key: &str| json["tolerance"][key].as_f64().expect("a tolerance") as f32;
    Reference {
        float32: tolerance("float32_max_abs_logit_diff"),
        bfloat16_median: tolerance("bfloat16_median_position_abs_logit_diff"),
        bfloat16_p90: tolerance("bfloat16_p90_position_abs_logit_diff"),
        prompts,
    }
}

/// Token ids of a JSON list.
pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("a list").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// Numbers of a JSON list.
pub fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number") as f32).collect()
}

/// A tensor of float32, if it is there.
pub fn floats(tensors: &SafeTensors<'_>, name: &str) -> Option<Vec<f32>> {
    let tensor = tensors.tensor(name).ok()?;
    assert_eq!(tensor.dtype(), Dtype::F32, "{name}");
    Some(tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}
