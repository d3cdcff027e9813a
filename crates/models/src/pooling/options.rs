//! What the user says of pooling: `--runner`, `--convert`, `--pooler-config`.

use std::str::FromStr;

use serde_json::{Map, Value};

use super::PoolingMethod;

/// What a model is run for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RunnerType {
    /// What its files say.
    #[default]
    Auto,
    /// To generate text.
    Generate,
    /// To pool prompts.
    Pooling,
}

/// What a model becomes that was made for something else.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Conversion {
    /// What is closest to what it was made for.
    #[default]
    Auto,
    /// Nothing else.
    None,
    /// One that gives a vector a prompt.
    Embed,
    /// One that gives class scores.
    Classify,
    /// One that gives each token's numbers.
    Reward,
}

/// What the user says.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PoolingOptions {
    /// What the model is run for.
    pub runner: RunnerType,
    /// What it becomes.
    pub convert: Conversion,
    /// What counts instead of what its files say.
    pub pooler: PoolerConfig,
}

/// `--pooler-config`: what counts instead of what the model's files say.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PoolerConfig {
    /// `pooling_type`, or `seq_pooling_type`.
    pub method: Option<PoolingMethod>,
    /// `normalize`, or `use_activation` of embeddings.
    pub normalize: Option<bool>,
    /// `use_activation` of scores, or `softmax`.
    pub activation: Option<bool>,
    /// `step_tag_id`.
    pub step_token: Option<u32>,
    /// `classifier_from_token`: one or two, whose logits are class scores of a model that generates text; the last is
    /// what a pair is scored by.
    pub tokens: Option<Vec<ClassToken>>,
}

/// A token, as the user names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClassToken {
    /// By its text in the vocabulary.
    Text(String),
    /// By its id.
    Id(u32),
}

impl FromStr for PoolerConfig {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fields: Map<String, Value> =
            serde_json::from_str(text).map_err(|error| format!("expected a JSON object: {error}"))?;
        let mut config = Self::default();
        for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            config.set(name, value)?;
        }
        Ok(config)
    }
}

impl PoolerConfig {
    fn set(&mut self, name: &str, value: &Value) -> Result<(), String> {
        let flag = || value.as_bool().ok_or_else(|| format!("{name}: expected true or false, got {value}"));
        match name {
            "pooling_type" | "seq_pooling_type" => self.method = Some(method(name, value)?),
            "normalize" => self.normalize = Some(flag()?),
            "softmax" => self.activation = Some(flag()?),
            "activation" | "use_activation" => {
                self.normalize = Some(flag()?);
                self.activation = self.normalize;
            }
            "step_tag_id" => {
                let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
                self.step_token = Some(id.ok_or_else(|| format!("{name}: expected a token id, got {value}"))?);
            }
            "classifier_from_token" => self.tokens = Some(class_tokens(name, value)?),
            _ => {
                let known = "pooling_type, seq_pooling_type, normalize, softmax, use_activation, step_tag_id and \
                             classifier_from_token";
                return Err(format!("{name} is not supported; there are {known}"));
            }
        }
        Ok(())
    }
}

/// The tokens that a value names.
pub(super) fn class_tokens(name: &str, value: &Value) -> Result<Vec<ClassToken>, String> {
    let token = |value: &Value| match value {
        Value::String(text) => Some(ClassToken::Text(text.clone())),
        other => other.as_u64().and_then(|id| u32::try_from(id).ok()).map(ClassToken::Id),
    };
    let tokens: Option<Vec<ClassToken>> = value.as_array().and_then(|list| list.iter().map(token).collect());
    let some = tokens.filter(|tokens| matches!(tokens.len(), 1 | 2));
    some.ok_or_else(|| format!("{name}: expected one token or two, like [\"no\", \"yes\"], got {value}"))
}

fn method(name: &str, value: &Value) -> Result<PoolingMethod, String> {
    match value.as_str().map(str::to_ascii_uppercase).as_deref() {
        Some("CLS") => Ok(PoolingMethod::Cls),
        Some("LAST") => Ok(PoolingMethod::Last),
        Some("MEAN") => Ok(PoolingMethod::Mean),
        Some("ALL" | "STEP") => Ok(PoolingMethod::Each),
        _ => Err(format!("{name}: expected CLS, LAST, MEAN, ALL or STEP, got {value}")),
    }
}
