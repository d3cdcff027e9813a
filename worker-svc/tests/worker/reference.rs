//! What the zoo recorded of its models.

use std::path::PathBuf;

use serde_json::Value;

/// A prompt and what follows it.
pub struct Recorded {
    pub prompt: Vec<u32>,
    /// Of the prompt's tokens but the first.
    pub prompt_logprobs: Vec<f64>,
    pub greedy: Vec<u32>,
    pub greedy_logprobs: Vec<f64>,
}

/// The folder of a fixture model.
pub fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/zoo").join(name)
}

/// All prompts of a fixture model.
pub fn recorded(name: &str) -> Vec<Recorded> {
    let text = std::fs::read_to_string(folder(name).join("reference.json")).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    let ids = |list: &Value| list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    let floats = |list: &Value| list.as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    let one = |prompt: &Value| Recorded {
        prompt: ids(&prompt["ids"]),
        prompt_logprobs: floats(&prompt["prompt_logprobs"]),
        greedy: ids(&prompt["greedy_tokens"]),
        greedy_logprobs: floats(&prompt["greedy_logprobs"]),
    };
    json["prompts"].as_array().unwrap().iter().map(one).collect()
}
