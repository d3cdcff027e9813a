//! What others are told of a model that pools.

use models::{
    Model,
    pooling::{PoolingMethod, PoolingSpec, PoolingTask, ScoreActivation},
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
    PoolingInfo {
        task: task.into(),
        tokens: tokens.into(),
        width: model.runner.output_width() as u32,
        normalize: spec.normalize,
        activation: activation.into(),
        labels: spec.labels.clone(),
        matryoshka: spec.matryoshka.is_some(),
        matryoshka_dimensions: spec.matryoshka.clone().unwrap_or_default(),
        prompts: spec.prompts.clone().into_iter().collect(),
        default_prompt: spec.default_prompt.clone().unwrap_or_default(),
        step_token: spec.step_token,
        score_class: spec.score_class,
    }
}
