//! What a model gives that pools prompts instead of continuing them: which tasks, from which tokens, scaled how.
//!
//! The facts come from the model's class, from the files that sentence-transformers writes beside it
//! (`sentence_transformers.rs`), and from what the user says ([`PoolingOptions`]), the last one first.

mod options;
mod sentence_transformers;

use std::collections::BTreeMap;
use std::path::Path;

use model_spec::{ConfigError, ConfigFile, HeadSpec, Mask, MixerSpec, ModelSpec, ProjectionSpec, ScoredTokens};

use crate::arch;
use crate::error::LoadError;
use crate::load::{NetworkHead, ScoreTokens};
pub use options::{ClassToken, Conversion, PoolerConfig, PoolingOptions, RunnerType};
use sentence_transformers::SentenceFiles;

/// What a model gives that pools prompts.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolingSpec {
    /// What it is made for.
    pub task: PoolingTask,
    /// Which tokens' outputs count.
    pub method: PoolingMethod,
    /// Embeddings are scaled to length one.
    pub normalize: bool,
    /// What turns class scores into probabilities.
    pub activation: ScoreActivation,
    /// Names of the classes, by number; empty where the model names none.
    pub labels: Vec<String>,
    /// Sizes that embeddings may be cut to: none of them, these, or any where the list is empty.
    pub matryoshka: Option<Vec<u32>>,
    /// Texts that go before inputs, by name.
    pub prompts: BTreeMap<String, String>,
    /// The name of the one that goes before inputs of requests that name none.
    pub default_prompt: Option<String>,
    /// Which class a pair of texts is scored by; absent: pairs cannot be scored by classes.
    pub score_class: Option<u32>,
    /// Scores are wanted at these tokens alone.
    pub step_token: Option<u32>,
    /// What there is of each token beside a prompt's vector.
    pub token_outputs: Option<TokenOutputs>,
    /// A prompt must be computed in one step: its tokens see those after them.
    pub whole_prompts: bool,
    /// Longest input, where it is shorter than the model's context.
    pub max_len: Option<usize>,
}

/// What a model gives of each token behind its vector of a prompt, as columns of one output (bge-m3).
#[derive(Clone, Debug, PartialEq)]
pub struct TokenOutputs {
    /// Numbers of a token's vector, for late interaction. Behind them is its weight, for lexical matching.
    pub vector: u32,
    /// The token that prompts begin with, which has neither.
    pub bos_token: Option<u32>,
    /// The token that prompts end with, which has no weight.
    pub eos_token: Option<u32>,
}

/// What a pooling model is made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolingTask {
    /// A vector a prompt.
    Embed,
    /// A vector of each token: late interaction.
    TokenEmbed,
    /// Class scores a prompt.
    Classify,
    /// Scores of each token.
    Reward,
}

/// Which tokens' outputs become a prompt's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolingMethod {
    /// The first token's.
    Cls,
    /// The last token's.
    Last,
    /// The mean over all tokens.
    Mean,
    /// The largest of all tokens', number by number.
    Max,
    /// The sum over all tokens, divided by the root of how many there are.
    MeanSqrtLen,
    /// The mean over all tokens, the first of which counts once, the second twice, and so on.
    WeightedMean,
    /// Each token's.
    Each,
    /// `log(1 + ReLU(x))` of the largest of all tokens', number by number (SPLADE).
    SparseMax,
    /// The sum of all tokens' `log(1 + ReLU(x))`, number by number (SPLADE).
    SparseSum,
}

impl PoolingMethod {
    /// Whether it is of a masked-language head's logits.
    fn is_sparse(self) -> bool {
        matches!(self, Self::SparseMax | Self::SparseSum)
    }
}

/// What turns class scores into probabilities.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScoreActivation {
    /// Nothing: they are given as they are.
    None,
    /// Each for itself.
    Sigmoid,
    /// They sum up to one.
    Softmax,
}

/// How a model is loaded that pools.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolingPlan {
    /// What it gives.
    pub spec: PoolingSpec,
    /// The head to load: [`crate::LoadOptions::head`].
    pub head: NetworkHead,
}

/// How the model of a folder pools; absent where it generates text.
///
/// # Errors
/// Files that cannot be read, what they ask for that is not done, or a task that the model cannot be converted to.
pub fn plan(dir: &Path, options: &PoolingOptions) -> Result<Option<PoolingPlan>, LoadError> {
    let spec = arch::read(dir)?.spec;
    let files = SentenceFiles::read(dir)?;
    if options.runner == RunnerType::Generate {
        return match whole_prompts(&spec) {
            true => Err(LoadError::NotGenerating { architecture: spec.architecture }),
            false => Ok(None),
        };
    }
    let generates = matches!(spec.head, HeadSpec::Logits(_)) && !whole_prompts(&spec);
    let asked = options.runner == RunnerType::Pooling || options.convert != Conversion::Auto;
    let is_made_for_it = files.pooling.is_some() || files.embeds_tokens() || options.pooler.tokens.is_some();
    if generates && !asked && !is_made_for_it {
        return Ok(None);
    }
    let config = ConfigFile::of_model(dir)?;
    Planning { config: &config, spec: &spec, files, options }.plan().map(Some)
}

/// The linear layers among a folder's modules of sentence-transformers.
pub(crate) fn projections(dir: &Path) -> Result<Vec<ProjectionSpec>, ConfigError> {
    Ok(SentenceFiles::read(dir)?.projections)
}

/// The tokens that `classifier_from_token` of a model's `config.json` names, whose logits are class scores.
///
/// # Errors
/// A file that cannot be read, or that names other than one or two.
pub fn class_tokens(dir: &Path) -> Result<Option<Vec<ClassToken>>, LoadError> {
    let config = ConfigFile::of_model(dir)?;
    let key = "classifier_from_token";
    let Some(tokens) = config.get(key) else { return Ok(None) };
    let tokens = options::class_tokens(key, tokens).map_err(|reason| config.unsupported(key, &reason))?;
    let method = config.text_or("method", "from_2_way_softmax")?;
    match (method.as_str(), tokens.len()) {
        ("from_2_way_softmax", 2) | ("no_post_processing", _) => Ok(Some(tokens)),
        // One token needs no word on what becomes of several.
        ("from_2_way_softmax", _) if config.get("method").is_none() => Ok(Some(tokens)),
        _ => {
            Err(config.unsupported("method", "expected from_2_way_softmax of two tokens, or no_post_processing").into())
        }
    }
}

/// Whether some layer's tokens see those after them.
fn whole_prompts(spec: &ModelSpec) -> bool {
    let sees_ahead =
        |mixer: &MixerSpec| matches!(mixer, MixerSpec::Attention(spec) if spec.mask == Mask::Bidirectional);
    spec.layers.iter().any(|layer| sees_ahead(&layer.mixer))
}

/// What a plan is made of.
struct Planning<'a> {
    config: &'a ConfigFile,
    spec: &'a ModelSpec,
    files: SentenceFiles,
    options: &'a PoolingOptions,
}

impl Planning<'_> {
    fn plan(self) -> Result<PoolingPlan, LoadError> {
        let (task, head) = self.task()?;
        let pooler = &self.options.pooler;
        let method = pooler.method.or(self.files.pooling).unwrap_or_else(|| self.default_method(task));
        self.check_method(method)?;
        let labels = labels(self.config);
        let activation = match (task, pooler.activation) {
            (PoolingTask::Embed | PoolingTask::TokenEmbed, _) => ScoreActivation::None,
            (_, Some(true)) | (PoolingTask::Classify, None) => self.activation(head)?,
            (_, Some(false)) | (PoolingTask::Reward, None) => ScoreActivation::None,
        };
        let matryoshka = match (self.config.flag_or("is_matryoshka", false)?, sizes(self.config)?) {
            (_, Some(sizes)) => Some(sizes),
            (true, None) => Some(Vec::new()),
            (false, None) => None,
        };
        let by_itself = self.files.pooling.is_none() && !self.is_sparse();
        let (whole_prompts, score_class) = (whole_prompts(self.spec), self.score_class(task, head));
        let token_outputs = self.token_outputs(head)?;
        let spec = PoolingSpec {
            task,
            method,
            // Without the files of sentence-transformers, embeddings have length one, as in vLLM.
            normalize: pooler.normalize.unwrap_or(by_itself || self.files.normalize),
            activation,
            labels: if task == PoolingTask::Classify { labels } else { Vec::new() },
            matryoshka,
            prompts: self.files.prompts,
            default_prompt: self.files.default_prompt,
            score_class,
            token_outputs,
            step_token: pooler.step_token,
            whole_prompts,
            max_len: self.files.max_len,
        };
        Ok(PoolingPlan { spec, head })
    }

    /// What the model is pooled for, and the head for that.
    fn task(&self) -> Result<(PoolingTask, NetworkHead), LoadError> {
        let stored = match &self.spec.head {
            HeadSpec::Logits(_) | HeadSpec::Hidden | HeadSpec::HiddenWith(_) => PoolingTask::Embed,
            HeadSpec::Projected(_) => PoolingTask::TokenEmbed,
            HeadSpec::Classes(_) if self.is_sparse() => PoolingTask::Embed,
            HeadSpec::Classes(_) if self.spec.architecture.contains("RewardModel") => PoolingTask::Reward,
            HeadSpec::Classes(_) => PoolingTask::Classify,
        };
        let has_scores = matches!(self.spec.head, HeadSpec::Classes(_)) && !self.is_sparse();
        let architecture = || self.spec.architecture.clone();
        if let Some(tokens) = &self.options.pooler.tokens {
            let tokens = match tokens[..] {
                [ClassToken::Id(only)] => Some(ScoreTokens::One(only)),
                [ClassToken::Id(no), ClassToken::Id(yes)] => Some(ScoreTokens::Two([no, yes])),
                _ => None,
            };
            return match (tokens, self.options.convert) {
                (Some(tokens), Conversion::Auto | Conversion::Classify) => {
                    Ok((PoolingTask::Classify, NetworkHead::Tokens(tokens)))
                }
                _ => Err(LoadError::NoClasses { architecture: architecture() }),
            };
        }
        match self.options.convert {
            Conversion::Auto | Conversion::None if has_scores => Ok((stored, NetworkHead::Stored)),
            Conversion::Auto | Conversion::None | Conversion::Embed
                if stored == PoolingTask::TokenEmbed || self.is_sparse() =>
            {
                Ok((stored, NetworkHead::Stored))
            }
            Conversion::None if matches!(self.spec.head, HeadSpec::Logits(_)) => {
                Err(LoadError::NotPooling { architecture: architecture() })
            }
            Conversion::Auto | Conversion::None | Conversion::Embed if self.files.embeds_tokens() => {
                Ok((PoolingTask::TokenEmbed, NetworkHead::Projected))
            }
            Conversion::Auto | Conversion::None | Conversion::Embed if !self.files.projections.is_empty() => {
                Ok((PoolingTask::Embed, NetworkHead::Projected))
            }
            Conversion::Auto | Conversion::None | Conversion::Embed => match &self.spec.head {
                HeadSpec::HiddenWith(_) => Ok((PoolingTask::Embed, NetworkHead::Stored)),
                _ => Ok((PoolingTask::Embed, NetworkHead::Hidden)),
            },
            Conversion::Classify if has_scores => Ok((PoolingTask::Classify, NetworkHead::Stored)),
            Conversion::Reward if has_scores => Ok((PoolingTask::Reward, NetworkHead::Stored)),
            Conversion::Reward => Ok((PoolingTask::Reward, NetworkHead::Hidden)),
            Conversion::Classify => Err(LoadError::NoClasses { architecture: architecture() }),
        }
    }

    /// Whether the head's logits become one sparse vector.
    fn is_sparse(&self) -> bool {
        matches!(&self.spec.head, HeadSpec::Classes(classes) if classes.of == ScoredTokens::AllSparse)
    }

    fn score_class(&self, task: PoolingTask, head: NetworkHead) -> Option<u32> {
        match (&self.spec.head, head) {
            (_, NetworkHead::Tokens(ScoreTokens::One(_))) => Some(0),
            (_, NetworkHead::Tokens(ScoreTokens::Two(_))) => Some(1),
            (HeadSpec::Classes(classes), NetworkHead::Stored) if task == PoolingTask::Classify => {
                (classes.count == 1).then_some(0)
            }
            _ => None,
        }
    }

    fn token_outputs(&self, head: NetworkHead) -> Result<Option<TokenOutputs>, ConfigError> {
        let (HeadSpec::HiddenWith(layers), NetworkHead::Stored) = (&self.spec.head, head) else { return Ok(None) };
        let token = |key| self.config.token_ids(key).map(|ids| ids.first().copied());
        let vector = layers.first().map_or(0, |layer| layer.outputs as u32);
        Ok(Some(TokenOutputs { vector, bos_token: token("bos_token_id")?, eos_token: token("eos_token_id")? }))
    }

    /// Linear layers come after pooling; what is pooled on the host afterwards cannot go through them. Logits of a
    /// masked-language head are pooled as SPLADE's, and nothing else is.
    fn check_method(&self, method: PoolingMethod) -> Result<(), ConfigError> {
        if method.is_sparse() != self.is_sparse() {
            let reason = "SPLADE's pooling, and no other, goes with a masked-language head (BertForMaskedLM, \
                          DistilBertForMaskedLM)";
            return Err(self.config.unsupported("architectures", reason));
        }
        let on_host = matches!(method, PoolingMethod::Max | PoolingMethod::MeanSqrtLen | PoolingMethod::WeightedMean);
        match on_host && !self.files.projections.is_empty() {
            true => Err(self.config.unsupported("modules.json", "a Dense module takes cls, mean or lasttoken pooling")),
            false => Ok(()),
        }
    }

    fn default_method(&self, task: PoolingTask) -> PoolingMethod {
        match (&self.spec.head, task) {
            (HeadSpec::Classes(classes), PoolingTask::Classify) => match classes.of {
                ScoredTokens::First => PoolingMethod::Cls,
                ScoredTokens::Last => PoolingMethod::Last,
                ScoredTokens::Mean => PoolingMethod::Mean,
                ScoredTokens::Each => PoolingMethod::Each,
                ScoredTokens::AllSparse => PoolingMethod::SparseMax,
            },
            _ if self.is_sparse() => PoolingMethod::SparseMax,
            (_, PoolingTask::Reward | PoolingTask::TokenEmbed) => PoolingMethod::Each,
            (HeadSpec::Logits(_), PoolingTask::Classify) => PoolingMethod::Last,
            _ if whole_prompts(self.spec) => PoolingMethod::Cls,
            _ => PoolingMethod::Last,
        }
    }

    /// As `problem_type` and the files of cross encoders say, else by the number of classes.
    fn activation(&self, head: NetworkHead) -> Result<ScoreActivation, ConfigError> {
        let classes = match (&self.spec.head, head) {
            (_, NetworkHead::Tokens(ScoreTokens::One(_))) => return Ok(ScoreActivation::Sigmoid),
            (HeadSpec::Classes(classes), _) => classes,
            _ => return Ok(ScoreActivation::Softmax),
        };
        let of_encoders = self.config.object("sentence_transformers")?;
        let named = match of_encoders {
            Some(of_encoders) => of_encoders.text_opt("activation_fn")?,
            None => self.config.text_opt("sbert_ce_default_activation_function")?,
        };
        if let Some(name) = named {
            return match name.rsplit('.').next() {
                Some("Identity") => Ok(ScoreActivation::None),
                Some("Sigmoid") => Ok(ScoreActivation::Sigmoid),
                Some("Softmax") => Ok(ScoreActivation::Softmax),
                _ => Err(self.config.unsupported("sentence_transformers", "expected Identity, Sigmoid or Softmax")),
            };
        }
        match self.config.text_opt("problem_type")?.as_deref() {
            Some("regression") => Ok(ScoreActivation::None),
            Some("multi_label_classification") => Ok(ScoreActivation::Sigmoid),
            _ if classes.count == 1 => Ok(ScoreActivation::Sigmoid),
            _ => Ok(ScoreActivation::Softmax),
        }
    }
}

/// `id2label`, by number; empty where the file names none, or not all.
fn labels(config: &ConfigFile) -> Vec<String> {
    let Some(named) = config.get("id2label").and_then(|labels| labels.as_object()) else { return Vec::new() };
    let labels: Option<Vec<String>> =
        (0..named.len()).map(|number| Some(named.get(&number.to_string())?.as_str()?.to_owned())).collect();
    labels.unwrap_or_default()
}

/// `matryoshka_dimensions`, if the file has them.
fn sizes(config: &ConfigFile) -> Result<Option<Vec<u32>>, ConfigError> {
    let Some(sizes) = config.numbers_opt("matryoshka_dimensions")? else { return Ok(None) };
    if sizes.is_empty() || sizes.iter().any(|size| *size < 1.0 || size.fract() != 0.0) {
        return Err(config.unsupported("matryoshka_dimensions", "expected a list of sizes"));
    }
    Ok(Some(sizes.into_iter().map(|size| size as u32).collect()))
}

#[cfg(test)]
mod tests;
