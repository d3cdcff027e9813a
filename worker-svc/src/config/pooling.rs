//! Flags that say what the model is run for.

use std::path::Path;

use anyhow::Context;
use clap::ValueEnum;
use models::pooling::{ClassToken, Conversion, PoolerConfig, PoolingOptions, PoolingPlan, RunnerType};
use tokenizer::Tokenizer;

/// What a model is run for: to generate text, or to pool prompts.
#[derive(clap::Args, Clone, Debug)]
pub struct PoolingArgs {
    /// What the model is run for; auto: what its files say
    #[arg(long, value_name = "RUNNER", default_value = "auto")]
    pub runner: Runner,

    /// What a model becomes that was made for something else; auto: what is closest, none: nothing
    #[arg(long, value_name = "TASK", default_value = "auto")]
    pub convert: Convert,

    /// The same in one word, vLLM's older one
    #[arg(long, value_name = "TASK", conflicts_with_all = ["runner", "convert"])]
    pub task: Option<Task>,

    /// How prompts are pooled, as JSON: pooling_type (CLS, LAST, MEAN, ALL), normalize, use_activation, step_tag_id
    #[arg(long, value_name = "JSON")]
    pub pooler_config: Option<PoolerConfig>,
}

/// What a model is run for.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runner {
    /// What its files say.
    Auto,
    /// To generate text.
    Generate,
    /// To pool prompts.
    Pooling,
}

/// What a model becomes.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Convert {
    /// What is closest to what it was made for.
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

/// What a model is run for, in one word.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// What its files say.
    Auto,
    /// Text.
    Generate,
    /// A vector a prompt.
    #[value(alias = "embedding")]
    Embed,
    /// Class scores.
    Classify,
    /// Scores of pairs, by class scores or by vectors.
    Score,
    /// Each token's numbers.
    Reward,
}

impl PoolingArgs {
    /// How the model of a folder pools; absent where it generates text. `tokenizer`: where tokens are looked up.
    pub(crate) fn plan(&self, model: &Path, tokenizer: &Path) -> anyhow::Result<Option<PoolingPlan>> {
        let mut options = self.options();
        if options.pooler.tokens.is_none() && options.runner != RunnerType::Generate {
            options.pooler.tokens = models::pooling::class_tokens(model)?;
        }
        for token in options.pooler.tokens.iter_mut().flatten() {
            if let ClassToken::Text(text) = token {
                let id = Tokenizer::load(tokenizer)?.token_to_id(text);
                let id = id.with_context(|| format!("classifier_from_token: there is no token {text:?}"))?;
                *token = ClassToken::Id(id);
            }
        }
        Ok(models::pooling::plan(model, &options)?)
    }

    /// What the flags say together.
    pub(crate) fn options(&self) -> PoolingOptions {
        let (runner, convert) = match self.task {
            None => (self.runner, self.convert),
            Some(Task::Auto) => (Runner::Auto, Convert::Auto),
            Some(Task::Generate) => (Runner::Generate, Convert::Auto),
            Some(Task::Score) => (Runner::Pooling, Convert::Auto),
            Some(Task::Embed) => (Runner::Pooling, Convert::Embed),
            Some(Task::Classify) => (Runner::Pooling, Convert::Classify),
            Some(Task::Reward) => (Runner::Pooling, Convert::Reward),
        };
        PoolingOptions {
            runner: match runner {
                Runner::Auto => RunnerType::Auto,
                Runner::Generate => RunnerType::Generate,
                Runner::Pooling => RunnerType::Pooling,
            },
            convert: match convert {
                Convert::Auto => Conversion::Auto,
                Convert::None => Conversion::None,
                Convert::Embed => Conversion::Embed,
                Convert::Classify => Conversion::Classify,
                Convert::Reward => Conversion::Reward,
            },
            pooler: self.pooler_config.clone().unwrap_or_default(),
        }
    }
}
