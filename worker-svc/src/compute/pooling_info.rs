//! What others are told of a model that pools.

use models::{
    Model,
    pooling::{PoolingMethod, PoolingSpec, PoolingTask, ScoreActivation, TokenOutputs},
};
use proto::{
    PoolingInfo,
    pooling::Tokens,
    pooling_info::{Activation, Task},
};

pub(super) fn pooling_info(spec: &PoolingSpec, model: &Model) -> PoolingInfo {
    let task = match spec.task {
        PoolingTask::Embed => Task::Embed,
        PoolingTask::TokenEmbed => Task::TokenEmbed,
        PoolingTask::Classify => Task::Classify,
        PoolingTask::Reward => Task::Reward,
    };
    let tokens = match spec.method {
        PoolingMethod::Last => Tokens::Last,
        PoolingMethod::Cls
        | PoolingMethod::Mean
        | PoolingMethod::Max
        | PoolingMethod::MeanSqrtLen
        | PoolingMethod::WeightedMean
        | PoolingMethod::SparseMax
        | PoolingMethod::SparseSum
        | PoolingMethod::Each => Tokens::All,
    };
    let activation = match spec.activation {
        ScoreActivation::None => Activation::None,
        ScoreActivation::Sigmoid => Activation::Sigmoid,
        ScoreActivation::Softmax => Activation::Softmax,
    };
    let token_outputs = spec.token_outputs.as_ref().map(|TokenOutputs { vector, bos_token, eos_token }| {
        proto::TokenOutputs { vector: *vector, bos_token: *bos_token, eos_token: *eos_token }
    });
    // A token's vector and weight lie behind a prompt's.
    let behind = token_outputs.map_or(0, |outputs| outputs.vector as usize + 1);
    let width = model.runner.output_width() - behind;
    PoolingInfo {
        task: task.into(),
        tokens: tokens.into(),
        width: width as u32,
        normalize: spec.normalize,
        activation: activation.into(),
        labels: spec.labels.clone(),
        matryoshka: spec.matryoshka.is_some(),
        matryoshka_dimensions: spec.matryoshka.clone().unwrap_or_default(),
        prompts: spec.prompts.clone().into_iter().collect(),
        default_prompt: spec.default_prompt.clone().unwrap_or_default(),
        step_token: spec.step_token,
        score_class: spec.score_class,
        token_outputs,
    }
}
