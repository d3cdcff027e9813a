//! What the engine gave for the prompts of a job, and what becomes of it: sizes, lengths, probabilities, usage.

use proto::{PoolingInfo, pooling_info::Activation};
use serde_json::{Value, json};

use crate::{
    engine::mailbox::Update,
    error::{ApiError, Fault},
};

/// Outputs of a job's prompts, in their order.
pub struct Outputs {
    /// The numbers of each prompt's output.
    pub values: Vec<Vec<f32>>,
    /// Tokens of each prompt.
    pub prompt_tokens: Vec<u32>,
    /// Their ids, where they were asked for.
    pub prompt_ids: Vec<Vec<u32>>,
    /// Those of all prompts that were found in the prefix cache.
    pub cached: u32,
}

impl Outputs {
    /// Of an answer that is complete.
    pub fn of(update: Update, prompts: usize) -> Result<Self, ApiError> {
        let mut outputs = Self {
            values: vec![Vec::new(); prompts],
            prompt_tokens: vec![0; prompts],
            prompt_ids: vec![Vec::new(); prompts],
            cached: 0,
        };
        for (prompt, admitted) in update.admitted {
            if let Some(tokens) = outputs.prompt_tokens.get_mut(prompt as usize) {
                *tokens = admitted.prompt_tokens;
                outputs.cached += admitted.cached_tokens;
                outputs.prompt_ids[prompt as usize] = admitted.prompt_ids;
            }
        }
        for (choice, update) in update.grown {
            if let Some(values) = outputs.values.get_mut(choice as usize) {
                *values = update.details.map(|details| details.pooled).unwrap_or_default();
            }
        }
        match outputs.values.iter().any(Vec::is_empty) {
            // An operator ended it.
            true => Err(ApiError::new(Fault::Unavailable, "The request was aborted.")),
            false => Ok(outputs),
        }
    }

    /// The `usage` object.
    pub fn usage(&self, with_details: bool) -> Value {
        let tokens: u64 = self.prompt_tokens.iter().map(|tokens| u64::from(*tokens)).sum();
        let details = with_details.then(|| json!({"cached_tokens": self.cached}));
        json!({
            "prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": details,
        })
    }
}

/// What an embedding is cut and scaled to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmbeddingShape {
    /// Leading numbers that are kept; absent: all.
    pub dimensions: Option<usize>,
    /// Scaled to length one.
    pub normalize: bool,
}

impl EmbeddingShape {
    /// Cuts and scales an output.
    pub fn apply(self, values: &mut Vec<f32>) {
        values.truncate(self.dimensions.unwrap_or(usize::MAX));
        if self.normalize {
            normalize(values);
        }
    }
}

/// Scales a vector to length one.
pub fn normalize(values: &mut [f32]) {
    let length = values.iter().map(|value| f64::from(*value) * f64::from(*value)).sum::<f64>().sqrt();
    let factor = if length > 0.0 { (1.0 / length) as f32 } else { 1.0 };
    values.iter_mut().for_each(|value| *value *= factor);
}

/// Class scores as the model's probabilities.
pub fn activate(info: &PoolingInfo, values: &mut [f32]) {
    match info.activation() {
        Activation::None => {}
        Activation::Sigmoid => values.iter_mut().for_each(|value| *value = 1.0 / (1.0 + (-*value).exp())),
        Activation::Softmax => {
            let highest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            values.iter_mut().for_each(|value| *value = (*value - highest).exp());
            let sum: f32 = values.iter().sum();
            values.iter_mut().for_each(|value| *value /= sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embeddings_are_cut_before_they_are_scaled() {
        let mut values = vec![3.0, 4.0, 12.0];
        EmbeddingShape { dimensions: Some(2), normalize: true }.apply(&mut values);
        assert_eq!(values, [0.6, 0.8]);
        let mut nothing = vec![0.0; 2];
        EmbeddingShape { dimensions: None, normalize: true }.apply(&mut nothing);
        assert_eq!(nothing, [0.0; 2]);
    }

    #[test]
    fn probabilities_are_what_the_model_says() {
        let of = |activation: Activation, mut values: Vec<f32>| {
            activate(&PoolingInfo { activation: activation.into(), ..PoolingInfo::default() }, &mut values);
            values
        };
        assert_eq!(of(Activation::None, vec![5.0]), [5.0]);
        assert_eq!(of(Activation::Sigmoid, vec![0.0]), [0.5]);
        let softmax = of(Activation::Softmax, vec![1000.0, 1000.0]);
        assert_eq!(softmax, [0.5, 0.5]);
    }
}
